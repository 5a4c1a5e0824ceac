"""Which extra of lakelens brings an optional package, and the error where the package is missing."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from .errors import LakelensError, MissingDependencyError

# Module -> the package's name and the smallest extra that brings it.
_BROUGHT_BY = {
    "boto3": ("boto3", "stores"),
    "delta": ("delta-spark", "spark"),
    "jinja2": ("Jinja2", "search"),
    "keras": ("Keras", "training"),
    "matplotlib": ("matplotlib", "search"),
    "mlflow": ("MLflow", "training"),
    "onnx": ("onnx", "onnxruntime"),
    "onnxruntime": ("ONNX Runtime", "onnxruntime"),
    "obstore": ("obstore", "stores"),
    "petastorm": ("Petastorm", "petastorm"),
    "pillow_heif": ("pillow-heif", "heif"),
    "py4j": ("PySpark", "spark"),
    "pyspark": ("PySpark", "spark"),
    "safetensors": ("safetensors", "torch"),
    "scipy": ("SciPy", "search"),
    "simplejpeg": ("simplejpeg", "feed"),
    "sklearn": ("scikit-learn", "search"),
    "tensorboard": ("TensorBoard", "training"),
    "tensorflow": ("TensorFlow", "training"),
    "tf2onnx": ("tf2onnx", "onnxruntime"),
    "torch": ("PyTorch", "torch"),
    "torchvision": ("torchvision", "torch"),
}
# Module -> the oldest version that works, as in setup.py. Machine learning runtimes bring older ones.
OLDEST = {"keras": "3.11.3", "mlflow": "3.11"}


def require(call: str, *modules: str) -> None:
    """Checks, without importing them, that the packages which a call needs are installed and not too old."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise _missing(call, missing)
    old = {module: found for module in modules if (found := _found_if_too_old(module)) is not None}
    if old:
        needed = " and ".join(
            f"{_BROUGHT_BY[name][0]} {OLDEST[name]} or newer ({old[name]} is installed)" for name in old
        )
        line = " ".join(f"'{name}>={OLDEST[name]}'" for name in old)
        raise MissingDependencyError(
            f"{call} needs {needed}: pip install {line}. A notebook or session that runs has to be started again then"
        )


def missing_dependency(error: ImportError, call: str = "this call") -> MissingDependencyError | None:
    """Turns the error of an import into one that names the extra; None if no extra brings what was imported."""
    module = (error.name or "").partition(".")[0]
    if isinstance(error, LakelensError) or module not in _BROUGHT_BY or _is_installed(module):
        return None
    return _missing(call, [module])


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _found_if_too_old(module: str) -> str | None:
    """The installed version of a module where it is older than what is needed."""
    if module not in OLDEST:
        return None
    for package in (module, f"{module}-skinny"):  # some runtimes have MLflow under the second name only
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        return found if Version(found) < Version(OLDEST[module]) else None
    return None


def _missing(call: str, modules: list[str]) -> MissingDependencyError:
    packages = dict.fromkeys(_BROUGHT_BY[module][0] for module in modules)
    extras = dict.fromkeys(_BROUGHT_BY[module][1] for module in modules)
    names = " and ".join(packages)
    verb = "is" if len(packages) == 1 else "are"
    return MissingDependencyError(
        f"{call} needs {names}, which {verb} not installed: pip install 'lakelens[{','.join(extras)}]'"
    )
