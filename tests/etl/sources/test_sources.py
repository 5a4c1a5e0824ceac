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
    ListedFile,
    Wanted,
    are_numbered,
    check_class_folders,
    check_layout,
    class_of_folder,
    class_of_parts,
    has_suffix,
    is_hidden,
    list_below,
    list_top,
    local_path,
    local_uri,
    number_of_folder,
    visit,
)
from lakelens.etl.sources.folders import folder_batch
from lakelens.etl.sources.source import LABEL_RANK

pytestmark = pytest.mark.unit


def visited(path: bytes, name: bytes):
    return visit(path, (name,), functools.partial(os.stat, path), frozenset(), IMAGE_SUFFIXES)


def listed(root) -> tuple[list[str], dict[str, str]]:
    """Names of the files found, and reasons by name of what was passed over."""
    names = sorted(path.name for path in root.iterdir())
    entries = [entry for name in names for entry in visited(os.fsencode(root / name), os.fsencode(name))]
    files = [os.fsdecode(b"/".join(entry.parts)) for entry in entries if entry.ignored is None]
    return files, {os.fsdecode(b"/".join(entry.parts)): entry.ignored for entry in entries if entry.ignored}


def test_every_file_is_found_or_passed_over_with_a_reason(tmp_path):
    for name in ("cat/1.jpg", "cat/deep/er/2.PNG", "cat/_MG_0001.jpg", "3.jpeg"):
        write_image(tmp_path / name)
    for name in ("cat/RENAME2", "cat/Thumbs.db", "cat/.hidden.jpg", "cat/notes.txt", "__MACOSX/4.jpg"):
        write_image(tmp_path / name)
    (tmp_path / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    files, ignored = listed(tmp_path)
    assert files == ["3.jpeg", "cat/1.jpg", "cat/_MG_0001.jpg", "cat/deep/er/2.PNG"]
    assert ignored == {
        "cat/RENAME2": "not_an_image_name",
        "cat/notes.txt": "not_an_image_name",
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


def test_a_number_that_no_row_can_hold_gives_no_rank():
    rows = [
        ListedFile(
            "file:///a",
            1,
            2,
            "cat",
            Wanted("class_folders", keep_names=False).rank_of(["20240101123456.cat", "a"]),
            None,
        )
    ]
    assert folder_batch(rows).column(LABEL_RANK).to_pylist() == [None]


def test_the_class_is_the_first_folder_or_all_of_them():
    assert class_of_parts(["056.dog", "greg", "1.jpg"], "class_folders", keep_names=False) == "dog"
    assert class_of_parts(["056.dog", "greg", "1.jpg"], "class_folders", keep_names=True) == "056.dog"
    assert class_of_parts(["animals", "dog", "1.jpg"], "nested_class_folders", keep_names=True) == "animals/dog"
    assert class_of_parts(["1.jpg"], "class_folders", keep_names=True) is None
    assert class_of_parts(["1.jpg"], "nested_class_folders", keep_names=True) is None


def test_only_the_folders_that_count_classes_lose_their_numbers():
    parts = ["001.pets", "2019.holiday", "003.cat", "1.jpg"]
    assert class_of_parts(parts, "nested_class_folders", keep_names=False) == "pets/2019.holiday/003.cat"
    assert class_of_parts(parts, "class_folders", keep_names=False) == "pets"


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
        ("pets/big cat/1.jpg", "pets/big cat/2.jpg", False),
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
    with pytest.raises(UnknownLayoutError) as caught:
        check_layout("class-folders")
    assert "'class-folders'" in str(caught.value)
    assert "class_folders" in str(caught.value)


def test_names_say_what_is_an_image():
    images, others = (
        ["a.jpg", "a.JPEG", "a.b.png", ".jpg", "a.webp", "a.TIF"],
        ["jpg", "RENAME2", "a.jpg.bak", "a.mp4", ""],
    )
    assert [name for name in (*images, *others) if has_suffix(name, IMAGE_SUFFIXES)] == images
    assert is_hidden("Thumbs.db")
    assert not is_hidden("_MG_0001.jpg")
