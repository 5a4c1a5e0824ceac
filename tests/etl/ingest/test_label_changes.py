"""Rules of classes that change: vanished and renamed ones, and images in two classes, are told after an ingest."""

from __future__ import annotations

import json
import shutil

import pytest
from etl_pictures import write_image

from lakelens.etl.changes import planner
from lakelens.etl.ingest import label_changes
from lakelens.etl.ingest.label_changes import (
    ClassChanges,
    Conflict,
    Rename,
    find_renames,
)
from lakelens.etl.ingest.landing import ingest_available
from lakelens.etl.ingest.results import IngestRequest
from lakelens.etl.ingest.run import ingest
from lakelens.etl.sources.source import Source
from lakelens.table import Table

RECIPE = {"size": 32, "splits": {"train": 1.0}}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("vanished", "new", "moved", "renames"),
    [
        ({"ak47": 7}, {"AK-47"}, {}, [("ak47", "AK-47", "spelling", 0)]),
        ({"big cat": 7}, {"big_cat"}, {}, [("big cat", "big_cat", "spelling", 0)]),
        ({"Straße": 7}, {"STRASSE"}, {}, [("Straße", "STRASSE", "spelling", 0)]),
        ({"+": 3}, {"-"}, {}, []),  # names without letters are not alike
        ({"dog": 10}, {"hound", "cat"}, {("dog", "hound"): 9, ("dog", "cat"): 1}, [("dog", "hound", "content", 9)]),
        ({"dog": 10}, {"cat"}, {("dog", "cat"): 3}, []),  # a few images
        ({"dog": 10, "hound": 10}, {"cat"}, {("dog", "hound"): 10}, []),  # to a class that is gone too
    ],
)
def test_a_class_is_renamed_if_its_name_is_alike_or_its_images_came_back(vanished, new, moved, renames):
    assert find_renames(vanished, new, moved) == tuple(Rename(*rename) for rename in renames)


@pytest.mark.unit
def test_hundreds_of_vanished_classes_are_said_in_a_few_lines():
    lines = list(ClassChanges(tuple(f"class {number}" for number in range(257))).sentences())
    assert len(lines) == 2
    assert "'class 9' and 247 more" in lines[0]


@pytest.mark.unit
def test_renamed_classes_beyond_the_first_are_counted():
    renamed = tuple(Rename(f"old {number}", f"new {number}", "spelling", 0) for number in range(12))
    lines = list(ClassChanges(tuple(rename.old for rename in renamed), renamed).sentences())
    assert len(lines) == 12
    assert "besides these, 2 of the vanished classes" in lines[10]


@pytest.mark.unit
def test_each_class_is_spelled_out_once_however_many_are_renamed(monkeypatch):
    asked = []
    spelling = label_changes._spelling
    monkeypatch.setattr(label_changes, "_spelling", lambda name: asked.append(name) or spelling(name))
    renames = find_renames({f"a-{n}": 1 for n in range(300)}, {f"A {n}" for n in range(300)}, {})
    assert renames == tuple(Rename(f"a-{n}", f"A {n}", "spelling", 0) for n in range(300))
    assert len(asked) == 600


@pytest.mark.unit
def test_images_in_several_classes_or_splits_are_said_with_a_file_of_each():
    of_classes = Conflict("ab", ("cat", "dog"), ("file:/cat/1.jpg", "file:/dog/7.jpg"))
    of_splits = Conflict("ab", ("test", "train"), ("file:/1.jpg", "file:/7.jpg"))
    (classes,) = ClassChanges(conflicts=3, examples=(of_classes,)).sentences()
    assert "3" in classes
    assert "'cat' (file:/cat/1.jpg), 'dog' (file:/dog/7.jpg)" in classes
    (splits,) = ClassChanges(split_conflicts=2, split_examples=(of_splits,)).sentences()
    assert "several splits with the same bytes: 2, such as 'test' (file:/1.jpg), 'train' (file:/7.jpg)" in splits
    assert list(ClassChanges().sentences()) == []


def write(root, **classes):
    for name, seeds in classes.items():
        for seed in seeds:
            write_image(root / name / f"{seed:04d}.jpg", seed=seed)
    return root


