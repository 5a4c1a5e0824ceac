"""Small tables with several versions, written without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from lakelens.etl.commit.known_classes import record_classes
from lakelens.etl.commit.transaction import write_note
from lakelens.table import Table

NUMBERS = {"cat": 0, "dog": 1, "cow": 2}


def images(**classes: list[str]) -> pa.Table:
    """Rows by class: each text is a path, with `path=content` where the content is not the path."""
    rows = [(text.split("=")[0], text, name) for name, texts in classes.items() for text in texts]
    path, content, name = ([row[i] for row in rows] for i in range(3))
    return pa.table({"path": path, "content_hash": content, "label_name": name})


def write(
    table: Path, rows: pa.Table, mode: str = "append", counts: dict[str, int] | None = None, **options: Any
) -> None:
    """Writes one version with the note of an ingest, and records the rows that the table has then."""
    note = write_note("ingest", batch_id="b1", source="/photos", user="ann")
    properties = CommitProperties(custom_metadata={"userMetadata": note})
    write_deltalake(str(table), rows, mode=mode, commit_properties=properties, **options)
    if counts is not None:
        record_classes(Table.of(table), DeltaTable(str(table)).version(), counts, NUMBERS)


def three_versions(folder: Path) -> Path:
    """Version 0: two cats and a dog. Version 1: two more dogs. Version 2: all rewritten, one gone, one changed."""
    place = folder / "a table, 100%"
    write(place, images(cat=["c1", "c2"], dog=["d1"]), counts={"cat": 2, "dog": 1})
    write(place, images(dog=["d2", "d3"]), counts={"cat": 2, "dog": 3})
    last = images(cat=["c1", "c2=new"], dog=["d2", "d3"], cow=["w1"])
    write(place, last, mode="overwrite", counts={"cat": 2, "dog": 2, "cow": 1})
    return place


def commit(table: Path, *actions: dict[str, Any]) -> int:
    """Puts a commit of these actions into the log, as another writer would; returns its number."""
    log = table / "_delta_log"
    number = max(int(path.stem) for path in log.glob("[0-9]*.json")) + 1
    (log / f"{number:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    return number


def change_log(table: Path, version: int, action: str, **fields: Any) -> None:
    """Changes fields of an action of a commit, as another writer would have written them."""
    log = table / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for one in actions:
        one.get(action, {}).update(fields)
    log.write_text("".join(json.dumps(one) + "\n" for one in actions))


def set_configuration(table: Path, version: int, **properties: str) -> None:
    """Changes the properties in the `metaData` of a commit; dots are written as `__`."""
    log = table / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] |= {name.replace("__", "."): text for name, text in properties.items()}
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")
