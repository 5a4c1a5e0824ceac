"""The record of a training in its run: code, environment, evaluation, and a model that MLflow can load.

Start: `code_record.record_code`, `mlflow_model.mlflow_model_of`, `run_files`.
"""
