"""A checkpoint: a folder with a model, the training state and a manifest that fixes every byte of both.

It gets its final name only when it is complete and on disk, and its manifest's digest identifies every copy of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError, InvalidArgumentError
from ...stores.write_once import is_partial, partial_path, publish, sync
from .manifests import (
    ARRAYS_FILE,
    BACKEND_KEY,
    KERAS,
    MANIFEST_FILE,
    MODEL_FILES,
    NAME,
    STATE_FILE,
    canonical_json,
    checked_metadata,
    digest_of,
    entry_of,
    manifest_text,
    read_manifest,
    verify_file,
)

if TYPE_CHECKING:
    import keras
    import numpy as np

logger = logging.getLogger(__name__)

# In the name of a checkpoint of averages that an optimizer has kept, written after the last step.
AVERAGED = "-averaged"


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint whose files were compared with their digests."""

    path: Path  # Its folder
    digest: str  # SHA-256 over the files' digests and the metadata, as 64 hexadecimal digits; equal for every copy
    # Its description: input, labels, table, version, entrypoint, hyperparameters, epoch, step, run_id, metrics, backend
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's name, such as `epoch-0003-1a2b3c4d5e6f`."""
        return self.path.name

    @property
    def backend(self) -> str:
        """The framework of the model: `keras` or `torch`."""
        name = str(self.metadata.get(BACKEND_KEY, KERAS))
        if name not in MODEL_FILES:
            raise CheckpointError(
                f"{self.path}: its model is of the backend {name!r}; this lakelens has {', '.join(MODEL_FILES)}. Use "
                "the lakelens that wrote it"
            )
        return name

    @property
    def model_path(self) -> Path:
        """The model's file, in the format of its framework."""
        return self.path / MODEL_FILES[self.backend]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images that the model takes."""
        given = self.metadata["input"]
        return int(given["height"]), int(given["width"]), int(given["channels"])

    @property
    def class_names(self) -> list[str] | None:
        """Class names by label number (a number without a name has its digits); None when the model has none."""
        labels = self.metadata.get("labels")
        if not labels:
            return None
        by_number = {int(number): str(name) for number, name in labels.items()}
        return [by_number.get(number, str(number)) for number in range(max(by_number) + 1)]

    def state(self) -> dict[str, Any]:
        """Reads the training state (see `training_state`)."""
        value = json.loads((self.path / STATE_FILE).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.path / STATE_FILE} holds {type(value).__name__}, not an object")
        return value

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Reads the arrays of the training state by name; most checkpoints at the end of an epoch have none."""
        import numpy as np

        path = self.path / ARRAYS_FILE
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)

    def load_model(self, *, compile: bool = False, custom_objects: Mapping[str, Any] | None = None) -> keras.Model:
        """Loads the model in Keras safe mode."""
        if self.backend != KERAS:
            raise CheckpointError(f"{self.path}: its model is of {self.backend}; this loads models of {KERAS}")
        from .keras_files import load_keras_file

        return load_keras_file(self.model_path, compile=compile, custom_objects=custom_objects)


def save_checkpoint(
    model: keras.Model,
    folder: str | Path,
    *,
    metadata: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    arrays: Mapping[str, np.ndarray[Any, Any]] | None = None,
    name: str = "checkpoint",
) -> Checkpoint:
    """Writes `model` as a new checkpoint in `folder` and gives it back."""
    from .keras_files import save_keras_file

    files: dict[str, Callable[[Path], None]] = {
        MODEL_FILES[KERAS]: lambda path: save_keras_file(model, path),
        **state_files(state or {}, arrays or {}),
    }
    return write_checkpoint(folder, files=files, metadata=metadata, name=name)


def state_files(
    state: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, Callable[[Path], None]]:
    """Gives the files of a training state for `write_checkpoint`."""
    files: dict[str, Callable[[Path], None]] = {
        STATE_FILE: lambda path: _write_text(path, canonical_json("state", state))
    }
    if arrays:
        files[ARRAYS_FILE] = lambda path: _write_arrays(path, arrays)
    return files


