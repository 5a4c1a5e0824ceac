"""Models for other servers: a recorded model as a SavedModel, pyfunc or ONNX file. Start: `export_model`."""
