"""Distributed training that pins one version of a Delta table.

The packages, each of which imports only from those to its right:

    experiment > record > segments > configuration > trials > tasks
               > checkpoints, runner, feed > process_group > distributed > rank, keras_internals
"""
