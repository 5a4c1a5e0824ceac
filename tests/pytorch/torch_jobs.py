"""Jobs of ranks in processes of their own, for PyTorch Trials in which everything draws noise or counts."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coloured_tables import coloured_table

from lakelens.tracking.run_writer import read_records
from lakelens.tracking.runs import RunReference
from lakelens.training.checkpoints.checkpoint import Checkpoint, open_checkpoint
from lakelens.training.checkpoints.torch_files import OPTIMIZER_FILE, read_tensors
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment.trial_driver import run_segment
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.segments.checks import PROBE_FILE
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.trials.entrypoint import EntryPoint

RUN = RunReference("sqlite:////nowhere/mlflow.db", "0", "r1", "driver")  # a rank has nothing to do with the store
# 90 rows in batches of 16 are 6 steps an epoch; the last batch is shorter.
STEPS, EPOCHS, BATCH = 6, 4, 16

TRIALS = """
    import dataclasses
    import os
    import random
    import signal
    from pathlib import Path

    import numpy as np
    import torch
    from torch import nn

    import lakelens
    from lakelens.training.rank import process_context

    class Scaled(nn.Module):
        def forward(self, images):
            return images.float() / 255

    class Plain(lakelens.TorchTrial):
        '''Nothing draws noise, and no layer looks at several rows.'''

        def build_model(self):
            classes = self.context.num_classes
            return nn.Sequential(Scaled(), nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 14 * 14, classes))

        def build_optimizer(self, model):
            return torch.optim.SGD(model.parameters(), self.context.get_hparam("rate", 0.05), momentum=0.9)

        def training_step(self, model, batch):
            images, labels = batch
            assert len(images) == len(labels) > 0
            return nn.functional.cross_entropy(model(images), labels)

    class Noisy(Plain):
        '''Everything that draws or counts: augmentation, dropout, Adam, batch normalization, a scheduler.'''

        def build_model(self):
            return nn.Sequential(
                Scaled(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Dropout(0.3), nn.Linear(4, self.context.num_classes),
            )

        def build_optimizer(self, model):
            return torch.optim.AdamW(model.parameters(), 0.01)

        def build_scheduler(self, optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)

        def preprocess(self, images, labels):
            shift = random.randint(0, 2) + int(np.random.randint(0, 2))
            return images.roll(shift, 3), labels

        def training_step(self, model, batch):
            self.steps = getattr(self, "steps", 0) + 1
            once = Path(os.environ.get("KILL_ONCE", "/nowhere"))
            if str(self.steps) == os.environ.get("KILL_AT") and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            loss = super().training_step(model, batch)
            return {"loss": loss, "double": 2 * loss.detach()}

    class NoLoss(Plain):
        def training_step(self, model, batch):
            return None

    class Detached(Plain):
        def training_step(self, model, batch):
            return super().training_step(model, batch).detach()

    class Unused(Plain):
        def build_model(self):
            model = super().build_model()
            model.head = nn.Linear(2, 2)
            model.forward = lambda images: nn.Sequential(*list(model)[:5])(images)
            return model

    class Diverging(Plain):
        def training_step(self, model, batch):
            return super().training_step(model, batch) * float("nan")

    class Measured(Plain):
        '''Metrics of scores that are often wrong; two are no means over batches.'''

        def validation_step(self, model, batch):
            return torch.sin(batch[0].flatten(2).sum(2).float())

        def build_metrics(self):
            from torchmetrics import classification

            class Kappa(classification.MulticlassCohenKappa):
                def compute(self):
                    return super().compute().item()

            kinds = {"acc": classification.MulticlassAccuracy, "auroc": classification.MulticlassAUROC, "kappa": Kappa}
            return {name: kind(self.context.num_classes) for name, kind in kinds.items()}

    class Matrix(Plain):
        def build_metrics(self):
            from torchmetrics.classification import MulticlassConfusionMatrix
            return {"confusion": MulticlassConfusionMatrix(self.context.num_classes)}

    class OfFloats(Plain):
        def build_model(self):
            return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))

    class Averaged(nn.Module):
        '''A model and the average of its weights, which evaluation uses.'''

        def __init__(self, model, decay):
            super().__init__()
            self.model = model
            self.average = torch.optim.swa_utils.AveragedModel(
                model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay), use_buffers=True
            ).requires_grad_(False)

        def forward(self, images):
            return self.model(images) if self.training else self.average(images)

    class Ema(Noisy):
        def build_model(self):
            return Averaged(super().build_model(), 0.5)

        def training_step(self, model, batch):
            model.average.update_parameters(model.model)
            return super().training_step(model, batch)

    class EmaPlain(Plain):
        def build_model(self):
            return Averaged(super().build_model(), 0.5)

        def training_step(self, model, batch):
            model.average.update_parameters(model.model)
            return super().training_step(model, batch)

    class EmaOutside(Plain):
        def training_step(self, model, batch):
            self.ema = torch.optim.swa_utils.AveragedModel(model)
            return super().training_step(model, batch)

    class Frozen(Noisy):
        '''Its convolution is frozen, with the statistics of its batch normalization.'''

        def build_model(self):
            model = super().build_model()
            model[1:3].requires_grad_(False).eval()
            return model

        def build_scheduler(self, optimizer):
            return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.5, 0, 9.0, "abs")

    class WrongDirection(Plain):
        def build_scheduler(self, optimizer):
            return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max")

    class PlateauOfSteps(WrongDirection):
        scheduler_interval = "step"

    class Ended(Plain):
        '''Ends in an operation that shows nothing, under the loss of `hyperparameters.loss`.'''

        def build_model(self):
            class Halved(nn.Module):
                def forward(self, values):
                    return values / 2

            return nn.Sequential(super().build_model(), Halved())

        def training_step(self, model, batch):
            labels = nn.functional.one_hot(batch[1], self.context.num_classes).float()
            given = model(batch[0])
            loss = self.context.get_hparam("loss", "mse")
            return {
                "mse": lambda: nn.functional.mse_loss(given, labels),
                "bce": lambda: nn.functional.binary_cross_entropy(given.clamp(0.01, 0.99), labels),
            }[loss]()

    class Stated(Ended):
        outputs = "logits"

    class OverRows(Plain):
        def build_model(self):
            return nn.Sequential(super().build_model(), nn.Softmax(0))

    @dataclasses.dataclass
    class Answer:
        values: torch.Tensor

    class Outputs(Plain):
        def build_model(self):
            form = self.context.get_hparam("form")
            forms = {"dict": lambda v: {"a": v}, "list": lambda v: [v], "dataclass": Answer}

            class Form(nn.Module):
                def forward(self, values):
                    return forms[form](values)

            return nn.Sequential(super().build_model(), Form())

    class Short(Plain):
        def build_training_dataset(self):
            images = torch.zeros(8, 3, 16, 16, dtype=torch.uint8)
            steps = 6 if self.context.rank == 0 else 5
            return [(images, torch.zeros(8, dtype=torch.int64))] * steps
