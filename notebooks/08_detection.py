# Databricks notebook source
# MAGIC %md
# MAGIC # Detection: boxes, versions, and the way back from a wrong box
# MAGIC
# MAGIC Scanned digits lie on photographs; a detector finds them. The first version of the table has almost no `seven`,
# MAGIC so the detector takes sevens for other digits. New scenes arrive, the same experiment trains on the next
# MAGIC version, and average precision by class shows what the data changed.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

# MAGIC %run ./scenes

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
dbutils.widgets.text("scenes", "360", "Scenes of the first version")
dbutils.widgets.text("epochs", "7", "Epochs of each training")
import io
import shutil

from PIL import Image, ImageDraw

folder = folder_of("folder") / "detection"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
store = store_of(folder)
scenes, epochs = (int(dbutils.widgets.get(name)) for name in ("scenes", "epochs"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Version 0: Pascal VOC
# MAGIC The scenes are written as Pascal VOC has them: `JPEGImages`, an XML file for each image, and a list for each
# MAGIC split. Any VOC folder is ingested like this.

# COMMAND ----------

write_voc(folder / "voc", "train", scenes_of(scenes, seed=1, sevens=0.005))
write_voc(folder / "voc", "val", scenes_of(40, seed=2, held_out=True))
write_voc(folder / "voc", "test", scenes_of(80, seed=3, held_out=True))
table = new_table(folder)
version_0 = table.ingest(str(folder / "voc"), layout="voc", size=SIDE).version


def objects_of(version):
    """The number of objects of each class to train on."""
    rows = table.read(version).where("split = 'train'").selectExpr("explode(annotations.label_name) as class")
    return rows.groupBy("class").count().orderBy("class")


display(objects_of(version_0))

# COMMAND ----------

show_boxes(table.read(version_0).where("split = 'test'").orderBy("path").limit(8), title="Scenes and their boxes")

# COMMAND ----------


def trained_on(version):
    return lakelens.train(
        table.location,
        version=version,
        epochs=epochs,
        global_batch_size=8,
        tracking_uri=store,
        config={
            "name": f"version {version}",
            "task": "detection",
            "entrypoint": "lakelens.training.trials.detector:Detector",
            # A mirrored digit is another sign; half of the default width is enough for three classes.
            "hyperparameters": {"learning_rate": 2e-3, "flip": False, "width": 32},
            "searcher": {"metric": "val_map50"},
            "tracking": {"experiment": experiment_of("detection")},
            "checkpoint_storage": {"path": str(folder / "checkpoints")},
        },
    )


old = trained_on(version_0)
print({name: round(value, 3) for name, value in old.metrics.items()})

# COMMAND ----------

# MAGIC %md
# MAGIC ## A wrong box
# MAGIC The model scores the held-out scenes. Each row of the predictions has the boxes of one image. Boxes are a
# MAGIC column, so SQL finds those that lie on a `seven` and say something else.

# COMMAND ----------

predictions = str(folder / "tables" / "predictions")
lakelens.score(spark, f"runs:/{old.run_id}", table.location, predictions, version_0, split="test", tracking_uri=store)
scored = spark.read.format("delta").load(predictions)
pairs = (
    scored.selectExpr("path", "explode(detections) as found")
    .join(table.read(version_0).selectExpr("path", "explode(annotations) as truth"), "path")
    .where("truth.label_name = 'seven' and found.label_name != 'seven'")
    .selectExpr(
        "*",
        "greatest(least(found.xmax, truth.xmax) - greatest(found.xmin, truth.xmin), 0)"
        " * greatest(least(found.ymax, truth.ymax) - greatest(found.ymin, truth.ymin), 0) as shared",
        "(truth.xmax - truth.xmin) * (truth.ymax - truth.ymin) as area",
    )
)
wrong = pairs.where("shared >= 0.5 * area").orderBy("found.score", ascending=False)
display(wrong.selectExpr("truth.label_name as object", "found.label_name as said", "found.score", "path").limit(5))
case = wrong.first()

# COMMAND ----------

# MAGIC %md
# MAGIC `trace` goes from that prediction to its source image, to the run of its model, and to the version that it
# MAGIC was trained on.

# COMMAND ----------

trace = lakelens.trace(predictions, case.path, tracking_uri=store)[0]
print("source image:", trace.source["path"])
print("run:         ", trace.run.summary.run_id, trace.run.summary.name)
print("trained on:  ", trace.trained_on)
source = spark.read.format("binaryFile").load(trace.source["path"]).first().content
image = Image.open(io.BytesIO(source))
for box, colour in ((case.truth, "green"), (case.found, "orange")):
    ImageDraw.Draw(image).rectangle((box.xmin, box.ymin, box.xmax, box.ymax), outline=colour, width=2)
display(image.resize((320, 320)))
counts = dict(objects_of(int(trace.trained_on.rpartition("@")[2])).collect())
print("its objects: ", counts)
assert counts.get("seven", 0) < counts["two"] / 10

# COMMAND ----------

# MAGIC %md
# MAGIC ## Version 1: COCO
# MAGIC New scenes arrive from another team, annotated as COCO JSON. They become the next version of the same table.

# COMMAND ----------

write_coco(folder / "coco", "train", scenes_of(scenes * 2 // 3, seed=4, sevens=4.0))
version_1 = table.ingest(str(folder / "coco"), layout="coco").version
print("added:", table.diff(version_0, version_1).added)
display(objects_of(version_1))
new = trained_on(version_1)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the version changed

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

displayHTML((folder / "evaluation" / "evaluation.html").read_text(encoding="utf-8"))

# COMMAND ----------

change = next(one for one in report.comparison.classes if one.name == "seven")
print(f"average precision of 'seven': {change.ap50_before:.2f} before, {change.ap50_after:.2f} after")
assert change.ap50_after > change.ap50_before + 0.2
assert report.comparison.most_improved_class == "seven"

# COMMAND ----------

# MAGIC %md
# MAGIC The boxes are a column, so questions about them are SQL.

# COMMAND ----------

scored.createOrReplaceTempView("predictions")
display(
    spark.sql(
        """
        select model_uri, box.label_name, count(*) as objects, round(avg(box.score), 2) as score
        from predictions lateral view explode(detections) as box
        where box.score >= 0.5 and version = (select max(version) from predictions)
        group by all order by model_uri, label_name
        """
    )
)
