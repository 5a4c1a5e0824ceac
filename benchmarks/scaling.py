"""Steps/s of two ranks over one.

    python -m benchmarks.scaling [--repeats 5] [--json]

A step is one of `model.fit` with `hvd.DistributedOptimizer`, on an emulated accelerator: layers sleep, a third of
`--step-ms` in the forward pass and two thirds in the backward pass, and give gradients of `--gradient-mb` in all, by
default as many numbers and variables as MobileNetV2 has. The sleeps keep two cores from deciding what is compared:
accelerators of two ranks would not share them. One rank makes the same step without anybody to wait for. Efficiency is
steps/s of each of two ranks over steps/s of one, with gradients that become ready in two ways:

- backward pass: layer by layer, the last layer's first, as training makes them. What is ready can travel meanwhile.
- gradients at the end: all at once when the last sleep is over. Nothing can overlap: the worst case.

Launch and imports are outside of what is timed.
"""

from __future__ import annotations

import functools
from typing import Any

from .harness import Measure, Report, above_zero, command, parser, positive

RANKS = 2
_WARM_UP_STEPS = 5
_EFFICIENCY = 0.95
# As MobileNetV2 has them: 17 blocks and a head, 158 variables.
_LAYERS = 18
_VARIABLES = 9
BACKWARD = "backward pass"
AT_THE_END = "gradients at the end"


def train_steps(steps: int, step_ms: float, gradient_mb: float, schedule: str) -> dict[str, float]:
    """Trains on an emulated accelerator on every rank; gives rank 0's steps/s."""
    import keras
    import numpy as np
    import tensorflow as tf

    import lakelens.hvd as hvd

    from .slow_model import StepTimes, slow_model

    hvd.init()
    forward_s, backward_s = step_ms / 3000, 2 * step_ms / 3000
    sleeps = [backward_s / _LAYERS] * _LAYERS
    if schedule == AT_THE_END:
        sleeps = [0.0] * (_LAYERS - 1) + [backward_s]
    model = slow_model(
        _LAYERS, _VARIABLES, round(gradient_mb * 1e6 / 4), forward_s, sleeps, slope=float(hvd.rank() + 1)
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, loss=lambda _, output: tf.reduce_mean(output), jit_compile=False)
    batches = tf.data.Dataset.from_tensors((np.ones((1, 1), np.float32),) * 2).repeat()
    times = StepTimes()
    total = _WARM_UP_STEPS + steps
    model.fit(batches, steps_per_epoch=total, callbacks=[times], verbose=0)
    expected = -0.01 * (hvd.size() + 1) / 2 * total
    for variable in model.trainable_variables:
        reached = variable.numpy()
        if np.max(np.abs(reached - expected)) > abs(expected) * 1e-3:
            raise ValueError(f"after {total} steps a weight is {reached[0]}, and {expected} was to be expected")
    return {"steps_s": steps / (times.ends[-1] - times.ends[_WARM_UP_STEPS - 1])}


def _train(ranks: int, given: dict[str, Any], _: int) -> dict[str, float]:
    from lakelens.training.runner.runner import KERAS_MODULES, HorovodRunner

    runner = HorovodRunner(np=-ranks, use_gpu=False, driver_log_verbosity="log_callback_only", preload=KERAS_MODULES)
    found: dict[str, float] = runner.run(train_steps, **given)
    return found


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    settings = ("repeats", "steps", "step_ms", "gradient_mb")
    report = Report.of("scaling", arguments, *settings, ranks=RANKS, layers=_LAYERS, variables=_LAYERS * _VARIABLES)
    steps = {"steps": arguments.steps, "step_ms": arguments.step_ms, "gradient_mb": arguments.gradient_mb}
    measures: dict[str, Measure] = {
        f"{name}, {schedule}": functools.partial(_train, ranks, {**steps, "schedule": schedule})
        for schedule in (BACKWARD, AT_THE_END)
        for name, ranks in (("1 rank", 1), ("2 ranks", RANKS))
    }
    report.measure(arguments.repeats, measures, {"steps_s": (": steps/s", "steps/s")})
    for schedule, aim in ((BACKWARD, _EFFICIENCY), (AT_THE_END, None)):
        report.compare(f"2 ranks, {schedule}: steps/s", f"1 rank, {schedule}: steps/s", at_least=aim)
    return report


if __name__ == "__main__":
    flags = parser(__doc__, folder=False)
    flags.add_argument("--steps", type=positive, default=40, help="timed steps")
    flags.add_argument("--step-ms", type=above_zero, default=200.0, help="sleep of the forward and backward passes")
    flags.add_argument("--gradient-mb", type=above_zero, default=14.0, help="size of all gradients together")
    command(flags, run)
