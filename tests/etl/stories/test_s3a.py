"""The ETL on a real S3 server, through Hadoop's s3a: a session of its own with Hadoop's JARs runs all of it once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from etl_pictures import encoded, picture
from s3_server import ACCESS_KEY, BUCKET, MISSING, SECRET_KEY, s3_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install 'lakelens[dev]'"),
]

DRIVER = r"""
import dataclasses, json, re, sys
import lakelens
from lakelens import ImageTable
from lakelens.training.feed.feed import DeltaFeed

settings, storage_options, bucket = json.loads(sys.argv[1])
spark = lakelens.spark_session("local[1]", conf=settings)
spark.sparkContext.setLogLevel("OFF")
table = ImageTable(spark, f"{bucket}/tables/of photos", storage_options=storage_options)

def told(result):
    names = ("version", "rows_in", "stored", "quarantined", "skipped", "changed", "removed")
    return {name: getattr(result, name) for name in names}

found = {"first": told(table.ingest(f"{bucket}/photos", size=16, splits={"train": 1.0}))}
emptied = ImageTable(spark, f"{bucket}/tables/emptied", storage_options=storage_options)
emptied.ingest(f"{bucket}/emptied", size=16, splits={"train": 1.0})
print("ready", flush=True)
input()  # until other objects are there
found["second"] = told(table.ingest(f"{bucket}/photos", delete_missing=True))
listed = ImageTable(spark, f"{bucket}/tables/listed", storage_options=storage_options)
found["listed"] = told(
    listed.ingest(f"{bucket}/list.csv", "manifest", images=bucket, size=16, splits={"train": 1.0})
)
def error_of(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]

found["emptied"] = error_of(lambda: emptied.ingest(f"{bucket}/emptied", delete_missing=True))
found["left"] = [emptied.read().count()]
emptied.delete(re.search(r'delete\("(.+?)"\)', found["emptied"][1])[1])
found["left"].append(emptied.read().count())
nowhere = ImageTable(spark, "s3a://no-such-bucket/t", storage_options=storage_options)
found["no bucket"] = {
    "source": error_of(lambda: table.ingest("s3a://no-such-bucket/photos")),
    "manifest": error_of(lambda: table.ingest("s3a://no-such-bucket/list.csv", "manifest")),
    "table": error_of(lambda: nowhere.ingest(f"{bucket}/photos", size=16)),
    "read": error_of(nowhere.read),
    "history": error_of(nowhere.history),
    "feed": error_of(lambda: DeltaFeed(nowhere.location, storage_options=storage_options)),
}
found["rows"] = sorted(row.path for row in table.read().select("path").collect())
spark.stop()

alone = ImageTable(None, table.location, storage_options=storage_options)  # no JVM any more
found["counts"] = [alone.class_counts(version) for version in (0, None)]
found["diff"] = dataclasses.asdict(alone.diff(0))
found["version"] = alone.version
found["history"] = [entry.rows for entry in alone.history()]
found["quarantine"] = [(file.path, file.reason) for file in alone.quarantine().files]
feed = DeltaFeed(table.location, storage_options=storage_options)
found["fed"] = sum(int((weights > 0).sum()) for _, _, weights in feed.as_numpy(4))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    log = tmp_path_factory.mktemp("s3a") / "stderr"
    with s3_server() as server, log.open("w") as stderr:
        put = server.put
        for number in range(2):
            put(f"photos/cat/{number} é%.jpg", encoded(picture(number)))
            put(f"photos/dog/{number}.jpg", encoded(picture(100 + number)))
            put(f"emptied/dog/{number}.jpg", encoded(picture(100 + number)))
        put("photos/dog/bad.jpg", b"no image")
        put("photos/dog/notes.txt", b"notes")
        put("list.csv", b"path,label\nphotos/dog/0.jpg,dog\ns3a://images/photos/dog/1.jpg,dog\n")
        # The JARs of another Hadoop than pyspark's do not fit it.
        (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
        settings = {
            "spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{jar.stem.removeprefix('hadoop-client-api-')}",
            "spark.hadoop.fs.s3a.endpoint": server.endpoint,
            "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.databricks.delta.writeChecksumFile.enabled": "false",
            "spark.driver.memory": "1g",
        }
        argument = json.dumps((settings, server.storage_options, f"s3a://{BUCKET}"))
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            if any(line == "ready\n" for line in driver.stdout):  # what Ivy says comes before
                put("photos/cow/0.jpg", encoded(picture(500)))
                put("photos/cat/0 é%.jpg", encoded(picture(501)))
                server.remove("photos/cat/1 é%.jpg")
                server.remove("emptied/")
            output, _ = driver.communicate("\n", timeout=400)
        finally:
            driver.kill()
    errors = log.read_text()
    if "unresolved dependency" in errors:
        pytest.skip("Hadoop's JARs for S3 cannot be had")
    assert driver.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1])


def of(version, rows_in, stored, quarantined, skipped, changed=0, removed=0):
    names = ("version", "rows_in", "stored", "quarantined", "skipped", "changed", "removed")
    return dict(zip(names, (version, rows_in, stored, quarantined, skipped, changed, removed), strict=True))


def test_new_changed_and_removed_objects_of_a_bucket_are_told_apart(found):
    assert found["first"] == of(0, 5, 4, 1, 0)
    assert found["second"] == of(found["version"], 5, 2, 0, 3, changed=1, removed=1)
    names = ["cat/0 é%.jpg", "cow/0.jpg", "dog/0.jpg", "dog/1.jpg"]
    assert found["rows"] == [f"s3a://{BUCKET}/photos/{name}" for name in names]


def test_a_manifests_images_are_found_from_the_root_of_a_bucket(found):
    assert found["listed"] == of(0, 2, 2, 0, 0)


def test_versions_in_a_bucket_are_looked_at_and_fed_without_a_jvm(found):
    assert found["counts"] == [{"cat": 2, "dog": 2}, {"cat": 1, "dog": 2, "cow": 1}]
    diff = {name: found["diff"][name] for name in ("added", "removed", "changed")}
    assert diff == {"added": {"cow": 1}, "removed": {"cat": 1}, "changed": {"cat": 1}}
    assert set(found["history"]) == {4}
    assert found["quarantine"] == [[f"s3a://{BUCKET}/photos/dog/bad.jpg", "not_an_image"]]
    assert found["fed"] == 4


def test_a_bucket_folder_that_was_emptied_loses_its_rows_only_by_a_delete_that_the_error_names(found):
    kind, message = found["emptied"]
    assert kind in ("EmptySourceError", "SourceNotFoundError")
    assert "If it was emptied on purpose" in message
    assert found["left"] == [2, 0]


@pytest.mark.parametrize("door", ["source", "manifest", "table", "read", "history", "feed"])
def test_a_bucket_that_does_not_exist_is_named_in_one_line(found, door):
    kind, message = found["no bucket"][door]
    assert (kind, message.partition("/")[0]) == ("StoreError", "s3a:")
    assert "there is no such bucket or container. Create it" in message
