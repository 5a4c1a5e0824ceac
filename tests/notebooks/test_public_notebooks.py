"""The two public notebooks of Databricks, for HorovodRunner and for Petastorm's converter, changed as the pages say.

The cells are in our words and read data that the test makes; the calls are those of the notebooks.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from kernels import kernel_in, outputs_of
from PIL import Image

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.spark, pytest.mark.horovod, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/migration/horovodrunner.md", "docs/petastorm.md")

DIGITS = [
    """
import numpy as np

def get_dataset(num_classes, rank=0, size=1):
    import keras

    with np.load(DIGITS) as digits:
        x_train, y_train, x_test, y_test = (digits[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    x_train, y_train = x_train[rank::size], y_train[rank::size]
    x_test, y_test = x_test[rank::size], y_test[rank::size]
    x_train, x_test = (x.reshape(x.shape[0], 28, 28, 1).astype("float32") / 255 for x in (x_train, x_test))
    y_train, y_test = (keras.utils.to_categorical(y, num_classes) for y in (y_train, y_test))
    return (x_train, y_train), (x_test, y_test)
""",
    """
def get_model(num_classes):
    from tensorflow.keras import models, layers

    model = models.Sequential()
    model.add(layers.Conv2D(8, kernel_size=(3, 3), activation="relu", input_shape=(28, 28, 1)))
    model.add(layers.MaxPooling2D(pool_size=(2, 2)))
    model.add(layers.Dropout(0.25))
    model.add(layers.Flatten())
    model.add(layers.Dense(num_classes, activation="softmax"))
    return model
""",
    """
batch_size, epochs, num_classes = 32, 3, 4

def train_hvd(checkpoint_path, learning_rate=1.0):
    import tensorflow as tf
    from tensorflow import keras
    import horovod.tensorflow.keras as hvd

    hvd.init()
    gpus = tf.config.experimental.list_physical_devices("GPU")
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    (x_train, y_train), (x_test, y_test) = get_dataset(num_classes, hvd.rank(), hvd.size())
    model = get_model(num_classes)
    optimizer = keras.optimizers.Adadelta(lr=learning_rate * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(
        optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"], experimental_run_tf_function=False
    )
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint_path, save_weights_only=True))
    model.fit(
        x_train, y_train, batch_size=batch_size, callbacks=callbacks, epochs=epochs, verbose=2,
        validation_data=(x_test, y_test),
    )
    return hvd.size()
""",
    """
from sparkdl import HorovodRunner

hr = HorovodRunner(np=2)
ranks = hr.run(train_hvd, checkpoint_path=CHECKPOINTS + "/checkpoint-{epoch}.ckpt", learning_rate=1.0)
""",
    """
import tensorflow as tf

_, (x_test, y_test) = get_dataset(num_classes)
hvd_model = get_model(num_classes)
hvd_model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
hvd_model.load_weights(tf.train.latest_checkpoint(CHECKPOINTS))
found = hvd_model.predict_classes(x_test)
print("ranks", ranks, "rows", len(found), "best", hvd_model.evaluate(x_test, y_test, verbose=0)[1] > 0.5)
""",
]
# What is written instead, and where the pages say so: a part of the left cell of a row, and of the right one.
DIGITS_CHANGED = [
    ("from sparkdl import HorovodRunner", "from lakelens import HorovodRunner", ("sparkdl", "from lakelens")),
    ('        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")', "        pass",
     ("set_visible_devices", "remove it")),
    ("lr=learning_rate", "learning_rate=learning_rate", ("lr=0.1", "learning_rate=0.1")),
    (", experimental_run_tf_function=False", "", ("experimental_run_tf_function", "remove the argument")),
    ("{epoch}.ckpt", "{epoch}.weights.h5", ("w.ckpt", "w.weights.h5")),
    ("tf.train.latest_checkpoint(CHECKPOINTS)", 'CHECKPOINTS + "/checkpoint-3.weights.h5"',
     ("latest_checkpoint", "the path of the file")),
    ("predict_classes(x_test)", "predict(x_test).argmax(axis=-1)", ("predict_classes", "argmax(axis=-1)")),
]  # fmt: skip

FLOWERS = [
    """
import io
import numpy as np
from pyspark.sql.functions import col
from petastorm import TransformSpec
from petastorm.spark import SparkDatasetConverter, make_spark_converter
from PIL import Image

IMG_SHAPE, BATCH_SIZE, NUM_EPOCHS = (32, 32, 3), 8, 2
""",
    """
spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file:///tmp/cache")
df = spark.read.format("delta").load(FLOWERS).select(col("content"), col("label"))
classes = sorted(row["label"] for row in df.select("label").distinct().collect())
df_train, df_val = df.randomSplit([0.8, 0.2], seed=1)
converter_train = make_spark_converter(df_train)
converter_val = make_spark_converter(df_val)
""",
    """
def preprocess(content):
    image = Image.open(io.BytesIO(content)).resize(IMG_SHAPE[:2])
    return np.array(image, dtype=np.float32) / 127.5 - 1

def transform_row(pd_batch):
    pd_batch["features"] = pd_batch["content"].map(preprocess)
    return pd_batch.drop(labels="content", axis=1)

transform_spec_fn = TransformSpec(
    transform_row, edit_fields=[("features", np.float32, IMG_SHAPE, False)], selected_fields=["features", "label_index"]
)

def get_model(lr):
    import tensorflow as tf

    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(4, 3, activation="relu", input_shape=IMG_SHAPE),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(len(classes)),
    ])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, tf.keras.optimizers.SGD(learning_rate=lr), loss
