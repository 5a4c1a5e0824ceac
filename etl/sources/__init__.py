"""Sources of an ingest: each becomes one `Listing`, a DataFrame with one row per file.

    class folders, VOC, COCO, manifest, DataFrame --> Listing(path, label_name, size, time, annotation, problem)

Start: `source.Listing`; `ingest.prepare.list_source` chooses the function that lists a source.
"""
