"""Small helpers around Spark: tables by path or name, rows made on the driver, conflicts between writers."""
