"""Memory that is freed stays in the process; counted in minor page faults, each of which is a page that is cleared."""

from __future__ import annotations

import inspect
import os
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from child_processes import run_to_end
from deltalake import write_deltalake

from lakelens import HorovodRunner
from lakelens.freed_memory import why_not_kept

SIZE = 48 << 20  # above glibc's largest threshold for blocks of their own
PAGES = SIZE // resource.getpagesize()


def faults_of_steps() -> float:
    """Takes and frees a block for each step; returns the mean number of faults once the first steps are over."""
    for step in range(8):
        if step == 3:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        len(b"x" * SIZE)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 5


STEPS = f"import resource\nSIZE = {SIZE}\n{inspect.getsource(faults_of_steps)}\n"
KEPT = "import lakelens; print(lakelens.keep_freed_memory(), end=' ')\n"
PRINTED = "print(faults_of_steps())"

# The feed's dataset resets glibc's threshold when it is made.
TRAINED = """
import resource, lakelens
{keep}
import keras, tensorflow as tf
model = keras.Sequential([keras.layers.Conv2D(64, 3), keras.layers.Conv2D(64, 3), keras.layers.GlobalMaxPooling2D()])
model.compile("sgd", "mse")
dataset = lakelens.DeltaFeed({table!r}).as_dataset(8)
dataset = dataset.map(lambda *batch: (tf.cast(batch[0], tf.float32), tf.zeros([8, 64])))
counts = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model.fit(dataset.repeat(), steps_per_epoch=4, verbose=0)
    counts.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4)
print(counts[-1])
"""


DECODED = """
import io, resource
from lakelens.etl.images.isolated_decoder import IsolatedDecoder, SourceImage
from lakelens.etl.images.recipe import Limits, Recipe
from PIL import Image
file = io.BytesIO()
Image.new("RGB", (1500, 1000), "red").save(file, "PNG")
def faults_of(images):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    with IsolatedDecoder(Recipe(size=64), Limits()) as decoder:
        list(decoder.decode_all([SourceImage(data=file.getvalue())] * images))
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before
print((faults_of(13) - faults_of(3)) / 10)
"""


def run(code: str, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return run_to_end([sys.executable, "-c", code], env={**environment, **variables}).stdout.split()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, None),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, None),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=0:glibc.malloc.mmap_max=4"}, "GLIBC_TUNABLES is set"),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, "MALLOC_TRIM_THRESHOLD_ is set"),
        ({"MALLOC_ARENA_MAX": "4"}, None),  # as YARN sets it in each container
    ],
)
def test_settings_of_the_user_win(environment: dict[str, str], reason: str | None) -> None:
    assert why_not_kept(environment) == reason


@pytest.mark.system
def test_a_process_keeps_what_it_frees_unless_the_user_has_set_the_allocator() -> None:
    assert float(run(STEPS + PRINTED)[-1]) > PAGES / 2
    for limit in ({}, {"MALLOC_ARENA_MAX": "4"}):  # which leaves the other settings to the process
        kept, faults = run(STEPS + KEPT + PRINTED, **limit)
        assert (kept, float(faults) < PAGES / 50) == ("True", True), limit
    kept, faults = run(STEPS + KEPT + PRINTED, MALLOC_TRIM_THRESHOLD_="1")
    assert (kept, float(faults) > PAGES / 2) == ("False", True)


@pytest.mark.horovod
def test_a_rank_keeps_what_it_frees() -> None:
    assert HorovodRunner(np=-1).run(faults_of_steps) < PAGES / 50


@pytest.mark.system
def test_a_decoder_keeps_what_it_frees() -> None:
    given, kept = (float(run(DECODED, **variables)[-1]) for variables in ({"MALLOC_MMAP_THRESHOLD_": "131072"}, {}))
    assert kept < given / 5


@pytest.mark.tensorflow
def test_steps_that_read_a_feed_keep_what_they_free(tmp_path: Path) -> None:
    rows = [{"path": f"{number}", "image": bytes(96 * 96 * 3), "format": "raw_rgb"} for number in range(32)]
    table = pa.Table.from_pylist([{**row, "height": 96, "width": 96, "label": 0, "label_name": "a"} for row in rows])
    write_deltalake(tmp_path / "t", table)
    given, kept = (
        float(run(TRAINED.format(table=str(tmp_path / "t"), keep=keep))[-1])
        for keep in ("", "lakelens.keep_freed_memory()")
    )
    assert kept < given / 10


# What a worker keeps neither counts against a model that is to be loaded nor widens what an image may take.
LIMITED = """
import io, resource, lakelens
from lakelens.etl.images.isolated_decoder import IsolatedDecoder, SourceImage
from lakelens.etl.images.recipe import Limits, Recipe
from PIL import Image
file = io.BytesIO()
Image.new("RGB", (8000, 5000)).save(file, "PNG")  # 120 MB of pixels
lakelens.keep_freed_memory()
len(b"x" * (400 << 20))
limits = Limits(memory_bytes=64 << 20, max_pixels=10**8)
with IsolatedDecoder(Recipe(size=32), limits) as decoder:
    (found,) = decoder.decode_all([SourceImage(data=file.getvalue())])
print(getattr(found, "reason", "stored"))
"""


@pytest.mark.system
def test_an_image_may_take_no_more_in_a_worker_that_keeps_memory() -> None:
    assert run(LIMITED) == ["out_of_memory"]
