"""Steps/s of two ranks over one, and what an allreduce costs per MB beside copying that MB.

    python -m benchmarks.scaling [--repeats 5] [--json]

A step emulates an accelerator: a sleep of `--step-ms` in the place of the forward and backward pass, then gradients of
`--gradient-mb` are combined and applied by `hvd.DistributedOptimizer`, as in training. By default those of MobileNetV2,
3.5 million weights. The sleep keeps two cores from deciding what is compared: accelerators of two ranks would not share
them. One rank makes the same step without anybody to wait for. Efficiency is steps/s of each of two ranks over steps/s
of one.

Allreduce: two ranks sum float32 vectors of `--sizes-mb` in a loop; beside it the same bytes are copied once in memory,
the least that any exchange through this machine's memory costs. Launch and imports are outside of what is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .harness import Aim, Report, interleave, parser, tell

RANKS = 2
_WARM_UP_STEPS = 5
_EFFICIENCY = 0.95
_LAYERS = 8


def train_steps(steps: int, step_ms: float, gradient_mb: float) -> dict[str, float]:
    """Makes emulated training steps on every rank; gives rank 0's steps/s and seconds of a step beyond its sleep."""
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import lakelens.training.distributed as hvd

    hvd.init()
    width = max(1, round(gradient_mb * 1e6 / 4 / _LAYERS))
    variables = [keras.Variable(np.zeros(width, np.float32)) for _ in range(_LAYERS)]
    gradients = [tf.ones([width]) * (hvd.rank() + 1) for _ in variables]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    optimizer.build(variables)

    @tf.function
    def update() -> None:
        optimizer.apply(gradients, variables)

    def step() -> None:
        time.sleep(step_ms / 1000)
        update()

    for _ in range(_WARM_UP_STEPS):
        step()
    hvd.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - started
    expected = -0.01 * (hvd.size() + 1) / 2 * (steps + _WARM_UP_STEPS)
    reached = float(variables[0].numpy()[0])
    if abs(reached - expected) > abs(expected) * 1e-3:
        raise ValueError(f"after {steps} steps a weight is {reached}, and {expected} was to be expected")
    return {"steps_s": steps / seconds, "exchange_ms": 1000 * seconds / steps - step_ms}


def sum_vectors(sizes_mb: list[float], rounds: int) -> dict[str, float]:
    """Sums vectors over the ranks, and copies as many bytes in memory; gives milliseconds for each size."""
    import time

    import numpy as np
    import tensorflow as tf

    import lakelens.training.distributed as hvd

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
    report = Report("scaling", {"ranks": RANKS, **settings})
    steps = {"steps": arguments.steps, "step_ms": arguments.step_ms, "gradient_mb": arguments.gradient_mb}
    sums = {"sizes_mb": arguments.sizes_mb, "rounds": arguments.rounds}
    measures: dict[str, Callable[[int], dict[str, float]]] = {
        "1 rank": lambda _: _launch(1, train_steps, **steps),
        "2 ranks": lambda _: _launch(RANKS, train_steps, **steps),
        "vectors": lambda _: _launch(RANKS, sum_vectors, **sums),
    }
    found = interleave(arguments.repeats, measures, tell)
    for name in ("1 rank", "2 ranks"):
        report.add(f"{name} steps/s", "steps/s", found[name]["steps_s"])
        report.add(f"{name} beyond the sleep", "ms a step", found[name]["exchange_ms"])
    efficiency = report.compare("2 ranks steps/s", "1 rank steps/s")
    report.aims.append(Aim("efficiency: steps/s of each of 2 ranks / 1 rank", efficiency, at_least=_EFFICIENCY))
    for name, values in found["vectors"].items():
        report.add(name, "ms", values)
    for size_mb in arguments.sizes_mb:
        report.compare(f"allreduce {size_mb:g} MB", f"copy {size_mb:g} MB")
        per_mb = report.series[f"allreduce {size_mb:g} MB"].median / 1000 / size_mb
        report.facts[f"allreduce of {size_mb:g} MB, seconds per MB"] = per_mb
    return report


def _launch(ranks: int, function: Callable[..., dict[str, float]], **arguments: Any) -> dict[str, float]:
    from lakelens import HorovodRunner

    found: dict[str, float] = HorovodRunner(np=-ranks, use_gpu=False).run(function, **arguments)
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Steps/s of two ranks over one; allreduce beside a copy in memory.")
    flags.add_argument("--steps", type=int, default=40, help="timed steps")
    flags.add_argument("--step-ms", type=float, default=200.0, help="sleep in the place of forward and backward pass")
    flags.add_argument("--gradient-mb", type=float, default=14.0, help="size of all gradients together")
    flags.add_argument("--sizes-mb", type=float, nargs="+", default=[1.0, 10.0, 100.0], help="vectors to sum")
    flags.add_argument("--rounds", type=int, default=10, help="sums of each size")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
