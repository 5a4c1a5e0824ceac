"""A notebook's interrupt pauses a training, and its cell shows a bar that is red after failures only."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))

from coloured_tables import coloured_table
from mlflow_stores import put_store

from lakelens.tracking.run_listing import runs

TRIALS = """
    import time

    import keras
    from lakelens.training.trials.keras_trial import KerasTrial

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.2)

    class Tiny(KerasTrial):
        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            model.compile("sgd", "sparse_categorical_crossentropy")
            return model

        def keras_callbacks(self):
            return [Slow()]

    class Still(Tiny):
        def build_model(self):
            model = super().build_model()
            model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
            return model

        def keras_callbacks(self):
            return []
"""
CELL = """
import lakelens
store = "sqlite:///mlflow.db"
ranks = {"slots_per_trial": 2, "strategy": "horovod_local"}
lakelens.train("squares", entrypoint="tiny.py:Tiny", epochs=50, global_batch_size=16, tracking_uri=store, **ranks)
"""


STOPS_EARLY = """
stopping = {"early_stopping": {"patience": 1}}
lakelens.train(
    "squares", entrypoint="tiny.py:Still", epochs=50, global_batch_size=16, tracking_uri=store, config=stopping, **ranks
)
"""


def shown_by(client: Any, code: str, interrupt: Callable[[], None] | None = None) -> tuple[str, str]:
    """Runs a cell, interrupts it after its first epoch, and gives its text and the states of its widgets."""
    cell, text, widgets = client.execute(code), "", ""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        message = client.get_iopub_msg(timeout=300)
        if message["parent_header"].get("msg_id") != cell:
            continue
        content = message["content"]
        text += content.get("text", "") + content.get("ename", "")
        if message["msg_type"].startswith("comm_"):
            widgets += json.dumps(content["data"])
        if interrupt is not None and "epoch 1/50 in" in text:
            interrupt()
            interrupt = None
        if content.get("execution_state") == "idle":
            break
    return text, widgets


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.timeout(700)
def test_an_interrupt_of_a_notebook_pauses_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.manager import KernelManager

    coloured_table(tmp_path / "squares")
    put_store(tmp_path)
    (tmp_path / "tiny.py").write_text(textwrap.dedent(TRIALS))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    manager = KernelManager(transport="ipc", ip=str(tmp_path / "kernel"))
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        text, widgets = shown_by(client, CELL, manager.interrupt_kernel)
        assert "TrainingPaused" in text
        assert re.search(r"images/s,\\u2007val_loss=\d", widgets)  # tqdm pads with figure spaces
        (run,) = runs(f"sqlite:///{tmp_path}/mlflow.db")
        assert run.state == "PAUSED"
        text, widgets = shown_by(client, STOPS_EARLY)
        assert "epoch 2/50 in" in text
        assert "epoch 3/50 in" not in text
        assert [style for style in ("success", "danger") if f'"bar_style": "{style}"' in widgets] == ["success"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
