# Databricks notebook source
# MAGIC %md
# MAGIC # The missing class
# MAGIC
# MAGIC A model in production keeps getting one class wrong. The code is fine, the training was fine. The table's
# MAGIC first version held four images of that class. This notebook goes from a wrong prediction back to that cause,
# MAGIC and shows that the same experiment on the next version fixes it.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
import shutil

folder = folder_of("folder") / "missing-class"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
store = store_of(folder)
images, arrivals = digit_folders(folder)
table = new_table(folder)
version_0 = table.ingest(str(images), size=32, splits={"train": 0.6, "validation": 0.1, "test": 0.3}).version
for file in sorted(arrivals.rglob("*.jpg")):
    shutil.copyfile(file, images / file.relative_to(arrivals))
version_1 = table.ingest(str(images)).version
print(f"versions {version_0} and {version_1}; added since: {table.diff(version_0, version_1).added}")

# COMMAND ----------

# MAGIC %md
# MAGIC The same experiment, twice; the version of the data is the only difference.

# COMMAND ----------


def trained_on(version):
    return lakelens.train(
        table.location,
        version=version,
        epochs=8,
        global_batch_size=32,
        tracking_uri=store,
        config={
            "name": f"version {version}",
            "tracking": {"experiment": experiment_of("missing-class")},
            "checkpoint_storage": {"path": str(folder / "checkpoints")},
        },
    )


old = trained_on(version_0)
new = trained_on(version_1)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A wrong prediction
# MAGIC The old model scores the images of today.

# COMMAND ----------

predictions = str(folder / "tables" / "predictions")
lakelens.score(spark, f"runs:/{old.run_id}", table.location, predictions, version_1, split="test", tracking_uri=store)
wrong = (
    spark.read.format("delta")
    .load(predictions)
    .where("prediction != label and label_name = 'eight'")
    .orderBy("probability", ascending=False)
)
case = wrong.first()
print(f"{case.path}: it is {case.label_name!r}, and the model says {case.predicted_name!r} ({case.probability:.2f})")

# COMMAND ----------

from pyspark.sql import functions

joined = table.read(version_1).join(wrong.select("path", "predicted_name"), "path").limit(20)
show_images(
    joined.withColumn("caption", functions.concat(functions.lit("said "), "predicted_name")),
    title="Images of 'eight' in production",
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Back to the cause
# MAGIC `trace` goes from that one prediction to the model, its run, and the version of the table that it was trained
# MAGIC on.

# COMMAND ----------

trace = lakelens.trace(predictions, case.path, tracking_uri=store)[0]
print("run:       ", trace.run.summary.run_id, trace.run.summary.name)
print("trained on:", trace.trained_on)
print("entry:     ", trace.code.get("entrypoint"))
counts = table.class_counts(int(trace.trained_on.rpartition("@")[2]))
print("its classes:", counts)
assert counts["eight"] == 4

# COMMAND ----------

# MAGIC %md
# MAGIC Only four images. The next version has all of them. Does it fix the model?

# COMMAND ----------

report = lakelens.evaluate(
    spark,
    f"runs:/{new.run_id}",
    table.location,
    version_1,
    compare=f"runs:/{old.run_id}",
    predictions=predictions,
    out=folder / "evaluation",
    tracking_uri=store,
)
show_picture(folder / "evaluation" / "comparison.png")

# COMMAND ----------

comparison = report.comparison
print(f"the class that gained most from the new data: {comparison.most_improved_class}")
print(f"{comparison.fixed} answers fixed, {comparison.broken} broken, p = {comparison.p_value:.1e} (McNemar)")
assert comparison.most_improved_class == "eight"
