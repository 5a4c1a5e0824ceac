"""Models for other servers: a recorded model as a TensorFlow SavedModel or an MLflow pyfunc. Start: `export_model`."""
