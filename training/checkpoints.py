"""A checkpoint: a folder with a Keras model, the training state and a manifest that fixes every byte of both.

A checkpoint appears under its name only when it is complete and on disk, its name is never written twice, and nothing
in it is pickled. The manifest's digest identifies it wherever it is copied to.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, CheckpointNotFoundError, InvalidArgumentError

if TYPE_CHECKING:
    import keras

MODEL_FILE = "model.keras"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"

_FORMAT = "lakelens-checkpoint"
_FORMAT_VERSION = 1
_PARTIAL = re.compile(r"^\..+\.[0-9a-f]{16}\.partial$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")
# A manifest is a few kilobytes; more is not one of ours, and is not read into memory.
_MANIFEST_LIMIT_BYTES = 16 << 20
# What other tools call a model. All of these can run code when they are loaded, or escape Keras safe mode.
_REFUSED_SUFFIXES = frozenset(
    {".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle", ".pt", ".pth", ".npy", ".bin", ".pb"}
)


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint whose files were compared with their digests.

    Attributes:
        path: Its folder.
        digest: SHA-256 over the files' digests and the metadata, as 64 hexadecimal digits; equal for every copy.
        metadata: What the checkpoint says of itself: input, labels, table, version, entrypoint, hyperparameters, epoch,
            run_id, metrics.
    """

    path: Path
    digest: str
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's name, such as `epoch-0003-1a2b3c4d5e6f`."""
        return self.path.name

    @property
    def model_path(self) -> Path:
        """The `.keras` file."""
        return self.path / MODEL_FILE

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
        """Reads the training state (epoch, feed position, seed)."""
        value = json.loads((self.path / STATE_FILE).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.path / STATE_FILE} holds {type(value).__name__}, not an object")
        return value

    def load_model(self, *, compile: bool = False, custom_objects: Mapping[str, Any] | None = None) -> keras.Model:
        """Loads the model in Keras safe mode.

        Args:
            compile: Restore optimizer, loss and metrics too; inference does not need them.
            custom_objects: The user's own layers by name; without it only Keras's own classes are built.

        Raises:
            CheckpointError: If the file is no `.keras` archive, or holds what safe mode refuses (a Lambda layer).
        """
        from .keras_files import load_keras_file

        return load_keras_file(self.model_path, compile=compile, custom_objects=custom_objects)


def save_checkpoint(
    model: keras.Model,
    folder: str | Path,
    *,
    metadata: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    name: str = "checkpoint",
) -> Checkpoint:
    """Writes `model` as a new checkpoint in `folder` and gives it back.

    Args:
        model: A built Keras model; its optimizer's state is written when it is compiled.
        folder: Where checkpoints are kept; made when missing.
        metadata: JSON values; `input` with height, width and channels is required.
        state: JSON values that continue the training: epoch, feed position, seed.
        name: Beginning of the checkpoint's name; its digest's first 12 digits follow.

    Raises:
        CheckpointError: If a value is no JSON, or the model cannot be saved or could not be loaded again.
        OSError: If the disk refuses.
    """
    from .keras_files import save_keras_file

    return write_checkpoint(
        folder,
        files={
            MODEL_FILE: lambda path: save_keras_file(model, path),
            STATE_FILE: lambda path: _write_text(path, _canonical_json("state", state or {})),
        },
        metadata=metadata,
        name=name,
    )


