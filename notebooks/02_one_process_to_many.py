# Databricks notebook source
# MAGIC %md
# MAGIC # One process, several processes, several machines
# MAGIC
# MAGIC The same Trial is trained three times: in one process, on two processes of the driver, and on two executors of
# MAGIC the cluster. **Only `slots_per_trial` and `strategy` change.** The global batch size stays: the number of
# MAGIC ranks changes the time and not the training. Where Spark has GPUs, each rank gets one (not run yet).

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
folder = folder_of("folder")
table = table_of_digits(folder)
version = table.version
store = store_of(folder)
print(f"{table.location}, version {version}: {sum(table.class_counts(version).values())} images")

# COMMAND ----------

# MAGIC %md
# MAGIC A Trial defines the model: a compiled Keras model. It contains no distributed code and no path.

# COMMAND ----------


class Digits(lakelens.KerasTrial):
    def build_model(self):
        import keras

        model = keras.Sequential(
            [
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(16, 3, 2, "same", activation="relu"),
                keras.layers.Conv2D(32, 3, 2, "same", activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(self.context.num_classes, "softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(self.context.get_hparam("learning_rate", 0.003)),
            "sparse_categorical_crossentropy",
            weighted_metrics=["accuracy"],
        )
        return model


# COMMAND ----------


def trained(name, ranks, strategy):
    return lakelens.train(
        table.location,
        version=version,
        entrypoint=Digits,
        slots_per_trial=ranks,
        strategy=strategy,
        epochs=4,
        global_batch_size=32,
        tracking_uri=store,
        config={
            "name": name,
            "tracking": {"experiment": experiment_of("notebook-02")},
            "checkpoint_storage": {"path": str(folder / "checkpoints")},
        },
        spark=spark,
    )


runs = [
    (name, trained(name, ranks, strategy))
    for name, ranks, strategy in [
        ("one process", 1, "single"),
        ("two on the driver", 2, "horovod_local"),
        ("two executors", 2, "horovod_cluster"),
    ]
]

# COMMAND ----------

# MAGIC %md
# MAGIC The three curves are equal but for rounding: each row comes exactly once per epoch, in one order, whatever the
# MAGIC number of ranks.

# COMMAND ----------

learning_curves(store, *runs)

# COMMAND ----------

import pandas

display(
    pandas.DataFrame(
        [
            {"run": name, "ranks": run.ranks, "seconds": run.seconds, "table version": run.version, **run.metrics}
            for name, run in runs
        ]
    )
)
losses = [run.metrics["val_loss"] for _, run in runs]
assert max(losses) - min(losses) < 0.15, losses

# COMMAND ----------

# MAGIC %md
# MAGIC MLflow has one run per training, however many ranks it had: the table's version as its dataset, parameters,
# MAGIC metrics by epoch, code, environment and a model.

# COMMAND ----------

from mlflow import MlflowClient

run = MlflowClient(tracking_uri=store).get_run(runs[-1][1].run_id)
print("dataset:", run.inputs.dataset_inputs[0].dataset.name)
print("parameters:", dict(sorted(run.data.params.items())))
for name, value in sorted(run.data.tags.items()):
    if name.startswith("lakelens.") and len(value) < 90:
        print(f"{name}: {value}")
