"""Rules of the checkpoint folder; no TensorFlow, so that every way to die in the middle is cheap to try."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from full_disk import run_on_small_disk

from lakelens.errors import CheckpointError, CheckpointNotFoundError, InvalidArgumentError
from lakelens.training.checkpoints.checkpoint import (
    Checkpoint,
    copy_checkpoint,
    last_checkpoint,
    list_checkpoints,
    open_checkpoint,
    remove_checkpoint,
    sweep,
    write_checkpoint,
)

pytestmark = pytest.mark.unit

METADATA = {"input": {"height": 8, "width": 8, "channels": 3}, "labels": {"0": "zero", "2": "two"}, "epoch": 3}


def write(folder: Path, *, model: bytes = b"weights", epoch: int = 3, **metadata: object) -> Checkpoint:
    return write_checkpoint(
        folder,
        files={
            "model.keras": lambda path: path.write_bytes(model) and None,
            "state.json": lambda path: path.write_text('{"epoch": 3}') and None,
        },
        metadata={**METADATA, "epoch": epoch, **metadata},
        name=f"epoch-{epoch:04d}",
    )


def test_a_written_checkpoint_opens_with_the_same_digest_and_metadata_and_is_written_once(tmp_path):
    metrics = {"loss": float("nan"), "best": float("-inf")}
    written = write(tmp_path, metrics=metrics)
    assert write(tmp_path, metrics=metrics).path == written.path
    assert list(tmp_path.iterdir()) == [written.path]
    opened = open_checkpoint(written.path)
    assert opened.metadata["metrics"] == {"loss": "nan", "best": "-inf"}
    assert (opened.digest, opened.metadata) == (written.digest, written.metadata)
    assert opened.input_shape == (8, 8, 3)
    assert opened.class_names == ["zero", "1", "two"]
    assert opened.state() == {"epoch": 3}
    assert opened.name == f"epoch-0003-{written.digest[:12]}"
    moved = written.path.rename(tmp_path / "under another name")
    assert open_checkpoint(moved).digest == written.digest


def test_a_model_of_another_backend_is_not_loaded(tmp_path):
    with pytest.raises(CheckpointError, match="its model is of torch; this loads models of keras"):
        write(tmp_path, backend="torch").load_model()
    with pytest.raises(CheckpointError, match="of the backend 'other'; this lakelens has keras, torch"):
        write(tmp_path, backend="other").load_model()


def test_a_copy_that_the_disk_refuses_is_an_error_that_names_both_places(tmp_path):
    checkpoint = write(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=rf"{checkpoint.path} cannot be copied to {tmp_path}/file"):
        copy_checkpoint(checkpoint, tmp_path / "file")


def test_the_digest_depends_on_weights_and_on_metadata(tmp_path):
    digests = {
        write(tmp_path).digest,
        write(tmp_path, model=b"weightS").digest,
        write(tmp_path, version=1).digest,
        write(tmp_path, version=2).digest,
    }
    assert len(digests) == 4


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("name", ["model.keras", "state.json", "manifest.json"])
@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (flipped, "sha256|digest|not JSON|format|lacks|bytes"),
        (lambda content: content[:-3], r"cut off|not JSON"),
        (lambda content: None, r"is missing|no manifest.json"),
    ],
    ids=["flipped", "cut", "gone"],
)
def test_a_damaged_file_is_detected(tmp_path, name, damaged, words):
    path = write(tmp_path).path / name
    content = damaged(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path.parent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": METADATA | {"epoch": 7}}, "metadata was changed"),
        ({"format": "other"}, "not the manifest of a lakelens checkpoint"),
        ({"format_version": 2}, "format_version is 2"),
        ({"files": {"model.keras": {}, "state.json": {}, "../../secret": {}}}, "names a file outside"),
        ({"files": {"model.keras": 1, "state.json": {}}}, "lacks files"),
        ({"metadata": {}}, "input is None"),
        ({"digest": 5}, "lacks files"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path, change, words):
    path = write(tmp_path).path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path.parent)


def test_a_missing_folder_and_a_bare_keras_file_are_named(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match=f"{tmp_path}/absent.*the checkpoint folder does not exist"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "model.keras").write_bytes(b"PK")
    with pytest.raises(CheckpointNotFoundError, match="save_checkpoint"):
        open_checkpoint(tmp_path / "model.keras")


@pytest.mark.parametrize("name", ["model.h5", "model.pkl", "model.PICKLE", "model.joblib", "saved_model.pb"])
def test_kinds_of_models_that_run_code_are_refused_as_file_and_in_a_folder(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(CheckpointError, match="can run code"):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"labels": {}}, "input is None"),
        ({"input": {"height": 0, "width": 8, "channels": 3}}, "all above 0"),
        ({"input": {"height": 8, "width": 8}}, "all above 0"),
        ({"input": METADATA["input"], "labels": {"zero": 0}}, "labels is"),
        ({"input": METADATA["input"], "hyperparameters": {"x": object()}}, "give strings, numbers"),
    ],
)
def test_metadata_that_inference_could_not_use_is_refused_when_it_is_written(tmp_path, metadata, words):
    with pytest.raises(CheckpointError, match=words):
        write_checkpoint(tmp_path, files={}, metadata=metadata, name="x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 200])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="checkpoint name"):
        write_checkpoint(tmp_path, files={}, metadata=METADATA, name=name)


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(CheckpointError, match=r"cannot be written to .* \(disk full\)"):
        write_checkpoint(tmp_path, files={"model.keras": fail}, metadata=METADATA, name="x")
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import tempfile
from lakelens.training.checkpoints.checkpoint import write_checkpoint
files = {"model.keras": lambda path: path.write_bytes(bytes(100_000)) and None}
metadata = {"input": {"height": 8, "width": 8, "channels": 3}}
fill()
tempfile.tempdir = str(disk)
temporary = told(lambda: write_checkpoint(given, files=files, metadata=metadata, name="x"))
tempfile.tempdir = given
kept = told(lambda: write_checkpoint(disk, files=files, metadata=metadata, name="x"))
print(json.dumps([temporary, kept, os.listdir(given)]))
"""


