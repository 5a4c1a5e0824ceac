# Databricks notebook source
# MAGIC %md
# MAGIC # Images to a versioned Delta table
# MAGIC
# MAGIC A folder with one subfolder per class becomes a Delta table: **one ingest is one commit is one version**. Only
# MAGIC new files are read, a broken file is set aside with its reason, and every old version stays readable. That is
# MAGIC what makes a training repeatable: it names the table *and the version*.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
import shutil

folder = folder_of("folder") / "images-to-delta"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir()
images, arrivals = digit_folders(folder)
for place in sorted(images.iterdir()):
    print(f"{place.name:<12} {len(list(place.iterdir())):>4} files")

# COMMAND ----------

# MAGIC %md
# MAGIC One class, `eight`, has four images, while the others have some sixty. Such a gap is hard to see in a
# MAGIC folder. The first ingest writes version 0.

# COMMAND ----------

table = new_table(folder)
first = table.ingest(str(images), size=32, splits={"train": 0.7, "validation": 0.1, "test": 0.2})
print(first)
assert first.rows_in == first.stored + first.quarantined + first.skipped

# COMMAND ----------

# MAGIC %md
# MAGIC Every file is accounted for: it is stored, in quarantine, or was known before. Each file in quarantine has a
# MAGIC reason.

# COMMAND ----------

for file in table.quarantine().files:
    print(f"{Path(file.path).name:<22} {file.reason:<14} {file.error}")

# COMMAND ----------

# MAGIC %md
# MAGIC A row holds the image's bytes at the requested size, its class, its split and its source.
# MAGIC The split of a row depends on its content only: later versions never move it.

# COMMAND ----------

display(
    table.read().select("path", "format", "height", "width", "label", "label_name", "split", "content_hash").limit(5)
)

# COMMAND ----------

show_images(table.read().orderBy("content_hash").limit(30), title="Thirty images of version 0")

# COMMAND ----------

# MAGIC %md
# MAGIC The profile of a version shows what to look at first. It reads the version alone, without Spark.

# COMMAND ----------

table.profile(first.version, folder / "profile-0", near_duplicates=False)
show_picture(folder / "profile-0" / "class_distribution.png", width=800)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A second batch
# MAGIC The missing images of `eight` arrive in the same folder. The ingest reads only the new files.

# COMMAND ----------

for file in sorted(arrivals.rglob("*.jpg")):
    target = images / file.relative_to(arrivals)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
second = table.ingest(str(images))
print(second)

# COMMAND ----------

difference = table.diff(first.version, second.version)
print(f"version {difference.first} -> version {difference.second}")
print("added:  ", difference.added)
print("removed:", difference.removed)
print("changed:", difference.changed)
assert list(difference.added) == ["eight"]

# COMMAND ----------

from matplotlib import pyplot as plt

before, after = table.class_counts(first.version), table.class_counts(second.version)
places = range(len(after))
plt.figure(figsize=(8, 3))
plt.bar([place - 0.2 for place in places], [before.get(name, 0) for name in after], 0.4, label="version 0")
plt.bar([place + 0.2 for place in places], after.values(), 0.4, label="version 1")
plt.xticks(places, after)
plt.ylabel("images")
plt.legend(loc="lower left")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Pins keep versions
# MAGIC A pin gives a version a name, and protects its files from `table.vacuum`.
# MAGIC The `VACUUM` of Spark and Databricks ignores pins.

# COMMAND ----------

table.pin("before-eight", first.version, replace=True)
print("pins:", table.pins())
for entry in table.history():
    print(f"version {entry.version}: {entry.rows} rows")
rows = table.read(first.version).count()
assert rows == first.stored
print(f"version {first.version} still has its {rows} rows")
