"""The Spark session of lakelens: Java, Delta's JARs, lakelens itself on the executors. Start: `session`."""
