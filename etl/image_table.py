"""The image table: what a user holds in the hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotADeltaTableError, SessionError
from ..locations import absolute, is_table_name
from ..spark.session import require_delta
from .files.layouts import CLASS_FOLDERS
from .ingest.landing import ingest_available
from .ingest.options import IngestOptions, request_of
from .ingest.results import IngestPreview, IngestResult, StreamResult
from .ingest.run import ingest, preview
from .log.opening import place_of
from .log.snapshot import Snapshot, open_snapshot
from .model.labels import labels_of
from .pins import pins as pin_files
from .quarantine.listing import QuarantineList, list_quarantine_at
from .quarantine.table import Quarantine, quarantine_location
from .spark.catalog import is_delta_table, path_of, read_table
from .versions.classes import VersionDiff, class_counts, diff
from .versions.history import VersionInfo, history
from .versions.protection import pin_version
from .versions.repair import RepairResult, repair
from .versions.restore import RestoreResult, restore
from .versions.vacuum import VacuumResult, vacuum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from .profile.profile import ProfileResult

Version = int | str | datetime | None


class ImageTable:
    """A Delta table of images, by path, URI or catalog name.

    Nothing is read or written until a method asks for it; the table need not exist before the first `ingest`.

    Only `ingest`, `preview`, `restore`, `repair`, and what gives a DataFrame (`read`, `read_quarantine`) need Spark.
    Without it, `ImageTable(None, path)` looks at versions, pins and removes files, and starts no JVM.

    Args:
        spark: A session with Delta Lake, or None.
        location: Path or URI of the table, or, with a session, its name in the catalog.
        storage_options: Access to an object store for what is done without Spark, under delta-rs' names.

    Attributes:
        location: The table's path, absolute, or its name.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        location: str | Path,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if spark is not None:
            require_delta(spark)
        self._spark = spark
        self._options = dict(storage_options or {})
        self.location = absolute(location)

    def __repr__(self) -> str:
        return f"ImageTable({self.location!r})"

    @property
    def spark(self) -> SparkSession:
        """The session.

        Raises:
            SessionError: If the table was opened without one.
        """
        if self._spark is None:
            raise SessionError(
                f"{self!r} was opened without Spark, and this needs it: ImageTable(lakelens.spark_session(), ...)"
            )
        return self._spark

    def ingest(
        self,
        source: str | Path | DataFrame,
        layout: str = CLASS_FOLDERS,
        **options: Unpack[IngestOptions],
    ) -> IngestResult:
        """Brings the files of a source that are new or changed into the table, as one commit.

        The first ingest creates the table and fixes its recipe (`size` to `seed`); a later one takes the table's own,
        and may repeat but not change it. Files that cannot be stored go to the quarantine table. When every file is
        known, nothing is committed. A file that is known by other content replaces its row; when the new content is
        bad, the row goes and the file is in quarantine, so that each file is in one of the two.

        Args:
            source: Folder, manifest, or URI of one, that Spark reads; or a DataFrame with a column `path`, and perhaps
                `content`, `label_name`, `boxes`, `split`; or what Spark's `image` source gives.
            layout: `class_folders` (the first folder is the class; `001.ak47` is `ak47`), `nested_class_folders` (all
                folders are), `voc`, `coco` or `manifest` (CSV, JSON lines, Parquet).
            **options: What is taken, and what is made of it.

                size: Side of the stored image in pixels; 299 for a new table.
                resize: `fit` (padded, the default), `crop`, `stretch` or `none`.
                resample: Filter of the scaling: `lanczos` (the default), `bicubic`, `hamming`, `bilinear` or `box`; the
                    later, the faster and the softer.
                store: `jpeg` (the default), `raw_rgb` or `original`.
                quality: JPEG quality, 1-100; 90 for a new table.
                subsampling: Chroma of a JPEG: `4:2:0` (the default), `4:2:2` or `4:4:4`.
                splits: Fraction by split name; {"train": 0.8, "validation": 0.1, "test": 0.1} for a new table.
                seed: Seed of the split by content hash; 0 for a new table.
                limits: What one image may cost.
                removed: `keep` the rows of files that the source folder no longer holds, or `delete` them.
                verify: What tells that a file is unchanged: its `stamp` (size and time), or its `content`, which reads
                    all.
                classes: The only classes to store; others are quarantined, and boxes of others dropped, each counted.
                annotations: COCO: the instances file, when its name is none of the usual ones.
                images: Manifest and DataFrame: folder that relative paths start from.
                batch_id: Name of the batch in every row and in the history; made up when None.
                near_duplicates: Whether to look for new images that look like one of another split; decodes the table's
                    images once more, at a fraction of their size.
                allow_loss: Whether the ingest may take more than half of the stored rows out of the table, or all rows
                    of a class of 20 or more.

        Raises:
            IngestLossError: If it would, and may not; nothing was committed.
            ClassNumbersError: If others have given one number to two classes, or one class two numbers; see `repair`.
            UnknownLayoutError: If `layout` is not one of those.
            InvalidArgumentError: If an argument is outside its rule, or differs from the table's recipe.
            SourceNotFoundError: If the folder or file does not exist.
            EmptySourceError: If it holds no image file in this layout.
            AnnotationFileError: If a manifest or COCO file is not one.
            NotADeltaTableError: If something else is at the table's location.
            NotAnImageTableError: If a Delta table is there that lakelens did not create.
            TableConflictError: If other writers kept being faster.
        """
        return ingest(self.spark, self.location, request_of(source, layout, options))

    def ingest_stream(
        self,
        source: str | Path,
        layout: str = CLASS_FOLDERS,
        *,
        max_files: int = 10_000,
        on_batch: Callable[[IngestResult], None] | None = None,
        **options: Unpack[IngestOptions],
    ) -> StreamResult:
        """Ingests what a landing folder holds now in batches, each one commit, and ends; nothing there is no error.

        The table is the checkpoint: killed at any moment, the next call goes on where this one stopped. `allow_loss` is
        about what all batches together take out; those before the one that takes too much stay.

        Args:
            source: Folder, manifest, or URI of one.
            layout: As for `ingest`.
            max_files: Most files that one batch reads.
            on_batch: Is told each batch's result as soon as it is committed.
            **options: As for `ingest`.

        Raises:
            InvalidArgumentError: If `max_files` is not a whole number of 1 or more, or as for `ingest`.
            UsageError: Its other subclasses, as `ingest` does, but for EmptySourceError.
            TableConflictError: If other writers kept being faster.
        """
        request = request_of(source, layout, options)
        return ingest_available(self.spark, self.location, request, max_files, on_batch)

    def preview(
        self,
        source: str | Path | DataFrame,
        layout: str = CLASS_FOLDERS,
        *,
        limit: int = 20,
        **options: Unpack[IngestOptions],
    ) -> IngestPreview:
        """Tells what `ingest` would do with the same arguments; reads no image and writes nothing.

        Args:
            source: As for `ingest`.
            layout: As for `ingest`.
            limit: How many paths of each kind to name.
            **options: As for `ingest`; `verify="content"` reads every known file.

        Raises:
            UsageError: Its subclasses, as `ingest` does.
        """
        request = request_of(source, layout, options)
        return preview(self.spark, self.location, request, limit)

    @property
    def version(self) -> int:
        """The latest version.

        Raises:
            NotADeltaTableError: If the table does not exist.
        """
        return self.snapshot().version

    def snapshot(self, version: Version = None) -> Snapshot:
        """Opens one version's files and properties without Spark.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.
        """
        return open_snapshot(self._path(), version, self._options)

    def read(self, version: Version = None) -> DataFrame:
        """Reads one version as a DataFrame.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.

        Raises:
            NotADeltaTableError: If the table does not exist.
            VersionNotFoundError: If it has no such version.
        """
        self._require()
        number = None if version is None else self.snapshot(version).version
        return read_table(self.spark, self.location, number)

    def labels(self, version: Version = None) -> dict[str, int]:
        """Class numbers by name, as of one version."""
        return labels_of(self.snapshot(version).configuration)

    def class_counts(self, version: Version = None) -> dict[str, int]:
        """Number of rows by class name as of one version: in the order of the class numbers, 0 where there is no row.

        After them, by name, classes that have no number, and rows of no class as `(no class)`.
        """
        return class_counts(self.snapshot(version), self._options)

    def quarantine(
        self, *, batch_id: str | None = None, reason: str | None = None, limit: int | None = None
    ) -> QuarantineList:
        """The files that could not be stored, each with its reason, and how many there are of each reason.

        Args:
            batch_id: Only files that this ingest found bad.
            reason: Only files with this reason.
            limit: The most files to list.

        Raises:
            InvalidArgumentError: If `reason` is none that there is.
        """
        place = self._quarantine_path(self._place())
        return list_quarantine_at(place, batch_id=batch_id, reason=reason, limit=limit, storage_options=self._options)

    def read_quarantine(self) -> DataFrame:
        """The same as a DataFrame: path, reason, error, label_name, source_length, source_modified, batch_id."""
        return Quarantine(self.spark, self.location).read()

    def pin(self, name: str, version: Version = None, *, replace: bool = False) -> int:
        """Gives a version a name that protects its files from `vacuum`; returns its number.

        Args:
            name: Letters, digits, `_`, `.` and `-`, starting with a letter or `_`.
            version: Number, timestamp, another pin's name, or None for the latest.
            replace: Whether a pin of that name may move.

        Raises:
            InvalidArgumentError: If the name is unfit, or already names another version.
            VersionFilesMissingError: If files of the version are gone.
        """
        return pin_version(self._path(), name, version, replace=replace, storage_options=self._options)

    def unpin(self, name: str) -> None:
        """Takes a pin away."""
        pin_files.unpin(self._place(), name, self._options)

    def untrack(self, run_id: str) -> int:
        """Forgets that a run has read versions of this table, so that it protects none; returns how many it did."""
        return pin_files.untrack(self._place(), run_id, self._options)

    def pins(self) -> dict[str, int]:
        """The pins: versions by name."""
        return pin_files.pins(self._place(), self._options)

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """The versions that the log still knows, the newest first, with rows, classes, batch and user.

        Reads the log alone. Rows by class are told of commits of lakelens only, as they were noted then.

        Args:
            limit: Only the newest, this many; None lists all.
        """
        return history(self._path(), limit, self._options)

    def diff(self, first: int | str | datetime, second: Version = None) -> VersionDiff:
        """Counts by class what was added, removed and changed between two versions; None is the latest."""
        return diff(self._path(), first, second, self._options)

    def restore(self, version: int | str | datetime) -> RestoreResult:
        """Makes a new version whose rows are exactly an old one's; the versions between stay in the history.

        Class numbers stay as they are, and the next ingest takes again what the restore has removed.

        Args:
            version: Number, timestamp or pin's name.

        Raises:
            VersionNotFoundError: If the table has no such version.
            VersionFilesMissingError: If data files of the version are gone; names them, and the whole versions.
            TableConflictError: If other writers kept being faster.
        """
        return restore(self.spark, self.location, version, self._options)

    def repair(self, *, dry_run: bool = False) -> RepairResult:
        """Gives every class one number of its own where others have damaged that, as one commit.

        A number that lakelens has given stays; rows and boxes that carry another are changed, and so is the table's
        property. A class without a number of its own gets a new one.

        Args:
            dry_run: Only tell what is wrong, and what would be changed.

        Raises:
            NotAnImageTableError: If lakelens did not create the table.
            TableConflictError: If another writer was faster; nothing was committed.
        """
        return repair(self.spark, self.location, dry_run=dry_run)

    def profile(
        self,
        version: Version = None,
        output: str | Path | None = None,
        *,
        near_duplicates: bool = True,
        samples_per_class: int | None = None,
    ) -> ProfileResult:
        """Writes a page about one version: classes, sizes, samples, boxes, near-duplicates, quarantine.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.
            output: Folder for `profile.html` and its PNG files; `<table>-v<version>-profile` in the working directory
                when None.
            near_duplicates: Whether to look for them, which decodes every image.
            samples_per_class: Pictures of each class, 0-12; None chooses by the number of classes.

        Raises:
            NotAnImageTableError: If the table has no column `image`.
            InvalidArgumentError: If `samples_per_class` is out of its range, or `output` cannot be a folder.
            MissingDependencyError: If matplotlib is not installed.
        """
        from .profile.profile import profile

        path = self._path()
        return profile(
            path,
            version,
            output,
            near_duplicates=near_duplicates,
            samples_per_class=samples_per_class,
            quarantine=self._quarantine_path(path),
            storage_options=self._options,
        )

    def vacuum(
        self,
        retention_hours: int | None = None,
        *,
        dry_run: bool = False,
        keep_protected: bool = False,
        allow_short_retention: bool = False,
    ) -> VacuumResult:
        """Removes files that no version within the retention needs, and none of a pinned or used version.

        Args:
            retention_hours: Age in hours from which removed files go; None takes the table's own (168 by default).
            dry_run: Only tell what would go.
            keep_protected: Leave the files of protected versions and remove the others, instead of refusing.
            allow_short_retention: Accept fewer hours than 168: readers and writers that are at work now may break.

        Raises:
            VersionProtectedError: If files of a pinned version, or of one that a run has used, would go.
            VersionUnreadableError: If such a version cannot be opened now, so that its files are not known.
        """
        return vacuum(
            self._path(),
            retention_hours,
            dry_run=dry_run,
            keep_protected=keep_protected,
            allow_short_retention=allow_short_retention,
            storage_options=self._options,
        )

    def _path(self) -> str:
        if not is_table_name(self.location):
            return self.location
        self._require()
        return path_of(self.spark, self.location)

    def _place(self) -> str:
        return place_of(self._path(), self._options)

    def _quarantine_path(self, path: str) -> str:
        if is_table_name(self.location):
            name = quarantine_location(self.location)
            if is_delta_table(self.spark, name):
                return path_of(self.spark, name)
        return quarantine_location(path)

    def _require(self) -> None:
        if not is_delta_table(self.spark, self.location):
            raise NotADeltaTableError(f"{self.location} holds no Delta table; ingest into it first, or check the path")
