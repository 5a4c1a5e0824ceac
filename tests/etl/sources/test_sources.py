from __future__ import annotations

import functools
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from etl_pictures import write_image

from lakelens.errors import InvalidArgumentError, UnknownLayoutError
from lakelens.etl.files import (
    IMAGE_SUFFIXES,
    Wanted,
    are_numbered,
    check_class_folders,
    check_layout,
    class_of_folder,
    class_of_parts,
    list_below,
    list_top,
    local_path,
    local_uri,
    number_of_folder,
    visit,
)

pytestmark = pytest.mark.unit


def listed(root) -> tuple[list[str], dict[str, str]]:
    """Names of the files found, and reasons by name of what was passed over."""
    entries = []
    for path in sorted(root.iterdir()):
        name, stat = os.fsencode(path.name), functools.partial(os.stat, path)
        entries += visit(os.fsencode(path), (name,), stat, frozenset(), IMAGE_SUFFIXES)
    files = [os.fsdecode(b"/".join(entry.parts)) for entry in entries if entry.ignored is None]
    return files, {os.fsdecode(b"/".join(entry.parts)): entry.ignored for entry in entries if entry.ignored}


def test_every_file_is_found_or_passed_over_with_a_reason(tmp_path):
    images = ["3.jpeg", "cat/1.jpg", "cat/_MG_0001.jpg", "cat/a.b.webp", "cat/deep/er/2.PNG", "cat/t.TIF"]
    others = ("cat/RENAME2", "cat/jpg", "cat/1.jpg.bak", "cat/Thumbs.db", "cat/.hidden.jpg", "__MACOSX/4.jpg")
    for name in (*images, *others):
        write_image(tmp_path / name)
    (tmp_path / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    files, ignored = listed(tmp_path)
    assert sorted(files) == images
    assert ignored == {
        **dict.fromkeys(("cat/RENAME2", "cat/jpg", "cat/1.jpg.bak"), "not_an_image_name"),
        "cat/Thumbs.db": "hidden",
        "cat/.hidden.jpg": "hidden",
        "__MACOSX": "hidden",
        "cat/gone.jpg": "broken_link",
        "cat/pipe.jpg": "special_file",
    }


def test_a_path_that_is_too_long_is_no_broken_link(tmp_path):
    """A path of more than 4,096 bytes, which the kernel takes piece by piece alone."""
    name = "d" * 250
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):
        os.mkdir(name, dir_fd=here)
        here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    files, ignored = listed(tmp_path)
    assert files == []
    assert list(ignored.values()) == ["path_too_long"]
    (tmp_path / "link.jpg").symlink_to("x" * 256)
    assert listed(tmp_path)[1]["link.jpg"] == "path_too_long"


def test_symbolic_links_are_followed_and_loops_are_passed_over(tmp_path):
    write_image(tmp_path / "store" / "1.jpg")
    source = tmp_path / "source"
    source.mkdir()
    (source / "cat").symlink_to(tmp_path / "store", target_is_directory=True)
    (source / "one.jpg").symlink_to(tmp_path / "store" / "1.jpg")
    (source / "dog").mkdir()
    (source / "dog" / "up").symlink_to(source / "dog", target_is_directory=True)
    (source / "dog" / "self.jpg").symlink_to(source / "dog" / "self.jpg")
    files, ignored = listed(source)
    assert files == ["cat/1.jpg", "one.jpg"]
    assert ignored == {"dog/up": "link_loop", "dog/self.jpg": "broken_link"}


