# Databricks notebook source
# MAGIC %md
# MAGIC # HorovodRunner and Petastorm: before and after
# MAGIC
# MAGIC A notebook for Databricks' HorovodRunner (up to 15.4 LTS ML) and Petastorm's converter. These lines change:
# MAGIC
# MAGIC | before | after |
# MAGIC |---|---|
# MAGIC | `from sparkdl import HorovodRunner` | `from lakelens import HorovodRunner` |
# MAGIC | `import horovod.tensorflow.keras as hvd` | `import lakelens.hvd as hvd` |
# MAGIC | `make_spark_converter(df)`, a copy of the data | `lakelens.make_delta_converter(path, version=...)`, no copy |
# MAGIC
# MAGIC The rest of the training function stays.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
folder = folder_of("folder")
table = table_of_digits(folder)
location, version, classes = path_of(table), table.version, len(table.labels())

# COMMAND ----------

# MAGIC %md
# MAGIC The function runs on each rank. It reads its part of the table's version without Spark and without a copy of
# MAGIC the data. `64` is the global batch of all ranks, so the learning rate is not multiplied by `hvd.size()`; with
# MAGIC the converter, whose batch size is per process, it would be.

# COMMAND ----------


def train(epochs, learning_rate=0.003):
    import keras

    import lakelens
    import lakelens.hvd as hvd

    hvd.init()
    feed = lakelens.DeltaFeed(location, version=version, split="train", seed=0)
    model = keras.Sequential(
        [
            keras.Input((*feed.stored_size, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, 2, "same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(classes, "softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    history = model.fit(
        feed.as_dataset(64, rank=hvd.rank(), size=hvd.size(), epochs=epochs),
        steps_per_epoch=feed.steps_per_epoch(64, hvd.size()),
        epochs=epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        verbose=0,
    )
    return {"ranks": hvd.size(), "accuracy": [float(value) for value in history.history["accuracy"]]}


# COMMAND ----------

# MAGIC %md
# MAGIC `np=-2` is two processes on the driver, whose output is shown here; `np=2` is two tasks of one Spark job. `run`
# MAGIC returns the value of rank 0.

# COMMAND ----------

local = lakelens.HorovodRunner(np=-2).run(train, epochs=3)
cluster = lakelens.HorovodRunner(np=2).run(train, epochs=3)
print(local)
print(cluster)
assert local["ranks"] == cluster["ranks"] == 2

# COMMAND ----------

from matplotlib import pyplot as plt

for name, result in (("two processes on the driver", local), ("two executors", cluster)):
    plt.plot(range(1, 4), result["accuracy"], marker="o", label=name)
plt.xlabel("epoch")
plt.ylabel("accuracy, averaged over ranks")
plt.xticks(range(1, 4))
plt.legend()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Petastorm's converter
# MAGIC Before: `converter = make_spark_converter(spark.read.format("delta").load(location))`. The `with` block stays.
# MAGIC `batch_size` is that of each process, as in Petastorm.

# COMMAND ----------

converter = lakelens.make_delta_converter(location, version=version, columns=["image", "label"], split="train")
with converter.make_tf_dataset(batch_size=64, num_epochs=1) as dataset:
    sizes = [len(batch.label) for batch in dataset]
print(f"{len(converter)} rows in {len(sizes)} batches, each row once: {sum(sizes) == len(converter)}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## More ranks than slots
# MAGIC Asking for more slots than the cluster has is an error at once, as in Databricks' HorovodRunner. Two things are
# MAGIC different: the job waits for slots of other jobs for one minute only, and the error about a rank that dies or
# MAGIC freezes has its number, its host and its last lines.

# COMMAND ----------

try:
    lakelens.HorovodRunner(np=64).run(train, epochs=1)
except lakelens.LakelensError as error:
    print(type(error).__name__, error)
else:
    raise AssertionError("64 ranks were not refused")
