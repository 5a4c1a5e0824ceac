# Databricks notebook source
# MAGIC %md
# MAGIC # Score a table, and find out how good the model is
# MAGIC
# MAGIC A tracked model becomes a Spark UDF, a SQL function, and a scoring job that does each row once. Its answers
# MAGIC are then compared with the labels, on one version of the table.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
folder = folder_of("folder")
table = table_of_digits(folder)
version = table.version
store = store_of(folder)
run = lakelens.train(
    table.location,
    version=version,
    epochs=5,
    global_batch_size=32,
    tracking_uri=store,
    config={
        "tracking": {"experiment": experiment_of("notebook-05")},
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
    },
)
model = f"runs:/{run.run_id}"  # or models:/digits@champion, experiment:notebook-05, the path of a checkpoint
print(model, run.metrics)

# COMMAND ----------

# MAGIC %md
# MAGIC ## As a function of Spark and SQL

# COMMAND ----------

udf = lakelens.predict_udf(spark, model, tracking_uri=store)
spark.udf.register("predict", udf)
table.read(version).where("split = 'test'").createOrReplaceTempView("digits")
display(
    spark.sql(
        """
        select label_name, answer.predicted_name, round(avg(answer.probability), 3) as probability, count(*) as images
        from (select label_name, predict(image) as answer from digits)
        group by 1, 2 order by images desc limit 12
        """
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## As a job
# MAGIC `score` writes a predictions table in which each row names its model, checkpoint and table version.
# MAGIC A second call has nothing to do.

# COMMAND ----------

predictions = str(folder / "tables" / "predictions")
first = lakelens.score(spark, model, table.location, predictions, version, tracking_uri=store)
again = lakelens.score(spark, model, table.location, predictions, version, tracking_uri=store)
print(f"first: {first.scored} scored, {first.errors} errors; again: {again.scored} scored, {again.skipped} skipped")
assert again.scored == 0
display(spark.read.format("delta").load(predictions).drop("probabilities", "content_hash").limit(5))

# COMMAND ----------

# MAGIC %md
# MAGIC ## How good is it?
# MAGIC `evaluate` writes one page: metrics by class, the confusion matrix, calibration, and the mistakes that the
# MAGIC model was surest of. The same page is in the model's MLflow run.

# COMMAND ----------

report = lakelens.evaluate(
    spark,
    model,
    f"{table.location}@{version}",
    predictions=predictions,
    slices=["split"],
    split=None,
    out=folder / "evaluation",
    tracking_uri=store,
)
print({name: round(value, 3) for name, value in report.evaluation.scores.items()})
show_picture(folder / "evaluation" / "confusion_matrix.png", width=560)

# COMMAND ----------

show_picture(folder / "evaluation" / "calibration.png", width=480)

# COMMAND ----------

if (folder / "evaluation" / "worst_mistakes.png").exists():
    show_picture(folder / "evaluation" / "worst_mistakes.png", width=900)

# COMMAND ----------

displayHTML(Path(report.page).read_text())
