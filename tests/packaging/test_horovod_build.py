"""Horovod's compilation: its cache, its lock, and what is said about an installation that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from borrowed import put_metadata

from lakelens import horovod_build, horovod_patch
from lakelens.errors import BuildError, MissingDependencyError

pytestmark = pytest.mark.unit


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lakelens" / "wheels"


def keep_wheel(tensorflow: str, compiled_for: str, library: bool = True) -> Path:
    """Puts a wheel into the cache where one for `tensorflow` belongs."""
    folder = horovod_build.cache_root() / horovod_build.wheel_key(tensorflow)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("horovod/metadata.json", json.dumps({"tensorflow": compiled_for}))
        if library:
            archive.writestr("horovod/tensorflow/mpi_lib.so", b"library")
    return path


def test_the_key_names_all_that_a_compiled_horovod_depends_on():
    key = horovod_build.wheel_key("2.18.1")
    assert key.startswith("horovod-0.28.1+lakelens1_tensorflow-2.18.1_")
    assert f"_cp{sys.version_info.major}{sys.version_info.minor}_" in key
    others = {horovod_build.wheel_key("2.17.1"), horovod_build.wheel_key("2.18.1", gpu=True)}
    assert len(others | {key}) == 3


def test_a_kept_wheel_is_found_for_its_tensorflow_only_and_if_it_is_whole_and_what_its_place_says(cache):
    keep_wheel("2.18.1", compiled_for="2.17.1")
    assert horovod_build.kept_wheel("2.18.1") is None
    keep_wheel("2.18.1", compiled_for="2.18.1", library=False)
    assert horovod_build.kept_wheel("2.18.1") is None
    wheel = keep_wheel("2.18.1", compiled_for="2.18.1")
    assert horovod_build.kept_wheel("2.18.1") == wheel
    assert wheel.is_relative_to(cache)
    assert horovod_build.kept_wheel("2.17.1") is None
    assert horovod_build.kept_wheel("2.18.1", gpu=True) is None
    wheel.write_bytes(wheel.read_bytes()[:-20])
    assert horovod_build.kept_wheel("2.18.1") is None


def test_a_relative_cache_folder_is_ignored():
    assert horovod_build.cache_root({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "lakelens" / "wheels"


def test_missing_tools_and_a_named_compiler_that_does_not_exist_are_named(tmp_path):
    with pytest.raises(MissingDependencyError) as raised:
        horovod_build.check_tools({"PATH": str(tmp_path)})
    for text in ("g++", "apt-get install g++", "dnf install gcc-c++", "brew install gcc", "make is missing"):
        assert text in str(raised.value)
    with pytest.raises(MissingDependencyError, match=r"CXX=/no/such/g\+\+ does not exist"):
        horovod_build.check_tools({"PATH": "/usr/bin:/bin", "CXX": "/no/such/g++ -O2"})


def test_a_package_that_horovod_imports_is_named_before_anything_is_compiled(monkeypatch):
    monkeypatch.setitem(horovod_build.IMPORTED, "no_such_package", "no-such-package")
    with pytest.raises(MissingDependencyError, match=r"pip install no-such-package$"):
        horovod_build.ensure()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, ["not installed", "python -m lakelens.horovod_build"]),
        ({"tensorflow": "2.17.1"}, ["2.17.1", "2.18.1", "python -m lakelens.horovod_build"]),
        ({"dummy": "none"}, ["without TensorFlow support"]),
        ({"tensorflow": "2.18.1"}, ["None"]),
    ],
    ids=["none", "for another", "without", "fits"],
)
def test_a_horovod_that_does_not_fit_its_tensorflow_is_a_problem(metadata, words, tmp_path, checkout, borrower):
    (borrower.site_packages / "borrowed.pth").unlink()  # nothing but what the test installs
    put_metadata(tmp_path, "tensorflow", "2.18.1")
    if metadata is not None:
        put_metadata(tmp_path, "horovod", "0.28.1")
        (tmp_path / "horovod").mkdir()
        (tmp_path / "horovod" / "metadata.json").write_text(json.dumps(metadata))
    code = "from lakelens.horovod_build import problem; print(problem())"
    said = borrower.run(code, PYTHONPATH=f"{tmp_path}:{checkout}")
    assert [word for word in words if word not in said] == []


def test_two_builds_of_one_key_never_overlap(cache, checkout):
    """Each process notes when it holds the lock; two that held it at once would note in and out of turn."""
    cache.mkdir(parents=True)
    code = (
        "import sys, time; from pathlib import Path; from lakelens.horovod_build import _locked\n"
        "with _locked('key') as folder:\n"
        "    notes = folder / 'notes'\n"
        "    with notes.open('a') as file: file.write('in\\n')\n"
        "    time.sleep(0.2)\n"
        "    with notes.open('a') as file: file.write('out\\n')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], cwd=checkout, stderr=subprocess.PIPE) for _ in range(3)]
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert (cache / "key" / "notes").read_text().split() == ["in", "out"] * 3


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "lakelens").write_text("a file where the folder belongs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="set XDG_CACHE_HOME"), horovod_build._locked("key"):
        pass


def test_a_compilation_under_make_uses_every_core(tmp_path, monkeypatch):
    """make exports MAKEFLAGS, and Horovod's setup.py then drops its own -j8."""
    monkeypatch.setenv("MAKEFLAGS", "w -- VENV=.venv")
    flags = horovod_build._build_environment(tmp_path, gpu=True)
    assert flags["MAKEFLAGS"].startswith("-j")
    assert flags["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert "HOROVOD_GPU_OPERATIONS" not in horovod_build._build_environment(tmp_path, gpu=False)


# As the release has it.
GLOO_SOURCE = """\
void GlooContext::Initialize(const std::string& gloo_iface) {
  device_attr.iface = gloo_iface_;
}
void GlooContext::InitializeForProcessSet(const GlooContext& global_context,
                                          const std::vector<int>& registered_ranks) {
  device_attr.iface = gloo_iface_;
}
"""
CMAKE_SOURCE = """\
# TF SOURCES
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc")
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")
"""
OPERATIONS_SOURCE = """\
#if HAVE_GPU
// Forward declaration of AsGpuStreamValue
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#endif // HAVE_GPU
"""


def horovod_source(folder: Path, gloo: str = GLOO_SOURCE) -> Path:
    (folder / "horovod/common/gloo").mkdir(parents=True)
    (folder / "horovod/common/gloo/gloo_context.cc").write_text(gloo)
    (folder / "horovod/__init__.py").write_text("from horovod.runner import run\n\n__version__ = '0.28.1'\n")
    (folder / "horovod/tensorflow").mkdir()
    (folder / "horovod/tensorflow/CMakeLists.txt").write_text(CMAKE_SOURCE)
    (folder / "horovod/tensorflow/mpi_ops.cc").write_text(OPERATIONS_SOURCE)
    return folder


def test_the_patch_repairs_process_sets_marks_the_build_and_takes_what_newer_tensorflows_break(tmp_path):
    source = horovod_source(tmp_path)
    horovod_patch.apply(source)
    first, second = (source / "horovod/common/gloo/gloo_context.cc").read_text().split("InitializeForProcessSet")
    assert "global_context.gloo_iface_" not in first
    assert "gloo_iface_ = global_context.gloo_iface_;\n  device_attr.iface = gloo_iface_;" in second
    assert f"'0.28.1+{horovod_patch.MARK}'" in (source / "horovod/__init__.py").read_text()
    kept, optional = (source / "horovod/tensorflow/CMakeLists.txt").read_text().split('VERSION_LESS "2.19"')
    assert "xla_mpi_ops.cc" not in kept
    assert "xla_mpi_ops.cc" in optional
    declared = (source / "horovod/tensorflow/mpi_ops.cc").read_text()
    assert declared.index("stream.h") < declared.index("TENSORFLOW_VERSION >= 2021000000")
    assert declared.index("inline GpuStreamHandle AsGpuStreamValue") < declared.index("#endif // HAVE_GPU")


def test_another_source_than_the_known_one_is_refused(tmp_path):
    source = horovod_source(tmp_path, GLOO_SOURCE.replace("InitializeForProcessSet", "InitializeSets"))
    with pytest.raises(BuildError, match="not the known release"):
        horovod_patch.apply(source)


def test_a_build_from_elsewhere_is_told_by_its_version():
    versions = ("0.28.1+lakelens1", "0.28.1", "0.28.1+cpu", "0.28.1+db2")
    assert [version for version in versions if horovod_patch.is_applied(version)] == ["0.28.1+lakelens1"]
