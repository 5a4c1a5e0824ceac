# Databricks notebook source
# MAGIC %md
# MAGIC Runs one lakelens command as a task of a job. `arguments` has one argument of the command per line. What the
# MAGIC command returns is there for the tasks that follow, as `{{tasks.<task>.values.<name>}}`; a command that fails
# MAGIC fails the task.

# COMMAND ----------

dbutils.widgets.text("arguments", "doctor")

# COMMAND ----------

from lakelens.jobs.cli import main

code = main(dbutils.widgets.get("arguments").splitlines())
if code:
    raise RuntimeError(f"the command ended with exit code {code}; its words are above")
