"""Horovod's names and options without other ranks: what is refused, what a learning rate does, a world of one."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import CheckpointError, InvalidArgumentError, NotSupportedError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def hvd():
    import lakelens.hvd as hvd

    return hvd


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Adasum", "use op=hvd.Average or hvd.Sum"),
        ("ProcessSet", "start one HorovodRunner for each group of ranks"),
        ("join", "feed rows of zero weight to those that run out, as lakelens.DeltaFeed does"),
        ("elastic", r"HorovodRunner\(max_restarts=...\) starts it again"),
        ("start_timeline", "HOROVOD_TIMELINE"),
    ],
)
def test_a_name_that_only_horovod_has_says_what_to_use_instead(hvd, name, words):
    with pytest.raises(NotSupportedError, match=f"Horovod's {name} is not supported: .*{words}"):
        getattr(hvd, name)


def test_every_public_name_of_horovods_keras_api_is_there_or_says_why_not(hvd):
    from pathlib import Path

    import horovod

    # Read, not imported: on Keras 3 the import itself fails.
    text = Path(horovod.__file__).parent.joinpath("tensorflow", "keras", "__init__.py").read_text()
    imported = [line for line in text.splitlines() if line.startswith("from horovod.tensorflow")]
    names = {name.strip() for line in imported for name in line.partition(" import ")[2].split(",")}
    names |= {line[4 : line.index("(")] for line in text.splitlines() if line.startswith("def ")}
    assert {"DistributedOptimizer", "gloo_built", "ProcessSet", "load_model", "reducescatter"} <= names
    for name in names:
        try:
            assert getattr(hvd, name) is not None
        except NotSupportedError:
            continue


def test_its_modules_are_imported_by_either_name_and_a_name_that_nobody_has_is_an_attribute_error(hvd):
    import lakelens.hvd.callbacks as callbacks
    import lakelens.training.distributed.callbacks as own

    assert callbacks is own is hvd.callbacks
    assert not hasattr(hvd, "no_such_name")
    assert not hasattr(hvd.callbacks, "no_such_name")
    with pytest.raises(NotSupportedError, match=r"BestModelCheckpoint is not supported: put keras.callbacks"):
        _ = hvd.callbacks.BestModelCheckpoint


def test_options_that_only_horovod_has_are_refused_unless_they_change_nothing(hvd):
    import tensorflow as tf

    for make, subject in ((hvd.DistributedOptimizer, "sgd"), (hvd.DistributedGradientTape, tf.GradientTape())):
        for option, error, words in (
            ({"device_dense": "/gpu:0"}, NotSupportedError, "device_dense='/gpu:0' is not supported"),
            ({"scale_local_gradients": False}, NotSupportedError, "scale_local_gradients=False is not supported"),
            ({"groups": [[1]]}, NotSupportedError, "give a number of groups, the result is the same"),
            ({"no_such": 1}, InvalidArgumentError, "no_such=1: there is no such option"),
            ({"num_groups": -1}, InvalidArgumentError, "groups=-1"),
            ({"op": "Average"}, InvalidArgumentError, "op='Average': gradients are combined by hvd.Average or hvd.Sum"),
            ({"gradient_predivide_factor": 0}, InvalidArgumentError, "gradient_predivide_factor=0: must be above 0"),
            ({"compression": "fp16"}, InvalidArgumentError, "compression='fp16': use hvd.Compression"),
        ):
            with pytest.raises(error, match=words):
                make(subject, **option)
        make(subject, device_dense="", device_sparse="", process_set=None, scale_local_gradients=True)
    with pytest.raises(InvalidArgumentError, match="backward_passes_per_step=0: must be at least 1"):
        hvd.DistributedOptimizer("sgd", backward_passes_per_step=0)
    with pytest.raises(NotSupportedError, match="device='/cpu:0' is not supported"):
        hvd.callbacks.MetricAverageCallback("/cpu:0")
    with pytest.raises(NotSupportedError, match="local_variables="):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1])
    with pytest.raises(InvalidArgumentError, match="initial_lr=0: must be above 0"):
        hvd.callbacks.LearningRateScheduleCallback(0, 1.0)
    with pytest.raises(InvalidArgumentError, match="warmup_epochs=0: must be above 0"):
        hvd.callbacks.LearningRateWarmupCallback(0.1, 0)


# Horovod 0.28.1's own signatures: what its functions take, by position or by name, when a script says the default.
@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("init", (None, []), {}),
        ("allreduce", (1.0, "n", None, 1.0, 1.0, None), {}),
        ("allreduce", (1.0,), {"device_dense": "", "device_sparse": "", "ignore_name_scope": False}),
        ("allreduce", (1.0,), {"process_set": None, "prescale_factor": np.float32(1.0)}),
        ("grouped_allreduce", ([1.0],), {"device_dense": "", "process_set": None, "ignore_name_scope": False}),
        ("allgather", ([1.0], "n", False), {"process_set": None}),
        ("grouped_allgather", ([[1.0]], "n", False), {"process_set": None}),
        ("broadcast", (1.0, np.int64(0), "n", False), {"process_set": None}),
        ("alltoall", ([1.0], None, "n", False), {"process_set": None}),
        ("reducescatter", ([1.0], "n"), {"device_dense": "", "prescale_factor": 1.0, "process_set": None}),
        ("broadcast_variables", ([], 0, None, True), {}),
        ("broadcast_object", (1, 0, None, "n", None), {}),
        ("broadcast_object", (), {"obj": 1, "root_rank": 0}),
        ("allgather_object", (1, None, "n", None), {}),
        ("barrier", (None,), {}),
        ("DistributedOptimizer", ("sgd", "n", "", ""), {}),
        ("DistributedOptimizer", ("sgd",), {"use_locking": False, "num_groups": 0}),
    ],
)
def test_horovods_defaults_are_taken_where_horovod_takes_them(hvd, name, arguments, options):
    getattr(hvd, name)(*arguments, **options)
    if "process_set" in options:
        getattr(hvd, name)(*arguments, **{**options, "process_set": hvd.global_process_set})


def test_optimizer_tape_and_warm_up_take_all_of_horovods_arguments_in_their_order(hvd):
    import tensorflow as tf

    none, average, everyone = hvd.Compression.none, hvd.Average, hvd.global_process_set
    optimizer = hvd.DistributedOptimizer(
        "sgd", "n", "", "", hvd.Compression.fp16, True, 2.0, average, 3, True, 0, 4, everyone, True
    )
    settings = optimizer._lakelens
    assert (settings.compression, settings.sparse_as_dense) == (hvd.Compression.fp16, True)
    assert (settings.predivide, settings.groups) == (2.0, 4)
    assert optimizer._lakelens_passes == (3, True)
    tape = hvd.DistributedGradientTape(tf.GradientTape(), "", "", none, True, hvd.Sum, 1.0, 0, 5, everyone, True)
    assert (tape._lakelens.op, tape._lakelens.sparse_as_dense, tape._lakelens.groups) == (hvd.Sum, True, 5)
    with pytest.raises(InvalidArgumentError, match="distributed already"):
        hvd.DistributedGradientTape(tape)
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.1, 3, False, 7, 1)
    assert (warm_up.warmup_epochs, warm_up.momentum_correction) == (3, False)
    assert (warm_up.steps_per_epoch, warm_up.verbose) == (7, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "options", "error", "words"),
    [
        ("allreduce", (1.0,), {"process_set": [0, 1]}, NotSupportedError, r"process_set=\[0, 1\] is not supported"),
        ("init", (), {"comm": [0]}, NotSupportedError, "start one HorovodRunner for each group of ranks"),
        ("allgather", ([1.0], "n", True), {}, NotSupportedError, "outside of tf.name_scope, with the same names on"),
        ("broadcast_object", (1, 0, "my-name"), {}, NotSupportedError, "pass name=... by keyword"),
        ("reducescatter", ([1.0],), {"prescale_factor": 2.0}, NotSupportedError, "multiply the value"),
        ("DistributedOptimizer", ("sgd", None, "/gpu:0"), {}, NotSupportedError, "device_dense='/gpu:0' is not"),
        ("DistributedOptimizer", ("sgd",), {"use_locking": True}, NotSupportedError, "optimizers take no locks"),
        ("load_model", ("x.keras",), {"legacy_opts": True}, NotSupportedError, "Keras 3 has no legacy optimizers"),
        # The order of `horovod.tensorflow`, which is another than that of `horovod.tensorflow.keras`.
        ("allreduce", (1.0, True), {}, InvalidArgumentError, "name=True: the second argument names the operation"),
        ("allreduce", (1.0, None, "", ""), {}, InvalidArgumentError, "average='': True or False"),
        ("allreduce", (1.0, None, None, "", ""), {}, InvalidArgumentError, "'' is not a factor; pass op=..., compress"),
        ("broadcast", (1.0, "name"), {}, InvalidArgumentError, "root_rank=name: ranks are 0 to 0"),
        # What no world can do.
        ("allreduce", ([1],), {}, InvalidArgumentError, "an average of int32 would lose its fraction"),
        ("reducescatter", (1.0,), {}, InvalidArgumentError, "along the first dimension and a scalar has"),
        ("alltoall", ([0, 1, 2], [1, 2]), {}, InvalidArgumentError, r"splits=\[1, 2\]: one number of rows for"),
        ("DistributedGradientTape", (3,), {}, InvalidArgumentError, "takes a tf.GradientTape, got int"),
    ],
)
def test_a_call_that_cannot_work_is_refused_with_what_to_write_instead(hvd, name, arguments, options, error, words):
    with pytest.raises(error, match=words):
        getattr(hvd, name)(*arguments, **options)


def test_a_world_of_one_gives_back_what_it_was_given(hvd):
    import tensorflow as tf

    assert hvd.allreduce(np.array([1.0, 2.0]), prescale_factor=2.0).numpy().tolist() == [2.0, 4.0]
    assert hvd.reducescatter(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
    assert hvd.alltoall(tf.range(3)).numpy().tolist() == [0, 1, 2]
    received, counts = hvd.alltoall(tf.range(3), splits=[3])
    assert (received.numpy().tolist(), counts.numpy().tolist()) == ([0, 1, 2], [3])
    assert (hvd.nccl_built(), hvd.gloo_built(), hvd.is_homogeneous()) == (0, False, True)
    everyone = hvd.global_process_set
    assert (everyone.process_set_id, everyone.ranks, everyone.size()) == (0, [0], 1)
    assert (everyone.rank(), everyone.included()) == (0, True)
    with tf.GradientTape() as tape:
        x = tf.Variable(3.0)
        y = x * x
    assert float(hvd.DistributedGradientTape(tape).gradient(y, x)) == 6.0


# --- models ---------------------------------------------------------------------------------------------------------


def small_model(optimizer):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(optimizer, "mse")
    return model


def test_a_saved_model_is_loaded_with_a_distributed_optimizer_that_keeps_its_state(hvd, tmp_path):
    import keras

    model = small_model(keras.optimizers.Adam(0.1))
    model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == 1
    with pytest.raises(InvalidArgumentError, match="distributed already"):
        hvd.DistributedOptimizer(loaded.optimizer)
    loaded.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    assert int(loaded.optimizer.iterations) == 2
    # A file that could run code is not loaded.
    (tmp_path / "model.keras").write_bytes(b"\x80\x04pickle")
    with pytest.raises(CheckpointError, match=r"is not a .keras archive"):
        hvd.load_model(tmp_path / "model.keras")


# --- learning rates -------------------------------------------------------------------------------------------------


def rates_of(callback, epochs, optimizer=None, steps=2):
    """The learning rate after each step, on `steps` steps an epoch."""
    import keras

    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(round(float(self.model.optimizer.learning_rate), 6))

    model = small_model(optimizer or keras.optimizers.SGD(1.0))
    rows = np.ones([steps, 2])
    history = model.fit(rows, rows[:, :1], batch_size=1, epochs=epochs, verbose=0, callbacks=[callback, Watch()])
    return seen, history.history


def test_a_number_decays_the_learning_rate_exponentially_from_its_first_epoch(hvd):
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.8, 0.5, start_epoch=1, end_epoch=4)
    seen, history = rates_of(schedule, 6)
    assert seen == pytest.approx([1.0, 1.0, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2])
    assert history["lr"] == pytest.approx([1.0, 0.8, 0.4, 0.2, 0.2, 0.2])


def test_a_function_is_asked_for_each_step_unless_the_rate_is_a_staircase(hvd):
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1 + epoch, staircase=False)
    assert rates_of(schedule, 2)[0] == pytest.approx([0.1, 0.15, 0.2, 0.25])
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1 + epoch)
    assert rates_of(schedule, 2)[0] == pytest.approx([0.1, 0.1, 0.2, 0.2])


def weight_by_hand(rates, corrected, kind):
    """Weights of a model that has one input of ones, two weights and a target of zero, after one step at each rate.

    With correction the momentum accumulates steps without their learning rate, and the sum is multiplied by the rate
    of the step that applies it (Goyal et al. 2017, equation 9, and as PyTorch defines it); without correction each
    step enters the sum with the rate that it was made at (equation 10).
    """
    weight, total, square, momentum = 1.0, 0.0, 0.0, 0.9
    for rate in rates:
        step = 2 * (2 * weight)
        if kind == "RMSprop":
            square = 0.9 * square + 0.1 * step**2
            step /= np.sqrt(square + 1e-7)
        entered, applied = (1.0, rate) if corrected else (rate, 1.0)
        total = momentum * total + entered * step
        weight -= applied * (momentum * total + entered * step if kind == "Nesterov" else total)
    return weight


def optimizer_of(kind):
    import keras

    if kind == "RMSprop":
        return keras.optimizers.RMSprop(0.01, rho=0.9, momentum=0.9)
    return keras.optimizers.SGD(0.01, momentum=0.9, nesterov=kind == "Nesterov")


def fit_with_rates(hvd, model, factors, corrected, rows=((1.0, 1.0), (1.0, 1.0))):
    """Two steps at each of the factors of 0.01, a row each; gives the rates of all steps."""
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.01, lambda epoch: factors[int(epoch)], momentum_correction=corrected
    )
    rows = np.array(rows)
    model.fit(rows, 0 * rows[:, :1], batch_size=1, epochs=len(factors), verbose=0, callbacks=[schedule], shuffle=False)
    return [0.01 * factor for factor in factors for _ in rows]


@pytest.mark.parametrize(
    ("kind", "scaled", "corrected"),
    [
        *(("SGD", True, True), ("SGD", False, False)),
        *(("Nesterov", True, False), ("Nesterov", False, True)),
        *(("RMSprop", True, False), ("RMSprop", False, True)),
    ],
)
def test_accumulated_momentum_follows_the_learning_rate(hvd, corrected, scaled, kind):
    import keras

    optimizer = optimizer_of(kind)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    model = small_model(optimizer)
    rates = fit_with_rates(hvd, model, (1.0, 4.0, 4.0, 0.5), corrected)
    expected = weight_by_hand(rates, corrected, kind)
    np.testing.assert_allclose(model.get_weights()[0].ravel(), [expected] * 2, rtol=1e-5)


@pytest.mark.parametrize("name", ["Muon", "Adam"])
def test_what_holds_no_learning_rate_is_not_scaled_with_it(hvd, name):
    import keras

    if not hasattr(keras.optimizers, name):
        pytest.skip(f"this Keras has no {name}")
    weights = []
    for corrected in (True, False):
        model = small_model(getattr(keras.optimizers, name)(0.01))
        # Muon looks at directions only: they have to differ.
        fit_with_rates(hvd, model, (1.0, 4.0, 0.5), corrected, rows=((1.0, 2.0), (3.0, -1.0)))
        weights.append(model.get_weights()[0])
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize(("warmup_epochs", "expected"), [(1.5, [0.3, 0.5, 0.7, 0.9, 1.0]), (0.01, [1.0])])
def test_warm_up_ends_at_the_learning_rate_that_was_given(hvd, monkeypatch, warmup_epochs, expected):
    monkeypatch.setenv("HOROVOD_SIZE", "10")
    warm_up = hvd.callbacks.LearningRateWarmupCallback(1.0, warmup_epochs)
    assert rates_of(warm_up, 2, steps=3)[0] == pytest.approx(expected + [1.0] * (6 - len(expected)))


def test_an_optimizer_with_a_schedule_of_its_own_is_refused(hvd):
    import keras

    own = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    with pytest.raises(InvalidArgumentError, match="learning rate follows ExponentialDecay, which no callback can"):
        rates_of(hvd.callbacks.LearningRateWarmupCallback(0.1), 1, own)
