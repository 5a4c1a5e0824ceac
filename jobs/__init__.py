"""Entry points: the lakelens command and the spark-submit jobs."""
