"""Images/s of ResNet-50 and MobileNetV2 on one GPU, fed by lakelens and by others; with --rules, its GPU rules.

Needs lakelens with its dependencies, simplejpeg, PyTorch with CUDA, torchvision and scikit-learn (for its photographs);
no Spark, no network. Contender `train` needs MLflow too, nvidia-ml-py gives the GPU's busy share.

All train the same model from random weights with Adam, bf16 autocast and channels_last, on the same photographs near
400 x 330 pixels, stored as JPEG, in batches of 256 of 224 x 224. Each contender warms up first, and the loop lets the
GPU be at most one step behind.

- `limit`: batches that are on the GPU already.
- `feed, cache`: `DeltaFeed.as_torch` with its cache of decoded images, in pinned memory. `first_batch_s` includes
  decoding all images, once for both models.
- `feed`: `DeltaFeed.as_torch` without the cache, in pinned memory.
- `feed, stored at the side`: the same on a table that stores the photographs as `ingest(size=224)` does.
- `train`: `lakelens.train` of the Trial `TorchTransfer`, with the cache: whole epochs without the first.
- `loader`: PyTorch's DataLoader over the JPEG files: Pillow, one worker for each core, in pinned memory.

`wait` is the share of the time in which the loop waited for a batch, `busy` the mean of the GPU's utilization as
nvidia-smi has it. A contender that fails is reported and the others run; the command then ends with 1.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from . import photographs as photos
from .gpu_table import label_of, write_table
from .harness import Report, above_zero, parser, positive, rounded, scratch, tell

if TYPE_CHECKING:
    import torch

MODELS = ("resnet50", "mobilenet_v2")
_STORED = "feed, stored at the side"
CONTENDERS = ("limit", "feed, cache", "feed", _STORED, "train", "loader")
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_RESIDENT = 4  # batches that `limit` trains on in turn
_SAMPLE_S = 0.05
_WARM_STEPS = 20
_LIMIT_S = 150.0  # of a contender
_MOST_EPOCHS = 60
_ENDLESS = 1 << 40
_LOADER_TIMEOUT_S = 60


@dataclass(frozen=True)
class Speed:
    """What a contender reached."""

    images_s: float  # Images per second
    wait: float  # Share of the time in which the loop waited for a batch
    busy: float | None  # Mean utilization of the GPU, 0 to 1; None if it cannot be read
    seconds: float  # Time measured
    first_batch_s: float  # From the request to the first batch


class Utilization:
    """Samples the GPU's utilization in a thread; without nvidia-ml-py or a GPU it has none."""

    def __init__(self, device: str) -> None:
        self.samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._handle: Any = None
        if device == "cuda":
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
            except Exception as error:  # noqa: BLE001  whatever a driver raises, images/s can be measured
                tell(f"the GPU's utilization cannot be read: {type(error).__name__}: {error}")
        if self._handle is not None:
            threading.Thread(target=self._work, name="utilization", daemon=True).start()

    def between(self, first: float, last: float) -> float | None:
        """Gives the mean between two times of `time.time`, 0 to 1; None without samples."""
        found = [value for when, value in self.samples if first <= when <= last]
        return fmean(found) if found else None

    def close(self) -> None:
        """Ends the sampling."""
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            used = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
            self.samples.append((time.time(), used / 100))


