"""Compares a source's files with what is known of them, path by path; knows no Spark.

`spark_plan` says the same in SQL, for what one machine should not do alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..files.class_folders import ListedFile
from ..files.walk import NOT_LOOKED_INTO
from ..model import schema
from ..model.labels import NO_CLASS
from ..quarantine.table import RETRIED_REASONS
from .ingest_plan import CHANGED, GONE, KNOWN, NEW


class StoredFile(NamedTuple):
    """What the image table knows of a file; times in microseconds since 1970."""

    length: int | None
    modified_us: int | None
    annotation_hash: str | None
    content_hash: str | None
    label_name: str | None


class BadFile(NamedTuple):
    """What the quarantine knows of a file."""

    length: int | None
    modified_us: int | None
    annotation_hash: str | None
    reason: str | None


class Stamp(NamedTuple):
    """A further size and time of a stored file, and the content that it had then."""

    length: int | None
    modified_us: int | None
    content_hash: str | None


@dataclass(frozen=True)
class KnownFiles:
    """All that is known, by path.

    Attributes:
        stored: Rows of the table.
        bad: Rows of its quarantine.
        stamps: Rows of its stamps.
    """

    stored: Mapping[str, StoredFile] = field(default_factory=dict)
    bad: Mapping[str, BadFile] = field(default_factory=dict)
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


class ComparedFile(NamedTuple):
    """One file with what is to be done about it; the columns of `Plan.files`."""

    path: str
    length: int | None
    modified_us: int | None
    label_name: str | None
    label_rank: int | None
    status: str
    in_quarantine: bool
    stored_hash: str | None
    stored_class: str | None
    touched: bool = False


@dataclass(frozen=True)
class Comparison:
    """The outcome for all files.

    Attributes:
        files: Those of which there is more to say than that they are known.
        known: Number of the others, by the class that the source gives and the class that is stored.
        ignored: Number of things passed over, by reason.
    """

    files: list[ComparedFile]
    known: Counter[tuple[str | None, str | None]]
    ignored: Counter[str]


def plainly_known(
    listed: Sequence[ListedFile], stored: pa.Table, others: Container[str]
) -> tuple[list[ListedFile], pa.Table, Counter[tuple[str | None, str | None]]]:
    """Takes out the files whose row has just their size and time, which are nearly all, a hundred times as fast.

    Args:
        listed: What a folder holds.
        stored: The table: `path`, `source_length`, `source_modified`, `annotation_hash` and `label_name`.
        others: Paths that something else is known of.

    Returns:
        The other files and the other rows, for `compare`, and the number of those that were taken out, by the class
        that the source gives and the class that is stored.
    """
    paths = stored.column(schema.PATH).combine_chunks()
    if pc.count_distinct(paths).as_py() != len(paths):
        return list(listed), stored, Counter()  # several rows of one file: it takes all of them to know which counts
    listed_paths = pa.array([file.path for file in listed], pa.string())
    row_of = pc.index_in(listed_paths, value_set=paths).fill_null(-1).to_numpy()
    in_table = np.flatnonzero(row_of >= 0)
    rows = row_of[in_table]
    is_same = stored.column(schema.ANNOTATION_HASH).is_null().to_numpy()[rows]
    lengths, times = [file.length for file in listed], [file.modified_us for file in listed]
    for name, values in ((schema.SOURCE_LENGTH, lengths), (schema.SOURCE_MODIFIED, times)):
        column = stored.column(name).combine_chunks()
        is_same &= column.fill_null(0).to_numpy()[rows] == np.array(values, dtype=np.int64)[in_table]
        is_same &= column.is_valid().to_numpy(zero_copy_only=False)[rows]
    is_plain = [file.ignored is None and file.path not in others for file in listed]
    is_same &= np.array(is_plain, dtype=np.bool_)[in_table]
    taken, their_rows = in_table[is_same], rows[is_same]
    listed_classes = pa.array([file.label_name for file in listed], pa.string()).take(pa.array(taken))
    counts = _count_pairs(listed_classes, stored.column(schema.LABEL_NAME).combine_chunks().take(pa.array(their_rows)))
    left, left_rows = np.ones(len(listed), dtype=np.bool_), np.ones(len(paths), dtype=np.bool_)
    left[taken] = left_rows[their_rows] = False
    return list(itertools.compress(listed, left)), stored.filter(pa.array(left_rows)), counts


def _count_pairs(one: pa.Array, other: pa.Array) -> Counter[tuple[str | None, str | None]]:
    """Counts the pairs of values of two arrays of text."""
    codes = [array.dictionary_encode(null_encoding="encode") for array in (one, other)]
    values = [encoded.dictionary.to_pylist() for encoded in codes]
    first, second = (encoded.indices.to_numpy().astype(np.int64) for encoded in codes)
    pairs, counts = np.unique(first * max(1, len(values[1])) + second, return_counts=True)
    found = (divmod(pair, max(1, len(values[1]))) for pair in pairs.tolist())
    return Counter({(values[0][i], values[1][j]): count for (i, j), count in zip(found, counts.tolist(), strict=True)})


def compare(listed: Iterable[ListedFile], known: KnownFiles, root: str | None) -> Comparison:
    """Finds out what is to be done about each file of a source, and which known ones its folder no longer holds.

    Args:
        listed: What the source holds.
        known: What is known, of this source's files and of others.
        root: The folder's URI, or None.
    """
    seen: set[str] = set()
    not_looked_into: set[str] = set()
    files: list[ComparedFile] = []
    known_counts: Counter[tuple[str | None, str | None]] = Counter()
    ignored: Counter[str] = Counter()
    for file in listed:
        if file.ignored is not None:
            ignored[file.ignored] += 1
            seen.add(file.path)
            if file.ignored in NOT_LOOKED_INTO:
                not_looked_into.add(file.path)
            continue
        stored, bad = known.stored.get(file.path), known.bad.get(file.path)
        if stored is not None or bad is not None:
            seen.add(file.path)
        found = _compared(file, stored, bad, known.stamps.get(file.path))
        if found.status == KNOWN and not found.in_quarantine:
            known_counts[found.label_name, found.stored_class] += 1
        else:
            files.append(found)
    if root is not None:
        files.extend(_gone(known, seen, not_looked_into, root.rstrip("/") + "/"))
    return Comparison(files, known_counts, ignored)


def _compared(file: ListedFile, stored: StoredFile | None, bad: BadFile | None, stamp: Stamp | None) -> ComparedFile:
    is_same = stored is not None and _is_same(file, stored, stamp)
    is_bad = (
        bad is not None
        and (file.length, file.modified_us, file.annotation_hash) == (bad.length, bad.modified_us, bad.annotation_hash)
        and bad.reason is not None
        and bad.reason not in RETRIED_REASONS
        # A restored version may hold the row of a file that has gone bad since: that row has to go.
        and stored is None
    )
    unknown = NEW if stored is None and bad is None else CHANGED
    stored_hash, stored_class = _hash_and_class(stored, file.annotation_hash)
    return ComparedFile(
        file.path,
        file.length,
        file.modified_us,
        file.label_name,
        file.label_rank,
        KNOWN if is_same or is_bad else unknown,
        # A bad file that is known as bad belongs in quarantine; a stored one does not.
        in_quarantine=bad is not None and not is_bad,
        stored_hash=stored_hash,
        stored_class=stored_class,
    )


def _is_same(file: ListedFile, stored: StoredFile, stamp: Stamp | None) -> bool:
    if stored.annotation_hash != file.annotation_hash:
        return False
    if None not in (file.content_hash, stored.content_hash) and file.content_hash != stored.content_hash:
        return False
    if (file.length, file.modified_us) == (stored.length, stored.modified_us):
        return True
    # What the stamp was seen on is the content that the row holds now.
    return (
        stamp is not None
        and (file.length, file.modified_us) == (stamp.length, stamp.modified_us)
        and stamp.content_hash is not None
        and stamp.content_hash == stored.content_hash
    )


def _hash_and_class(stored: StoredFile | None, said: str | None = None) -> tuple[str | None, str | None]:
    """What the table has of a file: its content, where the row has the same annotation, and its class."""
    if stored is None:
        return None, None
    return (stored.content_hash if stored.annotation_hash == said else None), stored.label_name or NO_CLASS


def _gone(known: KnownFiles, seen: set[str], not_looked_into: Collection[str], below: str) -> Iterator[ComparedFile]:
    for path in (*known.stored, *(path for path in known.bad if path not in known.stored)):
        if path in seen or not path.startswith(below) or _is_below_one_of(not_looked_into, path):
            continue
        stored_hash, stored_class = _hash_and_class(known.stored.get(path))
        yield ComparedFile(
            *(path, None, None, None, None, GONE),
            in_quarantine=path in known.bad,
            stored_hash=stored_hash,
            stored_class=stored_class,
        )


def _is_below_one_of(folders: Collection[str], path: str) -> bool:
    if not folders:
        return False
    above = itertools.accumulate(path.split("/")[:-1], "{}/{}".format)
    return any(folder in folders for folder in above)