""",
    """
def train_and_evaluate(lr=0.01):
    model, optimizer, loss = get_model(lr)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    with converter_train.make_tf_dataset(transform_spec=transform_spec_fn, batch_size=BATCH_SIZE) as train_dataset, \\
            converter_val.make_tf_dataset(transform_spec=transform_spec_fn, batch_size=BATCH_SIZE) as val_dataset:
        train_dataset = train_dataset.map(lambda x: (x.features, x.label_index))
        val_dataset = val_dataset.map(lambda x: (x.features, x.label_index))
        hist = model.fit(
            train_dataset, steps_per_epoch=len(converter_train) // BATCH_SIZE, epochs=NUM_EPOCHS,
            validation_data=val_dataset, validation_steps=max(1, len(converter_val) // BATCH_SIZE), verbose=2,
        )
    return hist.history["val_loss"][-1]

print("alone", np.isfinite(train_and_evaluate()))
""",
    """
from sparkdl import HorovodRunner

def train_and_evaluate_hvd(lr=0.01):
    import horovod.tensorflow.keras as hvd

    hvd.init()
    model, optimizer, loss = get_model(lr * hvd.size())
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=loss, metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    place = {"cur_shard": hvd.rank(), "shard_count": hvd.size()}
    with converter_train.make_tf_dataset(transform_spec=transform_spec_fn, batch_size=BATCH_SIZE, **place) as dataset:
        pairs = dataset.map(lambda x: (x.features, x.label_index))
        steps = len(converter_train) // (BATCH_SIZE * hvd.size())
        hist = model.fit(pairs, steps_per_epoch=steps, epochs=NUM_EPOCHS, callbacks=callbacks, verbose=2)
    return hvd.size(), hist.history["loss"][-1]

hr = HorovodRunner(np=2)
ranks, loss = hr.run(train_and_evaluate_hvd)
print("ranks", ranks, np.isfinite(loss))
""",
]
CONVERTERS = """
df.withColumn("label_index", array_position(array(*map(lit, classes)), col("label")).cast("int") - 1).withColumn(
    "split", when(col("path") % 5 == 0, "validation").otherwise("train")
).write.format("delta").save(FLOWERS + "-indexed")
columns = ["content", "label_index"]
converter_train = lakelens.make_delta_converter(FLOWERS + "-indexed", version=0, columns=columns, split="train")
converter_val = lakelens.make_delta_converter(FLOWERS + "-indexed", version=0, columns=columns, split="validation")
"""
FLOWERS_CHANGED = [
    ("from petastorm import TransformSpec\n", "import lakelens\nfrom petastorm import TransformSpec\n",
     ("import lakelens", "before the first")),
    ("from petastorm.spark import SparkDatasetConverter, make_spark_converter\n", "",
     ("make_spark_converter", "copies")),
    ("import col\n", "import array, array_position, col, lit, when\n", ("make_delta_converter", "version")),
    ('spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file:///tmp/cache")\n', "",
     ("make_spark_converter", "copies")),
    ('.select(col("content"), col("label"))', "", ("make_spark_converter", "make_delta_converter")),
    ("""df_train, df_val = df.randomSplit([0.8, 0.2], seed=1)
converter_train = make_spark_converter(df_train)
converter_val = make_spark_converter(df_val)
""", CONVERTERS, ('split="train"', "choose rows")),
    *DIGITS_CHANGED[:1],
]  # fmt: skip


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of bars: four classes by where the bar is."""
    numbers = np.random.default_rng(seed)
    images, labels = numbers.integers(0, 60, (rows, 28, 28), np.uint8), numbers.integers(0, 4, rows)
    for image, label in zip(images, labels, strict=True):
        image[7 * label : 7 * label + 7] += 180
    return images, labels


def write_digits(folder: Path) -> dict[str, str]:
    train, test = drawn(2048, 0), drawn(64, 1)
    np.savez(folder / "digits.npz", x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
    (folder / "checkpoints").mkdir()
    return {"DIGITS": str(folder / "digits.npz"), "CHECKPOINTS": str(folder / "checkpoints")}


def write_flowers(folder: Path) -> dict[str, str]:
    import pyarrow as pa
    from deltalake import write_deltalake

    images, labels = drawn(80, 2)
    files = []
    for image in images:
        Image.fromarray(image).convert("RGB").save(buffer := io.BytesIO(), "JPEG")
        files.append(buffer.getvalue())
    names = [("daisy", "rose", "tulip", "iris")[label] for label in labels]
    write_deltalake(str(folder / "flowers"), pa.table({"path": range(80), "content": files, "label": names}))
    return {"FLOWERS": str(folder / "flowers")}


@pytest.mark.parametrize(
    ("cells", "changes", "write", "said"),
    [
        (DIGITS, DIGITS_CHANGED, write_digits, "ranks 2 rows 64 best True"),
        (FLOWERS, FLOWERS_CHANGED, write_flowers, "ranks 2 True"),
    ],
    ids=["HorovodRunner", "Petastorm"],
)
def test_a_public_notebook_runs_when_changed_as_the_pages_say(cells, changes, write, said, tmp_path, monkeypatch):
    from nbformat.v4 import new_code_cell, new_notebook

    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES).splitlines()
    text = "\0".join(cells)
    for before, after, (left, right) in changes:
        assert before in text
        text = text.replace(before, after)
        assert any(left in line and right in line for line in pages), f"no line of the pages says {left} -> {right}"
    names = "\n".join(f"{name} = {value!r}" for name, value in write(tmp_path).items())
    session = "import lakelens\nspark = lakelens.spark_session('local[2]')"
    kernel_in(tmp_path)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT)]))
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in (names, session, *text.split("\0"))])
    outputs = outputs_of(notebook, tmp_path, place=tmp_path)
    printed = {
        name: "".join(one["text"] for one in outputs if one.get("name") == name) for name in ("stdout", "stderr")
    }
    assert said in printed["stdout"]
    assert "2 ranks run" in printed["stderr"]
    assert ": done in " in printed["stderr"]
