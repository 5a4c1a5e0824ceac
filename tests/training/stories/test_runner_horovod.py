"""The launcher with real Horovod ranks: equal weights, the classic recipe, and faults in the middle of a collective."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
from leftovers import Watch, leaves_nothing

from lakelens.errors import RankFailedError
from lakelens.training.runner.runner import KERAS_MODULES, HorovodRunner

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(900), pytest.mark.usefixtures("functions_travel_by_value")]

# While ranks wait, Horovod's threads ask one another once in each of its cycles, a thousand times a second by default.
SELDOM = {"HOROVOD_CYCLE_TIME": "20"}


@pytest.fixture
def watch() -> Iterator[Watch]:
    with leaves_nothing() as watch:
        yield watch


def runner(np: int, watch: Watch, more: dict[str, str] | None = None, **options) -> HorovodRunner:
    return HorovodRunner(np=np, env={**watch.env, "TF_CPP_MIN_LOG_LEVEL": "2", **(more or {})}, **options)


def classic_recipe(learning_rate):
    """The recipe as the original's users have it in their notebooks; only the imports are others."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.keras.callbacks import EarlyStopping
    from tensorflow.keras.layers import Dense
    from tensorflow.keras.models import Sequential
    from tensorflow.keras.optimizers import Nadam

    import lakelens.hvd as hvd

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(96, 8)).astype("float32")
    y = (x[:, :4].sum(1) > x[:, 4:].sum(1)).astype("int32")

    model = Sequential([tf.keras.Input((8,)), Dense(16, activation="relu"), Dense(2, activation="softmax")])
    optimizer = hvd.DistributedOptimizer(Nadam(learning_rate))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        EarlyStopping(patience=3, monitor="val_accuracy", restore_best_weights=True),
        hvd.callbacks.LogCallback(),
    ]
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=8,
        validation_data=(x[::3], y[::3]),
        callbacks=callbacks,
        verbose=(2 if hvd.rank() == 0 else 0),
    )
    agree = hvd.allgather_object(([weight.tolist() for weight in model.get_weights()], history.history["val_accuracy"]))
    return max(history.history["val_accuracy"]), agree[0] == agree[-1], hvd.size()


