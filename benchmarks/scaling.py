"""Steps/s of two ranks over one.

A step is one of `model.fit` with `hvd.DistributedOptimizer`, on an emulated accelerator: layers sleep, a third of the
step in the forward pass and two thirds in the backward pass, and give as many gradients in as many variables as
MobileNetV2 has. The sleeps keep two cores from deciding what is compared: accelerators of two ranks would not share
them. One rank makes the same step without anybody to wait for. Efficiency is steps/s of each of two ranks over steps/s
of one, with gradients that become ready in two ways:

- backward pass: layer by layer, the last layer's first, as training makes them. What is ready can travel meanwhile.
- gradients at the end: all at once when the last sleep is over. Nothing can overlap: the worst case.

Launch and imports are outside of what is timed.
"""

from __future__ import annotations

import functools
from typing import Any

from .harness import Measure, Report, command, parser

RANKS = 2
_WARM_UP_STEPS, _STEPS = 5, 40
_EFFICIENCY = 0.95
_STEP_MS = 200.0
# As MobileNetV2 has them: 17 blocks and a head, 158 variables.
_LAYERS, _VARIABLES, _GRADIENT_MB = 18, 9, 14.0
BACKWARD = "backward pass"
AT_THE_END = "gradients at the end"


def train_steps(schedule: str) -> dict[str, float]:
    """Trains on an emulated accelerator on every rank; gives rank 0's steps/s."""
    import keras
    import numpy as np
    import tensorflow as tf

    import lakelens.hvd as hvd

    from .slow_model import StepTimes, slow_model

    hvd.init()
    forward_s, backward_s = _STEP_MS / 3000, 2 * _STEP_MS / 3000
    sleeps = [backward_s / _LAYERS] * _LAYERS
    if schedule == AT_THE_END:
        sleeps = [0.0] * (_LAYERS - 1) + [backward_s]
    model = slow_model(
        _LAYERS, _VARIABLES, round(_GRADIENT_MB * 1e6 / 4), forward_s, sleeps, slope=float(hvd.rank() + 1)
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, loss=lambda _, output: tf.reduce_mean(output), jit_compile=False)
    batches = tf.data.Dataset.from_tensors((np.ones((1, 1), np.float32),) * 2).repeat()
    times = StepTimes()
    total = _WARM_UP_STEPS + _STEPS
    model.fit(batches, steps_per_epoch=total, callbacks=[times], verbose=0)
    expected = -0.01 * (hvd.size() + 1) / 2 * total
    for variable in model.trainable_variables:
        reached = variable.numpy()
        if np.max(np.abs(reached - expected)) > abs(expected) * 1e-3:
            raise ValueError(f"after {total} steps a weight is {reached[0]}, and {expected} was to be expected")
    return {"steps_s": _STEPS / (times.ends[-1] - times.ends[_WARM_UP_STEPS - 1])}


def _train(ranks: int, schedule: str, _: int) -> dict[str, float]:
    from lakelens.training.runner.runner import KERAS_MODULES, HorovodRunner

    runner = HorovodRunner(np=-ranks, use_gpu=False, driver_log_verbosity="log_callback_only", preload=KERAS_MODULES)
    found: dict[str, float] = runner.run(train_steps, schedule=schedule)
    return found


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    constants = {"steps": _STEPS, "step_ms": _STEP_MS, "gradient_mb": _GRADIENT_MB, "variables": _LAYERS * _VARIABLES}
    report = Report.of("scaling", arguments, "repeats", ranks=RANKS, layers=_LAYERS, **constants)
    measures: dict[str, Measure] = {
        f"{name}, {schedule}": functools.partial(_train, ranks, schedule)
        for schedule in (BACKWARD, AT_THE_END)
        for name, ranks in (("1 rank", 1), ("2 ranks", RANKS))
    }
    report.measure(arguments.repeats, measures, {"steps_s": (": steps/s", "steps/s")})
    for schedule, aim in ((BACKWARD, _EFFICIENCY), (AT_THE_END, None)):
        report.compare(f"2 ranks, {schedule}: steps/s", f"1 rank, {schedule}: steps/s", at_least=aim)
    return report


if __name__ == "__main__":
    command(parser(__doc__, folder=False), run)
