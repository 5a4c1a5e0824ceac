"""Rules of what the values of a model are, and of values that are not probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import NotProbabilitiesError, TrialError
from lakelens.training.tasks.classification import Classification
from lakelens.training.tasks.output_values import output_values

pytestmark = pytest.mark.unit

THREE = Classification(["a", "b", "c"])
DESCRIBED = {"values": "probabilities"}


def test_the_model_shows_what_it_gives_or_the_trial_states_it():
    assert output_values(True, None) == "logits"
    assert output_values(False, "probabilities") == "probabilities"
    assert output_values(None, "logits") == "logits"
    assert output_values(None, None) is None


def test_a_trial_that_contradicts_its_model_is_refused():
    with pytest.raises(TrialError, match=r"outputs = 'logits', but .* shows probabilities"):
        output_values(False, "logits")
    with pytest.raises(TrialError, match="outputs = 'logit'; give 'logits' or 'probabilities'"):
        output_values(None, "logit")


@pytest.mark.parametrize("values", [[[-0.9, 0.9, 1.0]], [[0.2, 0.3, 1.5]], [[-0.009, 0.5, 0.509]]])
def test_values_that_are_not_probabilities_are_an_error_wherever_they_are_used(values):
    given = np.array(values, np.float32)
    for use in (
        lambda: THREE.answers(given, DESCRIBED),
        lambda: THREE.count(given, np.array([0]), DESCRIBED),
        lambda: THREE.measure(given, np.array([0]), DESCRIBED),
    ):
        with pytest.raises(NotProbabilitiesError, match=r"gives values from .* to .*outputs = 'logits' in the Trial"):
            use()


def test_independent_probabilities_and_rounded_ones_stay_allowed():
    given = np.array([[0.9, 0.9, 0.9], [0.0, 0.1, 0.0], [1.0039, -1e-6, 0.0]], np.float32)
    assert THREE.answers(given, DESCRIBED) == pytest.approx(given)
    assert THREE.count(given, np.array([0, 1, 2]), DESCRIBED)["confusion"].sum() == 3


def test_a_value_that_is_not_finite_is_an_error_of_its_row_alone():
    given = np.array([[0.1, 0.2, 0.7], [np.nan, np.inf, -np.inf]], np.float32)
    assert THREE.answers(given, DESCRIBED)[0] == pytest.approx(given[0])
