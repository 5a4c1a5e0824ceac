# Databricks notebook source
# MAGIC %md
# MAGIC # Search for hyperparameters
# MAGIC
# MAGIC Which learning rate, how many filters? Adaptive ASHA starts many short trials and continues the good ones.
# MAGIC A preview shows the cost before anything runs.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
folder = folder_of("folder")
table = table_of_digits(folder)
version = table.version
store = store_of(folder)

# COMMAND ----------

# MAGIC %md
# MAGIC ## An experiment of Determined
# MAGIC Most keys stay. Those that have no meaning without Determined's server are refused, all at once, each with what
# MAGIC to use instead.

# COMMAND ----------

before = {
    "name": "digits",
    "entrypoint": "lakelens.training.trials.small_cnn:SmallCnn",
    "data": {"bucket": "digits"},
    "environment": {"image": "determinedai/environments:cuda"},
    "hyperparameters": {
        "global_batch_size": 32,
        "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    },
    "searcher": {"name": "adaptive_asha", "metric": "val_accuracy", "max_trials": 6, "max_length": {"epochs": 8}},
    "resources": {"slots_per_trial": 1, "resource_pool": "gpu"},
}
try:
    lakelens.train(before)
except lakelens.LakelensError as error:
    print(error)
else:
    raise AssertionError("keys of Determined were not refused")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same for lakelens
# MAGIC As a dict; a file has the same keys.

# COMMAND ----------

experiment = {
    "name": "notebook-04",
    "entrypoint": "lakelens.training.trials.small_cnn:SmallCnn",
    "data": {"table": table.location, "version": version},
    "hyperparameters": {
        "global_batch_size": 32,
        "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1.5},
        "filters": {"type": "categorical", "vals": [4, 8, 16]},
    },
    "searcher": {
        "name": "adaptive_asha",
        "metric": "val_accuracy",
        "smaller_is_better": False,
        "max_trials": 6,
        "max_length": {"epochs": 8},
        "max_rungs": 2,
    },
    "resources": {"slots_per_trial": 1, "strategy": "horovod_cluster"},
    "checkpoint_storage": {"path": str(folder / "checkpoints")},
    "tracking": {"uri": store, "experiment": experiment_of("notebook-04")},
    "min_validation_period": {"epochs": 1},
}

# COMMAND ----------

# MAGIC %md
# MAGIC ## What it will cost
# MAGIC Trials by how long they train, before the first one starts.

# COMMAND ----------

planned = lakelens.search.preview(experiment["searcher"])
for epochs, trials in planned.items():
    print(f"{trials} trials train for {epochs} epochs")
print(f"{sum(epochs * trials for epochs, trials in planned.items())} epochs in all, {6 * 8} without stopping early")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The search
# MAGIC Each trial takes one executor. A trial that is not among the best quarter at a rung pauses, and gives its slot
# MAGIC to another. A killed search resumes with the same trials: `lakelens.search.resume`.

# COMMAND ----------

result = lakelens.search(experiment, spark=spark)
print(result.best())
print(result.states)

# COMMAND ----------

trials = result.trials()
display(trials[["trial", "state", "length", "best", "hyperparameters.learning_rate", "hyperparameters.filters"]])

# COMMAND ----------

from matplotlib import pyplot as plt

figure, axis = plt.subplots(figsize=(7, 3.5))
points = axis.scatter(
    trials["hyperparameters.learning_rate"],
    trials["best"],
    s=30 * trials["length"].fillna(1),
    c=trials["hyperparameters.filters"],
    cmap="viridis",
)
axis.set_xscale("log")
axis.set_xlabel("learning rate")
axis.set_ylabel("best validation accuracy")
figure.colorbar(points, label="filters")
axis.set_title("trials; the larger the point, the longer it trained")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC The report has the learning curves of all trials, which hyperparameters mattered, what the slots did, and the
# MAGIC best trial's experiment. The search's run holds it too; `lakelens search report RUN` writes it again.

# COMMAND ----------

displayHTML((folder / "checkpoints" / result.run_id / "report" / "report.html").read_text())

# COMMAND ----------

# MAGIC %md
# MAGIC The search's own run holds the best trial's model: it scores like any other.

# COMMAND ----------

scored = lakelens.score(
    spark,
    f"search:{result.run_id}",
    table.location,
    folder / "tables" / "search-predictions",
    version,
    split="test",
    tracking_uri=store,
)
print(f"{scored.scored} rows scored with the model of trial {result.best_trial}")
assert scored.scored > 0
