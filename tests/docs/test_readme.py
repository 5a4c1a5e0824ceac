"""What the README and the pages show is run as it stands there."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_processes import run_to_end
from deltalake import DeltaTable
from result_keys import result_keys

from lakelens.jobs.cli import build_parser
from lakelens.jobs.demo import write_digits

README = Path(__file__).resolve().parents[2] / "README.md"
DOCS = README.parent / "docs"


def blocks(language: str, page: Path = README) -> list[str]:
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def photos(folder: Path, per_class: int) -> None:
    """Class folders named `photos`, as the README's reader has them."""
    images = write_digits(folder / "digits")
    for file in sorted(images.source.rglob("*.jpg")):
        if int(re.sub(r"\D", "", file.stem)[3:] or 0) <= per_class and file not in images.broken:
            target = folder / "photos" / file.parent.name / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)


# Keras looks for a backbone's weights here before it downloads them; these are untrained, as tests have no network.
WEIGHTS = """
import keras, pathlib
folder = pathlib.Path("keras/models")
folder.mkdir(parents=True)
backbone = keras.applications.MobileNetV2((224, 224, 3), include_top=False, weights=None)
backbone.save(folder / "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5")
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a reader who has photos and has run the first example."""
    folder = tmp_path_factory.mktemp("reader")
    photos(folder, per_class=12)
    run_python(WEIGHTS, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_HOME", str(folder / "keras"))
        said = run_python(blocks("python")[0], folder)
        assert "IngestResult" in said
        assert "predicted_name" in said
        yield folder


def run_python(block: str, folder: Path, timeout_s: float = 600) -> str:
    script = folder / "block.py"
    script.write_text(block, encoding="utf-8")
    return run_to_end([sys.executable, str(script)], cwd=folder, timeout=timeout_s).stdout


def command_lines() -> list[str]:
    """Every command of the README as it stands, without its comment, but for `make` and the installation."""
    lines = [line.partition("  #")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("lakelens ") and line != "lakelens doctor"]


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_the_quick_start_and_the_training_function_run_as_written(read):
    said = run_python(blocks("python")[1], read)
    # What the ranks print of their training, and what the function returns.
    assert "[0]<stdout> Epoch 2/2" in said
    assert said.splitlines()[-1].isdigit()


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_each_command_runs_as_written_one_after_the_other(read):
    """RUN is the run of the last training, and PATH the path of a scored image."""
    # As written, but for the length of its trainings; `reproduce` ends with 0 where two trainings are equal.
    experiment = blocks("yaml")[0].replace("max_length: {epochs: 10}", "max_length: {epochs: 2}")
    assert "{epochs: 2}" in experiment
    experiment += "\nreproducibility: {deterministic: true}\n"
    (read / "experiment.yaml").write_text(experiment, encoding="utf-8")
    stored = DeltaTable(str(read / "tables" / "predictions")).to_pyarrow_table(columns=["path"])
    values = {"PATH": stored["path"][0].as_py()}
    lines = command_lines()
    assert len(lines) > 10
    # One process for all of them: each would start Spark and import TensorFlow again.
    (read / "commands.json").write_text(json.dumps([lines, values]), encoding="utf-8")
    said = run_python(IN_TURN, read, timeout_s=850).splitlines()[-1]
    for line, result in zip(lines, json.loads(said), strict=True):
        words = line.split()
        names = {words[1], " ".join(words[1:3])}
        forms = [keys for (name, _), keys in result_keys().items() if name in names]
        assert any(set(result) <= set(keys) for keys in forms), f"{line}: {sorted(result)}"


IN_TURN = """
import contextlib, io, json, re, shlex, sys
from lakelens.jobs.cli import main

lines, values = json.load(open("commands.json"))
results = []
for line in lines:
    words = shlex.split(re.sub(r"\\b(RUN|PATH)\\b", lambda found: values[found[0]], line))
    print(line, file=sys.stderr)
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        code = main(words[1:])
    assert code == 0, f"{line}: {code}: {stdout.getvalue()[-3000:]}"
    results.append(json.loads(stdout.getvalue().splitlines()[-1]))
    if words[1] == "train" and "--dry-run" not in words:
        values["RUN"] = results[-1]["run_id"]
print(json.dumps(results))
"""


# What the reader of the pages has: a session, photos that grow, and an experiment with the Trial of docs/trials.md.
STORY = """
import os
from pathlib import Path

import lakelens
from lakelens.jobs.cli import main

spark = lakelens.spark_session()
{ingest}
first = sorted(Path("photos").rglob("*.jpg"))[0]
first.with_name("new.jpg").write_bytes(first.read_bytes() + b"1")
{ingest}
assert (result.version, result.stored) == (1, 1), result
version = result.version
{feed}
assert sum(1 for _ in dataset) == 3 * feed.steps_per_epoch(64, size=2)
os.environ["XDG_CACHE_HOME"] = str(Path("cache").absolute())
{cache}
assert sum(1 for _ in dataset) == feed.steps_per_epoch(64)
{petastorm}
Path("experiment.yaml").write_text(\"\"\"
entrypoint: birds.py:Birds
data: {{table: tables/photos, version: 1}}
hyperparameters: {{global_batch_size: 64, depth: {{type: int, minval: 2, maxval: 3}}}}
searcher: {{name: random, max_trials: 2, metric: val_loss, max_length: {{epochs: 1}}}}
\"\"\")
{search}
assert len(result.trials()) == 2
assert main(["models", "promote", f"search:{{result.run_id}}", "photos", "--alias", "champion"]) == 0
{score}
assert scored.where("predicted_name is not null").count() == table.read(version).count()
table.read(version).createOrReplaceTempView("images")
assert spark.sql("select predict(image).predicted_name from images").count() > 0
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_the_examples_of_the_pages_run_as_written_one_after_the_other(read, tmp_path_factory):
    """Those of PyTorch run in tests/training/stories/test_torch.py, in an environment with PyTorch."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(read / "photos", folder / "photos")
    (folder / "birds.py").write_text(blocks("python", DOCS / "trials.md")[0], encoding="utf-8")
    pages = {
        "ingest": "how-to/ingest.md",
        "feed": "concepts/feed.md",
        "petastorm": "petastorm.md",
        "search": "search.md",
        "score": "how-to/score.md",
    }
    shown = {name: blocks("python", DOCS / page) for name, page in pages.items()}
    shown["feed"], shown["cache"] = shown["feed"][:1], shown["feed"][1:]
    # A detector's: in tests/inference/stories/test_detection.py; an export's: in tests/inference/export/test_export.py.
    shown["score"] = [text for text in shown["score"] if "detections" not in text and '"served"' not in text]
    assert all(shown.values())
    run_python(STORY.format(**{name: "\n".join(texts) for name, texts in shown.items()}), folder)


def is_refused(command: str) -> bool:
    try:
        build_parser().parse_args(shlex.split(command)[1:])
    except SystemExit as ended:
        return bool(ended.code)
    return False


@pytest.mark.unit
def test_each_command_of_a_page_and_of_the_readme_has_the_flags_of_the_parser():
    lines = [
        line.strip().removeprefix("$ ")
        for page in DOCS.rglob("*.md")
        for line in "".join(blocks("", page)).splitlines()
    ]
    commands = [re.split("  #| > ", line)[0] for line in lines if line.startswith("lakelens ")]
    commands += command_lines()
    assert len(commands) > 30
    assert [command for command in commands if is_refused(command)] == []


@pytest.mark.unit
def test_the_photographs_of_the_tutorial_are_made_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python", DOCS / "start.md")
    Path("photos.py").write_text(block, encoding="utf-8")
    runpy.run_path("photos.py")
    made = Counter(file.parent.name for file in (tmp_path / "photos").rglob("*.jpg"))
    assert made == {"pagoda": 60, "sky": 61, "lake": 60, "tree": 60, "dahlia": 60, "leaf": 60}


@pytest.mark.unit
def test_the_first_example_runs_without_a_compiled_horovod():
    calls = [node for node in ast.walk(ast.parse(blocks("python")[0])) if isinstance(node, ast.Call)]
    (train,) = (call for call in calls if ast.unparse(call.func) == "lakelens.train")
    assert "np" not in {keyword.arg for keyword in train.keywords}


@pytest.mark.unit
def test_the_first_page_of_the_site_shows_lines_of_the_example_that_is_run():
    index = (README.parent / "docs" / "index.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```python\n(.*?)^```$", index, re.MULTILINE | re.DOTALL)
    run = {ast.unparse(statement) for statement in ast.parse(blocks("python")[0]).body}
    assert {ast.unparse(statement) for statement in ast.parse(shown).body} <= run
