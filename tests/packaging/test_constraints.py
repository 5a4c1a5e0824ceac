"""constraints.txt against setup.py: every direct requirement has one exact version per Python, and a reason."""

from __future__ import annotations

import re
import sys
import zipfile
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.unit

PYTHONS = ("3.10", "3.11", "3.12")
# Compiled on the machine; its version is in lakelens/horovod_compile.py.
NOT_FROM_A_WHEEL = {"horovod"}
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def lines(checkout: Path) -> list[str]:
    text = (checkout / "constraints.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pins(checkout: Path, python: str) -> dict[str, list[Requirement]]:
    """The constraints that hold for one Python, by package."""
    found: dict[str, list[Requirement]] = {}
    for line in lines(checkout):
        requirement = Requirement(line.partition("#")[0])
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.fixture(scope="module")
def direct(wheel: Path) -> dict[str, Requirement]:
    """What the wheel says that it requires, extras included."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def test_the_installation_page_has_the_ranges_of_the_packages_that_pip_replaces_on_databricks(
    checkout: Path, direct: dict[str, Requirement]
) -> None:
    page = (checkout / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| `(.*)` \|$", page, re.MULTILINE)
    assert {"numpy", "pandas", "pydantic"} <= {name for name, _, _ in rows}
    for name, there, needed in rows:
        assert Requirement(f"{name}{needed}").specifier == direct[name].specifier, name
        assert not direct[name].specifier.contains(there), f"{name} {there} is not replaced"


@pytest.mark.parametrize("python", PYTHONS)
def test_each_direct_requirement_has_one_pin_inside_its_range(
    checkout: Path, direct: dict[str, Requirement], python: str
) -> None:
    pinned = pins(checkout, python)
    for name, requirement in direct.items():
        if name in NOT_FROM_A_WHEEL:
            continue
        versions = [next(iter(pin.specifier)).version for pin in pinned.get(name, [])]
        assert len(versions) == 1, f"{name} on Python {python}: {versions}"
        assert requirement.specifier.contains(versions[0]), f"{name}=={versions[0]} is outside {requirement}"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_is_exact_and_single(checkout: Path, python: str) -> None:
    for name, found in pins(checkout, python).items():
        assert len(found) == 1, f"{name} is pinned {len(found)} times for Python {python}"
        assert [specifier.operator for specifier in found[0].specifier] == ["=="], str(found[0])


def test_every_direct_pin_has_its_reason_beside_it(checkout: Path, direct: dict[str, Requirement]) -> None:
    without = []
    for line in lines(checkout):
        pin, _, reason = line.partition("#")
        if canonicalize_name(Requirement(pin).name) in direct and len(reason.split()) < 3:
            without.append(pin.strip())
    assert without == []


def test_the_horovod_that_is_compiled_is_the_one_that_setup_names(direct: dict[str, Requirement]) -> None:
    from lakelens.horovod_compile import HOROVOD

    assert str(direct["horovod"].specifier) == f"=={HOROVOD}"


def test_what_is_installed_is_what_is_pinned(checkout: Path) -> None:
    wrong = {}
    for name, found in pins(checkout, RUNNING).items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if not found[0].specifier.contains(installed):
            wrong[name] = installed
    assert wrong == {}


def test_no_pin_is_there_by_accident(checkout: Path, direct: dict[str, Requirement]) -> None:
    """Every pin is a direct requirement, a tool of the set-up, or brought by one of them."""
    wanted = set(direct) | {"setuptools", "wheel"}
    waiting = [(name, frozenset(requirement.extras)) for name, requirement in direct.items()]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for brought in _requirements(name, extras):
            wanted.add(canonicalize_name(brought.name))
            waiting.append((canonicalize_name(brought.name), frozenset(brought.extras)))
    assert set(pins(checkout, RUNNING)) - wanted == set()


def _requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    try:
        declared = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    requirements = [Requirement(text) for text in declared]
    return [
        requirement
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""})
    ]
