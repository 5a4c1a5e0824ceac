"""Prints what a search will do before anything runs (`lakelens search preview experiment.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError

if TYPE_CHECKING:
    from lakelens.training.configuration.experiment import ExperimentConfig


def print_preview(config: ExperimentConfig, seconds: float | None = None) -> dict[str, Any]:
    """Prints how many trials of a search train for how long."""
    from lakelens.search.create import preview
    from lakelens.search.settings import require_space, searcher_section

    require_space(config)
    searcher, slots = config.searcher, config.resources.slots_per_trial
    unit, longest = searcher.max_length.unit, searcher.max_length.amount
    if seconds is not None and (unit != "epochs" or not 0 < seconds < float("inf")):
        raise InvalidArgumentError(
            f"--seconds-per-epoch {seconds:g} with searcher.max_length in {unit}: it must be above 0 and finite, and "
            "estimates lengths in epochs only"
        )
    ends = preview(searcher_section(config), config.hyperparameters)
    trials, total = sum(ends.values()), sum(length * count for length, count in ends.items())
    result: dict[str, Any] = {
        "searcher": searcher.name,
        "trials": trials,
        "unit": unit,
        "trials_by_length": {str(length): count for length, count in ends.items()},
        "total": total,
        "random_total": trials * longest,
    }
    if seconds is not None:
        result["slot_hours"] = round(total * seconds * slots / 3600, 3)
        result["random_slot_hours"] = round(trials * longest * seconds * slots / 3600, 3)
    mode = f", {searcher.mode}{', stop_once' * searcher.stop_once}" if searcher.name == "adaptive_asha" else ""
    direction = "smaller" if config.goal.mode == "min" else "larger"
    print(f"{searcher.name}{mode}: {_plural(trials, 'trial')}, {config.goal.metric}, {direction} is better\n")
    print("\n".join(f"  {line}" for line in _table(ends, unit)))
    print(f"\nin all   {total:,} {unit}{_hours(result, 'slot_hours')}")
    if total < trials * longest:
        ratio = f": {trials * longest / total:.3g} times as much for the same number of trials"
        print(f"random   {trials * longest:,} {unit}{_hours(result, 'random_slot_hours')}{ratio}")
    print()
    return result


def _table(ends: Mapping[int, int], unit: str) -> list[str]:
    """Writes a line for each length: how many trials reach it, how many end there, and what is trained up to it."""
    from lakelens.jobs.run_lines import table_lines

    rows = [("LENGTH", "REACH IT", "END THERE", f"{unit.upper()} TRAINED")]
    before, running = 0, sum(ends.values())
    for length, count in ends.items():
        rows.append((f"{length:,}", f"{running:,}", f"{count:,}", f"{running * (length - before):,}"))
        before, running = length, running - count
    return table_lines(rows, right_from=0)


def _hours(result: Mapping[str, Any], key: str) -> str:
    return f", {result[key]:,.3g} slot hours" if key in result else ""


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"
