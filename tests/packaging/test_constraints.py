"""The files of constraints/ against setup.py: every direct requirement has one exact version in each, and a reason."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setup_arguments import setup_arguments

from lakelens.horovod_build import HOROVOD

pytestmark = pytest.mark.unit

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints"
LOCKS = sorted(CONSTRAINTS.glob("*.txt"))
# Compiled on the machine; its version is in lakelens/horovod_build.py.
NOT_FROM_A_WHEEL = {"horovod"}


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]


def pins(path: Path) -> dict[str, list[Requirement]]:
    """The versions of a stack, by package."""
    found: dict[str, list[Requirement]] = {}
    for line in lines(path):
        requirement = Requirement(line.partition("#")[0])
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.fixture(scope="module")
def direct() -> dict[str, Requirement]:
    """What setup.py asks for, extras included."""
    arguments = setup_arguments()
    requirements = map(Requirement, chain(arguments["install_requires"], *arguments["extras_require"].values()))
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def test_the_databricks_page_has_the_ranges_of_the_packages_that_pip_replaces(checkout, direct):
    page = (checkout / "docs" / "databricks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| `(.*)` \|$", page, re.MULTILINE)
    assert {"pillow", "pydantic"} <= {name for name, _, _ in rows}
    for name, there, needed in rows:
        assert Requirement(f"{name}{needed}").specifier == direct[name].specifier, name
        assert not direct[name].specifier.contains(there), f"{name} {there} is not replaced"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_stack_names_its_pythons_and_pins_each_package_once_and_direct_ones_in_range_and_with_a_reason(direct, path):
    assert re.fullmatch(r"# Python: 3\.1[0-3]( 3\.1[0-3])*", path.read_text(encoding="utf-8").splitlines()[1])
    found = pins(path)
    for name, pinned in found.items():
        assert len(pinned) == 1, f"{name} is pinned {len(pinned)} times"
        assert [specifier.operator for specifier in pinned[0].specifier] == ["=="], str(pinned[0])
        assert pinned[0].marker is None, str(pinned[0])
    for name in direct.keys() - NOT_FROM_A_WHEEL:
        pin = next(iter(found[name][0].specifier)).version
        assert direct[name].specifier.contains(pin), f"{name}=={pin} is outside {direct[name]}"
    reasons = {canonicalize_name(Requirement(pin).name): why for pin, _, why in (x.partition("#") for x in lines(path))}
    assert [name for name, reason in reasons.items() if name in direct and len(reason.split()) < 3] == []


def test_the_horovod_that_is_compiled_is_the_one_that_setup_names(direct):
    assert str(direct["horovod"].specifier) == f"=={HOROVOD}"


def test_what_is_installed_is_what_is_pinned(lock):
    wrong = {}
    for name, found in pins(lock).items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if not found[0].specifier.contains(installed):
            wrong[name] = installed
    assert wrong == {}
