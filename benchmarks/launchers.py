"""The three launchers that are compared, behind one call: `launcher.run(function, ranks, **arguments)`.

Each is started in its own driver process, with its own Spark session. The functions that ranks run lie in
`benchmarks.ranks`, which imports nothing at its top, so that each environment can unpickle them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Launcher:
    """A Spark session and a way to run a function on ranks."""

    def __init__(self, folder: Path, on_spark: bool = True) -> None:
        self.spark: Any = self.start(folder) if on_spark else None

    def start(self, folder: Path) -> Any:
        """Starts the Spark session."""
        from .sparks import session

        return session(folder)

    def run(self, function: Callable[..., Any], ranks: int, **arguments: Any) -> Any:
        """Runs `function(**arguments)` on every rank and gives rank 0's value."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the session."""
        if self.spark is not None:
            self.spark.stop()


class Lakelens(Launcher):
    """`HorovodRunner` on the cluster, or on the driver without a session."""

    def run(self, function: Callable[..., Any], ranks: int, **arguments: Any) -> Any:
        """Runs in one barrier stage, or as processes of this machine."""
        from lakelens.training.runner.runner import KERAS_MODULES, HorovodRunner

        np = ranks if self.spark is not None else -ranks
        return HorovodRunner(
            np=np, driver_log_verbosity="log_callback_only", spark=self.spark, preload=KERAS_MODULES
        ).run(function, **arguments)


class HorovodSpark(Launcher):
    """`horovod.spark.run` over Gloo."""

    def run(self, function: Callable[..., Any], ranks: int, **arguments: Any) -> Any:
        """Runs in ordinary Spark tasks."""
        import horovod.spark

        # Loopback only: the machine's other interfaces may be closed to connections from itself.
        return horovod.spark.run(
            function, kwargs=arguments, num_proc=ranks, use_gloo=True, use_mpi=False, nics={"lo"}, verbose=0
        )[0]


class Torch(Launcher):
    """PySpark's `TorchDistributor` on the cluster, over Gloo."""

    def start(self, folder: Path) -> Any:
        """Starts a plain session: this environment has no Delta."""
        import os
        import sys

        from pyspark.sql import SparkSession

        from .sparks import MASTER, settings

        os.environ["PYSPARK_PYTHON"] = sys.executable
        conf = settings(folder, **{"spark.driver.memory": "1g"})
        return SparkSession.builder.master(MASTER).config(map=conf).getOrCreate()

    def run(self, function: Callable[..., Any], ranks: int, **arguments: Any) -> Any:
        """Runs under torchrun, one process in each barrier task."""
        from pyspark.ml.torch.distributor import TorchDistributor

        return TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=False).run(function, **arguments)


LAUNCHERS: dict[str, type[Launcher]] = {
    "lakelens": Lakelens,
    "horovod.spark.run": HorovodSpark,
    "TorchDistributor": Torch,
}
