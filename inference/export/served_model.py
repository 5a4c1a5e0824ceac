"""The code of an exported pyfunc, which MLflow runs without lakelens: it calls the SavedModel that lies next to it."""

from typing import Any

import mlflow
import pandas as pd


class ServedModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # mlflow is not typed for mypy here
    """Predicts for encoded images; the graph of the SavedModel decodes them."""

    def load_context(self, context: Any) -> None:
        """Loads the SavedModel."""
        import tensorflow as tf

        self._loaded = tf.saved_model.load(context.artifacts["savedmodel"])
        self._predict = self._loaded.signatures["serving_default"]

    # Without type hints: MLflow would take them for the signature, which `write_pyfunc` gives.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Takes a DataFrame with the column `image`; gives a row for each image."""
        import tensorflow as tf

        images = [bytes(image) for image in model_input["image"]]
        outputs = {name: value.numpy() for name, value in self._predict(image=tf.constant(images)).items()}
        columns: dict[str, Any] = {"prediction": outputs["prediction"]}
        if "predicted_name" in outputs:
            columns["predicted_name"] = [name.decode() for name in outputs["predicted_name"]]
        columns["probability"] = outputs["probabilities"].max(axis=1)
        columns["probabilities"] = outputs["probabilities"].tolist()
        return pd.DataFrame(columns)


mlflow.models.set_model(ServedModel())
