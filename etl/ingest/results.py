"""The keywords, the request and the results of an ingest; `ImageTable.ingest` documents the keywords."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ...errors import InvalidArgumentError
from ...job_keys import Job
from ...results import ReadableResult
from ..images.recipe import Limits, Recipe
from ..sources.source import Source
from .near_duplicates import NearDuplicates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAMP = "stamp"
CONTENT = "content"


@dataclass(frozen=True)
class IngestRequest:
    """The source and options of an ingest, checked as far as they can be without looking at the source or the table."""

    source: Source  # Where the images come from
    recipe_changes: Mapping[str, Any]  # Fields of `Recipe` that were given, None for those that were not
    limits: Limits = dataclasses.field(default_factory=Limits)  # What one source may cost
    delete_missing: bool = False  # Whether to delete the rows of files that the source no longer holds
    verify: str = STAMP  # How an unchanged file is recognised: by its `stamp` (size and time) or its `content`
    # The only classes that may be stored; None takes every class that the source names
    classes: Sequence[str] | None = None
    batch_id: str | None = None  # Name of the batch in every row and in the table's history; None makes one up
    # Whether to look for images that came in and look like one of another split; decodes the whole table once more, at
    # an eighth of its size
    near_duplicates: bool = False
    allow_loss: bool = False  # Whether it may take most stored rows out of the table, or all of a class
    retry_quarantine: bool = False  # Whether to read unchanged files that are in quarantine again
    drop_bad_boxes: bool = False  # Whether to store an image without the boxes that cannot be stored
    job: str | Job | None = None  # The key of a job, which a repeated call does not do again

    def __post_init__(self) -> None:
        Recipe().with_changes(**self.recipe_changes)
        if self.verify not in (STAMP, CONTENT):
            raise InvalidArgumentError(f"verify = {self.verify!r} is neither 'stamp' nor 'content'")
        if isinstance(self.classes, str) or (self.classes is not None and not self.classes):
            raise InvalidArgumentError(f"classes = {self.classes!r}: give a list of names, or leave it out for all")
        for name in self.classes or ():
            if not isinstance(name, str):
                raise InvalidArgumentError(f"classes = {self.classes!r}: {name!r} is not a text; give names of classes")
        for option in ("delete_missing", "near_duplicates", "allow_loss", "retry_quarantine", "drop_bad_boxes"):
            if not isinstance(getattr(self, option), bool):
                raise InvalidArgumentError(f"{option} = {getattr(self, option)!r}: give True or False")
        Job.of(self.job)
        if self.batch_id is not None and (not isinstance(self.batch_id, str) or not self.batch_id.strip()):
            raise InvalidArgumentError(f"batch_id = {self.batch_id!r}: give a text, or leave it out")

    @property
    def arguments(self) -> dict[str, Any]:
        """What calls of one job have in common."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "job"}
        recipe = {name: value for name, value in self.recipe_changes.items() if value is not None}
        source = dataclasses.asdict(dataclasses.replace(self.source, location=self.source.name))
        return {"command": "etl", **given, "source": source, "recipe_changes": recipe, "limits": vars(self.limits)}


@dataclass(frozen=True, repr=False)
class IngestResult(ReadableResult):
    """The result of an ingest; `rows_in == stored + quarantined + skipped`, always.

    Attributes:
        version: The table's version that holds the result; the version before when nothing was committed.
        rows_in: Files of the source, and annotations that name a file which is not there.
        stored: Files that became rows in this ingest, new and changed ones.
        quarantined: Files that this ingest read and found bad.
        skipped: Files that were known, as stored or as bad, and unchanged.
        changed: How many of those read were known with other content, another annotation, or as bad and read again.
        gone: Known files below the source folder that it no longer holds.
        removed: How many of those were taken out of the table.
        ignored: Things in the source other than image files, by reason; not part of `rows_in`.
        ignored_suffixes: The same by reason, then by what the name ends with, such as `.txt`; "" for no suffix
            and for a number. Of each reason the 20 most frequent ones.
        reasons: Files quarantined by this ingest, by reason.
        repairs: Files that were repaired and boxes that were repaired or left out, of stored rows, by reason.
        new_classes: Classes that got a number in this ingest.
        batch_id: Written into every row of this ingest.
        committed: Whether a new version was made.
        vanished_classes: Classes of stored rows that no file of the source has any more; their rows stay.
        near_duplicates: Images that look like one of another split; None when it was not asked for, or nothing came in.
        small_splits: Of a first ingest, the splits after the first one that have fewer than 5 images of a class, with
            the number of each such class.
        doubled: Rows that the table has beyond one for each path, of whatever source: another writer has stored them.
            `ImageTable.repair` removes them.
    """

    version: int
    rows_in: int
    stored: int
    quarantined: int
    skipped: int
    changed: int = 0
    gone: int = 0
    removed: int = 0
    ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)
    reasons: Mapping[str, int] = dataclasses.field(default_factory=dict)
    repairs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    new_classes: tuple[str, ...] = ()
    batch_id: str = ""
    committed: bool = False
    vanished_classes: tuple[str, ...] = ()
    near_duplicates: NearDuplicates | None = None
    ignored_suffixes: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    small_splits: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    doubled: int = 0

    @classmethod
    def recorded(cls, values: Mapping[str, Any]) -> IngestResult:
        """Makes a result from the fields that JSON has kept."""
        near = values.get("near_duplicates")
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists, "near_duplicates": None if near is None else NearDuplicates.recorded(near)})


