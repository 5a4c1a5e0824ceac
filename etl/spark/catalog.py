"""Tables by path or by name, and paths of files: the few places where Spark wants or writes them differently."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, NotADeltaTableError, SessionError, UnsupportedTableFeatureError
from ...locations import is_table_name, name_parts, scheme_of, unquoted
from ...log.opening import open_table
from ...spark.port import is_connect, java_session, jvm
from ...table import Table
from .failures import failure_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Above this line `DESCRIBE` lists the table's own columns, one of which may be called Location.
_DETAILS = "# Detailed Table Information"
_BUCKET = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]+")
_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")
_NO_DRIVER = re.compile(r"No FileSystem for scheme|ClassNotFoundException: Class \S*FileSystem\S* not found")
_NO_TABLE = re.compile(
    r"\[(DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE|DELTA_PATH_DOES_NOT_EXIST|PATH_NOT_FOUND"
    r"|DELTA_INVALID_PARTITION_PATH|DELTA_MISSING_TRANSACTION_LOG|TABLE_OR_VIEW_NOT_FOUND)"
)
# A table that this Delta cannot read; opening it raises the reason.
_UNREADABLE = re.compile(
    r"DELTA_(UNSUPPORTED_FEATURES_FOR_READ|INVALID_PROTOCOL_VERSION|LOG_FILE_NOT_FOUND|VERSIONS_NOT_CONTIGUOUS"
    r"|TRUNCATED_TRANSACTION_LOG|STATE_RECOVER_ERROR)"
)
_NO_CATALOG = re.compile(r"\[(REQUIRES_SINGLE_PART_NAMESPACE|CATALOG_NOT_FOUND)\]|CatalogNotFoundException")
_DRIVERS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "wasb": "org.apache.hadoop:hadoop-azure",
    "wasbs": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}
# As a package it brings another Guava than Spark's, and fails on it; and Hadoop does not find it among spark.jars.
_GOOGLE = (
    "the JAR gcs-connector-hadoop3-<version>-shaded of com.google.cloud.bigdataoss:gcs-connector in spark.jars, and "
    "with spark.hadoop.fs.gs.impl=com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
)


@contextmanager
def naming_driver(location: str) -> Iterator[None]:
    """Raises an error that names the missing package where Hadoop has no file system for a scheme."""
    try:
        yield
    except Exception as error:  # py4j wraps every Hadoop exception in one type
        report = str(getattr(error, "java_exception", None) or error)
        named = failure_of(report, location, within=location)
        if named is not None:
            raise named from error
        if not _NO_DRIVER.search(report):
            raise
        scheme = scheme_of(location)
        known = ", ".join(f"{name} ({package})" for name, package in _DRIVERS.items())
        package = _DRIVERS.get(scheme, f"of that store; known are {known}")
        way = f"the package {package}, for hadoop-* in the version of Spark's own Hadoop, in spark.jars.packages"
        raise SessionError(
            f"{location}: Spark has no file system for {scheme}://. Start the session with "
            f"{_GOOGLE if scheme == 'gs' else way}"
        ) from error


def sql_name(location: str) -> str:
    """Writes a location as SQL wants it: names as they are, paths as delta.`path`."""
    if is_table_name(location):
        return location
    escaped = location.replace("`", "``")
    return f"delta.`{escaped}`"


def sql_literal(text: str) -> str:
    """Writes a SQL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def require_delta_table(spark: SparkSession, location: str) -> None:
    """Checks that a Delta table is at `location`."""
    if not is_delta_table(spark, location):
        raise _no_table(location)


def _no_table(location: str) -> NotADeltaTableError:
    return NotADeltaTableError(f"{location} holds no Delta table; ingest into it first, or check the path")


def is_delta_table(spark: SparkSession, location: str) -> bool:
    """Whether a Delta table is at `location`."""
    from pyspark.errors import PySparkException

    if is_table_name(location):
        try:
            return bool(spark.catalog.tableExists(location))
        except PySparkException as error:
            if not _NO_CATALOG.search(str(error)):
                raise
            return False
    try:
        read_table(spark, location)
    except NotADeltaTableError:
        return False
    except Exception as error:  # Delta's own are of many classes, and `naming_driver` names some of them
        if not _UNREADABLE.search(f"{error} {error.__cause__}"):
            raise
    return True


def is_made(spark: SparkSession, table: Table) -> bool:
    """Whether a Delta table is there; the log of a path answers without Spark."""
    if table.is_name:
        return is_delta_table(spark, table.location)
    try:
        with suppress(UnsupportedTableFeatureError):
            open_table(table)
    except NotADeltaTableError:
        return False
    return True


@contextmanager
def temporary_view(rows: DataFrame) -> Iterator[str]:
    """Names rows for one statement of SQL."""
    name = f"lakelens_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def create_table(rows: DataFrame, location: str) -> None:
    """Creates a Delta table that must not exist yet."""
    writer = rows.write.format("delta").mode("error")
    if is_table_name(location):
        writer.saveAsTable(location)
    else:
        writer.save(location)