def train_on_global_batches():
    """Three epochs of SGD on global batches of 16; each rank takes its share of each batch."""
    import keras
    import numpy as np

    import lakelens.hvd as hvd

    keras.utils.set_random_seed(7 if hvd.rank() == 0 else 1000)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 6)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(
        x[hvd.rank() :: hvd.size()],
        y[hvd.rank() :: hvd.size()],
        batch_size=16 // hvd.size(),
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    digest = [float(np.abs(weight).sum()) for weight in model.get_weights()]
    return model.get_weights(), hvd.allgather_object(digest)


TRACED = """
import tensorflow as tf

@tf.function
def traced(x):
    return x if tf.reduce_sum(x) > 0 else -x
"""


def alone():
    """What one rank finds of its imports, and then trains."""
    import gc
    import runpy
    import sys
    import tempfile
    from pathlib import Path

    import keras
    import tensorflow as tf

    import lakelens.hvd as hvd

    with tempfile.TemporaryDirectory() as folder:  # AutoGraph reads the source in a file
        Path(folder, "traced.py").write_text(TRACED)
        traced = runpy.run_path(f"{folder}/traced.py")["traced"]
        assert traced(tf.constant(-1.0)) == 1  # AutoGraph looks at every module on the way
    early = {name for name in ("sklearn", "matplotlib") if name in sys.modules}
    collected = gc.isenabled(), gc.get_freeze_count() > 100_000
    there = keras.wrappers.SKLearnClassifier.__name__, tf.keras.visualization.plot_image_gallery.__name__
    hvd.init()
    return {"early": early, "collected": collected, "there": there, "trained": train_on_global_batches()}


def together(place):
    """What two ranks find of their connections, then train, with the recipe as well; at last rank 1 is killed."""
    import os
    import pickle
    import socket
    import time
    from pathlib import Path

    import psutil

    import lakelens.hvd as hvd

    def is_open():
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def addresses(status):
        return [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == status]

    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    was_open = is_open()
    hvd.init()
    mine = addresses(psutil.CONN_LISTEN) + addresses(psutil.CONN_ESTABLISHED)
    deadline = time.monotonic() + 60
    while is_open() and time.monotonic() < deadline:
        time.sleep(0.1)
    found = {
        "store": hvd.allgather_object((was_open, is_open())),
        "addresses": {address for each in hvd.allgather_object(mine) for address in each},
        "host": socket.gethostname(),
        "recipe": classic_recipe(0.008),
        "trained": train_on_global_batches(),
    }
    if hvd.rank() == 0:
        Path(place).write_bytes(pickle.dumps(found))
    collective_faults("killed")


@pytest.fixture(scope="module")
def one(functions_travel_by_value: None) -> dict[str, Any]:
    with leaves_nothing() as watch:
        return runner(-1, watch, preload=KERAS_MODULES).run(alone)


# Runs a function that fails; keeps with what.
DRIVER = """
import pickle, sys
from pathlib import Path
from lakelens.errors import RankFailedError
from lakelens.training.runner.runner import HorovodRunner
environment, main, place = pickle.loads(Path(sys.argv[1]).read_bytes())
try:
    HorovodRunner(np=-2, env=environment, stall_timeout_s=120).run(main, place=place)
except RankFailedError as error:
    Path(sys.argv[2]).write_bytes(pickle.dumps(error))
"""
IN_OWN_UTS = ["unshare", "--uts", "sh", "-c"]


def outer_address() -> str | None:
    """An address of this machine that others reach, where a process may have it as the name of its host."""
    outer = [
        entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    if not outer or subprocess.run([*IN_OWN_UTS, "hostname test"], capture_output=True, check=False).returncode != 0:
        return None
    return outer[0]


@pytest.fixture(scope="module")
def two(functions_travel_by_value: None, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two")
    script, sent, found, failed = (folder / name for name in ("driver.py", "sent", "found", "failed"))
    script.write_text(DRIVER)
    outer = outer_address()
    command = [sys.executable, str(script), str(sent), str(failed)]
    if outer is not None:
        command = [*IN_OWN_UTS, f'hostname {outer}; exec "$@"', "sh", *command]
    with leaves_nothing() as watch:
        sent.write_bytes(cloudpickle.dumps(({**watch.env, "TF_CPP_MIN_LOG_LEVEL": "2"}, together, str(found))))
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    assert found.exists(), pickle.loads(failed.read_bytes())
    return {
        **pickle.loads(found.read_bytes()),
        "outer": outer,
        "said": done.stdout,
        "failed": pickle.loads(failed.read_bytes()),
    }


def test_two_ranks_and_one_on_the_same_global_batches_end_with_equal_weights(one, two):
    (weights, _), (same, digests) = one["trained"], two["trained"]
    assert digests[0] == digests[1]
    for mine, theirs in zip(same, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6, rtol=0)


def test_what_keras_imports_for_nothing_is_put_off_and_still_there_and_garbage_is_looked_for_after_imports(one):
    assert one["collected"] == (True, True)
    assert one["early"] == set()
    assert one["there"] == ("SKLearnClassifier", "plot_image_gallery")


def test_the_store_is_closed_once_all_ranks_have_joined(two):
    # A rank may find it closed from the start, when it comes to look after the other has joined; never both.
    assert any(was_open for was_open, _ in two["store"])
    assert not any(is_open for _, is_open in two["store"])


def test_no_rank_listens_beyond_loopback_on_one_machine_whatever_the_host_name_resolves_to(two):
    """Unpatched, Horovod's process sets listen on the address of the host name."""
    assert two["addresses"] == {"127.0.0.1"}
    assert two["host"] == two["outer"] or two["outer"] is None  # without the right to set a host name


def test_the_classic_recipe_runs_with_its_imports_changed_and_nothing_else(two):
    accuracy, agree, size = two["recipe"]
    assert size == 2
    assert agree, "early stopping and best weights must be the same on all ranks"
    assert accuracy > 0.7
    assert "Epoch 1 begins" in two["said"]
    assert "val_accuracy: " in two["said"]


def collective_faults(fault, folder=None):
    """Rank 1 does something wrong in the middle of a run of collectives."""
    import os
    import signal
    import time
    from pathlib import Path

    import horovod.tensorflow  # noqa: F401  before ranks meet in the folder: imports take long, and the clock runs
    import tensorflow as tf

    import lakelens.hvd as hvd
    from lakelens.training.rank.process_context import current

    if folder is not None:
        Path(folder, str(current().rank)).touch()
        while len(list(Path(folder).iterdir())) < 2:
            time.sleep(0.02)
    hvd.init()
    for step in range(10_000):
        if step == 5 and hvd.rank() == 1:
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "stalls":
                time.sleep(600)
        hvd.allreduce(tf.ones([10]), name="step")


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("killed", "died", "was ended by SIGKILL"),
        pytest.param("stopped", "stopped", "was stopped by SIGSTOP", marks=pytest.mark.long),
        pytest.param(
            "stalls", "stalled", "did not take part in a collective that the others wait in", marks=pytest.mark.long
        ),
    ],
)
def test_a_fault_in_a_collective_is_blamed_on_the_rank_that_has_it(request, watch, tmp_path, fault, reason, words):
    if fault == "killed":
        error = request.getfixturevalue("two")["failed"]
    else:
        with pytest.raises(RankFailedError) as caught:
            runner(-2, watch, SELDOM, stall_timeout_s=15).run(collective_faults, fault=fault, folder=str(tmp_path))
        error = caught.value
    assert (error.rank, error.reason) == (1, reason)
    assert words in str(error)
    if reason == "stalled":
        assert any("in collective_faults" in line for line in error.log), "its stack says where it hangs"


@pytest.mark.long
def test_a_call_that_holds_the_interpreter_for_longer_than_the_stall_timeout_is_no_stall(watch):
    def main():
        import ctypes
        import time

        import lakelens.hvd as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(3)  # the others are seen waiting
        hvd.barrier()
        ctypes.PyDLL(None).sleep(14)  # as sum(range(n)), sort or unpickling do: no other thread of Python runs
        hvd.barrier()
        return "went on"

    assert runner(-2, watch, SELDOM, stall_timeout_s=12).run(main) == "went on"


# The module's name, written as one, would let each rank of the job import TensorFlow beforehand.


def test_a_rank_that_returns_before_init_is_named_while_the_others_wait_there(watch):
    def main():
        import importlib

        from lakelens.training.rank.process_context import current

        if current().rank == 1:
            importlib.import_module(".".join(("lakelens", "training", "distributed"))).init()

    with pytest.raises(RankFailedError, match=r"rank 0 of 2 on .* returned without calling hvd.init\(\)") as caught:
        runner(-2, watch).run(main)
    assert caught.value.reason == "left_early"
