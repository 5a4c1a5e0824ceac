"""Writes the `.keras` file of a checkpoint for inference; `mlflow.keras.save_model` needs TensorFlow in the driver.

Optimizer, compile settings and layers that only lakelens has are left out, and a classifier gives probabilities.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ..checkpoints.keras_files import UserObject, user_objects
from ..trials.entrypoint import FILE_MODULE_PREFIX
from .framework_model import FrameworkModel

_DATA, _LOADER = "data", "load_user_layers"
_CONFIG, _WEIGHTS, _METADATA = "config.json", "model.weights.h5", "metadata.json"
_CONTAINERS = ("Sequential", "Functional")
_SYNC = "SyncBatchNormalization"
_INPUT_TYPES = ("uint8", "float32")
_PROBABLE = frozenset({"softmax", "sigmoid", "hard_sigmoid"})
_LOADER_TEXT = '''"""Registers the layers that the model holds and Keras has not, then loads it."""

import importlib

import keras

OBJECTS = {objects}
for registered_name, module, name in OBJECTS:
    # Importing the module may register it already.
    value = getattr(importlib.import_module(module), name)
    keras.saving.get_custom_objects().setdefault(registered_name, value)

from mlflow.keras import _load_pyfunc  # noqa: E402, F401
'''


def keras_model(source: Path, folder: Path, code: Mapping[str, bytes], *, makes_probabilities: bool) -> FrameworkModel:
    """Writes a checkpoint's model in the form of MLflow's `keras` flavor."""
    objects = user_objects(source, compile=False)
    data = folder / _DATA
    data.mkdir()
    (data / "keras_module.txt").write_text("keras")
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(data / "model.keras", "w") as written:
            config = json.loads(archive.read(_CONFIG))
            version = str(json.loads(archive.read(_METADATA))["keras_version"])
            renamed = dict(_replace_own_layers(config, ""))
            config.pop("compile_config", None)
            probabilities = _end_in_probabilities(config) if makes_probabilities else None
            written.writestr(_CONFIG, json.dumps(config))
            for name in archive.namelist():
                if name == _WEIGHTS:
                    _copy_weights(archive, written, renamed)
                elif name != _CONFIG:
                    written.writestr(name, archive.read(name))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CheckpointError(f"{source} is not a .keras file that can be prepared for MLflow: {error}") from error
    flavor = {"data": _DATA, "keras_backend": "tensorflow", "keras_version": version, "save_exported_model": False}
    needs_lakelens = any(entry.module.split(".")[0].startswith("lakelens") for entry in objects)
    return FrameworkModel(
        name="keras",
        flavor=flavor,
        loader_module=_LOADER if objects else "mlflow.keras",
        code=_code(objects, code) if objects else {},
        requirements=("keras", "tensorflow", *(["lakelens"] if needs_lakelens else [])),
        input_type=_input_type(config),
        probabilities=probabilities,
    )


def _code(objects: tuple[UserObject, ...], code: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the user's code with the module that registers its layers."""
    listed = [(entry.registered_name, entry.module, entry.name) for entry in objects]
    found = {**code, f"{_LOADER}.py": _LOADER_TEXT.replace("{objects}", repr(listed)).encode()}
    for entry in objects:
        # The name of an entry point's module while it trains.
        original = f"{entry.module.removeprefix(FILE_MODULE_PREFIX)}.py"
        if entry.module.startswith(FILE_MODULE_PREFIX) and original in code:
            found[f"{entry.module}.py"] = code[original]
    return found