def write_checkpoint(
    folder: str | Path, *, files: Mapping[str, Callable[[Path], None]], metadata: Mapping[str, Any], name: str
) -> Checkpoint:
    """Writes files and their manifest under a temporary name, syncs them to disk, then renames.

    Whoever dies in between leaves a `.partial` folder that no reader takes for a checkpoint (see `sweep`).

    Args:
        folder: Where checkpoints are kept; made when missing.
        files: For each file name a function that writes the file at the path it is given.
        metadata: JSON values; `input` is required.
        name: Beginning of the checkpoint's name.
    """
    if not _NAME.match(name):
        raise InvalidArgumentError(
            f"checkpoint name {name!r}: a letter or digit, then up to 100 of these, '.', '_' and '-'"
        )
    described = _checked_metadata(metadata)
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    partial = root / f".{name}.{secrets.token_hex(8)}.partial"
    partial.mkdir()
    try:
        entries = {}
        for file_name, write in files.items():
            write(partial / file_name)
            _sync(partial / file_name)
            entries[file_name] = _entry(partial / file_name)
        digest = _digest(entries, described)
        manifest = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "files": entries,
            "metadata": described,
            "digest": digest,
        }
        _write_text(partial / MANIFEST_FILE, json.dumps(manifest, indent=2, sort_keys=True, allow_nan=False) + "\n")
        _sync(partial / MANIFEST_FILE)
        _sync(partial)
        final = root / f"{name}-{digest[:12]}"
        if not final.exists():  # the same bytes are there already: nothing to replace
            partial.rename(final)
            _sync(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Checkpoint(final, digest, described)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens the checkpoint in folder `path` and compares every file with its digest.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint at `path`.
        CheckpointError: If a file is missing, changed or half-written, or `path` is a kind of model that is refused.
    """
    folder = Path(path).expanduser()
    manifest = _read_manifest(folder)
    entries: dict[str, dict[str, Any]] = manifest["files"]
    for file_name, entry in entries.items():
        _verify_file(folder / file_name, entry)
    metadata = manifest["metadata"]
    digest = _digest(entries, metadata)
    if digest != manifest["digest"]:
        raise CheckpointError(
            f"{folder / MANIFEST_FILE}: its digest is {manifest['digest']}, its contents give {digest}; the metadata "
            "was changed after the checkpoint was written. Take an untouched copy, or train again."
        )
    return Checkpoint(folder.absolute(), digest, metadata)


def list_checkpoints(folder: str | Path) -> list[Checkpoint]:
    """Opens every checkpoint in `folder`, oldest epoch first; half-written ones are passed over."""
    root = Path(folder)
    if not root.is_dir():
        return []
    found = [
        open_checkpoint(child)
        for child in sorted(root.iterdir())
        if (child / MANIFEST_FILE).is_file() and not _is_partial(child)
    ]
    return sorted(found, key=lambda checkpoint: (int(checkpoint.metadata.get("epoch", 0)), checkpoint.name))


def sweep(folder: str | Path) -> list[Path]:
    """Removes what writers that died left in `folder`; call it only when none is at work there.

    Returns:
        The folders that were removed.
    """
    root = Path(folder)
    if not root.is_dir():
        return []
    left = [child for child in sorted(root.iterdir()) if _is_partial(child)]
    for child in left:
        shutil.rmtree(child, ignore_errors=True)
    return left


def remove_checkpoint(checkpoint: Checkpoint) -> None:
    """Removes a checkpoint: it stops being one at once, whatever happens during the removal."""
    doomed = checkpoint.path.with_name(f".{checkpoint.name}.{secrets.token_hex(8)}.partial")
    checkpoint.path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _is_partial(path: Path) -> bool:
    return _PARTIAL.match(path.name) is not None and path.is_dir()


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise CheckpointNotFoundError(f"{folder}: there is no such checkpoint folder")
    if folder.is_file():
        raise _refusal_of_file(folder)
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise _refusal_of_folder(folder)
    if _is_partial(folder):
        raise CheckpointError(f"{folder} is a half-written checkpoint (its writer died); use another, or train again")
    if path.stat().st_size > _MANIFEST_LIMIT_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes, a manifest has at most {_MANIFEST_LIMIT_BYTES}")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); the checkpoint is damaged, take another copy") from error
    return _checked_manifest(path, manifest)


def _checked_manifest(path: Path, manifest: Any) -> dict[str, Any]:
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CheckpointNotFoundError(f'{path} is not the manifest of a lakelens checkpoint ("format": "{_FORMAT}")')
    if manifest.get("format_version") != _FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format_version is {manifest.get('format_version')!r}, this lakelens reads {_FORMAT_VERSION}; "
            "use the lakelens that wrote it"
        )
    files, metadata = manifest.get("files"), manifest.get("metadata")
    whole = (
        isinstance(files, dict)
        and {MODEL_FILE, STATE_FILE} <= files.keys()
        and all(_NAME.match(name) and isinstance(entry, dict) for name, entry in files.items())
        and isinstance(metadata, dict)
        and isinstance(manifest.get("digest"), str)
    )
    if not whole:
        raise CheckpointError(
            f"{path} lacks files, metadata or digest, or names a file outside its folder; take another copy"
        )
    _checked_metadata(manifest["metadata"])
    return manifest


def _refusal_of_file(path: Path) -> CheckpointError:
    if path.suffix.lower() in _REFUSED_SUFFIXES:
        return CheckpointError(
            f"{path}: {path.suffix} models are not loaded, because loading one can run code. Load it where you "
            "trust it and write it with lakelens.training.checkpoints.save_checkpoint."
        )
    return CheckpointNotFoundError(
        f"{path} is a file; a checkpoint is a folder with {MODEL_FILE}, {STATE_FILE} and {MANIFEST_FILE} "
        "(lakelens.training.checkpoints.save_checkpoint writes one)"
    )


def _refusal_of_folder(folder: Path) -> CheckpointError:
    if _is_partial(folder):
        return CheckpointError(f"{folder} is a half-written checkpoint (its writer died); use another, or train again")
    refused = sorted(child.name for child in folder.iterdir() if child.suffix.lower() in _REFUSED_SUFFIXES)
    if refused:
        return CheckpointError(
            f"{folder} holds {refused[0]} and no {MANIFEST_FILE}: pickles, HDF5 and SavedModel files are not loaded, "
            "because loading one can run code. Write the model with lakelens.training.checkpoints.save_checkpoint."
        )
    return CheckpointNotFoundError(f"{folder} holds no {MANIFEST_FILE}, so it is no checkpoint")


def _checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(_canonical_json("metadata", metadata))
    shape = described.get("input")
    sides = [shape.get(side) for side in ("height", "width", "channels")] if isinstance(shape, dict) else [None]
    if not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides):
        raise CheckpointError(
            f"checkpoint metadata: input is {shape!r}, it must give height, width and channels, all above 0"
        )
    labels = described.get("labels")
    if labels is not None and not (isinstance(labels, dict) and all(number.isdecimal() for number in labels)):
        raise CheckpointError(
            f'checkpoint metadata: labels is {labels!r}, it must map numbers to names, as in {{"0": "zero"}}'
        )
    return described


def _verify_file(path: Path, entry: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; the checkpoint is incomplete, take another copy")
    size = path.stat().st_size
    if size != entry.get("bytes"):
        raise CheckpointError(
            f"{path} has {size} bytes, its manifest says {entry.get('bytes')}; it is cut off or changed"
        )
    found = _sha256(path)
    if found != entry.get("sha256"):
        raise CheckpointError(
            f"{path}: sha256 is {found}, its manifest says {entry.get('sha256')}; it was changed after it was written. "
            "Take an untouched copy, or train again."
        )


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": _sha256(path), "bytes": path.stat().st_size}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _digest(entries: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical_json("manifest", {"files": entries, "metadata": metadata}).encode()).hexdigest()


def _canonical_json(what: str, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {what}: {error}; give strings, numbers, booleans, lists and objects"
        ) from error


def _plain(value: Any) -> Any:
    """Turns NumPy scalars into Python's, tuples into lists, NaN and infinities (no JSON) into their names."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    """Forces a file or a folder's entries to disk: a rename that survives a crash must not point at absent bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
