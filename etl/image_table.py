"""The image table: the class that users work with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, SessionError
from ..ledger.protection import pins, unpin, untrack, untrack_older
from ..log.data_files import require_files
from ..log.opening import SETTING, require_entries, with_zone, zone_named
from ..log.snapshot import Snapshot, open_snapshot
from ..options import named_options
from ..spark.port import option_of
from ..spark.session import require_delta
from ..table import Table, Version, version_of
from .files import CLASS_FOLDERS
from .ingest.landing import ingest_available
from .ingest.results import IngestOptions, IngestPreview, IngestResult, StreamResult, request_of
from .ingest.run import ingest, preview
from .quarantine import Quarantine, QuarantineList, list_quarantine, quarantine_location
from .spark.catalog import is_delta_table, read_table, require_delta_table, resolved
from .spark.failures import failures_named
from .versions.changes import VersionDiff, changes, class_counts, diff, labels_at
from .versions.delta_commands import OptimizeResult, RestoreResult, optimize, restore
from .versions.edits import DeleteResult, RenameResult, RepairResult, delete, rename_class, repair
from .versions.history import VersionInfo, history
from .versions.vacuum import Protection, VacuumResult, pin_version, protections, vacuum

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from .profile.profile import ProfileResult


class ImageTable:
    """A Delta table of images, by path, URI or catalog name.

    Nothing is read or written until a method asks for it; the table need not exist before the first `ingest`.

    Methods that write rows (`ingest`, `restore`, `repair`, `optimize`, `delete`, `rename_class`), `preview`, and those
    that return a DataFrame (`read`, `read_quarantine`) need Spark. The others work on `ImageTable(None, path)` too, and
    start no JVM.

    Args:
        spark: A session with Delta Lake, or None.
        location: Path or URI of the table, or, with a session, its name in the catalog.
        storage_options: Access to an object store for what is done without Spark, under delta-rs' names.

    Examples:
        >>> table = lakelens.ImageTable(spark, "tables/photos")
        >>> result = table.ingest("photos", layout="class_folders", size=32)
        >>> result.version, result.stored, result.quarantined
        (0, 60, 0)
        >>> table.class_counts()
        {'cat': 30, 'dog': 30}
    """

    @named_options
    def __init__(
        self, spark: SparkSession | None, location: str | Path, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        if spark is not None:
            require_delta(spark)
        self._spark = spark
        # Under the name that it was given, which Spark resolves; there may be no table yet.
        self._named = Table.unversioned(location, type(self).__name__, storage_options)

    @property
    def location(self) -> str:
        """The table's path, absolute, or its name."""
        return self._named.location

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

    @property
    def version(self) -> int:
        """The latest version.

        Raises:
            NotADeltaTableError: If the table does not exist.
        """
        return self.snapshot().version

    @named_options
    def snapshot(self, version: Version = None) -> Snapshot:
        """Opens one version's files and properties without Spark.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.
        """
        return open_snapshot(self._at(version))

    @named_options
    def labels(self, version: Version = None) -> dict[str, int]:
        """Class numbers by name, as of one version."""
        return labels_at(self.snapshot(version))

    @named_options
    def class_counts(self, version: Version = None) -> dict[str, int]:
        """Number of rows by class name as of one version: by class number, 0 for a class without rows.

        After them, by name, classes that have no number, and rows of no class as `(no class)`.
        """
        return class_counts(self.snapshot(version))

    @named_options
    def quarantine(
        self, *, batch_id: str | None = None, reason: str | None = None, limit: int | None = None
    ) -> QuarantineList:
        """The files that could not be stored, each with its reason, and how many there are of each reason.

        Args:
            batch_id: Only files that this ingest found bad.
            reason: Only files with this reason.
            limit: The most files to list.

        Raises:
            InvalidArgumentError: If `reason` is unknown.
        """
        return list_quarantine(self._quarantine_of(self._existing()), batch_id=batch_id, reason=reason, limit=limit)

    @named_options
    def pin(self, name: str, version: Version = None, *, replace: bool = False) -> int:
        """Names a version, which protects its files from `vacuum`; returns its number.

        The VACUUM of Spark and that of Databricks do not know pins.

        Args:
            name: Letters, digits, `_`, `.` and `-`, starting with a letter or `_`.
            version: Number, timestamp, another pin's name, or None for the latest.
            replace: Whether a pin of that name may move.

        Raises:
            InvalidArgumentError: If the name is unfit, or already names another version.
            VersionFilesMissingError: If files of the version are gone.
        """
        return pin_version(self._at(version), name, replace=replace)

    @named_options
    def unpin(self, name: str) -> None:
        """Removes a pin."""
        unpin(self._existing(), name)

    def tracked(self) -> list[Protection]:
        """Lists the pins and runs that protect versions from `vacuum`, each with its version and the time it began.

        Runs protect what they have trained on or scored. A run whose process ended without finishing it protects
        nothing, nor does one that MLflow has deleted; both are forgotten.
        """
        return protections(self._existing())

    @named_options
    def untrack(self, run_id: str | None = None, *, older_than: timedelta | None = None) -> int:
        """Removes the protection of versions that runs have read; returns how many there were.

        Args:
            run_id: A run.
            older_than: Instead: all runs that began longer ago and are over.

        Raises:
            VersionNotFoundError: If no version is tracked for that run.
            InvalidArgumentError: If both or neither are given, or `older_than` is not above 0.
        """
        if (run_id is None) == (older_than is None):
            raise InvalidArgumentError(f"run_id={run_id!r}, older_than={older_than!r}: give one of them")
        if older_than is not None:
            return untrack_older(self._existing(), older_than)
        return untrack(self._existing(), str(run_id))

    def pins(self) -> dict[str, int]:
        """The pins: versions by name."""
        return pins(self._existing())

    @named_options
    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """The versions that the log still knows, the newest first, with rows, classes, batch and user.

        Reads log and ledger alone. Rows by class are known for commits of lakelens.

        Args:
            limit: Only the newest, this many; None lists all.
        """
        return history(self._table(), limit)

    @named_options
    def diff(self, first: int | str | datetime, second: Version = None) -> VersionDiff:
        """Counts by class what `changes` lists between two versions; None is the latest."""
        return diff(self._table(), self._zoned(first), self._zoned(second))

    @named_options
    def changes(self, first: int | str | datetime, second: Version = None) -> pa.Table:
        """Lists the rows that differ between two versions; None is the latest.

        Returns:
            The columns `path`, `label_name` and `change`, one row per kind of change: `added`, `removed`, `content`,
            `label`, `split`. `label_name` is the class in the second version, for removed rows that in the first.

        Raises:
            VersionNotFoundError: If the table has no such version.
            VersionFilesMissingError: If data files that have to be read are gone.
        """
        return changes(self._table(), self._zoned(first), self._zoned(second))

    @named_options
    def vacuum(
        self,
        retention_hours: int | None = None,
        *,
        dry_run: bool = False,
        keep_protected: bool = False,
        allow_short_retention: bool = False,
    ) -> VacuumResult:
        """Removes files that no version within the retention needs, and none of a pinned or used version.

        The VACUUM of Spark and that of Databricks know neither pins nor runs.

        Args:
            retention_hours: Age in hours from which removed files go; None takes the table's own (168 by default).
            dry_run: Only report which files would be removed.
            keep_protected: Leave the files of protected versions and remove the others, instead of refusing.
            allow_short_retention: Accept fewer hours than 168: readers and writers that are at work now may break.

        Raises:
            VersionProtectedError: If files of a pinned version, or of one that a run has used, would go.
            VersionUnreadableError: If such a version cannot be opened now, so that its files are not known.
        """
        return vacuum(
            self._table(),
            retention_hours,
            dry_run=dry_run,
            keep_protected=keep_protected,
            allow_short_retention=allow_short_retention,
        )

    @named_options
    def ingest(
        self, source: str | Path | DataFrame, layout: str = CLASS_FOLDERS, **options: Unpack[IngestOptions]
    ) -> IngestResult:
        """Stores the new and changed files of a source, as one commit.

        The first ingest creates the table and fixes its recipe (`size` to `split_seed`); later ones use it, and may
        repeat but not change it. Files that cannot be stored go to the quarantine table. When every file is
        known, nothing is committed. A file with new content replaces its row; when the new content is
        bad, the row goes and the file is in quarantine, so that each file is in one of the two.

        Args:
            source: Folder, manifest, or URI of one, that Spark reads; or a DataFrame with a column `path`, and perhaps
                `content`, `label_name`, `boxes`, `split`; or what Spark's `image` source gives, whose files are read.
                A local file is one image, whether its path is written as `/p`, `file:/p` or `file:///p`.
            layout: `class_folders` (the first folder is the class), `nested_class_folders` (all
                folders are), `voc`, `coco` or `manifest` (CSV, JSON, Parquet). Stored files keep their folder layout.
            **options: Which files are stored, and how.

                recipe: A `lakelens.Recipe`, instead of the keywords from `size` to `split_seed` or changed by them.
                size: Side of the stored image in pixels, 10,000 at most; 299 for a new table.
                resize: `fit` (padded, the default), `crop`, `stretch` or `none`.
                resample: Filter of the scaling: `lanczos` (the default), `bicubic`, `hamming`, `bilinear` or `box`; the
                    later, the faster and the softer.
                store: `jpeg` (the default: scaled and encoded again, which is lossy), `raw_rgb` (the scaled pixels)
                    or `original` (the source file).
                quality: JPEG quality, 1-100; 90 for a new table.
                subsampling: Chroma of a JPEG: `4:2:0` (the default), `4:2:2` or `4:4:4`.
                splits: Fraction by split name; {"train": 0.8, "validation": 0.1, "test": 0.1} for a new table.
                split_seed: Seed of the split by content hash; 0 for a new table.
                boxes_drawn_on: What boxes are drawn on: the `file`'s pixels, the `upright` image (EXIF orientation
                    applied), or `auto`: what the declared size shows, else the upright image.
                depth: Which samples of more than 8 bits become black and white: `full` (the default: 0 and 65535; of
                    floats 0 and 1, or 0 and 255), `image` (each image's own) or two numbers.
                keep_folder_names: Whether class folders name their classes as they are called. The default of a new
                    table leaves out the numbers of `001.ak47` and `002.flag` if every folder of the first source has
                    one of as many digits, no number is there twice, and all names have a letter.
                limits: A `lakelens.Limits`: what one image may cost.
                delete_missing: Whether to delete the rows of files that the source no longer holds; the default keeps
                    them.
                verify: How an unchanged file is recognised: by its `stamp` (size and time), or by its `content`, which
                    reads all.
                classes: The only classes to store; others are quarantined, and boxes of others dropped, each counted.
                    A later ingest without this option stores the rest. Each is a class of the source or the table.
                annotations: COCO: the instances file, if its name is not one of the usual ones.
                images: Manifest and DataFrame: folder that relative paths start from.
                batch_id: Name of the batch in every row and in the history; made up when None.
                near_duplicates: Whether to look for new images that look like one of another split; decodes the table's
                    images once more, at a fraction of their size.
                allow_loss: Whether the ingest may take more than half of the stored rows out of the table, or all rows
                    of a class of 20 or more; with `delete_missing`, also all rows of a folder in which nothing is
                    left.
                retry_quarantine: Whether to read files again that are in quarantine and unchanged: after a limit was
                    raised or a decoder was installed. Files whose rows were deleted stay out.
                drop_bad_boxes: Whether an image of which some boxes cannot be stored, such as one without a class or
                    outside of the image, is stored with the others; else it is in quarantine (`boxes_lost`).
                job: The key of a job, such as the id of a scheduler's task, or a `lakelens.Job`. A call that repeats
                    key and arguments of one that has finished returns its result and looks at no file.

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
            TableConflictError: If other writers kept committing first.
        """
        return ingest(self.spark, self._named, request_of(source, layout, options))

    @named_options
    def ingest_stream(
        self,
        source: str | Path,
        layout: str = CLASS_FOLDERS,
        *,
        max_files: int = 10_000,
        on_batch: Callable[[IngestResult], None] | None = None,
        **options: Unpack[IngestOptions],
    ) -> StreamResult:
        """Ingests the files that a landing folder holds now in batches of one commit each; it may be empty.

        The table is the checkpoint: after a kill at any moment the next call continues. `allow_loss` counts the rows
        that all batches together remove; batches before the batch that removes too many stay.

        Args:
            source: Folder, manifest, or URI of one.
            layout: As for `ingest`.
            max_files: Most files that one batch reads.
            on_batch: Called with the result of each batch as soon as it is committed.
            **options: As for `ingest`, without `job`: a stream resumes where it stopped.

        Raises:
            InvalidArgumentError: If `max_files` is not a whole number of 1 or more, or as for `ingest`.
            UsageError: Its other subclasses, as `ingest` does, but for EmptySourceError.
            TableConflictError: If other writers kept committing first.
        """
        request = request_of(source, layout, options)
        if request.job is not None:
            raise InvalidArgumentError(f"job={request.job!r}: a stream resumes where it stopped; leave the key out")
        return ingest_available(self.spark, self._named, request, max_files, on_batch)

    @named_options
    def preview(
        self,
        source: str | Path | DataFrame,
        layout: str = CLASS_FOLDERS,
        *,
        limit: int = 20,
        **options: Unpack[IngestOptions],
    ) -> IngestPreview:
        """Reports what `ingest` would do with the same arguments; reads no image and writes nothing.

        Args:
            source: As for `ingest`.
            layout: As for `ingest`.
            limit: How many paths of each kind to name.
            **options: As for `ingest`; `verify="content"` reads every known file.

        Raises:
            UsageError: Its subclasses, as `ingest` does.
        """
        return preview(self.spark, self._named, request_of(source, layout, options), limit)

    @named_options
    def read(self, version: Version = None) -> DataFrame:
        """Reads one version as a DataFrame.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.

        Raises:
            NotADeltaTableError: If the table does not exist.
            VersionNotFoundError: If it has no such version.
            VersionFilesMissingError: If data files of the version that is named are gone.
        """
        with failures_named(self.location):
            require_delta_table(self.spark, self.location)
            if version is None:
                return read_table(self.spark, self.location)
            snapshot = self.snapshot(version)
            require_files(snapshot)
            return read_table(self.spark, self.location, snapshot.version)

    def read_quarantine(self) -> DataFrame:
        """The same as a DataFrame: path, reason, error, label_name, source_length, source_modified, batch_id."""
        with failures_named(self.location):
            return Quarantine(self.spark, self._named).read()

    @named_options
    def restore(self, version: int | str | datetime) -> RestoreResult:
        """Makes a new version whose rows are exactly an old one's; the versions between stay in the history.

        Class numbers stay as they are, and the next ingest takes again what the restore has removed.

        Args:
            version: Number, timestamp or pin's name.

        Raises:
            VersionNotFoundError: If the table has no such version.
            VersionFilesMissingError: If data files of the version are gone; names them, and the whole versions.
            TableConflictError: If other writers kept committing first.
        """
        return restore(self.spark, self._named, self._zoned(version))

    def optimize(self) -> OptimizeResult:
        """Rewrites small data files, as streams leave them, into larger ones, as one commit that changes no row.

        Raises:
            NotADeltaTableError: If the table does not exist.
            TableConflictError: If another writer removed files that were being rewritten; nothing was committed.
        """
        return optimize(self.spark, self._named)

    @named_options
    def delete(self, where: str) -> DeleteResult:
        """Deletes the rows that meet a condition, as one commit; older versions keep them until `vacuum`.

        Later ingests skip the files of deleted rows until their content changes. They are listed by
        `quarantine(reason="deleted")`.

        Args:
            where: A Spark SQL condition on the table's columns, such as "label_name = 'cat' AND width < 32".

        Raises:
            InvalidArgumentError: If `where` is not such a condition.
            NotAnImageTableError: If lakelens did not create the table.
            TableConflictError: If another writer was faster; nothing was deleted.
        """
        return delete(self.spark, self._named, where)

    @named_options
    def rename_class(self, old: str, new: str) -> RenameResult:
        """Renames a class in rows and boxes, as one commit; its number stays.

        Later ingests store files of the class `old` as `new`.

        Args:
            old: The name of a class of the table.
            new: A name that no class of the table has.

        Raises:
            InvalidArgumentError: If class `old` does not exist, or `new` does.
            NotAnImageTableError: If lakelens did not create the table.
            TableConflictError: If another writer was faster; nothing was committed.
        """
        return rename_class(self.spark, self._named, old, new)

    @named_options
    def repair(self, *, dry_run: bool = False) -> RepairResult:
        """Repairs what other writers have damaged, as one commit: each class gets one number, and each path one row.

        A number that lakelens has given stays; rows and boxes that carry another are changed, and so is the ledger.
        A class without a separate number gets a new one. Of several rows of a path, that of the newest file stays.

        Args:
            dry_run: Only report what is wrong and what would change.

        Raises:
            NotAnImageTableError: If lakelens did not create the table.
            TableConflictError: If another writer was faster; nothing was committed.
        """
        return repair(self.spark, self._named, dry_run=dry_run)

    @named_options
    def profile(
        self,
        version: Version = None,
        out: str | Path | None = None,
        *,
        near_duplicates: bool = True,
        samples_per_class: int | None = None,
        compare: Version = None,
    ) -> ProfileResult:
        """Writes a page about one version: classes, sizes, brightness, samples, boxes, near-duplicates, quarantine.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.
            out: Folder for `profile.html` and its PNG files; a new one in the system's temporary folder when None.
            near_duplicates: Whether to look for them, which decodes every image.
            samples_per_class: Pictures of each class, 0-12; None chooses by the number of classes.
            compare: Another version to compare with; None compares with no version.

        Raises:
            NotAnImageTableError: If the table has no column `image`.
            InvalidArgumentError: If `samples_per_class` is out of its range, or `out` cannot be a folder.
            MissingDependencyError: If matplotlib is not installed.
        """
        from .profile.profile import profile

        table = self._table()
        return profile(
            table,
            self._zoned(version),
            out,
            near_duplicates=near_duplicates,
            samples_per_class=samples_per_class,
            compare=self._zoned(compare),
            quarantine=self._quarantine_of(table),
        )

    def _table(self) -> Table:
        if not self._named.is_name:
            return self._named
        with failures_named(self.location):
            require_delta_table(self.spark, self.location)
            return resolved(self.spark, self._named)

    def _at(self, version: Version) -> Table:
        return self._table().at(self._zoned(version))

    def _zoned(self, version: Version) -> Version:
        """Reads a time without a zone in that of the session, if there is one."""
        named = version_of(version)
        if self._spark is None or not isinstance(named, (str, datetime)):
            return named
        return version_of(with_zone(named, lambda: zone_named(option_of(self.spark, SETTING, "UTC"))))

    def _existing(self) -> Table:
        table = self._table()
        require_entries(table)
        return table

    def _quarantine_of(self, table: Table) -> Table:
        if self._named.is_name:
            named = dataclasses.replace(table, location=quarantine_location(self.location))
            if is_delta_table(self.spark, named.location):
                return resolved(self.spark, named)
        return dataclasses.replace(table, location=quarantine_location(table.path))
