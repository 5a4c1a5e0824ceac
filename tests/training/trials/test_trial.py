"""Rules of the Trial's context, of entry points and of their frameworks; no TensorFlow."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lakelens
from lakelens.errors import TrialError
from lakelens.training.tasks.classification import Classification
from lakelens.training.trials.context import TrialContext
from lakelens.training.trials.entrypoint import DEFAULT_ENTRYPOINT, EntryPoint, framework_of
from lakelens.training.trials.keras_trial import KerasTrial

pytestmark = pytest.mark.unit


def context(**hyperparameters: object) -> TrialContext:
    task = Classification(["a", "b"])
    return TrialContext(hyperparameters=hyperparameters, task=task, image_size=(8, 8), global_batch_size=10)


def test_a_hyperparameter_without_default_must_be_given():
    assert context().get_hparam("rate", 0.1) == 0.1
    with pytest.raises(TrialError, match=r"'rate' is missing \(depth\)"):
        context(depth=3).get_hparam("rate")


@pytest.mark.parametrize(
    ("given", "default", "got"),
    [
        *((0.5, 0.1, 0.5), (1, 0.5, 1.0), ([1, 2], (3,), (1, 2)), ("x", None, "x"), (None, None, None)),
        *((True, False, True), (np.float32(0.5), 0.1, 0.5), (0.5, np.float32(0.1), 0.5), (np.int64(1), 0.1, 1.0)),
    ],
)
def test_a_value_that_fits_the_defaults_type_is_taken(given, default, got):
    trial_context = context(x=given)
    value = trial_context.get_hparam("x", default)
    assert value == trial_context.hyperparameters["x"] == got
    assert type(value) is type(trial_context.hyperparameters["x"]) is type(got)


@pytest.mark.parametrize(
    ("given", "default"), [("0.1", 0.1), (1.5, 2), (True, 1), (1, True), (0, False), (5, "five"), (None, 1.0)]
)
def test_a_value_of_another_type_than_the_default_is_refused(given, default):
    with pytest.raises(TrialError, match=r"hyperparameter 'x' is .* its default is"):
        context(x=given).get_hparam("x", default)


def test_entry_points_and_the_base_of_every_trial_load_no_framework():
    code = f"""
        import sys
        import lakelens
        from lakelens.training.trials.entrypoint import EntryPoint
        assert EntryPoint.parse({DEFAULT_ENTRYPOINT!r}).name == {DEFAULT_ENTRYPOINT!r}
        assert [name for name in vars(lakelens.Trial) if not name.startswith("__")] == ["framework", "outputs"]
        loaded = {{"tensorflow", "keras", "torch", "pyspark", "lakelens.training.trials.small_cnn"}} & set(sys.modules)
        assert not loaded, loaded
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert issubclass(lakelens.KerasTrial, lakelens.Trial)


def test_a_misspelt_hyperparameter_is_refused_with_the_nearest_name():
    trial_context = context(lerning_rate=0.1)
    trial_context.get_hparam("learning_rate", 0.3)
    with pytest.raises(TrialError, match="never asks for hyperparameter 'lerning_rate'; did you mean 'learning_rate'"):
        trial_context.require_all_used()


def test_what_was_asked_for_is_what_is_recorded():
    trial_context = context(rate=1)
    trial_context.get_hparam("rate", 0.1)
    trial_context.get_hparam("depth", 3)
    assert trial_context.get_hparam("global_batch_size") == 10
    trial_context.require_all_used()
    assert trial_context.hyperparameters == {"rate": 1.0, "depth": 3}


TRIALS = """
from lakelens.training.trials.keras_trial import KerasTrial
class Mine(KerasTrial):
    def build_model(self):
        return None
class Unfinished(KerasTrial):
    pass
class NoTrial:
    pass
"""


def write_trial(folder: Path, before: str = "") -> Path:
    path = folder / "mine.py"
    path.write_text(before + TRIALS)
    return path


def test_a_file_entry_point_travels_with_its_source_and_its_class_is_one_too(tmp_path):
    path = write_trial(tmp_path)
    entry = pickle.loads(pickle.dumps(EntryPoint.parse(f"{path}:Mine")))
    path.unlink()
    mine = entry.load()
    assert issubclass(mine, KerasTrial)
    assert entry.name == f"{path}:Mine"
    assert EntryPoint.parse(mine).load() is mine


def test_a_file_entry_point_imports_the_files_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_trial.py").write_text("VALUE = 5\n")
    path = write_trial(tmp_path, "from beside_the_trial import VALUE")
    assert sys.modules[EntryPoint.parse(f"{path}:Mine").load().__module__].VALUE == 5


@pytest.mark.parametrize(
    "entrypoint", ["", "Mine", "mine.py", ":Mine", "mine.py:", "mine.py:not a name", "a b:Mine", "/x/y:Mine"]
)
def test_an_entry_point_of_another_form_is_refused(entrypoint):
    with pytest.raises(TrialError, match=r"give module:Class, path/to/file\.py:Class or a Trial class"):
        EntryPoint.parse(entrypoint)


