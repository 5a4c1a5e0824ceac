"""Slot use of a real search: the share of the slots' time that passes between `build_model` and a segment's last step.

The trials train a small network on scanned digits and wait in each step, so that a trial takes the requested
seconds on any machine. They note when they build and when a step has ended; the journal gives the time during which the
search had its slots, from its first event to the end of its last trial.
"""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.training.trials.small_cnn import SmallCnn

if TYPE_CHECKING:
    import keras

_MARKS, _STEP_S = "LAKELENS_BENCHMARK_MARKS", "LAKELENS_BENCHMARK_STEP_S"
_SIDE, _BATCH, _EPOCHS = 16, 64, 4
_TRAINING_ROWS = 1437  # four fifths of 1,797 digits
BUILD, STEP = "build", "step"


class TimedCnn(SmallCnn):
    """`SmallCnn` whose steps take a given time, and that notes when it is built and when its steps end."""

    def build_model(self) -> keras.Model:
        """Builds the network."""
        _mark(BUILD)
        return super().build_model()

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Adds what waits and notes."""
        import keras

        class Waits(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                time.sleep(float(os.environ[_STEP_S]))
                _mark(STEP)

        return [*super().keras_callbacks(), Waits()]


def _mark(what: str) -> None:
    with Path(os.environ[_MARKS], f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, "time": time.time()}) + "\n")


def write_digits(location: Path) -> None:
    """Writes scikit-learn's scanned digits as an image table."""
    import pyarrow as pa
    from deltalake import write_deltalake
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    encoded = []
    for pixels in images:
        buffer = io.BytesIO()
        scan = Image.fromarray((pixels.reshape(8, 8) * 15.9).astype("uint8"))
        scan.convert("RGB").resize((_SIDE, _SIDE)).save(buffer, "JPEG", quality=95)
        encoded.append(buffer.getvalue())
    rows = {
        "image": encoded,
        "format": ["jpeg"] * len(encoded),
        "height": pa.array([_SIDE] * len(encoded), pa.int32()),
        "width": pa.array([_SIDE] * len(encoded), pa.int32()),
        "label": pa.array(labels, pa.int32()),
        "split": ["validation" if number % 5 == 0 else "train" for number in range(len(encoded))],
    }
    write_deltalake(str(location), pa.table(rows))


def measure(folder: Path, trials: int, slots: int, trial_s: float) -> dict[str, float]:
    """Runs a search and measures it."""
    from lakelens.search.journal import journal_folder, read_events
    from lakelens.search.running.run import search

    write_digits(folder / "digits")
    marks = folder / "marks"
    marks.mkdir()
    steps = _EPOCHS * -(-_TRAINING_ROWS // _BATCH)
    result = search(
        {
            "name": "slots",
            "entrypoint": f"{Path(__file__).resolve()}:TimedCnn",
            "data": {"table": str(folder / "digits"), "class_names": [str(number) for number in range(10)]},
            "hyperparameters": {
                "learning_rate": {"type": "log", "minval": -4, "maxval": -1},
                "filters": {"type": "categorical", "vals": [4, 8]},
                "global_batch_size": _BATCH,
            },
            "searcher": {
                "name": "random",
                "metric": "val_accuracy",
                "max_trials": trials,
                "max_concurrent_trials": slots,
                "max_length": {"epochs": _EPOCHS},
            },
            "resources": {
                "max_slots": slots,
                "use_gpu": False,
                "env": {_MARKS: str(marks), _STEP_S: str(trial_s / steps)},
            },
            "checkpoint_storage": {"path": str(folder / "checkpoints")},
            "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
        }
    )
    events = read_events(journal_folder(folder / "checkpoints", result.run_id))
    busy_s = sum(busy_seconds(_read(file)) for file in marks.iterdir())
    return {"share": busy_s / (slots * slot_seconds(events)), "s/trial": busy_s / trials, "s": result.seconds}


def slot_seconds(events: list[dict[str, Any]]) -> float:
    """How long a search had its slots: from the first event of its journal to the end of its last trial."""
    return float(max(event["time"] for event in events if "trial" in event) - events[0]["time"])


def busy_seconds(marks: list[dict[str, Any]]) -> float:
    """Adds up the times from each build to the last step before the next one, of one process."""
    total, built, stepped = 0.0, 0.0, 0.0
    for mark in marks:
        if mark["what"] == BUILD:
            total += max(0.0, stepped - built)
            built = stepped = mark["time"]
        else:
            stepped = mark["time"]
    return total + stepped - built


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
