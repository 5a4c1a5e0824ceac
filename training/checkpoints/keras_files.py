"""Saves and loads `.keras` files so that loading one builds layers and never runs code from the file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError

if TYPE_CHECKING:
    import keras

_CONFIG = "config.json"
# The largest architectures of keras.applications have configs near 1 MB.
_CONFIG_LIMIT_BYTES = 64 << 20
# Keras safe mode refuses the first two when it builds them. They are also refused here, before Keras reads the file:
# safe mode was bypassed several times (CVE-2024-3660, -2025-1550, -8747, -9905, -9906), through these or a foreign
# module.
_REFUSED_CLASSES = frozenset({"Lambda", "__lambda__", "TFSMLayer", "TorchModuleWrapper", "FlaxLayer", "JaxLayer"})
# `builtins` marks a Keras function such as an activation, which is looked up in Keras only.
_OWN_PACKAGES = frozenset({"keras", "builtins"})
# Classes of lakelens itself, with their registered names. For a function Keras would use its module instead.
_OWN_CLASSES = frozenset({(name, f"lakelens>{name}") for name in ("SyncBatchNormalization", "DetectionLoss")})


@dataclass(frozen=True)
class UserObject:
    """A class or function that a model needs and Keras does not have."""

    registered_name: str  # The name under which Keras looks it up, such as `package>Layer`
    module: str  # The module that defines it
    name: str  # Its name in the module


def save_keras_file(model: keras.Model, path: Path) -> None:
    """Saves `model` at `path` (`*.keras`) and checks that it could be loaded again in safe mode."""
    try:
        model.save(path)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise CheckpointError(f"the model {model.name!r} cannot be saved as a .keras file: {error}") from error
    check_keras_file(path, registered_custom_objects=True)


def load_keras_file(path: Path, *, compile: bool, custom_objects: Mapping[str, Any] | None = None) -> keras.Model:
    """Loads the `.keras` file at `path` in safe mode."""
    check_keras_file(path, compile=compile, custom_objects=custom_objects)
    import keras

    from ..distributed import sync_batch_norm  # noqa: F401 - registers its layer

    try:
        return keras.saving.load_model(path, custom_objects=dict(custom_objects or {}), compile=compile, safe_mode=True)
    # Layers can raise any exception; the caller needs one type that names the file.
    except Exception as error:
        raise CheckpointError(f"{path} cannot be loaded as a Keras model: {type(error).__name__}: {error}") from error


def load_weights(model: keras.Model, path: Path) -> None:
    """Puts the weights and the optimizer's state of a `.keras` file into a built model of the same layers."""
    check_keras_file(path, registered_custom_objects=True)
    try:
        model.load_weights(path)
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(
            f"{path} is of another model than the Trial builds now ({error}); continue with the entry point and the "
            "hyperparameters that it was written with"
        ) from error


def check_keras_file(
    path: Path,
    *,
    compile: bool = True,
    custom_objects: Mapping[str, Any] | None = None,
    registered_custom_objects: bool = False,
) -> None:
    """Reads the architecture in `path` without building it."""
    for one in user_objects(path, compile=compile):
        if registered_custom_objects or (custom_objects and {one.name, one.registered_name} & custom_objects.keys()):
            continue
        raise CheckpointError(
            f"{path} holds {one.registered_name!r} of module {one.module!r}, which is not part of Keras; "
            f"pass custom_objects={{{one.registered_name!r}: <the class>}} if you trust it"
        )


def user_objects(path: Path, *, compile: bool) -> tuple[UserObject, ...]:
    """Lists the classes and functions in `path` that neither Keras nor lakelens has."""
    config = _read_config(path)
    if not compile and isinstance(config, dict):
        config.pop("compile_config", None)
    found: dict[UserObject, None] = {}
    for entry in _objects(config):
        name, registered, module = entry["class_name"], entry.get("registered_name"), entry.get("module")
        if name in _REFUSED_CLASSES:
            raise CheckpointError(
                f"{path} holds {name!r}, which runs code from the file when it is loaded; build the model from layers "
                "only (a Rescaling layer or a class of your own instead of a Lambda)"
            )
        is_foreign = "module" in entry and (module is None or str(module).partition(".")[0] not in _OWN_PACKAGES)
        if is_foreign and (name, registered) not in _OWN_CLASSES:
            # Keras writes a function's own name under `config`.
            plain = entry["config"] if name == "function" and isinstance(entry.get("config"), str) else name
            found[UserObject(registered or plain, str(module), plain)] = None
    return tuple(found)


def _read_config(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(_CONFIG).file_size
            if size > _CONFIG_LIMIT_BYTES:
                raise CheckpointError(f"{path}: {_CONFIG} has {size} bytes, at most {_CONFIG_LIMIT_BYTES} are read")
            return json.loads(archive.read(_CONFIG))
    except zipfile.BadZipFile as error:
        raise CheckpointError(
            f"{path} is not a .keras archive ({error}); pickles and HDF5 files under this name are not loaded either"
        ) from error
    except KeyError as error:
        raise CheckpointError(f"{path} is an archive without {_CONFIG}, so it is not a Keras model") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {_CONFIG} is not valid JSON: {error}") from error


def _objects(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yields every serialised object of a Keras config, however deep; iterative, because the file decides the depth."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("class_name"), str):
                yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
