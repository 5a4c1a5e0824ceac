"""What lakelens promises about GPUs, checked on this machine; `benchmarks.gpu --rules` runs it.

Each rule is a function that returns what it saw, and raises where the promise is broken. Without a GPU (`cpu`), each
checks what holds there.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakelens.errors import ClusterConfigurationError, InvalidArgumentError
from lakelens.tracking.runs import RunReference
from lakelens.training.checkpoints.checkpoint import Checkpoint, open_checkpoint
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment.trial_driver import run_segment
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.runner.placement.gpus import list_driver_gpus
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.segments.checks import PROBE_FILE
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.trials.entrypoint import EntryPoint

from .photographs import CLASS_NAMES

_SIDE, _BATCH, _EPOCHS = 64, 16, 3
_RUN = RunReference("sqlite:////nowhere/mlflow.db", "0", "r1", "driver")  # a rank has nothing to do with the store


@dataclass(frozen=True)
class Place:
    """Where the rules are checked."""

    table: Path  # An image table with the splits `train` and `validation`
    folder: Path  # Takes the trainings' folders
    device: str  # `cuda` or `cpu`

    @property
    def gpu(self) -> bool:
        """Whether a GPU is expected."""
        return self.device == "cuda"

    def job(self, name: str, *, deterministic: bool = True, **changes: Any) -> TrainingJob:
        """Makes a job of a small training."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        (folder / PROBE_FILE).write_text(_RUN.run_id)
        entrypoint = EntryPoint.parse(f"{Path(__file__).parent / 'gpu_trial.py'}:Probe")
        keys = {
            "entrypoint": entrypoint.name,
            "data": {"table": str(self.table), "version": 1, "image_size": [_SIDE, _SIDE], "class_names": CLASS_NAMES},
            "hyperparameters": {"global_batch_size": _BATCH},
            "searcher": {"max_length": {"epochs": _EPOCHS}},
            "reproducibility": {"experiment_seed": 1, "deterministic": deterministic},
        }
        config = ExperimentConfig.read(keys | changes)
        training = DeltaFeed(self.table, 1, "train", 1)
        return TrainingJob(
            config, entrypoint, training, DeltaFeed(self.table, 1, "validation", shuffle=False), folder, _RUN
        )

    def train(
        self,
        job: TrainingJob,
        start: str = "",
        until: int | None = None,
        *,
        use_gpu: bool | None = None,
        restarts: int = 0,
        **env: str,
    ) -> SegmentOutcome:
        """Trains a segment of a job on one rank, as `lakelens.train` launches it."""
        environment = {**job.config.reproducibility.environment, **env}
        gpu = (None if self.gpu else False) if use_gpu is None else use_gpu
        runner = HorovodRunner(np=-1, env=environment, use_gpu=gpu, needs_horovod=False)
        job = replace(job, config=job.config.model_copy(update={"max_restarts": restarts}))
        return run_segment(runner, job, start=open_checkpoint(start) if start else None, until=until)


def _seen() -> dict[str, Any]:
    """What a rank sees of the GPUs."""
    import torch

    found = torch.cuda.is_available()
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "given": os.environ.get("LAKELENS_GPU"),
        "count": torch.cuda.device_count() if found else 0,
        "current": torch.cuda.current_device() if found else None,
    }


def _grouped() -> dict[str, Any]:
    """Joins the ranks to a group and sums a tensor on their device."""
    import torch
    import torch.distributed as dist

    from lakelens.training import process_group

    process_group.init()
    found = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if found else torch.device("cpu")
    here, there = torch.full((3,), float(dist.get_rank() + 1), device=device), torch.ones(2)
    dist.all_reduce(here)
    dist.all_reduce(there)
    backend = str(dist.distributed_c10d._get_default_group()._get_backend(device).name())
    sizes = {"size": dist.get_world_size(), "sum": float(here[0]), "on_cpu": float(there[0])}
    normal = 0.0
    if found:
        layer = torch.nn.SyncBatchNorm(4).to(device)
        normal = float(layer(torch.randn(8, 4, 5, 5, device=device)).detach().std())
    dist.destroy_process_group()
    return {**sizes, "backend": backend, "device": device.type, "sync_batch_norm_std": normal}


def _expect(holds: bool, seen: Any) -> None:
    if not holds:
        raise AssertionError(f"saw {seen}")


