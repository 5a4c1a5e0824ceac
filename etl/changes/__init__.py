"""What an ingest has to do: each file is new, changed, known, gone or in quarantine. Door: `ingest_plan`."""