class Trained:
    """A model of torchvision with new weights and its optimizer; a call trains on a batch and does not wait for it."""

    def __init__(self, name: str, device: str) -> None:
        import torch
        import torchvision

        from lakelens.training.trials.torch_layers import Pixels

        torch.manual_seed(0)
        network = torchvision.models.get_model(name, weights=None, num_classes=photos.CLASSES)
        model = torch.nn.Sequential(Pixels(_MEAN, _DEVIATION), network)
        self._model = model.to(device, memory_format=torch.channels_last).train()
        self._optimizer = torch.optim.Adam(self._model.parameters(), 0.001)
        self._device = device

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
        """Starts a step; gives what waits for its end."""
        import torch

        images, labels = (each.to(self._device, non_blocking=True) for each in (images, labels))
        with torch.autocast(self._device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device != "cuda":
            return lambda: None
        event = torch.cuda.Event()
        event.record()
        return lambda: event.synchronize()


def measure(
    open_batches: Callable[[], Iterable[Any]],
    step: Callable[[Any, Any], Callable[[], None]],
    *,
    seconds: float,
    busy: Callable[[float, float], float | None],
) -> Speed:
    """Trains on batches for some seconds."""
    clock = time.perf_counter
    asked = clock()
    iterator = iter(open_batches())
    batch = next(iterator)
    first_batch_s = clock() - asked
    for _ in range(_WARM_STEPS):
        step(*batch[:2])()
        batch = next(iterator)
    began, since = clock(), time.time()
    images, waited, done = 0, 0.0, None
    while True:
        following = step(*batch[:2])
        images += len(batch[0])
        if done is not None:
            done()
        done = following
        if clock() - began >= seconds:
            break
        asked = clock()
        batch = next(iterator)
        waited += clock() - asked
    done()
    taken = clock() - began
    return Speed(images / taken, waited / taken, busy(since, time.time()), taken, first_batch_s)


class Files:
    """A map-style dataset of JPEG files: Pillow decodes and scales them, as the feed does images of another size."""

    def __init__(self, paths: list[Path], side: int) -> None:
        self._paths, self._side = [str(path) for path in paths], side
        self._labels = [label_of(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        from PIL import Image

        with Image.open(self._paths[index]) as image:
            size = (self._side, self._side)
            pixels = np.array(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        return pixels, self._labels[index]


@dataclass
class Bench:
    """The contenders on one table."""

    arguments: Any  # The command's
    folder: Path  # Takes caches and runs
    table: Path  # The table
    table_at_side: Path  # The table that stores the images at the side that is trained at
    files: list[Path]  # The photographs of its training split
    utilization: Utilization  # The GPU's
    rates: dict[tuple[str, str], float] = field(default_factory=dict)  # Images/s by model and contender

    def run(self, model: str, contender: str) -> Speed:
        """Measures a contender."""
        if contender == "train":
            return self._train(model)
        batches = {
            "limit": self._resident,
            "feed, cache": lambda: self._feed(cache=True),
            "feed": self._feed,
            _STORED: lambda: self._feed(table=self.table_at_side),
            "loader": self._loader,
        }[contender]
        given, step = self.arguments, Trained(model, self.arguments.device)
        return measure(batches, step, seconds=given.seconds, busy=self.utilization.between)

    def _feed(self, *, cache: bool = False, pin: bool = True, table: Path | None = None) -> Any:
        from lakelens import DeltaFeed

        given = self.arguments
        return DeltaFeed(table or self.table, split="train", seed=0).as_torch(
            given.batch,
            0,
            1,
            epochs=None,
            image_size=given.side,
            cache=str(self.folder / "decoded") if cache else False,
            pin_memory=pin and given.device == "cuda",
        )

    def _resident(self) -> Iterator[tuple[Any, Any]]:
        import itertools

        first = itertools.islice(self._feed(pin=False), _RESIDENT)
        device = self.arguments.device
        yield from itertools.cycle([(images.to(device), labels.to(device)) for images, labels, _ in first])

    def _loader(self) -> Iterator[tuple[Any, Any]]:
        from torch.utils.data import DataLoader, RandomSampler

        given = self.arguments
        files: Any = Files(self.files, given.side)
        loader = DataLoader(
            files,
            given.batch,
            sampler=RandomSampler(files, num_samples=_ENDLESS),  # one permutation after another
            num_workers=given.workers,
            pin_memory=given.device == "cuda",
            timeout=_LOADER_TIMEOUT_S,
        )
        for images, labels in loader:
            yield images.permute(0, 3, 1, 2), labels  # a view: channels_last

    def _train(self, model: str) -> Speed:
        import lakelens
        from lakelens.tracking.runs import open_client

        given, home = self.arguments, self.folder / f"train-{model}"
        home.mkdir(parents=True)
        rows = len(self.files)
        rate = self.rates.get((model, "feed, cache")) or self.rates.get((model, "limit"), 0.0)
        epochs = min(_MOST_EPOCHS, max(3, 1 + math.ceil(given.seconds * rate / rows)))
        began = time.time()
        result = lakelens.train(
            str(self.table),
            entrypoint="lakelens.training.trials.torch_transfer:TorchTransfer",
            epochs=epochs,
            global_batch_size=given.batch,
            image_size=given.side,
            tracking_uri=f"sqlite:///{home / 'mlflow.db'}",
            hyperparameters={"backbone": model, "frozen": False, "flip": False, "dropout": 0.0},
            config={
                "data": {"cache": str(self.folder / "decoded"), "class_names": photos.CLASS_NAMES},
                "optimizations": {"mixed_precision": "bfloat16"},
                "checkpoint_policy": "none",
                "checkpoint_storage": {"path": str(home / "checkpoints")},
                **({} if given.device == "cuda" else {"resources": {"use_gpu": False}}),
            },
        )
        client = open_client(result.tracking_uri)
        epoch_s, waited, computed = (
            sorted(client.get_metric_history(result.run_id, name), key=lambda point: point.step)
            for name in ("epoch_seconds", "feed_wait_seconds_rank0", "compute_seconds_rank0")
        )
        wait = sum(point.value for point in waited[1:])
        trained, taken = rows * (len(epoch_s) - 1), wait + sum(point.value for point in computed[1:])
        first, last = epoch_s[0].timestamp / 1000, epoch_s[-1].timestamp / 1000
        start = first - epoch_s[0].value - began
        return Speed(trained / taken, wait / taken, self.utilization.between(first, last), taken, start)


def run(arguments: Any) -> tuple[Report, int]:
    """Runs the benchmark; gives the number of failures too."""
    settings = ("photographs", "side", "batch", "seconds", "device", "workers", "rules")
    report, failures = Report.of("gpu", arguments, *settings), 0
    with scratch(arguments.folder) as (kept, temporary):
        report.facts |= _machine(arguments.device)
        # Whole batches, so that none has rows of padding.
        train, validation = max(1, arguments.photographs // arguments.batch) * arguments.batch, 2 * arguments.batch
        made = photos.photographs(kept, train + validation)
        print(json.dumps(report.facts), flush=True)
        if arguments.contenders:
            table, at_side = temporary / "table", temporary / "table-at-side"
            files = write_table(made, table, train, validation)
            if _STORED in arguments.contenders:
                write_table(made, at_side, train, validation, arguments.side)
            utilization = Utilization(arguments.device)
            bench = Bench(arguments, temporary, table, at_side, files, utilization)
            failures += _contenders(report, bench)
            utilization.close()
        if arguments.rules:
            failures += _rules(report, arguments, made, temporary)
    return report, failures


def _contenders(report: Report, bench: Bench) -> int:
    failures = 0
    for model in bench.arguments.models:
        for contender in bench.arguments.contenders:
            name = f"{model}: {contender}"
            try:
                with _no_longer_than(_LIMIT_S):
                    speed = bench.run(model, contender)
            except Exception as error:  # noqa: BLE001  the other contenders run whatever this one does
                failures += 1
                traceback.print_exc(file=sys.stderr)
                print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
                report.notes.append(f"{name} failed: {type(error).__name__}: {error}")
                continue
            finally:
                _free(bench.arguments.device)
            bench.rates[model, contender] = speed.images_s
            report.add(name, "images/s", [speed.images_s])
            report.facts[name] = {key: rounded(value) for key, value in vars(speed).items() if value is not None}
            print(f"{name}: {report.facts[name]}", flush=True)
            if contender != "limit" and f"{model}: limit" in report.series:
                report.compare(name, f"{model}: limit")
    return failures


def _rules(report: Report, arguments: Any, made: photos.Photographs, temporary: Path) -> int:
    from .gpu_rules import Place, check

    table = temporary / "rules-table"
    write_table(made, table, 90, 22)
    found = check(Place(table, temporary / "rules", arguments.device))
    report.facts["rules"] = found
    return sum(not value.startswith("ok") for value in found.values())


def _machine(device: str) -> dict[str, Any]:
    """Checks the device; gives what it is."""
    import torch
    import torchvision

    faulthandler.enable()
    found: dict[str, Any] = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    if device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("PyTorch finds no CUDA GPU; --device cpu tries the command without one")
        found |= {"gpu": torch.cuda.get_device_name(0), "cudnn": torch.backends.cudnn.version()}
    return found


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Prints all threads and ends the process if the body hangs."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _free(device: str) -> None:
    import gc

    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    flags = parser(__doc__, repeats=None, photographs=5120)
    flags.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the models are trained")
    flags.add_argument("--side", type=positive, default=224, help="side of the images")
    flags.add_argument("--batch", type=positive, default=256, help="images of a step; photographs are whole batches")
    flags.add_argument("--seconds", type=above_zero, default=15.0, help="how long each contender is measured")
    flags.add_argument("--workers", type=positive, default=os.cpu_count() or 1, help="workers of the DataLoader")
    flags.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="what is trained")
    flags.add_argument("--contenders", nargs="*", choices=CONTENDERS, default=list(CONTENDERS), help="who takes part")
    flags.add_argument("--rules", action="store_true", help="check the GPU rules of launcher and trainer, too")
    arguments = flags.parse_args()
    found, failed = run(arguments)
    found.show(arguments.json)
    sys.exit(1 if failed else 0)
