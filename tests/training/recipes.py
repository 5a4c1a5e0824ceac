"""Training functions as people have them in their notebooks."""

from __future__ import annotations


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
