"""What Determined's users have in a Trial is found before anything is imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import lakelens
from lakelens.errors import TrialError
from lakelens.training.trials.context import TrialContext
from lakelens.training.trials.determined_code import CONTEXT, METHODS, check_not_determined
from lakelens.training.trials.entrypoint import EntryPoint
from lakelens.training.trials.keras_trial import KerasTrial
from lakelens.training.trials.torch_trial import TorchTrial

pytestmark = pytest.mark.unit

DETERMINED = """
from determined.keras import TFKerasTrial, TFKerasTrialContext
from determined import pytorch

class Fashion(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        self.width = context.get_hparams()["width"]

    def build_model(self):
        model = self.context.wrap_model(make(self.width))
        model.compile(self.context.wrap_optimizer(Adam()), "mse")
        return model

    def session_config(self):
        return None

    def build_training_data_loader(self):
        return load(), self.context.distributed.get_rank()
"""


def told(tmp_path, text: str, name: str = "Fashion") -> str:
    (tmp_path / "trial.py").write_text(textwrap.dedent(text), encoding="utf-8")
    with pytest.raises(TrialError) as caught:
        EntryPoint.parse(f"{tmp_path / 'trial.py'}:{name}")
    return str(caught.value)


def test_all_lines_of_determined_are_named_at_once_with_what_to_write_instead(tmp_path):
    lines = told(tmp_path, DETERMINED).splitlines()
    assert "trial.py is written for Determined" in lines[0]
    assert [line.strip().partition(": ")[0] for line in lines[1:]] == [
        "line 2, import of determined.keras",
        "line 3, import of determined",
        "line 8, context.get_hparams",
        "line 11, context.wrap_model",
        "line 12, context.wrap_optimizer",
        "line 15, def session_config",
        "line 18, def build_training_data_loader",
        "line 19, context.distributed",
    ]
    assert "get_hparam(name, default)" in lines[3]


@pytest.mark.parametrize("name", ["build_training_data_loader", "build_validation_data_loader"])
@pytest.mark.parametrize("base", ["KerasTrial", "TorchTrial"])
def test_a_data_loader_that_would_never_be_called_is_refused(tmp_path, name, base):
    text = f"import lakelens\nclass Own(lakelens.{base}):\n    def {name}(self):\n        return 1\n"
    assert f"line 3, def {name}: images come from data.table as uint8, 0 to 255" in told(tmp_path, text, "Own")
    called = f"{text}    def build_training_dataset(self):\n        return self.{name}()\n"
    (tmp_path / "trial.py").write_text(called, encoding="utf-8")
    assert EntryPoint.parse(f"{tmp_path / 'trial.py'}:Own").class_name == "Own"


def test_names_of_the_users_own_stay(tmp_path):
    text = """
    import lakelens

    class Own(lakelens.TorchTrial):
        def training_step(self, model, batch):
            return self.train_batch(model, batch), self.context.get_hparam("a"), self.helper.wrap_model(model)

        def train_batch(self, model, batch):
            return batch

    class Other:
        def build_training_data_loader(self):
            return self.context.wrap_model
    """
    (tmp_path / "trial.py").write_text(textwrap.dedent(text), encoding="utf-8")
    assert EntryPoint.parse(f"{tmp_path / 'trial.py'}:Own").framework == "torch"


@pytest.mark.parametrize(
    "guard",
    [
        "try:\n    import determined as det\nexcept ImportError:\n    det = None\n",
        "if TYPE_CHECKING:\n    from determined.keras import TFKerasTrialContext\n",
        "import determined.pytorch as det\nclass Old(det.PyTorchTrial):\n    def session_config(self):\n        pass\n",
    ],
)
def test_an_import_that_the_class_does_not_use_is_left_to_the_module(guard):
    own = "class Own(lakelens.KerasTrial):\n    def train_batch(self):\n        return {}\n"
    check_not_determined(f"{guard}{own.format(1)}", "Own", "trial.py")
    bound = "det" if "as det" in guard else "TFKerasTrialContext"
    with pytest.raises(TrialError, match=r"(?s)import of determined.*def train_batch"):
        check_not_determined(f"{guard}{own.format(bound)}", "Own", "trial.py")


def test_a_class_and_a_module_are_looked_at_like_a_file(tmp_path, monkeypatch):
    class Own(lakelens.KerasTrial):
        def build_model(self):
            return self.context.wrap_model(None)

    with pytest.raises(TrialError, match=r"line \d+, context\.wrap_model: remove it"):
        EntryPoint.parse(Own)
    (tmp_path / "of_determined.py").write_text(DETERMINED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TrialError, match="is written for Determined"):
        EntryPoint.parse("of_determined:Fashion")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text(DETERMINED, encoding="utf-8")
    code = "from lakelens.training.trials.entrypoint import EntryPoint; EntryPoint.parse('beside:Fashion')"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert "install it, or give beside.py:Fashion" in done.stderr


def test_what_a_trial_of_lakelens_has_is_not_taken_for_determined():
    assert not any(hasattr(TrialContext, name) for name in CONTEXT)
    assert not any(hasattr(trial, name) for name in METHODS for trial in (KerasTrial, TorchTrial))
