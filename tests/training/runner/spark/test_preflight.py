"""Sessions other than the tests' own: all slots, and settings that rule a barrier job out. One driver runs all."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from leftovers import leaves_nothing

pytestmark = [pytest.mark.spark, pytest.mark.horovod, pytest.mark.long, pytest.mark.timeout(900)]

DRIVER = """
import json, os, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from lakelens import spark_session
from lakelens.errors import LakelensError
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.runner.spark.slots import registered_now

ENV = {"LAKELENS_TEST_TOKEN": sys.argv[1], "TMPDIR": sys.argv[2], "TF_CPP_MIN_LOG_LEVEL": "2"}
FOLDER = sys.argv[3]
SMALL = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.sql.warehouse.dir": FOLDER + "/warehouse"}
found = {}

def refusal(call):
    try:
        return ["ran", repr(call())]
    except LakelensError as error:
        return [type(error).__name__, str(error)]

def size():
    from lakelens.training.rank.process_context import current
    return current().size

def meet(folder, name):
    # Each of two jobs waits for all ranks of both: they can only end if they run at the same time.
    import time
    from pathlib import Path
    from lakelens.training.rank.process_context import current
    Path(folder, f"{name}-{current().rank}").touch()
    while len(list(Path(folder).glob("job-?-*"))) < 4:
        time.sleep(0.05)
    return current().size

spark = spark_session("local-cluster[2,2,512]", conf=SMALL | {"spark.executor.memory": "512m"})
spark.sparkContext.setLogLevel("OFF")
# The session is fresh: when the first of two jobs begins, the other's executor may not have come yet.
pair = {}
threads = [
    threading.Thread(
        target=lambda n=n: pair.update({n: HorovodRunner(np=2, env=ENV, name=n).run(meet, folder=FOLDER, name=n)})
    )
    for n in ("job-a", "job-b")
]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
found["two at once"] = pair
# On a loaded machine the second executor may come so late that a job would begin without it.
while registered_now(spark).executors < 2:
    time.sleep(0.1)
spark.stop()

spark = spark_session("local[2]", conf=SMALL | {"spark.dynamicAllocation.enabled": "true"})
spark.sparkContext.setLogLevel("OFF")
found["dynamic allocation"] = refusal(lambda: HorovodRunner(np=2, env=ENV).run(size))
found["dynamic allocation, every slot"] = refusal(lambda: HorovodRunner(np=0, env=ENV).run(size))
spark.stop()

# Without Delta, as a user's own script may start it; the JVM still has the settings of the first session.
builder = SparkSession.builder.master("local[2]")
for key, value in {**SMALL, "spark.sql.extensions": ""}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
found["extensions"] = spark.conf.get("spark.sql.extensions", "")
found["without Delta"] = [refusal(lambda np=np: HorovodRunner(np=np, env=ENV).run(size)) for np in (1, 2, 0)]
found["no GPU configured"] = refusal(lambda: HorovodRunner(np=2, use_gpu=True, env=ENV).run(size))
stream = spark.readStream.format("rate").load()
table = spark.range(3)
found["stream"] = refusal(lambda: HorovodRunner(np=2, env=ENV).run(lambda: stream.count()))
found["table"] = refusal(lambda: HorovodRunner(np=2, env=ENV).run(lambda rows: rows.count(), rows=table))
found["session"] = refusal(lambda: HorovodRunner(np=2, env=ENV).run(lambda: spark.range(3).count()))
batches = []
def each(rows, number):
    batches.append((number, HorovodRunner(np=2, env=ENV).run(size)))
query = stream.writeStream.foreachBatch(each).trigger(once=True)
query.option("checkpointLocation", FOLDER + "/checkpoint").start().awaitTermination(120)
found["in a batch of a stream"] = batches
spark.stop()

if sys.argv[4]:
    os.environ["PYSPARK_PYTHON"] = sys.argv[4]
    spark = spark_session("local[2]", conf=SMALL)
    spark.sparkContext.setLogLevel("OFF")
    found["another Python"] = refusal(lambda: HorovodRunner(np=2, env=ENV).run(size))
    spark.stop()
print(json.dumps(found))
"""


def other_python() -> str | None:
    """A Python of another minor version on this machine; None if there is none."""
    for minor in (10, 11, 12, 13):
        if minor != sys.version_info.minor:
            known = [shutil.which(f"python3.{minor}"), *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")]
            for path in filter(None, known):
                probe = [str(path), "-c", f"import sys; sys.exit(sys.version_info[1] != {minor})"]
                if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                    return str(path)
    return None


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sessions")
    with leaves_nothing() as watch:
        arguments = [watch.token, str(watch.temporary), str(folder), other_python() or ""]
        command = [sys.executable, "-c", DRIVER, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_runners_work_from_two_threads_in_a_batch_of_a_stream_and_on_a_session_without_delta(found):
    assert found["two at once"] == {"job-a": 2, "job-b": 2}  # at the same time
    assert found["in a batch of a stream"] == [[0, 2]]
    assert found["extensions"] == ""
    assert found["without Delta"] == [["ran", "1"], ["ran", "2"], ["ran", "2"]]


def test_dynamic_allocation_is_refused_with_the_setting_to_change(found):
    for name in ("dynamic allocation", "dynamic allocation, every slot"):
        kind, message = found[name]
        assert kind == "ClusterConfigurationError"
        assert "spark.dynamicAllocation.enabled=true" in message
        assert "set it to false and fix the number with spark.executor.instances" in message


def test_gpus_that_are_asked_for_and_not_configured_are_refused_with_the_settings(found):
    kind, message = found["no GPU configured"]
    assert kind == "ClusterConfigurationError"
    assert "spark.task.resource.gpu.amount is not set" in message


def test_a_stream_a_table_and_the_session_cannot_be_sent_and_are_named_with_the_way_out(found):
    frame = "pyspark.sql.classic.dataframe" if pyspark.__version__.startswith("4.") else "pyspark.sql.dataframe"
    kind, message = found["stream"]
    assert kind == "UnpicklableFunctionError"
    assert f"'stream' ({frame}.DataFrame) cannot be pickled. Spark reads a stream on the driver" in message
    kind, message = found["table"]
    assert kind == "UnpicklableFunctionError"
    assert f"argument rows=DataFrame[id: bigint] ({frame}.DataFrame) cannot be pickled" in message
    assert "pass a table's path and version" in message
    assert "'spark' (pyspark.sql.session.SparkSession)" in found["session"][1]


def test_executors_of_another_python_are_refused_with_the_setting_to_change(found):
    if "another Python" not in found:
        pytest.skip("this machine has no Python of another minor version")
    kind, message = found["another Python"]
    assert kind == "ClusterConfigurationError"
    assert f"the executors run another Python than the driver, {platform.python_version()}" in message
    assert "set PYSPARK_PYTHON" in message
