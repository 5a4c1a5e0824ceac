"""One ingest: list, plan, read images in Spark tasks, commit, report. Start: `run.ingest`, `run.preview`, `landing`.

options --> prepare --> task_sizes, row_task (in Spark tasks) --> commit --> results
"""
