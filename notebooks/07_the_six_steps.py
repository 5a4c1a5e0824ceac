# Databricks notebook source
# MAGIC %md
# MAGIC # Six steps from a notebook to a cluster
# MAGIC
# MAGIC Do not begin with a cluster. Each step below costs more than the one before, in effort or in machines; take it
# MAGIC when the reason in its heading is yours. (After *How (Not) To Scale Deep Learning in 6 Easy Steps*,
# MAGIC Databricks, 2019.)

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
folder = folder_of("folder")
table = table_of_digits(folder)
version = table.version
store = store_of(folder)

feed = lakelens.DeltaFeed(path_of(table), version=version, split="train", seed=0)
classes = len(table.labels())

import time

import keras
import numpy as np
import pandas

costs = []


def model_of(learning_rate=0.003):
    model = keras.Sequential(
        [
            keras.Input((*feed.stored_size, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, 2, "same", activation="relu"),
            keras.layers.Conv2D(32, 3, 2, "same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(classes, "softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
    )
    return model


def noted(step, started, accuracy, note):
    costs.append({"step": step, "seconds": round(time.perf_counter() - started, 1), "accuracy": accuracy, "cost": note})
    print(costs[-1])


# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. One machine, data in memory
# MAGIC *When:* the images fit into memory. *Costs:* nothing. A GPU alone makes this tens of times faster; use a
# MAGIC sample of the table before you use a cluster.

# COMMAND ----------

started = time.perf_counter()
frame = table.read(version).select("image", "label", "split").toPandas()


def arrays(split):
    from PIL import Image

    rows = frame[frame.split == split]
    return np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in rows.image]), rows.label.to_numpy()


training, validation = arrays("train"), arrays("validation")
history = model_of().fit(*training, validation_data=validation, epochs=4, batch_size=32, verbose=0).history
noted("1 in memory", started, history["val_accuracy"][-1], "memory for every image")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Stop early
# MAGIC *When:* always. *Costs:* a validation split. Epochs that no longer help are the cheapest to leave out.

# COMMAND ----------

started = time.perf_counter()
stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
history = (
    model_of().fit(*training, validation_data=validation, epochs=25, batch_size=32, verbose=0, callbacks=[stop]).history
)
noted("2 early stopping", started, max(history["val_accuracy"]), f"stopped after {len(history['loss'])} of 25 epochs")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Larger batches
# MAGIC *When:* the processor is not busy. *Costs:* the learning rate has to follow, and at some size accuracy falls.

# COMMAND ----------

started = time.perf_counter()
history = (
    model_of(0.006)
    .fit(*training, validation_data=validation, epochs=25, batch_size=128, verbose=0, callbacks=[stop])
    .history
)
noted("3 larger batches", started, max(history["val_accuracy"]), "tune the learning rate again")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Read from the table
# MAGIC *When:* the images no longer fit into memory. *Costs:* decoding while training. `DeltaFeed` reads a pinned
# MAGIC version in batches, each row once per epoch, in an order that mixes row groups; nothing is copied.

# COMMAND ----------

started = time.perf_counter()
model = model_of()
model.fit(feed.as_dataset(32, epochs=4), steps_per_epoch=feed.steps_per_epoch(32, 1), epochs=4, verbose=0)
noted("4 from the table", started, model.evaluate(*validation, verbose=0)[1], "decoding while training")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. All GPUs of one machine
# MAGIC *When:* one GPU is too slow and the machine has more. *Costs:* processes to start, gradients to average. From
# MAGIC here on `lakelens.train` does what the steps before did by hand: early stopping, feed, checkpoints, MLflow.

# COMMAND ----------


def trained(strategy):
    return lakelens.train(
        table.location,
        version=version,
        slots_per_trial=2,
        strategy=strategy,
        epochs=4,
        global_batch_size=32,
        tracking_uri=store,
        config={
            "early_stopping": {"patience": 2},
            "tracking": {"experiment": experiment_of("notebook-07")},
            "checkpoint_storage": {"path": str(folder / "checkpoints")},
        },
        spark=spark,
    )


started = time.perf_counter()
noted(
    "5 two processes",
    started,
    trained("horovod_local").metrics["val_accuracy"],
    "starting processes, averaging gradients",
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. The cluster
# MAGIC *When:* one machine is too slow. *Costs:* the network between machines, and all slots at once. Only `strategy`
# MAGIC changes.

# COMMAND ----------

started = time.perf_counter()
noted("6 two executors", started, trained("horovod_cluster").metrics["val_accuracy"], "the network, all slots at once")

# COMMAND ----------

display(pandas.DataFrame(costs))

# COMMAND ----------

from matplotlib import pyplot as plt

plt.figure(figsize=(8, 3))
plt.barh([cost["step"] for cost in costs], [cost["seconds"] for cost in costs])
plt.gca().invert_yaxis()
plt.xlabel("seconds, start included: a few hundred small images are not worth a cluster")
plt.tight_layout()
plt.show()
assert all(cost["accuracy"] > 0.3 for cost in costs), costs
