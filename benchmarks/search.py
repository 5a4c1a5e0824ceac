"""Searches: epochs until a target is reached, and decisions per second.

Two synthetic trainings (`learning_curves`) of 81 epochs, whose target is the loss that four whole trials in a thousand
reach; and a real one, `digits`: that many small networks on scanned digits, each trained once before any search, whose
target is the loss of the best one in fifty. One trial runs at a time, and what counts is the epochs of all of them
until a whole trial is at the target. Every contender gets the same hyperparameters for the same trial number, and those
that end trials early do so at 1, 3, 9 and 27 epochs, so that nothing but the decisions differs. Beside lakelens are
random search and, where optuna is installed, its `HyperbandPruner` and `SuccessiveHalvingPruner`, which stop trials and
continue none:

    python -m benchmarks.peers optuna --folder KEPT
    KEPT/peer-optuna/bin/python -m benchmarks.search

The limit is that of successive halving with k + 1 rungs: eta^k / (k + 1) times fewer epochs than random search, as the
mean over the brackets.

A decision is one validation and what the searcher answers, in a search of that many trials with one bracket; its time
is that of the processor.

`--real-trials` runs a real search instead: that many trainings of `--real-seconds` each on real slots. The result is
the share of the slots' time, from the search's first event to the end of its last trial, that passes between
`build_model` and the last step (`search_slots`).
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from . import learning_curves as curves
from .harness import Report, above_zero, command, parser, positive, rounded, scratch, tell

_DIVISOR = 3
_TARGET_SHARE, _TARGET_SHARE_OF_DIGITS = 0.004, 0.02
_MOST_TRIALS = 4000
_LENGTHS = (0, 1, 3, 9, 27, 81)
_METHODS: dict[str, dict[str, Any]] = {
    "standard": {},
    "aggressive": {"mode": "aggressive"},
    "conservative": {"mode": "conservative"},
}
_DECISIONS_AT_LEAST = 10_000
_SLOT_USE_AT_LEAST = 0.85

# The epochs of each training of a search, and whether it reached the target.
Work = Iterator[tuple[int, bool]]
# Searches on a curve to a target from a seed.
Search = Callable[[str, float, int], Work]


def config(name: str, max_trials: int, slots: int = 1, **keys: Any) -> dict[str, Any]:
    """A searcher section for these trainings."""
    adaptive = {"divisor": _DIVISOR, **keys} if name == "adaptive_asha" else {}
    length = {"epochs": curves.MAX_LENGTH}
    common = {"metric": "loss", "max_length": length, "max_trials": max_trials, "max_concurrent_trials": slots}
    return {"name": name, **common, **adaptive}


def epochs_to_target(work: Work) -> float:
    """Adds up the epochs until the target is reached."""
    total = 0
    for epochs, reached in work:
        total += epochs
        if reached:
            return float(total)
    raise ValueError(f"the target was not reached in {_MOST_TRIALS} trials")


def lakelens_work(curve: str, goal: float, seed: int, settings: dict[str, Any]) -> Work:
    """Work as a lakelens searcher asks for it."""
    from lakelens.search import Create, Stop, create_searcher

    searcher = create_searcher(settings, curves.space(curve), seed)
    waiting: dict[int, int] = {}
    values: dict[int, dict[str, Any]] = {}
    trained: dict[int, int] = {}
    operations = searcher.start()
    while True:
        for operation in operations:
            if isinstance(operation, Create):
                values[operation.trial], trained[operation.trial] = operation.hyperparameters, 0
            if not isinstance(operation, Stop):
                waiting[operation.trial] = operation.length
        if not waiting:
            return
        trial = searcher.next_trial(waiting)
        length = waiting.pop(trial)
        whole = length == curves.MAX_LENGTH
        yield length - trained[trial], whole and curves.loss(curve, values[trial], length) <= goal
        trained[trial] = length
        operations = searcher.validated(trial, length, curves.measured(curve, values[trial], length))


def optuna_work(curve: str, goal: float, seed: int, pruner: Any) -> Work:
    """Work as optuna has it: one trial trains until it ends or is pruned."""
    import optuna

    from lakelens.search import create_searcher

    draws = create_searcher(config("random", _MOST_TRIALS, 0), curves.space(curve), seed)
    # The name decides which trial goes to which bracket of Hyperband.
    study = optuna.create_study(pruner=pruner, study_name=str(seed), sampler=optuna.samplers.RandomSampler(seed=seed))
    for _ in range(_MOST_TRIALS):
        trial = study.ask()
        values = draws.hyperparameters(trial.number)
        for before, length in itertools.pairwise(_LENGTHS):
            whole = length == curves.MAX_LENGTH
            yield length - before, whole and curves.loss(curve, values, length) <= goal
            trial.report(curves.measured(curve, values, length), length)
            if whole:
                study.tell(trial, curves.measured(curve, values, length))
            elif trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break


def contenders() -> dict[str, Search]:
    """Every contender by name."""

    def ours(settings: dict[str, Any]) -> Search:
        return lambda curve, goal, seed: lakelens_work(curve, goal, seed, settings)

    found = {"random": ours(config("random", _MOST_TRIALS))}
    for name, keys in _METHODS.items():
        found[f"lakelens {name}"] = ours(config("adaptive_asha", _MOST_TRIALS, **keys))
    try:
        import optuna
    except ImportError:
        tell("optuna is not installed: lakelens is compared with random search alone")
        return found
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def theirs(pruner: Any, **options: int) -> Search:
        settings = {"min_resource": 1, "reduction_factor": _DIVISOR, **options}
        return lambda curve, goal, seed: optuna_work(curve, goal, seed, pruner(**settings))

    found["optuna SuccessiveHalvingPruner"] = theirs(optuna.pruners.SuccessiveHalvingPruner)
    found["optuna HyperbandPruner"] = theirs(optuna.pruners.HyperbandPruner, max_resource=curves.MAX_LENGTH)
    return found


def limit(**keys: Any) -> float:
    """How many times fewer epochs than random search: the mean over the brackets of eta^k / (k + 1)."""
    from lakelens.search.brackets import plan_brackets
    from lakelens.search.settings import SearcherSettings

    plan = plan_brackets(SearcherSettings.model_validate(config("adaptive_asha", _MOST_TRIALS, 16, **keys)))
    return statistics.mean(_DIVISOR ** (len(bracket.lengths) - 1) / len(bracket.lengths) for bracket in plan)


def decisions_per_second(trials: int, stop_once: bool, slots: int) -> dict[str, float]:
    """Runs a whole search of `trials` trials without training; the time to compute losses is not counted."""
    from lakelens.search import Stop, create_searcher

    keys = {"mode": "aggressive", "stop_once": stop_once}
    searcher = create_searcher(config("adaptive_asha", trials, slots, **keys), curves.SPACE)
    losses = [(trial * 7919) % 10_007 / 10_007 for trial in range(trials)]
    decisions = 0
    started = time.process_time()
    waiting = deque(searcher.start())
    while waiting:
        operation = waiting.popleft()
        if not isinstance(operation, Stop):
            waiting.extend(searcher.validated(operation.trial, operation.length, losses[operation.trial]))
            decisions += 1
    return {"decisions/s": decisions / (time.process_time() - started)}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    constants = {"epochs": curves.MAX_LENGTH, "divisor": _DIVISOR, "target": _TARGET_SHARE}
    report = Report.of("search", arguments, "seeds", "trials", "networks", **constants)
    _decisions(report, arguments.trials, arguments.repeats)
    searches = contenders()
    if arguments.networks:
        tell(f"trains {arguments.networks} networks on the digits")
        curves.train_digits(arguments.networks)
    for curve in (*curves.NAMES, *([curves.DIGITS] if arguments.networks else [])):
        goal = curves.target(curve, _TARGET_SHARE_OF_DIGITS if curve == curves.DIGITS else _TARGET_SHARE)
        for name, work in searches.items():
            values = [epochs_to_target(work(curve, goal, seed)) for seed in range(arguments.seeds)]
            report.add(f"{curve}: {name}", "epochs", values)
            tell(f"{curve}: {name}: {rounded(statistics.median(values)):g} epochs in the median of {len(values)} seeds")
        _compare(report, curve)
    if "optuna HyperbandPruner" in searches:
        report.facts["optuna"] = metadata.version("optuna")
    return report


def run_real(arguments: Any) -> Report:
    """Measures the slot use of a real search."""
    from .search_slots import measure

    report = Report.of("search", arguments, "real_trials", "real_slots", "real_seconds")
    with scratch(None) as (_, folder):
        found = measure(folder, *report.settings.values())
    for name, value in found.items():
        report.add(f"real search: {name}", name, [value])
    report.aim("share of slot time in trials", found["share"], at_least=_SLOT_USE_AT_LEAST)
    return report


def _decisions(report: Report, trials: int, repeats: int) -> None:
    measures = {
        f"{name}, {slots} at one time": lambda _, stop=stop, slots=slots: decisions_per_second(trials, stop, slots)
        for name, stop in (("promotion", False), ("stop_once", True))
        for slots in (16, trials)
    }
    report.measure(repeats, measures, {"decisions/s": ("", "decisions/s")})
    for name in measures:
        report.aim(f"{name}: decisions/s", report.series[name].median, at_least=_DECISIONS_AT_LEAST)


def _compare(report: Report, curve: str) -> None:
    random, standard = f"{curve}: random", f"{curve}: lakelens standard"
    for name, keys in _METHODS.items():
        ours, most = f"{curve}: lakelens {name}", limit(**keys)
        report.compare(random, ours)
        report.facts[f"{curve}: limit of {name}"] = rounded(most)
        report.aim(f"{curve}: saving of {name} / its limit", report.ratios[f"{random} / {ours}"] / most, at_least=0.8)
    report.compare(random, f"{curve}: optuna SuccessiveHalvingPruner")
    report.compare(random, f"{curve}: optuna HyperbandPruner")
    hyperband = report.series.get(f"{curve}: optuna HyperbandPruner")
    if hyperband is not None:
        behind = report.series[standard].median / hyperband.median
        report.aim(f"{curve}: median epochs, standard / optuna Hyperband", behind, at_most=1)


if __name__ == "__main__":
    flags = parser(__doc__, folder=False)
    flags.add_argument("--seeds", type=positive, default=30, help="how many searches of each contender")
    flags.add_argument("--trials", type=positive, default=10_000, help="trials of the search whose decisions are timed")
    flags.add_argument("--networks", type=int, default=200, help="networks trained on the digits; 0 leaves them out")
    flags.add_argument("--real-trials", type=positive, help="run a real search with this number of trials instead")
    flags.add_argument("--real-slots", type=positive, default=2, help="slots of the real search")
    flags.add_argument("--real-seconds", type=above_zero, default=20.0, help="seconds of each of its trials")
    command(flags, lambda given: run(given) if given.real_trials is None else run_real(given))
