"""HorovodRunner: a function on many processes, on the driver or as one Spark barrier stage. Start: `runner`.

runner --> local_run (np < 0) ------> processes
       --> spark.barrier_run (np >= 0) --> a task each: spark.barrier_task --> processes
"""
