"""One ingest: list, plan, read images in Spark tasks, commit, report. Start: `run.ingest`, `run.preview`, `landing`.

prepare --> decoding, row_task (in Spark tasks) --> commit --> results
"""
