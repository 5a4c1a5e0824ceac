"""HorovodRunner: a function on many processes, on the driver or as one Spark barrier stage. Start: `runner`.

runner --> supervisor --> local_ranks (np < 0) --------> processes
                      --> spark.stage_ranks (np >= 0) --> a task each: spark.barrier_task --> processes
                      --> spark.connect_ranks (np >= 0, Spark Connect) --> the same tasks, led by spark.leader
"""