@dataclass(frozen=True, repr=False)
class StreamResult(ReadableResult):
    """The result of all batches of a stream together; `rows_in == stored + quarantined + skipped`, always.

    Attributes:
        version: The table's version after the last batch; None without a table and without rows to create one.
        rows_in: Files of the source.
        stored: Files that became rows.
        quarantined: Files that were read and found bad.
        skipped: Files that were known before, and unchanged.
        reasons: Files quarantined, by reason.
        repairs: Files that were repaired and boxes that were repaired or left out, of stored rows, by reason.
        new_classes: Classes that got a number.
        batches: Each batch's own result, in order; batches that had nothing to do are left out.
        near_duplicates: Of all batches, as in `IngestResult`.
    """

    version: int | None
    rows_in: int
    stored: int
    quarantined: int
    skipped: int
    reasons: Mapping[str, int]
    repairs: Mapping[str, int]
    new_classes: tuple[str, ...]
    batches: tuple[IngestResult, ...]
    near_duplicates: NearDuplicates | None = None

    @classmethod
    def of(cls, results: Sequence[IngestResult], version: int | None = None) -> StreamResult:
        """Adds up batches; `version` is that of the table when there is none."""

        def counted(name: str) -> dict[str, int]:
            return dict(sum((Counter(getattr(result, name)) for result in results), Counter[str]()))

        return cls(
            version=results[-1].version if results else version,
            rows_in=sum(result.rows_in for result in results),
            stored=sum(result.stored for result in results),
            quarantined=sum(result.quarantined for result in results),
            skipped=sum(result.skipped for result in results),
            reasons=counted("reasons"),
            repairs=counted("repairs"),
            new_classes=tuple(name for result in results for name in result.new_classes),
            batches=tuple(result for result in results if result.committed or result.quarantined or result.stored),
        )


@dataclass(frozen=True, repr=False)
class IngestPreview(ReadableResult):
    """What an ingest would do; nothing is written."""

    version: int | None  # The table's version that was compared with; None if the table does not exist yet
    rows_in: int  # Files of the source
    new: int  # Files that the table does not know
    changed: int  # Known files with other content, or another annotation
    known: int  # Files that would be skipped
    gone: int  # Known files below the source folder that it no longer holds
    ignored: Mapping[str, int]  # Things in the source other than image files, by reason
    new_classes: tuple[str, ...]  # Classes that would get a number
    vanished_classes: tuple[str, ...]  # Classes of stored rows that no file of the source has any more
    # Paths by what would be done about them (`new`, `changed`, `gone`), as many of each as were asked for
    files: Mapping[str, Sequence[str]]
    # The same by reason, then by suffix, as in `IngestResult`
    ignored_suffixes: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    doubled: int = 0  # Rows that the table has beyond one for each path


class RecipeOptions(TypedDict, total=False):
    """Fields of `Recipe`."""

    size: int | None
    resize: str | None
    resample: str | None
    store: str | None
    quality: int | None
    subsampling: str | None
    splits: Mapping[str, float] | None
    split_seed: int | None
    boxes_drawn_on: str | None
    depth: str | Sequence[float] | None
    keep_folder_names: bool | None


class IngestOptions(RecipeOptions, total=False):
    """Keywords of `ImageTable.ingest`, `ingest_stream` and `preview`."""

    recipe: Recipe | None
    limits: Limits | None
    delete_missing: bool
    verify: str
    classes: Sequence[str] | None
    annotations: str | None
    images: str | None
    batch_id: str | None
    near_duplicates: bool
    allow_loss: bool
    retry_quarantine: bool
    drop_bad_boxes: bool
    job: str | Job | None


def request_of(source: str | Path | DataFrame, layout: str, options: Mapping[str, Any]) -> IngestRequest:
    """Makes the request that keywords ask for."""
    asked = dict(options)
    place = {name: asked.pop(name, None) for name in ("annotations", "images")}
    changes = _fields_of("recipe", asked.pop("recipe", None), Recipe)
    changes |= {name: value for name in RecipeOptions.__annotations__ if (value := asked.pop(name, None)) is not None}
    limits = Limits(**_fields_of("limits", asked.pop("limits", None), Limits))
    return IngestRequest(Source(source, layout, **place), changes, limits, **asked)


def _fields_of(name: str, value: Any, kind: type[Recipe] | type[Limits]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{name}={value!r} is no {kind.__name__}: give lakelens.{kind.__name__}(...)")
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
