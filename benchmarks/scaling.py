"""Steps/s of two ranks over one, and what an allreduce costs per MB compared with copying that MB.

    python -m benchmarks.scaling [--repeats 5] [--json]

A step is one of `model.fit` with `hvd.DistributedOptimizer`, on an emulated accelerator: layers sleep, a third of
`--step-ms` in the forward pass and two thirds in the backward pass, and give gradients of `--gradient-mb` in all, by
default as many numbers and variables as MobileNetV2 has. The sleeps keep two cores from deciding what is compared:
accelerators of two ranks would not share them. One rank makes the same step without anybody to wait for. Efficiency is
steps/s of each of two ranks over steps/s of one, with gradients that become ready in two ways:

- backward pass: layer by layer, the last layer's first, as training makes them. What is ready can travel meanwhile.
- gradients at the end: all at once when the last sleep is over. Nothing can overlap: the worst case.

Both are also measured with gradients sent as half-precision numbers (fp16).

Allreduce: two ranks sum float32 vectors of `--sizes-mb` in a loop; next to it the same bytes are copied once in memory,
the least that any exchange through this machine's memory costs. Launch and imports are outside of what is timed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .harness import Aim, Report, above_zero, interleave, parser, positive, tell

RANKS = 2
_WARM_UP_STEPS = 5
_EFFICIENCY = 0.95
# As MobileNetV2 has them: 17 blocks and a head, 158 variables.
_LAYERS = 18
_VARIABLES = 9
BACKWARD = "backward pass"
AT_THE_END = "gradients at the end"
# Name -> ranks, and whether gradients travel in half precision.
_CONTENDERS = {"1 rank": (1, False), "2 ranks": (RANKS, False), "2 ranks fp16": (RANKS, True)}


def train_steps(steps: int, step_ms: float, gradient_mb: float, schedule: str, fp16: bool = False) -> dict[str, float]:
    """Trains on an emulated accelerator on every rank; gives rank 0's steps/s and milliseconds beyond the sleeps."""
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
    compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression)
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
    seconds = times.ends[-1] - times.ends[_WARM_UP_STEPS - 1]
    return {"steps_s": steps / seconds, "beyond_ms": 1000 * seconds / steps - step_ms}


def sum_vectors(sizes_mb: list[float], rounds: int) -> dict[str, float]:
    """Sums vectors over the ranks, and copies as many bytes in memory; gives milliseconds for each size."""
    import time

    import numpy as np
    import tensorflow as tf

    import lakelens.hvd as hvd

    hvd.init()
    found = {}
    for size_mb in sizes_mb:
        count = max(1, round(size_mb * 1e6 / 4))
        value = tf.ones([count])

        @tf.function
        def once(value: Any = value) -> Any:
            return hvd.allreduce(value, op=hvd.Sum)

        for _ in range(3):
            total = once()
        if float(total[0]) != hvd.size():
            raise ValueError(f"the sum of ones over {hvd.size()} ranks is {float(total[0])}")
        hvd.barrier()
        started = time.perf_counter()
        for _ in range(rounds):
            once()
        found[f"allreduce {size_mb:g} MB"] = 1000 * (time.perf_counter() - started) / rounds
        source, target = np.ones(count, np.float32), np.zeros(count, np.float32)
        started = time.perf_counter()
        for _ in range(rounds):
            np.copyto(target, source)
        found[f"copy {size_mb:g} MB"] = 1000 * (time.perf_counter() - started) / rounds
    return found


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    settings = {
        key: getattr(arguments, key) for key in ("repeats", "steps", "step_ms", "gradient_mb", "rounds", "sizes_mb")
    }
    report = Report("scaling", {"ranks": RANKS, "layers": _LAYERS, "variables": _LAYERS * _VARIABLES, **settings})
    steps = {"steps": arguments.steps, "step_ms": arguments.step_ms, "gradient_mb": arguments.gradient_mb}
    measures: dict[str, Callable[[int], dict[str, float]]] = {}
    for schedule in (BACKWARD, AT_THE_END):
        for name, (ranks, fp16) in _CONTENDERS.items():
            measures[f"{name}, {schedule}"] = functools.partial(_train, ranks, **steps, schedule=schedule, fp16=fp16)
    measures["vectors"] = lambda _: _launch(RANKS, sum_vectors, sizes_mb=arguments.sizes_mb, rounds=arguments.rounds)
    found = interleave(arguments.repeats, measures, tell)
    for name, values in found.items():
        if name != "vectors":
            report.add(f"{name}: steps/s", "steps/s", values["steps_s"])
            report.add(f"{name}: beyond the sleeps", "ms a step", values["beyond_ms"])
    for schedule in (BACKWARD, AT_THE_END):
        efficiency = report.compare(f"2 ranks, {schedule}: steps/s", f"1 rank, {schedule}: steps/s")
        if schedule == BACKWARD:
            name = "efficiency: steps/s of each of 2 ranks / 1 rank, backward pass"
            report.aims.append(Aim(name, efficiency, at_least=_EFFICIENCY))
        report.compare(f"2 ranks fp16, {schedule}: steps/s", f"1 rank, {schedule}: steps/s")
    for name, values in found["vectors"].items():
        report.add(name, "ms", values)
    for size_mb in arguments.sizes_mb:
        report.compare(f"allreduce {size_mb:g} MB", f"copy {size_mb:g} MB")
        per_mb = report.series[f"allreduce {size_mb:g} MB"].median / 1000 / size_mb
        report.facts[f"allreduce of {size_mb:g} MB, seconds per MB"] = per_mb
    return report


def _train(ranks: int, _: int, **arguments: Any) -> dict[str, float]:
    return _launch(ranks, train_steps, **arguments)


def _launch(ranks: int, function: Callable[..., dict[str, float]], **arguments: Any) -> dict[str, float]:
    from lakelens.training.runner.runner import KERAS_MODULES, HorovodRunner

    found: dict[str, float] = HorovodRunner(
        np=-ranks, use_gpu=False, driver_log_verbosity="log_callback_only", preload=KERAS_MODULES
    ).run(function, **arguments)
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Steps/s of two ranks over one; allreduce beside a copy in memory.", folder=False)
    flags.add_argument("--steps", type=positive, default=40, help="timed steps")
    flags.add_argument("--step-ms", type=above_zero, default=200.0, help="sleep of the forward and backward passes")
    flags.add_argument("--gradient-mb", type=above_zero, default=14.0, help="size of all gradients together")
    flags.add_argument("--sizes-mb", type=above_zero, nargs="+", default=[1.0, 10.0, 100.0], help="vectors to sum")
    flags.add_argument("--rounds", type=positive, default=10, help="sums of each size")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
