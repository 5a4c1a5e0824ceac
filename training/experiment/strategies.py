"""Where the ranks of a trial run: the experiment's strategy, or the choice of `auto` with its reason."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from ...spark.port import is_connect, master_of
from ...spark.session import SessionSource, opened
from ..checkpoints.manifests import KERAS
from ..configuration.experiment import ExperimentConfig
from ..configuration.searcher import SINGLE
from ..configuration.sections import Resources
from ..configuration.space import largest_global_batch_size
from ..runner.placement.gpus import list_driver_gpus
from ..runner.placement.job import EXPERIMENT_TERMS
from ..runner.runner import HorovodRunner
from ..runner.spark.preflight import active_connect_session
from ..segments.backend import FRAMEWORKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class TrialRunner(HorovodRunner):
    """The launcher of a trial's ranks: its messages name keys of the experiment."""

    terms = EXPERIMENT_TERMS


@dataclass(frozen=True)
class Strategy:
    """How a trial uses slots."""

    name: str  # `single`, `mirrored`, `horovod_local` or `horovod_cluster`
    np: int  # Ranks as HorovodRunner counts them: negative as processes here, positive as Spark tasks, 0 for every slot
    replicas: int = 1  # Devices of each process that share its batches
    use_gpu: bool | None = None  # As for HorovodRunner
    framework: str = KERAS  # The framework of the Trial
    # Environment variables of the ranks, in addition to the experiment's
    env: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ExperimentConfig, spark: SessionSource | None = None, framework: str = KERAS) -> Strategy:
        """Returns the strategy of an experiment, and shows the choice of `auto` and its reason on stderr."""
        strategy = cls._placed(config, spark, framework)
        env = {**config.reproducibility.environment, **strategy.env}
        return replace(strategy, framework=framework, env=env)

    @classmethod
    def _placed(cls, config: ExperimentConfig, spark: SessionSource | None, framework: str) -> Strategy:
        resources = config.resources
        name: str = resources.strategy
        slots = resources.slots_per_trial
        if name == "auto":
            name, why = chosen(config, spark)
            if name == "mirrored" and framework != KERAS:
                name = "horovod_local"
            if slots > 1:
                _say(f"is {name}, because of {why}")
        if name == "mirrored" and framework != KERAS:
            raise ConfigurationError(
                f"resources.strategy mirrored is TensorFlow's, and the Trial is of {framework}; choose horovod_local, "
                "with a process for each GPU"
            )
        if name == "mirrored" and slots > 1:
            return _mirrored(config)
        np = slots if name == "horovod_cluster" else -slots
        return cls(name, np, use_gpu=resources.use_gpu)

    def resolved(self, resources: Resources) -> Resources:
        """Returns the experiment's `resources` with this strategy; the driver's port is for ranks on executors only."""
        update: dict[str, object] = {"strategy": self.name}
        if self.name != "horovod_cluster" and resources.driver_port is not None:
            update["driver_port"] = None
        return resources.model_copy(update=update)

    def runner(
        self, resources: Resources, name: str, spark: SparkSession | None, environment: Mapping[str, str] | None = None
    ) -> HorovodRunner:
        """Makes the launcher of the ranks."""
        return TrialRunner(
            np=self.np,
            driver_log_verbosity=resources.driver_log_verbosity,
            stall_timeout_s=resources.stall_timeout_s,
            slots_wait_s=resources.slots_wait_s,
            use_gpu=self.use_gpu,
            env={**self.env, **(environment or {}), **resources.env},
            driver_port=resources.driver_port or 0,
            preload=FRAMEWORKS[self.framework].preload,
            needs_horovod=FRAMEWORKS[self.framework].needs_horovod,
            name=name,
            spark=spark,
        )


def chosen(config: ExperimentConfig, spark: SessionSource | None) -> tuple[str, str]:
    """Chooses where a trial runs; gives the strategy's name and the reason."""
    slots = config.resources.slots_per_trial
    if config.searcher.name != SINGLE:
        session = opened(spark)
        if session is not None and not is_connect(session) and not master_of(session).startswith("local["):
            return "horovod_cluster", "the Spark session's executors, on which a search runs its trials"
    if slots == 1:
        return "single", "one slot"
    there = _cluster_slots(opened(spark), config.resources)
    if there >= slots:
        return "horovod_cluster", f"{there} slots of the Spark session's executors"
    gpus = len(list_driver_gpus()) if config.resources.use_gpu is not False else 0
    shares = (
        largest_global_batch_size(config.hyperparameters) % slots == 0
        and config.optimizations.aggregation_frequency == 1
    )
    if gpus >= slots and shares:
        return "mirrored", f"{gpus} GPUs of this machine"
    lacking = f"a Spark session with {there} slots" if there else "no Spark session with executors"
    return "horovod_local", f"{slots} slots, {lacking} and {gpus} GPUs here"


def _cluster_slots(spark: SparkSession | None, resources: Resources) -> int:
    """Counts the slots of the session's executors; 0 without a session, for a local one and for Spark Connect."""
    session = spark
    if session is None and "pyspark" in sys.modules:
        from ...spark.session import running_session

        session = active_connect_session() or running_session()
    if session is None or is_connect(session) or master_of(session).startswith("local["):
        return 0
    from ..runner.spark.slots import total_slots

    return total_slots(session, resources.slots_wait_s, enough=resources.slots_per_trial, notice=_say)


def _say(text: str) -> None:
    sys.stderr.write(f"lakelens: strategy auto {text}\n")


def _mirrored(config: ExperimentConfig) -> Strategy:
    resources = config.resources
    slots = resources.slots_per_trial
    global_batch_size = largest_global_batch_size(config.hyperparameters)
    if global_batch_size % slots:
        raise ConfigurationError(
            f"hyperparameters.global_batch_size {global_batch_size} cannot be shared equally by {slots} "
            f"devices, as strategy mirrored does; make it a multiple of {slots}, or choose horovod_local"
        )
    gpus = list_driver_gpus() if resources.use_gpu is not False else []
    if gpus or resources.use_gpu:
        if len(gpus) < slots:
            raise ConfigurationError(
                f"strategy mirrored uses the GPUs of this machine: it has {len(gpus)}, and resources.slots_per_trial "
                f"is {slots}; horovod_cluster uses the slots of executors, use_gpu: false this machine's CPU"
            )
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[:slots]), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    else:
        logger.warning("strategy mirrored: no GPU here; %d logical CPU devices share the cores", slots)
        shown = {"CUDA_VISIBLE_DEVICES": "-1"}
    # The launcher assigns one GPU to a rank; this rank gets all of them.
    return Strategy("mirrored", -1, slots, use_gpu=False, env=shown)
