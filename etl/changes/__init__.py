"""What an ingest has to do: each file is new, changed, known, gone or in quarantine. Start at `planner.make_plan`."""