def test_a_link_to_the_source_folder_itself_is_a_loop(tmp_path):
    write_image(tmp_path / "cat" / "1.jpg")
    write_image(tmp_path / "dog" / "1.jpg")
    (tmp_path / "cat" / "all").symlink_to("..", target_is_directory=True)
    (tmp_path / "here").symlink_to(".", target_is_directory=True)
    root = os.fsencode(tmp_path)
    found = list_below(root, list_top(root).names, Wanted("class_folders"))
    ignored = {str(Path(os.fsdecode(local_path(file.path))).relative_to(tmp_path)): file.ignored for file in found}
    assert ignored == {"cat/1.jpg": None, "cat/all": "link_loop", "dog/1.jpg": None, "here": "link_loop"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_counted(tmp_path):
    (tmp_path / "cat").mkdir(mode=0o000)
    try:
        assert listed(tmp_path) == ([], {"cat": "unreadable_folder"})
    finally:
        (tmp_path / "cat").chmod(0o700)


@pytest.mark.parametrize(
    "name", ["a b.jpg", "100%.jpg", "%41.jpg", "ü犬😀.jpg", "a#b?c.jpg", "a[1]*{x}.jpg", "a\nb.jpg", "'`\".jpg"]
)
def test_any_name_survives_as_a_uri(name):
    path = os.fsencode("/data/" + name)
    uri = local_uri(path)
    assert uri.startswith("file:///data/")
    assert uri.isascii()
    assert " " not in uri
    assert local_path(uri) == path


def test_a_name_that_is_not_utf8_and_hadoops_short_form_of_a_uri_are_paths():
    assert local_path(local_uri(b"/data/\xff\xfe.jpg")) == b"/data/\xff\xfe.jpg"
    assert local_path("file:/a/b%20c.jpg") == local_path("file:///a/b%20c.jpg") == b"/a/b c.jpg"


@pytest.mark.parametrize(
    ("folder", "name", "number"),
    [
        ("001.ak47", "ak47", 1),
        ("257.clutter", "clutter", 257),
        ("cat", "cat", None),
        ("12.cat", "12.cat", None),
        ("3.5mm.jack", "3.5mm.jack", None),
        ("007.", "007.", None),
        (f"{2**31 - 1}.cat", "cat", 2**31 - 1),
        (f"{2**31}.cat", "cat", None),  # no row can hold it
    ],
)
def test_a_numbered_folder_names_its_class_without_the_number_and_gives_it(folder, name, number):
    assert (class_of_folder(folder, keep_name=False), number_of_folder(folder)) == (name, number)
    assert class_of_folder(folder, keep_name=True) == folder


@pytest.mark.parametrize(
    ("folders", "numbered"),
    [
        (["001.ak47", "002.american-flag", "257.clutter"], True),
        (["2001.été", "2002.犬"], True),
        (["001.ak47"], True),
        (["001.ak47", "cat"], False),
        (["001.ak47", "0002.cat"], False),
        (["001.ak47", "001.cat"], False),
        (["2024.01", "2024.02"], False),
        (["001.2", "002.cat"], False),
        (["12.cat", "13.dog"], False),
        ([], False),
    ],
)
def test_numbers_of_folders_count_classes_where_all_have_one_as_in_caltech_256(folders, numbered):
    assert are_numbered(folders) == numbered
    assert Wanted("class_folders").decided([*folders, ".cache", "__MACOSX"]).keep_names == (not numbered)
    for fixed in (False, True):  # the recipe of a table
        assert Wanted("class_folders", keep_names=fixed).decided(folders).keep_names == fixed


@pytest.mark.parametrize(
    ("path", "layout", "keep_names", "name"),
    [
        ("056.dog/greg/1.jpg", "class_folders", False, "dog"),
        ("056.dog/greg/1.jpg", "class_folders", True, "056.dog"),
        ("animals/dog/1.jpg", "nested_class_folders", True, "animals/dog"),
        ("001.pets/2019.holiday/003.cat/1.jpg", "nested_class_folders", False, "pets/2019.holiday/003.cat"),
        ("1.jpg", "class_folders", True, None),
        ("1.jpg", "nested_class_folders", True, None),
    ],
)
def test_the_class_is_the_first_folder_or_all_of_them_of_which_the_first_may_lose_its_number(
    path, layout, keep_names, name
):
    assert class_of_parts(path.split("/"), layout, keep_names=keep_names) == name


@pytest.mark.parametrize(
    ("layout", "folders", "words"),
    [
        ("class_folders", ["dog", "001.cat", "cat/deep"], ("'001.cat' and 'cat'", "--keep-folder-names")),
        ("class_folders", ["cafe\u0301/a", "caf\u00e9"], ("rename or merge",)),
        ("nested_class_folders", ["001.pets/cat", "002.pets/cat"], ("'001.pets/cat' and '002.pets/cat'",)),
        ("nested_class_folders", ["pets/big cat", "pets/big  cat"], ("the class 'pets/big cat'", "rename or merge")),
    ],
)
def test_two_folders_of_one_class_are_refused(layout, folders, words):
    with pytest.raises(InvalidArgumentError) as caught:
        check_class_folders([folder.split("/") for folder in folders], layout, keep_names=False)
    assert all(word in str(caught.value) for word in words)
    assert ("--keep-folder-names" in str(caught.value)) == ("001" in str(folders))
    check_class_folders([["a", "b"], ["a", "c"], ["a", "b"]], layout, keep_names=False)


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("pets/big cat/1.jpg", "pets/big  cat/2.jpg", True),
        ("pets/caf\u00e9/deep/1.jpg", "pets/cafe\u0301/deep/2.jpg", True),
        ("pets/big cat/1.jpg", "pets/big  cat/notes.txt", False),
    ],
)
def test_two_folders_of_images_below_a_folder_that_are_one_class_are_refused(tmp_path, one, other, refused):
    write_image(tmp_path / one)
    (tmp_path / other).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / other).touch()
    wanted = Wanted("nested_class_folders").decided(["pets"])
    with pytest.raises(InvalidArgumentError, match="both name the class") if refused else nullcontext():
        assert len(list(list_below(os.fsencode(tmp_path), [b"pets"], wanted))) == 2


def test_an_unknown_layout_is_refused_with_those_that_exist():
    with pytest.raises(UnknownLayoutError, match=r"'class-folders'.*class_folders"):
        check_layout("class-folders")