def write_checkpoint(
    folder: str | Path, *, files: Mapping[str, Callable[[Path], None]], metadata: Mapping[str, Any], name: str
) -> Checkpoint:
    """Writes files and their manifest under a temporary name, which readers ignore, syncs them to disk and renames."""
    if not NAME.match(name):
        raise InvalidArgumentError(
            f"checkpoint name {name!r}: a letter or digit, then up to 100 of these, '.', '_' and '-'"
        )
    described = checked_metadata(metadata)
    root = Path(folder)
    try:
        with partial_path(root, name) as partial:
            partial.mkdir()
            entries = {}
            for file_name, write in files.items():
                _write_sequentially(partial / file_name, write)
                sync(partial / file_name)
                entries[file_name] = entry_of(partial / file_name)
            digest = digest_of(entries, described)
            _write_text(partial / MANIFEST_FILE, manifest_text(entries, described, digest))
            sync(partial / MANIFEST_FILE)
            final = root / f"{name}-{digest[:12]}"
            publish(partial, final)  # if the name exists, it holds the same bytes
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {name} cannot be written to {root} ({error}); complete checkpoints there stay. Free space, or "
            "give another folder"
        ) from error
    return Checkpoint(final, digest, described)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens the checkpoint in folder `path` and compares every file with its digest."""
    folder = Path(path).expanduser()
    manifest = read_manifest(folder)
    entries: dict[str, dict[str, Any]] = manifest["files"]
    for file_name, entry in entries.items():
        verify_file(folder / file_name, entry)
    metadata = manifest["metadata"]
    digest = digest_of(entries, metadata)
    if digest != manifest["digest"]:
        raise CheckpointError(
            f"{folder / MANIFEST_FILE}: its digest is {manifest['digest']}, its contents give {digest}; the metadata "
            "was changed after the checkpoint was written. Take an untouched copy, or train again."
        )
    return Checkpoint(folder.absolute(), digest, metadata)


def checkpoint_folders(folder: Path) -> list[Path]:
    """Lists the folders of complete checkpoints in a folder by name, without opening them."""
    children = sorted(folder.iterdir()) if folder.is_dir() else []
    return [child for child in children if (child / MANIFEST_FILE).is_file() and not is_partial(child)]


def list_checkpoints(folder: str | Path) -> list[Checkpoint]:
    """Opens every checkpoint in `folder`, the earliest in the training first; damaged ones are skipped."""
    found = []
    for child in checkpoint_folders(Path(folder)):
        try:
            found.append(open_checkpoint(child))
        except CheckpointError as error:
            logger.warning("skipping %s: %s", child, error)
    return sorted(found, key=_place)


def last_checkpoint(folder: str | Path) -> Checkpoint | None:
    """Opens the checkpoint of `folder` that is the latest in the training; damaged ones are skipped."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def _place(checkpoint: Checkpoint) -> tuple[int, int, bool, str]:
    told = checkpoint.metadata
    # Of one step the averages come before the weights in training, from which a training continues.
    return int(told.get("step", 0)), int(told.get("epoch", 0)), AVERAGED not in checkpoint.name, checkpoint.name


def sweep(folder: str | Path) -> list[Path]:
    """Removes the remains of dead writers from `folder`; call it only when no writer works there."""
    root = Path(folder)
    if not root.is_dir():
        return []
    left = [child for child in sorted(root.iterdir()) if is_partial(child)]
    for child in left:
        shutil.rmtree(child, ignore_errors=True)
    return left


def copy_checkpoint(checkpoint: Checkpoint, folder: str | Path) -> Checkpoint:
    """Copies a checkpoint into another folder, where it gets its final name once complete and on disk."""
    root = Path(folder)
    final = root / checkpoint.name
    try:
        with partial_path(root, checkpoint.name) as partial:
            if not final.exists():
                partial.mkdir()
                for file in checkpoint.path.iterdir():
                    shutil.copyfile(file, partial / file.name)
                    sync(partial / file.name)
                publish(partial, final)
    except OSError as error:
        raise CheckpointError(
            f"{checkpoint.path} cannot be copied to {root} ({error}); free space, or give another folder"
        ) from error
    return Checkpoint(final, checkpoint.digest, checkpoint.metadata)


def remove_checkpoint(checkpoint: Checkpoint) -> None:
    """Removes a checkpoint: readers no longer see it, even if the removal is interrupted."""
    with partial_path(checkpoint.path.parent, checkpoint.name) as doomed:
        checkpoint.path.rename(doomed)


def _write_sequentially(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a temporary file and copies it, because mounted object stores accept only sequential writes."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelens-checkpoint-"))
            write(Path(folder) / path.name)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint file {path.name} cannot be written to the folder for temporary files, {tempfile.tempdir} "
                f"({error}), from which it is copied; complete checkpoints stay. Free space there, or set TMPDIR"
            ) from error
        shutil.copyfile(Path(folder) / path.name, path)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    import numpy as np

    with path.open("wb") as file:
        named: dict[str, Any] = dict(arrays)
        np.savez(file, **named)
