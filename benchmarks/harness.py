"""What every benchmark shares: interleaved repeats, medians, paired ratios, aims, the machine, and the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("pyspark", "delta-spark", "tensorflow", "horovod", "petastorm", "pyarrow", "pillow", "mlflow", "deltalake")


# Measures a contender in a repeat of that number; gives its values by name.
Measure = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True)
class Series:
    """The values of one contender, one for each repeat."""

    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        """Median, extremes and all values."""
        return {
            "unit": self.unit,
            "median": rounded(self.median),
            "min": rounded(min(self.values)),
            "max": rounded(max(self.values)),
            "values": [rounded(value) for value in self.values],
        }


@dataclass(frozen=True)
class Aim:
    """What a ratio or a number should reach."""

    name: str  # What is compared, as in `lakelens / pool`
    value: float  # What was measured
    at_least: float | None = None  # The smallest value that meets the aim; None when there is none
    at_most: float | None = None  # The largest value that meets the aim; None when there is none

    @property
    def met(self) -> bool:
        """Whether the value is within the aim's bounds."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    def as_json(self) -> dict[str, Any]:
        """The aim, the value and whether it was met."""
        bounds = {"at_least": self.at_least, "at_most": self.at_most}
        return {
            "name": self.name,
            "value": rounded(self.value),
            **{key: value for key, value in bounds.items() if value is not None},
            "met": self.met,
        }


def rounded(value: float, digits: int = 4) -> float:
    """Rounds to `digits` significant digits: more would claim a precision that a stopwatch does not have."""
    return float(f"{value:.{digits}g}")


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios of values that were measured in the same repeat.

    Neighbours in time share the machine's load, so that their ratio is steadier than the ratio of two medians.
    """
    if len(over) != len(under) or not over:
        raise ValueError(f"{len(over)} and {len(under)} values: paired ratios need as many of each, and one at least")
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def machine() -> dict[str, Any]:
    """The machine and the versions that the numbers belong to."""
    versions = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


@dataclass
class Report:
    """What one benchmark found; printed as a table, or as one JSON object in the last line."""

    name: str  # The benchmark's name
    settings: Mapping[str, Any]  # The benchmark's arguments
    series: dict[str, Series] = field(default_factory=dict)  # Measured values by contender, as in `lakelens images/s`
    ratios: dict[str, float] = field(default_factory=dict)  # Paired ratios by name
    aims: list[Aim] = field(default_factory=list)  # What was to be reached
    facts: dict[str, Any] = field(default_factory=dict)  # Everything else that was seen (bytes, tasks, processes)
    notes: list[str] = field(default_factory=list)  # What a reader has to know before quoting a number
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    load: tuple[float, float, float] = field(default_factory=os.getloadavg)

    @classmethod
    def of(cls, name: str, arguments: argparse.Namespace, *settings: str, **constants: Any) -> Report:
        """Starts the report of a command with the named ones of its arguments and the benchmark's constants."""
        return cls(name, {**{key: getattr(arguments, key) for key in settings}, **constants})

    def add(self, name: str, unit: str, values: Sequence[float]) -> None:
        """Adds the values of one contender."""
        self.series[name] = Series(unit, tuple(values))

    def measure(
        self, repeats: int, measures: Mapping[str, Measure], units: Mapping[str, tuple[str, str]], prefix: str = ""
    ) -> None:
        """Measures every contender once per repeat and adds its values; `units` has suffix and unit of each value."""
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        names = list(measures)
        for repeat in range(repeats):
            first = repeat % len(names)  # each is first as often as the others
            for name in (*names[first:], *names[:first]):
                values = measures[name](repeat)
                for key, value in values.items():
                    found[name, key].append(float(value))
                shown = ", ".join(f"{key} {rounded(value):g}" for key, value in values.items())
                tell(f"{repeat + 1}/{repeats} {name}: {shown}")
        for (name, key), each in found.items():
            suffix, unit = units[key]
            self.add(f"{prefix}{name}{suffix}", unit, each)

    def compare(self, over: str, under: str, at_least: float | None = None, at_most: float | None = None) -> None:
        """Adds the paired ratio of two series if both were measured, and its aim if there is a bound."""
        if over not in self.series or under not in self.series:
            return
        name = f"{over} / {under}"
        self.ratios[name] = paired_ratio(self.series[over].values, self.series[under].values)
        if at_least is not None or at_most is not None:
            self.aim(name, self.ratios[name], at_least, at_most)

    def per_core(self, names: Iterable[str]) -> None:
        """Adds the rates of contenders that used all cores of the machine, for each core."""
        cores = os.cpu_count() or 1
        found = {name: series for name in names if (series := self.series.get(name))}
        self.facts |= {f"{name}, {one.unit} and core": rounded(one.median / cores, 3) for name, one in found.items()}

    def aim(self, name: str, value: float, at_least: float | None = None, at_most: float | None = None) -> None:
        """Adds an aim."""
        self.aims.append(Aim(name, value, at_least, at_most))

    def as_json(self) -> dict[str, Any]:
        """Everything, ready for `json.dumps`."""
        return {
            "benchmark": self.name,
            "started": self.started,
            "settings": dict(self.settings),
            "series": {name: series.as_json() for name, series in self.series.items()},
            "ratios": {name: rounded(value) for name, value in self.ratios.items()},
            "aims": [aim.as_json() for aim in self.aims],
            "facts": self.facts,
            "notes": self.notes,
            "load_average": {"before": list(self.load), "after": list(os.getloadavg())},
            "machine": machine(),
        }

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        width = max((len(name) for name in [*self.series, *self.ratios]), default=0)
        yield f"\n{self.name}: {', '.join(f'{key}={value}' for key, value in self.settings.items())}"
        for name, series in self.series.items():
            low, high = rounded(min(series.values), 3), rounded(max(series.values), 3)
            yield f"  {name:<{width}}  {rounded(series.median, 3):>10g} {series.unit}   ({low:g} to {high:g})"
        for name, value in self.ratios.items():
            yield f"  {name:<{width}}  {rounded(value, 3):>10g}"
        for name, fact in self.facts.items():
            yield f"  {name}: {json.dumps(fact)}"
        for aim in self.aims:
            bounds = [f">= {aim.at_least:g}"] if aim.at_least is not None else []
            bounds += [f"<= {aim.at_most:g}"] if aim.at_most is not None else []
            verdict = "met" if aim.met else "MISSED"
            yield f"  aim {verdict}: {aim.name} {' and '.join(bounds)}: {rounded(aim.value, 3):g}"
        yield from (f"  note: {note}" for note in self.notes)
        here = machine()
        versions = " ".join(f"{name} {version}" for name, version in here["versions"].items())
        memory = f"{here['memory_bytes'] / 2**30:.0f} GiB"
        yield f"  on {here['processor']}, {here['cores']} cores, {memory}, Python {here['python']}"
        yield f"  {versions}"
        yield f"  load average before {self.load[0]:.1f}, after {os.getloadavg()[0]:.1f}"

    def show(self, as_json: bool) -> None:
        """Prints the report; with `as_json` the last line is one JSON object."""
        for line in self.lines():
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
        if as_json:
            print(json.dumps(self.as_json()), flush=True)


