"""The manifest of a checkpoint: read, written, and compared with its files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, CheckpointNotFoundError
from ...stores.write_once import is_partial

# The frameworks of models, as checkpoints name them, and the file of the model. Without a name it is Keras.
KERAS, TORCH = "keras", "torch"
MODEL_FILES = {KERAS: "model.keras", TORCH: "model.safetensors"}
BACKEND_KEY, ENTRYPOINT_KEY = "backend", "entrypoint"
STATE_FILE = "state.json"
# For a checkpoint within an epoch, or with callbacks that keep weights.
ARRAYS_FILE = "state.npz"
MANIFEST_FILE = "manifest.json"
# Keys of a checkpoint, and of a file in one.
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")

_FORMAT = "lakelens-checkpoint"
_FORMAT_VERSION = 1
# A manifest has a few kilobytes; a larger file is not one, and is not read into memory.
_MANIFEST_LIMIT_BYTES = 16 << 20
# Model files of other tools. Loading any of these can run code or bypass Keras safe mode.
_REFUSED_SUFFIXES = frozenset(
    {".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle", ".pt", ".pth", ".npy", ".bin", ".pb"}
)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of the checkpoint in a folder: its `files`, `metadata` and `digest`."""
    if not folder.exists():
        raise CheckpointNotFoundError(f"{folder}: the checkpoint folder does not exist")
    if folder.is_file():
        raise _refusal_of_file(folder)
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise _refusal_of_folder(folder)
    if is_partial(folder):
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
        and isinstance(metadata, dict)
        and STATE_FILE in files
        and not {*MODEL_FILES.values()}.isdisjoint(files)
        and all(NAME.match(name) and isinstance(entry, dict) for name, entry in files.items())
        and isinstance(manifest.get("digest"), str)
    )
    if not whole:
        raise CheckpointError(
            f"{path} lacks files, metadata or digest, or names a file outside its folder; take another copy"
        )
    checked_metadata(manifest["metadata"])
    return manifest


def _refusal_of_file(path: Path) -> CheckpointError:
    if path.suffix.lower() in _REFUSED_SUFFIXES:
        return CheckpointError(
            f"{path}: {path.suffix} models are not loaded, because loading one can run code. Load it where you "
            "trust it and write it with lakelens.training.checkpoints.checkpoint.save_checkpoint."
        )
    return CheckpointNotFoundError(
        f"{path} is a file; a checkpoint is a folder with {MODEL_FILES[KERAS]}, {STATE_FILE} and {MANIFEST_FILE} "
        "(lakelens.training.checkpoints.checkpoint.save_checkpoint writes one)"
    )


def _refusal_of_folder(folder: Path) -> CheckpointError:
    if is_partial(folder):
        return CheckpointError(f"{folder} is a half-written checkpoint (its writer died); use another, or train again")
    refused = sorted(child.name for child in folder.iterdir() if child.suffix.lower() in _REFUSED_SUFFIXES)
    if refused:
        return CheckpointError(
            f"{folder} holds {refused[0]} and no {MANIFEST_FILE}: pickles, HDF5 and SavedModel files are not loaded, "
            "because loading one can run code. Write the model with lakelens.training.checkpoints.save_checkpoint."
        )
    return CheckpointNotFoundError(f"{folder} has no {MANIFEST_FILE}, so it is not a checkpoint")


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metadata as plain JSON values."""
    described: dict[str, Any] = json.loads(canonical_json("metadata", metadata))
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


def verify_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Compares a file with its entry in the manifest."""
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


def manifest_text(entries: Mapping[str, Any], metadata: Mapping[str, Any], digest: str) -> str:
    """Writes a manifest; `metadata` is what `checked_metadata` gave."""
    manifest = {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "files": entries,
        "metadata": metadata,
        "digest": digest,
    }
    return json.dumps(manifest, indent=2, sort_keys=True, allow_nan=False) + "\n"


def entry_of(path: Path) -> dict[str, Any]:
    """Describes a file as the manifest does: `sha256` and `bytes`."""
    return {"sha256": _sha256(path), "bytes": path.stat().st_size}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(entries: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """The digest of a checkpoint: SHA-256 over its files' entries and its metadata, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json("manifest", {"files": entries, "metadata": metadata}).encode()).hexdigest()


def canonical_json(what: str, value: Mapping[str, Any]) -> str:
    """Writes JSON values in a canonical form, so that equal values have equal bytes."""
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