def test_base_classes_are_followed_into_an_archive_as_spark_submit_sends_it(tmp_path, monkeypatch):
    archive = tmp_path / "sent.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("sent_trials.py", "from sent_package.bases import Mine\nclass Sent(Mine): pass")
        packed.writestr("sent_package/__init__.py", "raise AssertionError('imported')")
        packed.writestr("sent_package/bases.py", "import lakelens\nclass Mine(lakelens.TorchTrial): pass")
    monkeypatch.syspath_prepend(str(archive))
    assert EntryPoint.parse("sent_trials:Sent").framework == "torch"
    with pytest.raises(TrialError, match="it defines: Sent"):
        EntryPoint.parse("sent_trials:Nothing")


def test_a_missing_file_module_or_class_and_a_syntax_error_are_named(tmp_path):
    path = write_trial(tmp_path)
    with pytest.raises(TrialError, match=r"absent\.py:Mine: there is no such file"):
        EntryPoint.parse(f"{tmp_path}/absent.py:Mine")
    with pytest.raises(TrialError, match=r"Python finds no module 'no_such_package\.trials'"):
        EntryPoint.parse("no_such_package.trials:Mine")
    with pytest.raises(TrialError, match=r"defines no class 'Other'; it defines: Mine, Unfinished, NoTrial"):
        EntryPoint.parse(f"{path}:Other")
    with pytest.raises(TrialError, match=r"small_cnn\.py defines no class 'SmalCnn'; it defines: SmallCnn"):
        EntryPoint.parse("lakelens.training.trials.small_cnn:SmalCnn")
    path.write_text("class Mine(:\n    pass\n")
    with pytest.raises(TrialError, match=r"mine\.py, line 1: .*cannot be imported"):
        EntryPoint.parse(f"{path}:Mine")


def test_a_name_that_the_file_imports_or_assigns_is_left_to_the_ranks(tmp_path):
    body = "from lakelens.training.trials.small_cnn import SmallCnn as Borrowed\nAlias = Borrowed"
    path = write_trial(tmp_path, body)
    assert EntryPoint.parse(f"{path}:Borrowed").load().__name__ == "SmallCnn"
    assert EntryPoint.parse(f"{path}:Alias").load().__name__ == "SmallCnn"


def test_what_a_file_raises_when_it_is_imported_is_shown_as_it_is(tmp_path):
    for line, error in (("import not_installed", ModuleNotFoundError), ("1 / 0", ZeroDivisionError)):
        (tmp_path / "failing.py").write_text(f"import lakelens\nclass Mine(lakelens.KerasTrial): pass\n{line}\n")
        with pytest.raises(error):
            EntryPoint.parse(f"{tmp_path}/failing.py:Mine").load()


def test_a_class_that_is_no_finished_trial_is_refused(tmp_path):
    path = write_trial(tmp_path)
    with pytest.raises(TrialError, match="must be a subclass of lakelens"):
        EntryPoint.parse(f"{path}:NoTrial").load()
    with pytest.raises(TrialError, match="does not define build_model"):
        EntryPoint.parse(f"{path}:Unfinished").load()
    with pytest.raises(TrialError, match="must be a subclass of lakelens"):
        EntryPoint.parse(dict)


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import lakelens\nclass T(lakelens.TorchTrial): pass", "torch"),
        ("from lakelens import TorchTrial as Base\nclass T(Base): pass", "torch"),
        ("import lakelens as ll\nclass A(ll.TorchTrial): pass\nclass T(A): pass", "torch"),
        ("import lakelens\nclass T(lakelens.KerasTrial): pass\nclass U(lakelens.TorchTrial): pass", "keras"),
        ("from bases import Mine\nclass T(Mine): pass", "torch"),
        ("import package.bases\nclass T(package.bases.Mine): pass", "torch"),
        ("from .bases import Mine\nclass T(Mine): pass", "torch"),
        ("from package.inner.bases import Mine\nclass T(Mine): pass", "torch"),
        ("from lakelens.training.trials.torch_small_cnn import TorchSmallCnn as S\nclass T(S): pass", "torch"),
        ("from elsewhere import Unknown\nclass T(Unknown): pass", "keras"),
        ("class T(T): pass", "keras"),
    ],
)
def test_base_classes_are_followed_into_the_modules_that_they_are_imported_from(
    tmp_path: Path, source: str, framework: str
) -> None:
    for folder in (tmp_path, tmp_path / "package", tmp_path / "package" / "inner"):  # without __init__.py
        path = folder / "bases.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise AssertionError('imported')\nimport lakelens\nclass Mine(lakelens.TorchTrial): pass")
    assert framework_of(source, "T", [tmp_path], ("package",)) == framework


def test_frameworks_are_found_in_several_threads_at_once() -> None:
    def find(_: int) -> str:
        sys.path_importer_cache.update({f"/stale/{number}": None for number in range(300)})
        return framework_of("class T: ...", "T", [])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within the loop over the stale entries
    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(find, range(80))) == {"keras"}
    finally:
        sys.setswitchinterval(interval)