def parser(
    description: str | None,
    repeats: int | None = 5,
    *,
    folder: bool = True,
    photographs: int | None = None,
    contenders: Iterable[str] = (),
) -> argparse.ArgumentParser:
    """Makes a parser of the flags that benchmarks share; the first line of `description` describes the command."""
    result = argparse.ArgumentParser(
        description=(description or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    if repeats is not None:
        result.add_argument("--repeats", type=positive, default=repeats, help="how often each contender is measured")
    result.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    if folder:
        result.add_argument("--folder", type=Path, help="keep photographs and peers here; else in a temporary folder")
    if photographs is not None:
        result.add_argument("--photographs", type=positive, default=photographs, help="how many photographs")
    if names := list(contenders):
        result.add_argument("--contenders", nargs="+", choices=names, default=names, help="who takes part")
    return result


def command(flags: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Report]) -> None:
    """Runs a benchmark with the arguments of the command line and shows its report."""
    arguments = flags.parse_args()
    run(arguments).show(arguments.json)


def positive(text: str) -> int:
    """Reads a whole number of at least 1 from a flag."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def above_zero(text: str) -> float:
    """Reads a number above 0 from a flag."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


@contextmanager
def scratch(kept: Path | None) -> Iterator[tuple[Path, Path]]:
    """Gives a folder for what may be kept between runs and one that goes away at the end."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="lakelens-benchmark-", dir=kept))
    try:
        yield (kept.resolve() if kept is not None else temporary), temporary.resolve()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tell(line: str) -> None:
    """Writes a line of progress to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
