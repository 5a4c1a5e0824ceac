"""HorovodRunner: a training function on many processes, started by one call."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ...errors import InvalidArgumentError, NotEnoughSlotsError, RankFailedError
from ...options import named_options, whole_number
from ...results import duration
from ...spark.jvm import VERBOSE_VARIABLE, is_verbose
from ...spark.port import is_connect
from ...spark.session import ship_wheel
from .function_pickle import pickle_function
from .local_ranks import start_on_driver
from .placement.conversation import Controls, OnQuestion
from .placement.job import RUNNER_TERMS, Job, Listener, Terms
from .processes.failure_words import is_startup_line
from .spark.preflight import active_connect_session, check_horovod, check_settings, require_count, require_progress
from .supervisor import Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERBOSITIES = ("all", "log_callback_only")
# Modules that functions with Keras import, and that take seconds.
KERAS_MODULES = ("lakelens.training.distributed", "horovod.tensorflow", "tensorflow")
# Clocks and Horovod's settings cannot hold infinity.
_LONGEST_S = 1e9


class HorovodRunner:
    """Runs a training function on several processes that train one model together.

    On a Spark Connect session, lines and messages of ranks are printed when they have ended.

    Args:
        np: Number of processes. Negative: processes on the driver. Positive: tasks of one Spark barrier stage, a slot
            each. Zero: every slot of the cluster. -1 and 1 need no Horovod.
        driver_log_verbosity: `all` prints every line that a rank writes, after `[rank]<stdout>` or `[rank]<stderr>`;
            `log_callback_only` prints what ranks send with `log_to_driver` and `LogCallback`. Default: `all` for
            np < 0, `log_callback_only` for tasks, as Databricks' HorovodRunner did. Lines that come faster than the
            driver prints are written to a file, which a notice on stderr names.
        stall_timeout_s: Seconds after which a stopped rank, or a rank that the others wait for, fails the job.
        slots_wait_s: Seconds to wait for slots that other jobs hold, and for executors that start or replace lost ones.
        max_restarts: Most restarts of a failed job. `lakelens.training.distributed.attempt()` returns the number of the
            attempt.
        use_gpu: True: one GPU for each rank; False: none; None: one each if there are any.
        env: Environment variables for every rank.
        name: Name of the job in the Spark UI, process titles and messages; the function's name by default.
        preload: Modules that every rank imports while the others start, such as `KERAS_MODULES`: a head start, and less
            processor time than an import by the function. Modules that cannot be imported are ignored.
        driver_port: The driver's port for ranks on executors, for networks that allow only known ports; 0 takes a free
            one. On a Spark Connect session it is the port of rank 0's task.
        needs_horovod: Whether ranks communicate through Horovod, which is then checked before they start. False for
            functions that use torch.distributed: `lakelens.training.process_group.init()` joins their ranks.
        spark: The session for np >= 0, with or without Delta Lake; None takes the active one, or starts one.

    Raises:
        InvalidArgumentError: If an argument breaks its rule.

    Examples:
        >>> def main(name):
        ...     return f"trained by {name}"
        >>> lakelens.HorovodRunner(np=-1).run(main, name="one process")
        'trained by one process'
    """

    terms: Terms = RUNNER_TERMS

    @named_options
    def __init__(
        self,
        *,
        np: int,
        driver_log_verbosity: str | None = None,
        stall_timeout_s: float = 60.0,
        slots_wait_s: float = 60.0,
        max_restarts: int = 0,
        use_gpu: bool | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        preload: Sequence[str] = (),
        driver_port: int = 0,
        needs_horovod: bool = True,
        spark: SparkSession | None = None,
    ) -> None:
        np = whole_number("np", np)
        if driver_log_verbosity is None:
            driver_log_verbosity = "all" if np < 0 else "log_callback_only"
        if driver_log_verbosity not in _VERBOSITIES:
            raise InvalidArgumentError(
                f"driver_log_verbosity={driver_log_verbosity!r} is not known; use one of "
                f"{', '.join(map(repr, _VERBOSITIES))}"
            )
        _require_seconds("stall_timeout_s", stall_timeout_s, 1.0)
        _require_seconds("slots_wait_s", slots_wait_s, 0.0)
        max_restarts = whole_number("max_restarts", max_restarts, least=0)
        driver_port = whole_number("driver_port", driver_port, least=0)
        if driver_port > 65535:
            raise InvalidArgumentError(f"driver_port={driver_port!r}: ports are 0 (any) to 65535")
        for key, value in (env or {}).items():
            if not isinstance(key, str) or not isinstance(value, str) or not key or "=" in key or "\0" in key + value:
                raise InvalidArgumentError(
                    f"env[{key!r}]={value!r}: environment variables are text, and names hold no '='"
                )
        if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
            raise InvalidArgumentError(f"preload={preload!r}: give a list of module names")
        self.np = np
        self.driver_log_verbosity = driver_log_verbosity
        self.stall_timeout_s = float(stall_timeout_s)
        self.slots_wait_s = float(slots_wait_s)
        self.max_restarts = max_restarts
        self.use_gpu = use_gpu
        self.env = dict(env or {})
        self.name = name
        self.preload = tuple(preload)
        self.driver_port = driver_port
        self.needs_horovod = needs_horovod
        self._spark = spark

    def run(self, main: Callable[..., Any], /, **kwargs: Any) -> Any:
        """Calls `main(**kwargs)` on every rank and returns rank 0's value.

        Args:
            main: The training function. It is pickled, so it makes its TensorFlow objects itself.
            **kwargs: Its arguments; one of them may be called `main`.

        Raises:
            UnpicklableFunctionError: If `main` or an argument cannot be sent.
            NotEnoughSlotsError: If the cluster has fewer slots than ranks.
            ClusterConfigurationError: If the cluster's settings do not allow the job.
            SessionError: If the session is one of a Spark Connect client before PySpark 4.0.
            MissingDependencyError: If Horovod is missing or was built for another TensorFlow.
            RankFailedError: If a rank raised, died, stalled or left early.
        """
        try:
            begun = time.monotonic()
            value = self.run_with(main, kwargs, tells=self.np >= 0)
            if self.np >= 0:
                _notice(f"{self._name_of(main)}: done in {duration(time.monotonic() - begun)}")
            return value
        except RankFailedError as error:
            # Frames of the launcher say nothing about a rank's error.
            raise error.with_traceback(None)  # noqa: B904 - its own cause stays

    def run_with(
        self,
        main: Callable[..., Any],
        kwargs: Mapping[str, Any],
        *,
        on_question: OnQuestion | None = None,
        controls: Controls | None = None,
        on_message: Callable[[str], None] | None = None,
        attempt: int = 0,
        tells: bool = False,
    ) -> Any:
        """Like `run`, and exchanges messages with the ranks (see `Listener`); for lakelens' own use.

        On a Spark Connect session ranks get empty answers. `attempt` is the value of `hvd.attempt()` at the first
        start, for callers that restart the job themselves; `tells` prints when the ranks run.
        """
        payload = pickle_function(main, kwargs)
        size = self._size()
        job = Job(
            name=self._name_of(main),
            size=size,
            payload=payload,
            stall_timeout_s=self.stall_timeout_s,
            environment={**({VERBOSE_VARIABLE: "1"} if is_verbose() else {}), **self.env},
            gpus=self.use_gpu,
            needs_horovod=self.needs_horovod,
            terms=self.terms,
            preload=tuple(name for name in self.preload if size > 1 or not name.startswith("horovod")),
            attempt=attempt,
        )
        listener = Listener(
            on_line=_print_line if self.driver_log_verbosity == "all" else None,
            on_message=on_message or _print,
            on_notice=_notice,
            on_question=on_question,
            controls=controls or Controls(),
            on_ready=functools.partial(_notice, f"{job.name}: {size} {'rank runs' if size == 1 else 'ranks run'}")
            if tells
            else None,
        )
        while True:
            try:
                return self._launch(job, listener)
            except RankFailedError as error:
                # A cancelled job is not restarted.
                if error.reason == "cancelled" or job.attempt >= self.max_restarts:
                    raise
                job = job.again()
                _notice(f"{job.name}: {error.summary} Starting again ({job.attempt} of {self.max_restarts} restarts).")

    @property
    def can_pause(self) -> bool:
        """Whether ranks hear that they are to pause; those of a Spark Connect session do not."""
        spark = self._spark or active_connect_session()
        return self.np < 0 or spark is None or not is_connect(spark)

    def _name_of(self, main: Callable[..., Any]) -> str:
        return self.name or str(getattr(main, "__name__", type(main).__name__))

    def _size(self) -> int:
        if self.np < -1 and self.needs_horovod:
            check_horovod(self.terms)
        if self.np < 0:
            return -self.np
        if self.np > 0:
            return self.np
        from .spark.slots import total_slots

        # Counting executors that come and go is useless.
        check_settings(self._session(), use_gpu=self.use_gpu)
        require_count(self._session(), self.terms)
        slots = total_slots(self._session(), self.slots_wait_s)
        if slots == 0:
            raise NotEnoughSlotsError(
                f"{self.terms.every_slot} takes every slot of the cluster, and no executor has registered within "
                f"{self.slots_wait_s:g} s; check the cluster, or wait longer (slots_wait_s)"
            )
        return slots

    def _session(self) -> SparkSession:
        if self._spark is None:
            from ...spark.session import running_session, spark_session

            self._spark = active_connect_session() or running_session() or spark_session()
        require_progress(self._spark, self.terms)
        ship_wheel(self._spark)
        return self._spark

    def _launch(self, job: Job, listener: Listener) -> Any:
        supervisor = Supervisor(job, listener)
        if self.np < 0:
            return supervisor.run(start_on_driver)
        from .spark.connect_ranks import start_on_connect
        from .spark.stage_ranks import start_on_cluster

        spark = self._session()
        start = functools.partial(
            start_on_connect if is_connect(spark) else start_on_cluster,
            spark=spark,
            slots_wait_s=self.slots_wait_s,
            driver_port=self.driver_port,
        )
        return supervisor.run(start)


def _require_seconds(name: str, value: float, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise InvalidArgumentError(f"{name}={value!r}: must be a number of at least {least:g}")
    if value > _LONGEST_S:
        raise InvalidArgumentError(
            f"{name}={value!r}: must be a number of at most {_LONGEST_S:g}; a day has 86400 seconds, a year 3e7"
        )


def _print_line(rank: int, stream: str, text: str) -> None:
    if is_verbose() or not is_startup_line(text):
        _print(f"[{rank}]<{stream}> {text}")


def _print(text: str) -> None:
    _write(sys.stdout, text)


def _notice(text: str) -> None:
    _write(sys.stderr, f"lakelens: {text}")


def _write(stream: TextIO, text: str) -> None:
    """Writes a line; characters that the stream cannot encode become question marks instead of an error."""
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()
