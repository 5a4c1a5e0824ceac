"""Real learning curves: small networks on scikit-learn's scanned digits, one for each configuration of a fixed list.

Each configuration is trained once, for all epochs of a whole trial; a search then reads the curves instead of training
again. What a searcher draws is the number of a configuration. The loss is that on held-out images, with its real noise.
"""

from __future__ import annotations

import math
import multiprocessing
import warnings
from typing import Any

from lakelens.search import create_searcher

SPACE = {
    "learning_rate": {"type": "log", "base": 10, "minval": -5, "maxval": -0.5},
    "units": {"type": "log", "base": 2, "minval": 2, "maxval": 7},
    "alpha": {"type": "log", "base": 10, "minval": -6, "maxval": 0},
    "batch_size": {"type": "categorical", "vals": [16, 32, 64, 128]},
    "solver": {"type": "categorical", "vals": ["adam", "sgd"]},
}
_TRAINED_ON = 400  # of 1,797 images: more would only cost time, and leave less to tell networks apart
_WORST = 10.0


def train_all(configurations: int, epochs: int) -> list[list[float]]:
    """Trains every configuration; returns the held-out losses by configuration and epoch."""
    config = {"name": "random", "metric": "loss", "max_length": {"epochs": epochs}, "max_trials": configurations}
    searcher = create_searcher(config, SPACE, seed=-1)
    work = [(searcher.hyperparameters(number), epochs) for number in range(configurations)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        return pool.starmap(train, work, chunksize=4)


def train(hyperparameters: dict[str, Any], epochs: int) -> list[float]:
    """Trains one network; returns its held-out loss after each epoch."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order] / 16.0, labels[order]
    network = MLPClassifier(
        (round(hyperparameters["units"]),),
        solver=hyperparameters["solver"],
        alpha=hyperparameters["alpha"],
        batch_size=hyperparameters["batch_size"],
        learning_rate_init=hyperparameters["learning_rate"],
        random_state=0,
    )
    losses = []
    with threadpool_limits(1), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(epochs):
            try:
                network.partial_fit(images[:_TRAINED_ON], labels[:_TRAINED_ON], classes=range(10))
                loss = log_loss(labels[_TRAINED_ON:], network.predict_proba(images[_TRAINED_ON:]))
            except ValueError:  # its weights have become infinite
                loss = math.inf
            losses.append(min(float(loss), _WORST))
    return losses