def read_table(spark: SparkSession, location: str, version: int | None = None) -> DataFrame:
    """Reads one version of a Delta table; None reads the latest. Raises `NotADeltaTableError` if there is no table."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", str(version))
    with naming_driver(location):
        try:
            rows = reader.table(location) if is_table_name(location) else reader.load(location)
            _ = rows.schema  # a Connect session looks for the table now
        except Exception as error:  # Delta's own are of many classes
            if "DATA_SOURCE_NOT_FOUND" in str(error):
                raise SessionError(f"{location}: the server of this Spark Connect session has no Delta Lake") from error
            if not (_NO_TABLE.search(str(error)) or (is_table_name(location) and _NO_CATALOG.search(str(error)))):
                raise
            raise _no_table(location) from error
    return rows


def require_schema(spark: SparkSession, name: str) -> None:
    """Checks that the catalog has the schema of a table that is to be made; paths have none."""
    from pyspark.errors import PySparkException

    if not is_table_name(name):
        return
    schema_name = _schema_of(name)
    try:
        exists = spark.catalog.databaseExists(schema_name)
    except PySparkException:  # no such catalog
        exists = False
    if not exists:
        raise NotADeltaTableError(
            f"{name}: the catalog has no schema {schema_name}; create it, or write ./{name} for a table in a folder"
        )


def _schema_of(name: str) -> str:
    return ".".join(name_parts(name)[:-1])


def path_of(spark: SparkSession, location: str) -> str:
    """Resolves a table's name to the path that holds its files; paths stay as they are."""
    if not is_table_name(location):
        return location
    # Reading the catalog costs no job; DESCRIBE DETAIL would have Delta count the table's files.
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {location}").collect()
    details = itertools.dropwhile(lambda row: row["col_name"] != _DETAILS, described)
    place = next((row["data_type"] for row in details if row["col_name"] == "Location"), None)
    return str(place or spark.sql(f"DESCRIBE DETAIL {location}").collect()[0]["location"])


def resolved(spark: SparkSession, table: Table) -> Table:
    """Returns the table by the path that holds its files; its version is not looked at."""
    return Table.of(path_of(spark, table.location), None, table.storage_options)


def hadoop_path(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """Returns a location as a path of Hadoop's, and the file system that it is in."""
    path = jvm(spark).org.apache.hadoop.fs.Path(_with_root(location))
    with naming_driver(location):
        return path, path.getFileSystem(java_session(spark).sessionState().newHadoopConf())


def pattern_of(location: str) -> str:
    """Writes a path or URI for Spark's readers, which take it for a pattern."""
    return _OF_PATTERNS.sub(r"\\\g<0>", location)


def files_by_reader(spark: SparkSession, location: str) -> DataFrame:
    """Lists files at or below a URI by `binaryFile`, which skips empty files and names with a leading `_` or `.`."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    with naming_driver(location):
        files = reader.load(pattern_of(_with_root(location)))
        _ = files.schema  # a Connect session looks for the files now
    return files


def _with_root(location: str) -> str:
    """Adds a slash to a bucket: without one Hadoop takes it for a path that is not absolute."""
    return f"{location}/" if _BUCKET.fullmatch(location) else location


def place_to_spark(spark: SparkSession, path: str) -> str | None:
    """Returns the URI that Spark takes a path for, such as one of HDFS; None if the runtime does not allow to ask."""
    if is_connect(spark):
        return None
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        hadoop = jvm(spark).org.apache.hadoop.fs
        default = hadoop.FileSystem.getDefaultUri(java_session(spark).sessionState().newHadoopConf())
        return str(hadoop.Path(path).makeQualified(default, hadoop.Path("/")).toString())
    except (Py4JError, PySparkException, SessionError, TypeError):
        return None


def place_of_new(spark: SparkSession, name: str) -> str:
    """Returns where the catalog will put a new table."""
    from pyspark.errors import PySparkException

    schema_name, own_name = _schema_of(name), unquoted(name_parts(name)[-1])
    try:
        root = spark.catalog.getDatabase(schema_name).locationUri
    except PySparkException:
        root = None
    if not root:
        raise InvalidArgumentError(
            f"{name}: the catalog does not tell where it would put a new table, and lakelens reads a table's log "
            "without Spark; ingest into a path or URI, such as a folder of a volume"
        )
    return f"{root.rstrip('/')}/{own_name}"


_IN_FORM = "^file:///[A-Za-z0-9_.~/%-]*$"
_LOCAL = "^(/|file:/[^/]|file:///)"
_START = "^(file://)?(file:)?"
_BAD_ESCAPE = "%($|[^0-9A-Fa-f]|.$|.[^0-9A-Fa-f])"


def column_in_one_form(name: str) -> Column:
    """Writes the paths of local files as `files.local_uri` does; what is not a local path stays as it is."""
    from pyspark.sql import functions as F

    path = F.col(name)
    bare = F.regexp_replace(path, _START, "")
    # A percent sign is an escape after `file:///` alone, where two digits follow each.
    is_quoted = path.startswith("file:///") & ~bare.rlike(_BAD_ESCAPE)
    # Java writes and reads the escapes of web forms, which differ from those of URIs in these characters.
    raw = F.when(is_quoted, F.url_decode(F.replace(bare, F.lit("+"), F.lit("%2B")))).otherwise(bare)
    quoted = F.url_encode(raw)
    for found, wanted in (("%2F", "/"), ("+", "%20"), ("*", "%2A"), ("%7E", "~")):
        quoted = F.replace(quoted, F.lit(found), F.lit(wanted))
    return F.when(path.rlike(_IN_FORM) | ~path.rlike(_LOCAL), path).otherwise(F.concat(F.lit("file://"), quoted))
