"""Images/s of `lakelens.train` on a TorchTrial next to loops written by hand: the small network on two ranks.

All train `TorchSmallCnn` without augmentation on the same rows, stored as JPEG at the side that is trained at, in
batches of 32 over all ranks, on ranks that HorovodRunner starts and Gloo connects, one thread for each core of a rank.
A value is the rows over the median epoch, without the first one.

- `lakelens`: an experiment, as `lakelens train` runs it.
- `lakelens memory`: the same on decoded rows in memory, so its loop without the feed.
- `memory`: DistributedDataParallel by hand on decoded rows in memory.
- `dataloader`: the same on torch's DataLoader over JPEG files in class folders, read by torchvision's ImageFolder;
  `dataloader worker` with a worker process for each rank.

PyTorch is in a separate environment (`benchmarks/peers.py`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import photographs as photos
from .checkpointing import BATCH, experiment, train_unsaved
from .contender import Contender
from .gpu_table import write_table
from .harness import Measure, Report, command, parser, positive, scratch
from .peers import make_peer, versions_in

_TRIALS = {
    "lakelens": "lakelens.training.trials.torch_small_cnn:TorchSmallCnn",
    "lakelens memory": "benchmarks.torch_batches:InMemory",
}
_BY_HAND = ("memory", "dataloader", "dataloader worker")
_LOOP, _LOADER, _WAIT = 0.95, 1.2, 0.02


class Trainings:
    """Trains, in the environment with PyTorch."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def lakelens(self, name: str, table: str, repeat: int, side: int, ranks: int, epochs: int) -> dict[str, Any]:
        """Gives the seconds of each epoch but the first, and the share of them that rank 0 waited for the feed."""
        config = experiment(Path(table), self.folder / f"{name}-{repeat}".replace(" ", "-"), side, epochs)
        config["data"]["class_names"] = photos.CLASS_NAMES
        taken, waited = train_unsaved(config, _TRIALS[name], ranks, shift=0)
        return {"epochs": taken, "waited": waited}

    def by_hand(self, name: str, table: str, repeat: int, side: int, ranks: int, epochs: int) -> dict[str, Any]:
        """Gives the seconds of each epoch but the first."""
        from lakelens import HorovodRunner

        runner = HorovodRunner(np=-ranks, use_gpu=False, driver_log_verbosity="log_callback_only", needs_horovod=False)
        given = {"source": name, "table": table, "jpegs": str(Path(table).parent / "jpegs")}
        return {"epochs": runner.run(train_by_hand, **given, side=side, epochs=epochs)[1:]}


def train_by_hand(source: str, table: str, jpegs: str, side: int, epochs: int) -> list[float]:
    """Trains on one rank; gives the seconds of each epoch."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from lakelens import DeltaFeed
    from lakelens.training import process_group
    from lakelens.training.feed.read_options import cores_of_process
    from lakelens.training.tasks.classification import Classification
    from lakelens.training.trials.context import TrialContext
    from lakelens.training.trials.torch_small_cnn import TorchSmallCnn

    process_group.init()
    torch.set_num_threads(cores_of_process())
    feed, task = DeltaFeed(table), Classification(photos.CLASS_NAMES)
    context = TrialContext(hyperparameters={"shift": 0}, task=task, image_size=(side, side), training_feed=feed)
    trial = TorchSmallCnn(context)
    model: torch.nn.Module = trial.build_model().to(memory_format=torch.channels_last)
    optimizer = trial.build_optimizer(model)
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(model)
    batches, begin = _batches(source, feed, Path(jpegs), side)
    seconds: list[float] = []
    for epoch in range(epochs):
        began = time.perf_counter()
        begin(epoch)
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def _batches(source: str, feed: Any, jpegs: Path, side: int) -> tuple[Iterable[Any], Callable[[int], None]]:
    """Gives a rank's batches, and what to call with the number of an epoch before it begins."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.functional import pil_to_tensor

    from .torch_batches import Decoded

    rank, size = dist.get_rank(), dist.get_world_size()
    if source == "memory":
        return Decoded(feed, rank, size, side, BATCH), lambda _: None
    files, workers = ImageFolder(str(jpegs), pil_to_tensor), int(source == "dataloader worker")
    sampler: Any = DistributedSampler(files, size, rank)
    loader = DataLoader(files, BATCH // size, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    return loader, sampler.set_epoch


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    if arguments.epochs < 2:
        raise SystemExit("--epochs 1: the first epoch, in which everything warms up, is left out; give 2 or more")
    report = Report.of("torch_training", arguments, "photographs", "side", "ranks", "epochs", "repeats", batch=BATCH)
    rows = arguments.photographs
    waits: list[float] = []
    with scratch(arguments.folder) as (kept, temporary):
        python = make_peer("torch", kept)
        report.facts["environment with PyTorch"] = versions_in(python, "torch", "torchvision")
        made = photos.scaled(photos.photographs(kept, rows), temporary / "jpegs", arguments.side)
        table = temporary / "table"
        write_table(made, table, rows, 0)
        given = {"table": str(table), "side": arguments.side, "ranks": arguments.ranks, "epochs": arguments.epochs}
        with Contender(Trainings, temporary / "trainings", python=python) as trainings:

            def measured(name: str) -> Measure:
                def once(repeat: int) -> dict[str, float]:
                    method = "lakelens" if name in _TRIALS else "by_hand"
                    found = trainings.call(method, name=name, repeat=repeat, **given)
                    if name == "lakelens":
                        waits.append(found["waited"])
                    return {"images_s": rows / statistics.median(found["epochs"])}

                return once

            measures = {name: measured(name) for name in (*_TRIALS, *_BY_HAND)}
            report.measure(arguments.repeats, measures, {"images_s": ("", "images/s")})
    report.compare("lakelens memory", "memory", at_least=_LOOP)
    slower, faster = sorted(_BY_HAND[1:], key=lambda name: report.series[name].median)
    report.compare("lakelens", slower)
    report.compare("lakelens", faster, at_least=_LOADER)
    report.compare("lakelens", "lakelens memory")
    report.aim("share of its time that lakelens waited for the feed", statistics.median(waits), at_most=_WAIT)
    return report


if __name__ == "__main__":
    flags = parser(__doc__, photographs=1024)
    flags.add_argument("--side", type=positive, default=96, help="side of the images")
    flags.add_argument("--ranks", type=positive, default=2, help="number of ranks")
    flags.add_argument("--epochs", type=positive, default=5, help="epochs of each training")
    command(flags, run)
