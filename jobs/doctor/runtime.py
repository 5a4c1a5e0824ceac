"""Which runtime this is, and which of its packages lakelens cannot use as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

import lakelens

# The variable that Databricks sets on every cluster, and the file that its images hold.
_VARIABLE, _FILE = "DATABRICKS_RUNTIME_VERSION", Path("/databricks/DBR_VERSION")
_SHOWN = {
    "Spark": "pyspark",
    "Delta": "delta-spark",
    "TensorFlow": "tensorflow",
    "pyarrow": "pyarrow",
    "NumPy": "numpy",
    "pandas": "pandas",
}
# Extras whose packages machines have for other reasons too: a version that lakelens has no use for breaks nothing.
_NOT_COMPARED = ("dev", "java", "torch")
# A cluster runs its own Spark; one from PyPI would stand in its way.
_OF_THE_CLUSTER = ("pyspark", "delta-spark")


def examined() -> tuple[str, bool, str]:
    """Names the runtime, and compares its packages with what the installed lakelens asks for."""
    databricks = databricks_runtime()
    name = f"Databricks Runtime {databricks}" if databricks else "no Databricks runtime"
    packages = ", ".join(f"{shown} {found}" for shown, package in _SHOWN.items() if (found := installed(package)))
    detail = f"{name}; {packages}"
    try:
        declared = [Requirement(text) for text in requires("lakelens") or []]
    except PackageNotFoundError:
        return lakelens.__version__, True, f"{detail}; lakelens is not installed, so nothing is compared"
    unmet = unmet_requirements(declared, "databricks" if databricks else "")
    if not unmet:
        return lakelens.__version__, True, detail
    wrong = ", ".join(f"{one.name} {installed(one.name) or 'is missing'}" for one in unmet)
    found = f"{detail}; missing, too old or too new: {wrong} -> {way_out(unmet, databricks=bool(databricks))}"
    return lakelens.__version__, False, found


def way_out(unmet: list[Requirement], *, databricks: bool) -> str:
    """Writes the line that installs what is missing; a Databricks cluster's Spark changes with its runtime alone."""
    kept = _OF_THE_CLUSTER if databricks else ()
    line = " ".join(f"'{one.name}{one.specifier}'" for one in unmet if one.name not in kept)
    steps = [f"pip install {line}"] if line else []
    if any(one.name in kept for one in unmet):
        steps.append("choose a runtime of docs/databricks.md's table for its Spark")
    return "; ".join(steps)


def databricks_runtime(environ: Mapping[str, str] = os.environ, file: Path = _FILE) -> str | None:
    """Reads the version of the Databricks runtime, such as `16.4`; None elsewhere."""
    if environ.get(_VARIABLE):
        return environ[_VARIABLE]
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def unmet_requirements(declared: list[Requirement], extra: str) -> list[Requirement]:
    """Finds the requirements that the installed packages do not meet.

    Returns each requirement once, in the order of `declared`.
    """
    unmet = {}
    for one in declared:
        needed = one.marker is None or one.marker.evaluate({"extra": extra})
        if not needed and any(one.marker.evaluate({"extra": name}) for name in _NOT_COMPARED if one.marker):
            continue
        found = installed(one.name)
        if (found is None and needed) or (found is not None and not one.specifier.contains(found, prereleases=True)):
            unmet[one.name] = one
    return list(unmet.values())


def installed(package: str) -> str | None:
    """Reads the version of an installed package; Databricks has MLflow's under a second name, others TensorFlow's."""
    for name in (package, f"{package}-skinny", f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
