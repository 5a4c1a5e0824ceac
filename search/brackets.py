"""How an adaptive search divides its trials among brackets, in whole numbers.

Determined takes `int(ln(max_length) / ln(divisor)) + 1` in floating point. There 243 epochs have at most five rungs
with a divisor of 3, because `ln 243 / ln 3` comes out as 4.999...; here they have six. A divisor is a `Fraction`: 3.3
is 33/10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .settings import SearcherSettings


@dataclass(frozen=True)
class Bracket:
    """One run of successive halving."""

    # Length of each rung, cumulative, in the searcher's unit; the last one is that of a whole trial
    lengths: tuple[int, ...]
    trials: int  # Number of trials that count
    concurrent: int  # Number of concurrent trials
    divisor: Fraction  # One in `divisor` trials is promoted to the next rung

    def kept(self, trials: int) -> int:
        """Returns how many of a rung's `trials` are promoted: `floor(trials / divisor)`."""
        return trials * self.divisor.denominator // self.divisor.numerator


def rungs_of(settings: SearcherSettings) -> list[tuple[int, ...]]:
    """Lists the lengths of each bracket's rungs; those of other searchers have one."""
    if settings.name != "adaptive_asha":
        return [(settings.max_length.amount,)]
    return [bracket.lengths for bracket in plan_brackets(settings)]


def plan_brackets(settings: SearcherSettings) -> list[Bracket]:
    """Plans the brackets of an adaptive search, the one with the most rungs first."""
    divisor = Fraction(str(settings.divisor))  # 3.3 is exactly 33/10, not the nearest binary number
    longest = settings.max_length.amount
    rungs = settings.bracket_rungs or rungs_of_mode(
        settings.mode, most_rungs(settings.max_rungs, divisor, longest, settings.max_trials)
    )
    rungs = sorted(rungs, reverse=True)[: settings.max_trials]  # each bracket has one trial at least
    trials = divide_trials(settings.max_trials, divisor, rungs)
    concurrent = divide_concurrency(settings.max_concurrent_trials, divisor, trials)
    return [
        Bracket(rung_lengths(count, divisor, longest), share, at_once, divisor)
        for count, share, at_once in zip(rungs, trials, concurrent, strict=True)
    ]


def most_rungs(max_rungs: int, divisor: Fraction, max_length: int, max_trials: int) -> int:
    """The largest r up to `max_rungs` with `divisor^(r-1)` at most `max_length` and at most `max_trials`."""
    rungs = 1
    while rungs < max_rungs and divisor**rungs <= min(max_length, max_trials):
        rungs += 1
    return rungs


def rungs_of_mode(mode: str, rungs: int) -> list[int]:
    """The rungs of each bracket: from 1 (`conservative`), from about half (`standard`), or the most only."""
    first = {"aggressive": rungs, "standard": (rungs - 1) // 2 + 1, "conservative": 1}[mode]
    return list(range(first, rungs + 1))


def rung_lengths(rungs: int, divisor: Fraction, max_length: int) -> tuple[int, ...]:
    """Lengths of the rungs: `max_length / divisor^k`, cut to a whole number, and at least 1."""
    return tuple(max(int(max_length / divisor**k), 1) for k in range(rungs - 1, -1, -1))


def divide_trials(max_trials: int, divisor: Fraction, rungs: Sequence[int]) -> list[int]:
    """Divides trials among brackets, at least one each, so that each trains for about the same time in all."""
    # A bracket of r rungs has the weight `divisor^(r-1) / r`. The first one gets the trials left over by rounding; if
    # the minimum of one makes too many, the largest ones get fewer.
    weights = [divisor ** (count - 1) / count for count in rungs]
    whole = sum(weights)
    trials = [max(int(weight * max_trials / whole), 1) for weight in weights]
    trials[0] += max(max_trials - sum(trials), 0)
    while sum(trials) > max_trials:
        trials[trials.index(max(trials))] -= 1
    return trials


def divide_concurrency(max_concurrent: int, divisor: Fraction, trials: Sequence[int]) -> list[int]:
    """Divides the concurrent trials among brackets, at least one each; 0 lets as many run as the last has trials."""
    if max_concurrent == 0:
        return [max(trials[-1], int(divisor))] * len(trials)
    each, more = divmod(max(max_concurrent, len(trials)), len(trials))
    return [each + 1 if index < more else each for index in range(len(trials))]
