"""Rules of served exports: MLflow's server and its Spark UDF predict what `score` does, without lakelens."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from colours import NAMES, colour_model, save
from test_export import IMAGES, scored

from lakelens.inference.export.export import export_model

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

WITHOUT_LAKELENS = "import sys\nsys.modules['lakelens'] = None\n"
IN_SPARK = """
import base64, json, sys
import mlflow
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
result = "predicted_name string, probabilities array<float>"
predict = mlflow.pyfunc.spark_udf(spark, sys.argv[1], result_type=result, env_manager="local")
images = [(bytearray(base64.b64decode(text)),) for text in json.load(open(sys.argv[2]))]
found = spark.createDataFrame(images, "image binary").coalesce(1).select(predict("image").alias("p")).select("p.*")
print(json.dumps(found.toPandas().to_dict(orient="records"), default=list))
spark.stop()
"""


def answer_of(server, port, body):
    """Asks the server as soon as it listens."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"})
    while server.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310  the address is above
                return json.load(response)["predictions"]
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode())
        except (ConnectionError, urllib.error.URLError):
            time.sleep(0.2)
    pytest.fail("the server has ended")


def test_a_pyfunc_predicts_in_mlflows_server_and_in_its_spark_udf(tmp_path):
    checkpoint = save(colour_model(), tmp_path / "checkpoints")
    exported = export_model(checkpoint.path, tmp_path / "model", format="pyfunc").path
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LAKELENS)
    texts = [base64.b64encode(image).decode() for image in IMAGES]
    (tmp_path / "images.json").write_text(json.dumps(texts))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        exported,
        "-p",
        str(port),
        "--env-manager",
        "local",
    ]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=tmp_path, start_new_session=True
        )
    try:
        spark = subprocess.run(
            [sys.executable, "-c", IN_SPARK, exported, str(tmp_path / "images.json")],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=tmp_path,
        )
        body = {"dataframe_split": {"columns": ["image"], "data": [[text] for text in texts]}}
        served = answer_of(server, port, json.dumps(body).encode())
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    assert spark.returncode == 0, spark.stderr[-2000:]
    expected = scored(checkpoint)
    for found in (served, json.loads(spark.stdout.splitlines()[-1])):
        assert [one["predicted_name"] for one in found] == [*NAMES, *NAMES]
        assert np.abs(np.array([one["probabilities"] for one in found]) - expected).max() <= 1e-3
