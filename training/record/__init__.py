"""What a training leaves in its run: code, environment, pictures, and a model that MLflow loads by itself.

Start: `code_record.record_code`, `mlflow_model.mlflow_model_of`, `run_plots`.
"""