def asked(source, **options):
    return IngestRequest(Source(source), {}, **options)


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory):
    """A folder whose classes change between two ingests; the copies of the table are of the state before they do."""
    root = tmp_path_factory.mktemp("classes")
    source = write(
        root / "source", cat=range(4), dog=range(10, 14), cow=range(20, 22), fox=range(60, 64), gnu=[50], yak=[50]
    )
    place = Table(str(root / "t"))
    told = {"first": ingest(spark, place, IngestRequest(Source(source), RECIPE))}
    copies = {name: Table(str(root / name)) for name in ("manifest", "stream")}
    for copy in copies.values():
        shutil.copytree(place.location, copy.location)
    other = write(root / "other", cow=range(30, 32))  # a class lives on in another source
    told["other"] = ingest(spark, place, asked(other))

    (source / "cat").rename(source / "kitten")
    shutil.rmtree(source / "dog")
    shutil.rmtree(source / "cow")
    write(source, ape=[40], bee=[40, 41])
    told["changed"] = ingest(spark, place, asked(source))
    told["again"] = ingest(spark, place, asked(source))
    told["removed"] = ingest(spark, place, asked(source, delete_missing=True))
    told["settled"] = ingest(spark, place, asked(source))
    return {"source": source, **copies, **told}


def pairs_of(changes):
    return {(example.names, tuple(path.split("/")[-2] for path in example.paths)) for example in changes.examples}


@pytest.mark.spark
def test_a_renamed_class_a_vanished_one_and_an_image_in_two_are_told_with_the_commit(story):
    assert story["other"].class_changes == ClassChanges()
    assert story["changed"].new_classes == ("ape", "bee", "kitten")
    changes = story["changed"].class_changes
    assert changes.vanished == ("cat", "dog")
    assert changes.renamed == (Rename("cat", "kitten", "content", 4),)
    # The rows of `cat` are kept: each of its images is in both classes now.
    assert changes.conflicts == 5
    assert pairs_of(changes) == {(("cat", "kitten"),) * 2, (("ape", "bee"),) * 2}

    again = story["again"].class_changes  # nothing is committed, and the classes are still lost
    assert (again.vanished, again.renamed, again.conflicts) == (changes.vanished, changes.renamed, 0)
    assert story["removed"].class_changes.vanished == ("cat", "dog")
    assert story["settled"].class_changes == ClassChanges()


@pytest.mark.spark
def test_the_first_ingest_of_a_table_tells_an_image_in_two_classes(story):
    changes = story["first"].class_changes
    assert (changes.vanished, changes.renamed, changes.conflicts) == ((), (), 1)
    assert changes.examples[0].names == ("gnu", "yak")


@pytest.mark.spark
def test_a_class_renamed_by_a_manifest_and_equal_images_in_two_splits_are_told(spark, story, tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "content_hashes", None)  # what is said otherwise is changed, whatever it holds
    manifest = tmp_path / "manifest.jsonl"
    lines = [json.dumps({"path": f"fox/{seed:04d}.jpg", "label": "lynx"}) for seed in range(60, 64)]
    twins = (("gnu", "train"), ("yak", "test"))
    lines += [json.dumps({"path": f"{name}/0050.jpg", "label": name, "split": split}) for name, split in twins]
    manifest.write_text("\n".join(lines) + "\n")
    request = IngestRequest(Source(manifest, "manifest", images=str(story["source"])), RECIPE)
    changes = ingest(spark, story["manifest"], request).class_changes
    assert changes.vanished == ("fox",)
    assert changes.renamed == (Rename("fox", "lynx", "content", 4),)
    assert changes.conflicts == 1
    assert changes.split_conflicts == 1
    assert changes.split_examples[0].names == ("test", "train")
    assert [path.split("/")[-2] for path in changes.split_examples[0].paths] == ["yak", "gnu"]


@pytest.mark.spark
def test_a_landing_folder_that_is_emptied_loses_no_class_and_tells_images_in_two(spark, story):
    result = ingest_available(spark, story["stream"], IngestRequest(Source(story["source"]), RECIPE), 4)
    changes = result.class_changes
    assert len(result.batches) == 2
    assert (changes.vanished, changes.renamed, changes.conflicts) == ((), (), 5)
    assert pairs_of(changes) == {(("cat", "kitten"),) * 2, (("ape", "bee"),) * 2}