def _replace_own_layers(model: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
    """Turns SyncBatchNormalization into BatchNormalization; yields the weights' groups whose names change."""
    # Keras stores a layer's weights under its class name and a number that counts the class within its model.
    counts: dict[str, int] = {}
    counts_before: dict[str, int] = {}
    for layer in _layers(model):
        before = _group(layer["class_name"], counts_before)
        if layer["class_name"] == _SYNC and layer.get("registered_name") == f"lakelens>{_SYNC}":
            layer.update(class_name="BatchNormalization", module="keras.layers", registered_name=None)
            layer["config"].pop("fused", None)
        after = _group(layer["class_name"], counts)
        if before != after:
            yield f"{place}layers/{before}", f"{place}layers/{after}"
        yield from _replace_own_layers(layer, f"{place}layers/{after}/")


def _layers(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    if model.get("class_name") not in _CONTAINERS:
        return []
    layers: list[dict[str, Any]] = model["config"].get("layers", [])
    # A Sequential's input layer is not among its `layers`.
    is_sequential = model["class_name"] == "Sequential"
    return [layer for layer in layers if not (is_sequential and layer["class_name"] == "InputLayer")]


def _group(class_name: str, counts: dict[str, int]) -> str:
    """Writes a class name as Keras does (`naming.to_snake_case`), with a number from the second of a kind on."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    name = re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name


def _copy_weights(archive: zipfile.ZipFile, written: zipfile.ZipFile, renamed: Mapping[str, str]) -> None:
    import h5py  # comes with Keras

    with tempfile.TemporaryFile() as copy:
        with h5py.File(io.BytesIO(archive.read(_WEIGHTS)), "r") as before, h5py.File(copy, "w") as after:
            after.attrs.update(before.attrs)
            for name in before:
                if name != "optimizer":
                    before.copy(name, after)
            _rename(after, renamed)
        copy.seek(0)
        with written.open(_WEIGHTS, "w", force_zip64=True) as member:
            while chunk := copy.read(8 << 20):
                member.write(chunk)


def _rename(weights: Any, renamed: Mapping[str, str]) -> None:
    """Renames groups, in two steps: one's new name may be another's old one."""
    present = {old: new for old, new in renamed.items() if old in weights}
    for old in present:
        weights.move(old, f"{old}.renamed")
    for old, new in present.items():
        weights.move(f"{old}.renamed", new)


def _input_type(model: Mapping[str, Any]) -> str:
    layers = model["config"].get("layers", []) if model.get("class_name") in _CONTAINERS else []
    for layer in layers:
        if layer["class_name"] == "InputLayer":
            kind = layer["config"].get("dtype")
            return str(kind) if kind in _INPUT_TYPES else "float32"
    return "float32"


def _last_layer(model: Mapping[str, Any]) -> dict[str, Any] | None:
    """Finds the model's output layer; None for several outputs, or a model of another kind."""
    layers = _layers(model)
    if not layers:
        return None
    last: dict[str, Any] | None = layers[-1]
    if model["class_name"] == "Functional":
        # One output is `["name", 0, 0]`, or that in a list of one, depending on the Keras that wrote it.
        outputs = model["config"].get("output_layers") or []
        only = outputs if outputs and isinstance(outputs[0], str) else outputs[0] if len(outputs) == 1 else [None]
        last = next((layer for layer in layers if layer["config"].get("name") == only[0]), None)
    if last is not None and last["class_name"] in _CONTAINERS:
        return _last_layer(last)
    return last


def _end_in_probabilities(model: Mapping[str, Any]) -> bool | None:
    """Lets a last Dense or Activation layer of Keras without activation give probabilities."""
    last = _last_layer(model)
    if last is None or str(last.get("module")) != "keras.layers":
        return None
    if last["class_name"] in ("Softmax", "Sigmoid"):
        return True
    values: Mapping[str, Any] = last
    if _activation(last) == "linear" and last["class_name"] == "Activation":  # mixed precision ends with it
        values = _layer_before(model, last)
    if _activation(values) == "linear" and values["class_name"] == "Dense":
        last["config"]["activation"] = "sigmoid" if values["config"]["units"] == 1 else "softmax"
        return True
    return True if _activation(values) in _PROBABLE else None


def _activation(layer: Mapping[str, Any]) -> Any:
    """Returns the name of the activation of a Dense or Activation layer of Keras; None for any other layer."""
    if str(layer.get("module")) != "keras.layers" or layer["class_name"] not in ("Dense", "Activation"):
        return None
    activation = layer["config"].get("activation")
    return activation.get("config") if isinstance(activation, dict) else activation


def _layer_before(model: Mapping[str, Any], last: Mapping[str, Any]) -> Mapping[str, Any]:
    layers = list(_flat(model))
    return layers[max(0, next(number for number, layer in enumerate(layers) if layer is last) - 1)]


def _flat(model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in _layers(model):
        if layer["class_name"] in _CONTAINERS:
            yield from _flat(layer)
        else:
            yield layer
