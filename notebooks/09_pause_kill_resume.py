# Databricks notebook source
# MAGIC %md
# MAGIC # Pause, kill, resume
# MAGIC
# MAGIC One training runs without interruption. A second one is paused, resumed, killed with `kill -9` and resumed
# MAGIC again. Both end with the same numbers: every checkpoint holds weights, optimizer, random state and the position
# MAGIC within the epoch. **Condition:** CPU, `reproducibility: {deterministic: true}`, the same number of ranks.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
import shutil
import signal
import subprocess
import sys
import time

from mlflow import MlflowClient

folder = folder_of("folder")
table = table_of_digits(folder)
store = store_of(folder)
work = folder / "pause-kill-resume"
shutil.rmtree(work, ignore_errors=True)
work.mkdir()

# COMMAND ----------

# MAGIC %md
# MAGIC The experiment is a file, so that any terminal can run it. JSON is YAML, too.

# COMMAND ----------

experiment = {
    "name": "interrupted",
    "data": {"table": path_of(table), "version": table.version},
    "hyperparameters": {"global_batch_size": 16},
    "searcher": {"metric": "val_loss", "max_length": {"epochs": 30}},
    "reproducibility": {"experiment_seed": 1, "deterministic": True},
    "min_checkpoint_period": {"batches": 10},
    "checkpoint_storage": {"path": str(work / "checkpoints")},
    "tracking": {"experiment": experiment_of(f"pause-kill-resume-{time.time():.0f}")},
}
if store:
    experiment["tracking"]["uri"] = store
(work / "experiment.yaml").write_text(json.dumps(experiment, indent=1))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Without interruption

# COMMAND ----------

reference = lakelens.train(work / "experiment.yaml", config={"name": "reference"})
print(reference.run_id, reference.metrics)

# COMMAND ----------

client = MlflowClient(tracking_uri=store)
place = client.get_experiment_by_name(experiment["tracking"]["experiment"]).experiment_id


def started(*words):
    """Starts a command as a terminal does, in a separate process."""
    command = [str(Path(sys.executable).with_name("lakelens")), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def losses(run_id):
    return [point.value for point in client.get_metric_history(run_id, "val_loss")]


def wait_for(epochs, process):
    """Waits until the interrupted run has recorded a number of epochs; gives its id."""
    while process.poll() is None:
        for run in client.search_runs([place], "attributes.run_name = 'interrupted'"):
            if len(losses(run.info.run_id)) >= epochs:
                return run.info.run_id
        time.sleep(0.1)
    raise RuntimeError(process.stderr.read())


# COMMAND ----------

# MAGIC %md
# MAGIC ## Pause
# MAGIC The first Ctrl-C pauses: the training writes a checkpoint and ends with exit code 130. From another terminal or
# MAGIC machine, `lakelens runs pause RUN` does the same.

# COMMAND ----------

process = started("train", work / "experiment.yaml")
run_id = wait_for(2, process)
process.send_signal(signal.SIGINT)
print(process.communicate()[1].splitlines()[-1])
paused_after = len(losses(run_id))
print(f"exit code {process.returncode}, {paused_after} epochs")
assert process.returncode == 130

# COMMAND ----------

# MAGIC %md
# MAGIC ## Kill
# MAGIC The resumed training dies without a chance to write anything, as after a power failure.

# COMMAND ----------

process = started("train", "--resume", run_id, *(["--tracking-uri", store] if store else []))
wait_for(paused_after + 2, process)
process.kill()
process.communicate()
killed_after = len(losses(run_id))
print(f"exit code {process.returncode}, {killed_after} epochs recorded")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Resume
# MAGIC From the last complete checkpoint, to the end.

# COMMAND ----------

process = started("train", "--resume", run_id, *(["--tracking-uri", store] if store else []))
errors = process.communicate()[1]
assert process.returncode == 0, errors

# COMMAND ----------

from matplotlib import pyplot as plt

expected, found = losses(reference.run_id), losses(run_id)
epochs = range(1, len(expected) + 1)
plt.plot(epochs, expected, linewidth=7, color="#c5cae9", label="without interruption")
plt.plot(epochs, found, color="#3f51b5", marker="o", label="paused and killed")
for after, name in ((paused_after, "paused"), (killed_after, "killed")):
    plt.axvline(after, color="#c62828", linestyle=":")
    plt.text(after, max(expected), f" {name}", color="#c62828", va="top")
plt.xlabel("epoch")
plt.ylabel("validation loss")
plt.legend()
plt.show()
print("bit-for-bit identical:", found == expected)
assert found == expected
