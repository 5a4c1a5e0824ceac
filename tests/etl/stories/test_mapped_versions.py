"""Versions of tables with column mapping, and versions from before it: listed, counted and compared without a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from version_tables import images, write

from lakelens import ImageTable
from lakelens.errors import NotAnImageTableError

pytestmark = pytest.mark.unit

MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"}


def map_columns(table: Path, version: int, **names: str) -> None:
    """Rewrites a commit as that of a writer with column mapping: `names` are the stored names of some columns."""
    commit = table / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    logical = {stored: name for name, stored in names.items()}
    for action in actions:
        if "metaData" in action:
            metadata = action["metaData"]
            schema = json.loads(metadata["schemaString"])
            for number, field in enumerate(schema["fields"], start=1):
                stored = field["name"]
                field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
                field["name"] = logical.get(stored, stored)
            metadata["schemaString"] = json.dumps(schema)
            metadata["partitionColumns"] = [logical.get(name, name) for name in metadata["partitionColumns"]]
            metadata["configuration"] |= MAPPED
    actions.append({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})
    commit.write_text("\n".join(map(json.dumps, actions)) + "\n")


def two_versions(place: Path, **names: str) -> Path:
    """Version 0: two cats and a dog. Version 1, mapped: a cat less, a cow more, and stored names of their own."""
    split = ["train", "train", "test"]
    first = images(cat=["c1", "c2"], dog=["d1"])
    write(place, first.append_column("split", [split]), counts={"cat": 2, "dog": 1}, partition_by=["split"])
    second = images(cat=["c1"], dog=["d1=new"], cow=["w1"]).append_column("split", [["train", "train", "train"]])
    second = second.rename_columns(["col-1", "content_hash", "col-2", "col-3"])
    options = {"partition_by": ["col-3"], "schema_mode": "overwrite"}
    write(place, second, mode="overwrite", counts={"cat": 1, "dog": 1, "cow": 1}, **options)
    map_columns(place, 1, path="col-1", split="col-3", **names)
    return place


def test_versions_before_and_after_the_mapping_are_listed_counted_and_compared(tmp_path):
    images = ImageTable(None, two_versions(tmp_path / "t", label_name="col-2"))
    assert [(entry.version, entry.rows) for entry in images.history()] == [(1, 3), (0, 3)]
    assert images.history()[0].class_counts == {"cat": 1, "dog": 1, "cow": 1}
    assert (images.version, images.class_counts(0)) == (1, {"cat": 2, "dog": 1, "cow": 0})
    assert images.class_counts() == {"cat": 1, "cow": 1, "dog": 1}
    found = images.diff(0)
    assert (found.added, found.removed, found.content, found.split) == ({"cow": 1}, {"cat": 1}, {"dog": 1}, {"dog": 1})


def test_a_column_that_somebody_has_renamed_is_named_with_the_way_back(tmp_path):
    table = ImageTable(None, two_versions(tmp_path / "t", klass="col-2"))
    with pytest.raises(NotAnImageTableError, match=r"@1 has no column 'label_name'.*klass.*RENAME COLUMN"):
        table.diff(0)
