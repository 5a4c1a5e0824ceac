"""Spark's classes, loaded once and kept: tests start dozens of JVMs, each of which would load and check them anew."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from connect_server import classic_environment

from lakelens.errors import MissingDependencyError
from lakelens.spark.jvm import find_java

# One JVM does what drivers and executors do, and writes at its end which classes that took.
TRAINING = """
import sys
from lakelens import spark_session

def same(batches):
    yield from batches

spark = spark_session(
    "local[2]",
    conf={
        "spark.driver.extraJavaOptions": "-Xlog:disable -XX:ArchiveClassesAtExit=" + sys.argv[1],
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": sys.argv[2] + "/warehouse",
        "spark.ui.enabled": "false",
    },
)
table = sys.argv[2] + "/table"
for _ in range(2):
    rows = spark.range(100).selectExpr("id", "id % 7 as key", "array(named_struct('name', string(id))) as list")
    rows.mapInArrow(same, rows.schema).repartition(2, "key").write.format("delta").mode("append").save(table)
spark.read.format("delta").load(table).groupBy("key").count().orderBy("key").collect()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
sys.exit(jvm.wait())
"""


def use_class_archive() -> None:
    """Lets the JVMs that start from now on take Spark's classes from an archive; makes it when there is none.

    It lies in the user's cache and belongs to one Java and one folder of Spark's JARs; those of other folders with the
    same Spark are removed.
    A JVM that cannot use it, or does not find it yet, loads its classes as ever and says nothing. While another process
    makes it, this one goes on without.
    """
    try:
        java = find_java()
    except MissingDependencyError:
        return  # the tests that need Java say so
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"  # a JVM refuses the archive of JARs that were installed anew
    parts = f"{java.home} {java.version} {jars} {jars.stat().st_mtime_ns} {TRAINING}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakelens" / "classes"
    archive = cache / f"spark-{pyspark.__version__}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.jsa"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                if not archive.exists():
                    _make(archive)
    options = f"-Xshare:auto -Xlog:disable -XX:SharedArchiveFile={archive}"
    os.environ["JAVA_TOOL_OPTIONS"] = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {options}".strip()


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / archive.name
        command = [sys.executable, "-c", TRAINING, str(made), folder]
        try:
            environment = classic_environment()
            subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=True)
            made.chmod(0o600)
        except (subprocess.SubprocessError, FileNotFoundError) as error:
            warnings.warn(f"no class archive, the tests' JVMs start slowly: {error}", stacklevel=2)
            return
        for other in archive.parent.glob(f"{archive.stem.rpartition('-')[0]}-*.jsa"):
            other.unlink(missing_ok=True)
        made.replace(archive)  # whole or not at all: a JVM that maps half an archive dies
