"""What PyTorch users write: a small network on one version of a table, in one process or under TorchDistributor.

Run by the Python of the PyTorch environment, with one JSON argument; the last line of its output is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SIDE = 16


def train(table: str, version: int, epochs: int, batch_size: int) -> dict[str, Any]:
    """Trains on a rank's shard; rank 0 gives the rows that each rank saw in each epoch, and the accuracy."""
    import contextlib
    import importlib

    import torch
    import torch.distributed as dist

    importlib.import_module("lakelens.training.feed")  # makes Petastorm work with newer pyarrow
    from petastorm.pytorch import BatchedDataLoader
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import lakelens

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 49, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    model: Any = network
    if size > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    converter = lakelens.make_delta_converter(table, version, columns=["image", "label", "number"])
    options = {"batch_size": batch_size, "num_epochs": 1, "data_loader_fn": BatchedDataLoader}
    options["transform_spec"] = lakelens.decode_images(SIDE, SIDE)
    seen: list[list[int]] = []
    with converter.make_torch_dataloader(**options, cur_shard=rank, shard_count=size) as loader:
        for _ in range(epochs):
            seen.append([])
            # Shards differ by a row, so that one may have a batch more: join lets the other rank wait for it.
            with model.join() if size > 1 else contextlib.nullcontext():
                for batch in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(_inputs(batch["image"])), batch["label"].long())
                    loss.backward()
                    optimizer.step()
                    seen[-1] += batch["number"].tolist()
    ranks: list[Any] = [seen]
    if size > 1:
        ranks = [None] * size
        dist.all_gather_object(ranks, seen)
        dist.destroy_process_group()
    network.eval()
    right = 0
    with converter.make_torch_dataloader(**options, cur_shard=0, shard_count=1) as loader, torch.no_grad():
        for batch in loader:
            right += int((network(_inputs(batch["image"])).argmax(1) == batch["label"]).sum())
    return {"ranks": ranks, "accuracy": right / len(converter)}


def _inputs(images: Any) -> Any:
    """Makes float32 [rows, 3, height, width] from 0 to 1 of uint8 [rows, height, width, 3]."""
    return images.permute(0, 3, 1, 2).float() / 255


def loaders(table: str, version: int) -> dict[str, Any]:
    """Goes through Petastorm's three loaders over the feed's reader."""
    import importlib
    from functools import partial

    importlib.import_module("lakelens.training.feed")  # makes Petastorm work with newer pyarrow
    from petastorm.pytorch import BatchedDataLoader, DataLoader, InMemBatchedDataLoader

    import lakelens

    feed = lakelens.DeltaFeed(table, version)
    found = {}
    for kind in (
        DataLoader,
        BatchedDataLoader,
        partial(BatchedDataLoader, shuffling_queue_capacity=100),
        partial(InMemBatchedDataLoader, rows_capacity=5000, shuffle=True),
    ):
        name = getattr(kind, "__name__", None) or f"{kind.func.__name__}({', '.join(kind.keywords)})"
        reader = feed.petastorm_reader(
            ["image", "label", "number"], transform_spec=lakelens.decode_images(SIDE, SIDE), batch_size=70
        )
        with reader:
            batches = list(kind(reader, batch_size=64))
        found[name] = {
            "numbers": [number for batch in batches for number in batch["number"].tolist()],
            "shapes": [list(batch["image"].shape) for batch in batches],
            "types": {key: str(value.dtype) for key, value in batches[0].items()},
        }
    return found


def distributed(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trains under TorchDistributor, two processes in one barrier stage of a real Spark."""
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        return [distributor.run(train, **case) for case in cases]
    finally:
        spark.stop()


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    results: dict[str, Any] = {"loaders": loaders(**request["loaders"])}
    results["one"] = [train(**case) for case in request["cases"]]
    results["two"] = distributed(request["cases"])
    results["modules"] = [name for name in ("tensorflow", "keras", "horovod") if name in sys.modules]
    print(json.dumps(results))