"""


@dataclass(frozen=True)
class Place:
    """Where jobs of a module find their table and their Trials."""

    folder: Path

    def job(self, name: str, trial: str = "Noisy", rows: str = "squares", **changes: Any) -> TrainingJob:
        """Makes a job with a checkpoint folder of this name, as the driver would; `rows` names the table."""
        table, folder = self.folder / rows, self.folder / name
        feed = DeltaFeed(table, 0, "train", 1)
        folder.mkdir(exist_ok=True)
        (folder / PROBE_FILE).write_text(RUN.run_id)
        entrypoint = EntryPoint.parse(f"{self.folder / 'trials.py'}:{trial}")
        keys = {
            "entrypoint": entrypoint.name,
            "data": {"table": str(table), "version": 0, "image_size": [16, 16], "class_names": feed.class_names},
            "hyperparameters": {"global_batch_size": BATCH, **changes.pop("hyperparameters", {})},
            "searcher": {"max_length": {"epochs": changes.pop("epochs", EPOCHS)}, **changes.pop("searcher", {})},
            "reproducibility": {"experiment_seed": 1, "deterministic": True},
        }
        validation = DeltaFeed(table, 0, "validation", shuffle=False)
        config = ExperimentConfig.read(keys | changes)
        return TrainingJob(config, entrypoint, feed, validation, folder, RUN)


def train(
    job: TrainingJob, start: str = "", until: int | None = None, ranks: int = 1, restarts: int = 0, **env: str
) -> SegmentOutcome:
    """Trains a segment with ranks on this machine."""
    runner = HorovodRunner(np=-ranks, env=env, needs_horovod=False)
    begin = open_checkpoint(start) if start else None
    job = replace(job, config=job.config.model_copy(update={"max_restarts": restarts}))
    return run_segment(runner, job, start=begin, until=until)


def by_hand(job: TrainingJob, ranks: int, factor: float, warmup_steps: int) -> dict[str, Any]:
    """Trains in this process as a job's ranks do in bfloat16 with float16 gradients; gives the weights.

    The learning rate is multiplied by a factor, to which it rises over the first steps.
    """
    import torch

    from lakelens.training.trials.context import TrialContext

    config, threads = job.config, torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(config.reproducibility.experiment_seed)
    trial: Any = job.entrypoint.load()(TrialContext(task=config.make_task(), image_size=config.image_size))
    model = trial.build_model().to(memory_format=torch.channels_last)
    optimizer = trial.build_optimizer(model)
    (group,), parameters = optimizer.param_groups, list(model.parameters())
    full = group["lr"] * factor
    epochs, size = job.schedule.epochs, config.image_size
    feeds = [job.training_feed.as_torch(BATCH, rank, ranks, epochs, image_size=size) for rank in range(ranks)]
    for step, shards in enumerate(zip(*feeds, strict=True), 1):
        group["lr"] = full * min(1.0, step / warmup_steps)
        rows = sum(int((weights > 0).sum()) for _, _, weights in shards)
        total = [torch.zeros_like(each, dtype=torch.float16) for each in parameters]
        for images, labels, weights in shards:
            real = weights > 0
            with torch.autocast("cpu", torch.bfloat16):
                loss = trial.training_step(model, (images[real], labels[real]))
            gradients = torch.autograd.grad(loss * (int(real.sum()) / rows), parameters)
            total = [one + other.half() for one, other in zip(total, gradients, strict=True)]
        for each, gradient in zip(parameters, total, strict=True):
            each.grad = gradient.float()
        optimizer.step()
    torch.set_num_threads(threads)
    return dict(model.state_dict())


def place_in(folder: Path) -> Place:
    """Makes tables and Trials in a folder; the last batch has one row: in `odd`, and of `one over`'s validation."""
    coloured_table(folder / "squares")
    coloured_table(folder / "odd", train=81, validation=1)
    coloured_table(folder / "one over", validation=17)
    (folder / "trials.py").write_text(textwrap.dedent(TRIALS))
    return Place(folder)


def history(job: TrainingJob) -> list[dict[str, float]]:
    measured = [record for record in read_records(job.folder) if record.metrics]
    timed = ("epoch_seconds", "images_per_second", "feed_wait_seconds_", "compute_seconds_", "system/")
    return [{name: v for name, v in each.metrics.items() if not name.startswith(timed)} for each in measured]


def tensors(checkpoint: Checkpoint) -> dict[str, Any]:
    model, optimizer = read_tensors(checkpoint.model_path), read_tensors(checkpoint.path / OPTIMIZER_FILE)
    return {**model, **{f"optimizer{name}": each for name, each in optimizer.items()}}


def assert_equal_to_the_bit(one: Checkpoint, other: Checkpoint) -> None:
    import torch

    first, second = tensors(one), tensors(other)
    assert len(first) > 10
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert one.state() == other.state()
    assert one.arrays().keys() == other.arrays().keys()
    for name, array in one.arrays().items():
        assert (array == other.arrays()[name]).all(), name