def test_the_error_of_a_full_disk_names_the_folder_that_is_full(tmp_path):
    (tmp_path / "free").mkdir()
    disk = tmp_path / "disk"
    temporary, kept, left = run_on_small_disk(disk, "import os" + FULL_DISK, str(tmp_path / "free"))
    assert temporary[0] == kept[0] == "CheckpointError"
    assert f"cannot be written to the folder for temporary files, {disk} ([Errno 28]" in temporary[1]
    assert f"checkpoint x cannot be written to {disk} ([Errno 28]" in kept[1]
    assert left == []


# Dies by SIGKILL at the n-th system call that matters, counted over fsync and rename.
WRITER = """
    import os, pathlib, signal, sys
    from lakelens.training.checkpoints.checkpoint import write_checkpoint
    folder, fatal = sys.argv[1], int(sys.argv[2])
    calls = 0
    def counted(function):
        def call(*args, **kwargs):
            global calls
            calls += 1
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call
    os.fsync = counted(os.fsync)
    pathlib.Path.rename = counted(pathlib.Path.rename)
    write_checkpoint(
        folder,
        files={"model.keras": lambda p: p.write_bytes(b"w" * 100_000), "state.json": lambda p: p.write_text("{}")},
        metadata={"input": {"height": 8, "width": 8, "channels": 3}},
        name="epoch-0001",
    )
"""


# fsync of model, state, manifest and the partial folder, the rename, fsync of the parent; there is no seventh call.
@pytest.mark.parametrize("fatal", [1, 2, 3, 4, 5, 6, 7])
def test_a_writer_killed_at_any_call_leaves_a_whole_checkpoint_or_none(tmp_path, fatal):
    before = write(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), str(fatal)]
    done = subprocess.run(command, check=False, timeout=240, cwd=Path(__file__).parents[3])
    assert done.returncode == (-signal.SIGKILL if fatal < 7 else 0)
    renamed = fatal > 5
    assert len(list_checkpoints(tmp_path)) == (2 if renamed else 1)
    left = [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]
    assert len(left) == (0 if renamed else 1)
    for path in left:
        with pytest.raises(CheckpointError, match="half-written"):
            open_checkpoint(path)
    assert sweep(tmp_path) == left
    assert open_checkpoint(before.path).digest == before.digest
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_checkpoints_are_listed_by_epoch_and_damaged_ones_passed_over_with_a_warning(tmp_path, caplog):
    removed, damaged, whole = (write(tmp_path, epoch=epoch, step=epoch) for epoch in (10, 2, 1))
    assert [checkpoint.metadata["epoch"] for checkpoint in list_checkpoints(tmp_path)] == [1, 2, 10]
    assert list_checkpoints(tmp_path / "absent") == []
    remove_checkpoint(removed)
    assert sorted(tmp_path.iterdir()) == [whole.path, damaged.path]
    damaged.model_path.write_bytes(b"")
    assert [checkpoint.name for checkpoint in list_checkpoints(tmp_path)] == [whole.name]
    assert last_checkpoint(tmp_path) == open_checkpoint(whole.path)
    assert f"skipping {damaged.path}: " in caplog.text


def test_sweeping_touches_nothing_but_half_written_checkpoints(tmp_path):
    kept = write(tmp_path)
    (tmp_path / "notes.partial").write_text("the user's own")
    (tmp_path / ".hidden").mkdir()
    assert sweep(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, "notes.partial", ".hidden"}