def _multiplied() -> str:
    """Multiplies matrices with deterministic operations; gives PyTorch's refusal, or an empty text."""
    import torch

    torch.use_deterministic_algorithms(True)
    matrix = torch.ones(64, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    try:
        matrix @ matrix
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def a_rank_gets_the_gpu_that_nvidia_smi_lists(place: Place) -> str:
    """One rank on the driver has one GPU, which its variables name."""
    seen = HorovodRunner(np=-1, needs_horovod=False).run(_seen)
    gpus = list_driver_gpus()
    if place.gpu:
        _expect(seen["given"] == gpus[0] and seen["visible"] == gpus[0] and seen["count"] == 1, (gpus, seen))
    else:
        _expect(seen["given"] is None and seen["count"] == 0, seen)
    return f"{gpus} {seen}"


def use_gpu_false_hides_the_gpu(place: Place) -> str:
    """A rank without a GPU finds none."""
    seen = HorovodRunner(np=-1, use_gpu=False, needs_horovod=False).run(_seen)
    _expect(seen["count"] == 0 and seen["visible"] == "-1", seen)
    return str(seen)


def more_ranks_than_gpus_are_refused(place: Place) -> str:
    """Two ranks do not share a GPU silently."""
    try:
        HorovodRunner(np=-2, use_gpu=True, needs_horovod=False).run(_seen)
    except ClusterConfigurationError as error:
        return str(error)
    raise AssertionError("two ranks started with one GPU")


def a_group_of_one_rank_is_nccls_on_a_gpu(place: Place) -> str:
    """`process_group.init` gives tensors of a GPU to NCCL and those of the CPU to Gloo; SyncBatchNorm works in it."""
    seen = HorovodRunner(np=-1, use_gpu=None if place.gpu else False, needs_horovod=False).run(_grouped)
    _expect((seen["size"], seen["sum"], seen["on_cpu"]) == (1, 1.0, 1.0), seen)
    _expect(seen["backend"].lower() == ("nccl" if place.gpu else "gloo"), seen)
    _expect(not place.gpu or 0.9 < seen["sync_batch_norm_std"] < 1.1, seen)
    return str(seen)


def ranks_with_use_gpu_false_sum_over_gloo(place: Place) -> str:
    """Two ranks on the CPU of a machine with a GPU are a group."""
    seen = HorovodRunner(np=-2, use_gpu=False, needs_horovod=False).run(_grouped)
    _expect((seen["size"], seen["sum"], seen["device"]) == (2, 3.0, "cpu"), seen)
    return str(seen)


def pinned_batches_are_the_same_batches(place: Place) -> str:
    """`pin_memory=True` gives page-locked tensors of equal values; without a GPU it is refused."""
    feed = DeltaFeed(place.table, 1, "train", 1)
    if not place.gpu:
        try:
            feed.as_torch(_BATCH, image_size=_SIDE, pin_memory=True)
        except InvalidArgumentError as error:
            return str(error)
        raise AssertionError("pin_memory was accepted without a GPU")
    count = 0
    plain, pinned = (feed.as_torch(_BATCH, image_size=_SIDE, pin_memory=pin) for pin in (False, True))
    for one, other in zip(plain, pinned, strict=True):
        for first, second in zip(one, other, strict=True):
            _expect(second.is_pinned() and not first.is_pinned() and bool((first == second).all()), count)
            _expect(bool((second.to("cuda", non_blocking=True).cpu() == first).all()), count)
        count += 1
    return f"{count} batches"


def _mixed(place: Place, kind: str) -> str:
    notes = place.folder / f"notes-{kind}"
    rules = {"mixed_precision": kind, "gradient_clip_norm": 1.0, "aggregation_frequency": 2}
    job = place.job(f"mixed-{kind}", deterministic=False, optimizations=rules)
    outcome = place.train(job, PROBE_NOTES=str(notes))
    seen = f"{notes.read_text(encoding='utf-8')} {dict(outcome.metrics)}"
    _expect(seen.startswith(f"{place.device} torch.{kind} ['torch.float32']"), seen)
    _expect(outcome.reason == "completed" and outcome.metrics["val_loss"] < 10, seen)
    return seen


def mixed_precision_bfloat16_trains(place: Place) -> str:
    """Activations are bfloat16, weights float32."""
    return _mixed(place, "bfloat16")


def mixed_precision_float16_trains(place: Place) -> str:
    """Activations are float16, weights float32, gradients scaled, clipped and added up."""
    return _mixed(place, "float16") if place.gpu else "not checked: float16 is for GPUs"


def sync_batch_norm_trains_on_a_gpu(place: Place) -> str:
    """One rank on a GPU trains with the key; its layers stay those of one process."""
    job = place.job("sync", deterministic=False, optimizations={"sync_batch_norm": True})
    outcome = place.train(job)
    _expect(outcome.reason == "completed", outcome)
    return str(dict(outcome.metrics))


def deterministic_matrix_products_are_allowed(place: Place) -> str:
    """With the variables of a deterministic experiment PyTorch multiplies; what it does without them is reported."""
    environment = place.job("variables").config.reproducibility.environment
    gpu = None if place.gpu else False
    run = [HorovodRunner(np=-1, env=env, use_gpu=gpu, needs_horovod=False).run for env in (environment, {})]
    with_variables, without = (each(_multiplied) for each in run)
    _expect(with_variables == "", with_variables)
    return f"without the variables: {without or 'allowed'}"


def a_deterministic_training_repeats_bit_for_bit(place: Place) -> str:
    """Two trainings of one seed end in the same weights and optimizer."""
    outcomes = [place.train(place.job(f"again-{number}")) for number in range(2)]
    return _equal(*(open_checkpoint(each.last) for each in outcomes))


def a_paused_training_resumes_bit_for_bit(place: Place) -> str:
    """A training that pauses inside an epoch ends as one that does not."""
    whole = open_checkpoint(place.train(place.job("whole")).last)
    job = place.job("paused")
    paused = place.train(job, until=8)
    _expect(paused.step == 8, paused)
    return _equal(whole, open_checkpoint(place.train(job, start=paused.last).last))


def a_killed_rank_restarts_bit_for_bit(place: Place) -> str:
    """A rank that is killed with the GPU in use restarts from its checkpoint and ends as an undisturbed one."""
    job = place.job("killed")
    outcome = place.train(job, restarts=1, PROBE_KILL=str(place.folder / "died"))
    _expect((place.folder / "died").exists(), "the rank did not die")
    return _equal(open_checkpoint(place.train(place.job("undisturbed")).last), open_checkpoint(outcome.last))


def a_training_of_a_gpu_continues_on_the_cpu(place: Place) -> str:
    """A checkpoint of a GPU is resumed without one."""
    job = place.job("moved")
    paused = place.train(job, until=8)
    outcome = place.train(job, start=paused.last, use_gpu=False)
    _expect(outcome.reason == "completed", outcome)
    return str(dict(outcome.metrics))


def a_checkpoint_of_a_gpu_scores_rows(place: Place) -> str:
    """The predictor that scoring runs in each Python worker gives finite probabilities."""
    import numpy as np
    from deltalake import DeltaTable

    from lakelens.inference.model.predictor import build_predictor
    from lakelens.inference.model.user_code import UserCode

    from .gpu_trial import Probe

    checkpoint = open_checkpoint(place.train(place.job("scored")).last)
    predictor = build_predictor(checkpoint, 1 << 22, 2, UserCode({"Probe": Probe}))
    images = DeltaTable(str(place.table)).to_pyarrow_table(partitions=[("split", "=", "validation")])["image"]
    found = predictor.predict(images.to_pylist())
    _expect(all(error is None for error in found.errors), found.errors)
    _expect(bool(np.isfinite(found.answers).all()), found.answers)
    return f"{len(found)} rows with {predictor.engine}"


def no_process_of_a_rank_keeps_the_gpu(place: Place) -> str:
    """After all of these, this process alone may use the GPU."""
    if not place.gpu:
        return "not checked: no GPU"
    import psutil

    children = [child for child in psutil.Process().children(recursive=True) if "lakelens" in " ".join(child.cmdline())]
    _expect(not children, children)
    return "no child is left"


RULES: tuple[Callable[[Place], str], ...] = (
    a_rank_gets_the_gpu_that_nvidia_smi_lists,
    use_gpu_false_hides_the_gpu,
    more_ranks_than_gpus_are_refused,
    a_group_of_one_rank_is_nccls_on_a_gpu,
    ranks_with_use_gpu_false_sum_over_gloo,
    pinned_batches_are_the_same_batches,
    mixed_precision_bfloat16_trains,
    mixed_precision_float16_trains,
    sync_batch_norm_trains_on_a_gpu,
    deterministic_matrix_products_are_allowed,
    a_deterministic_training_repeats_bit_for_bit,
    a_paused_training_resumes_bit_for_bit,
    a_killed_rank_restarts_bit_for_bit,
    a_training_of_a_gpu_continues_on_the_cpu,
    a_checkpoint_of_a_gpu_scores_rows,
    no_process_of_a_rank_keeps_the_gpu,
)


def check(place: Place) -> dict[str, str]:
    """Checks every rule, and prints a line of each."""
    found = {}
    for rule in RULES:
        began = time.monotonic()
        try:
            seen = rule(place)
            found[rule.__name__] = f"ok ({time.monotonic() - began:.0f} s): {seen}"
        except Exception as error:  # noqa: BLE001  the other rules are checked whatever this one does
            traceback.print_exc(file=sys.stderr)
            found[rule.__name__] = f"FAILED: {type(error).__name__}: {error}"
        print(f"rule {rule.__name__}: {found[rule.__name__]}", flush=True)
    return found


def _equal(one: Checkpoint, other: Checkpoint) -> str:
    import torch

    from lakelens.training.checkpoints.torch_files import OPTIMIZER_FILE, read_tensors

    count = 0
    files = ((one.model_path, other.model_path), (one.path / OPTIMIZER_FILE, other.path / OPTIMIZER_FILE))
    for pair in files:
        first, second = (read_tensors(path) for path in pair)
        _expect(first.keys() == second.keys(), sorted(first.keys() ^ second.keys()))
        different = {
            name: float((first[name].double() - second[name].double()).abs().max())
            for name in first
            if not torch.equal(first[name], second[name])
        }
        _expect(not different, f"largest differences {different}")
        count += len(first)
    return f"{count} tensors are equal"
