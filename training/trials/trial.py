"""The Trial: what a user writes to train a model. It holds no distributed code and no data location."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import TrialError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from ..feed.feed import DeltaFeed


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
# Determined's name for the batch size; it is no hyperparameter that a Trial has to ask for.
_BATCH_SIZE = "global_batch_size"


class TrialContext:
    """What a Trial may know of the job that runs it.

    Attributes:
        class_names: Class names by label number.
        image_size: Height and width of the images that the feed delivers, in pixels.
        batch_size: Images per step over all ranks.
        epochs: Epochs that are planned.
        rank: Number of this process, from 0.
        size: Number of processes.
        seed: The job's seed.
        training_feed: The rows to train on; None when a Trial is built outside a job.
        validation_feed: The rows to validate on; None when there are none.
    """

    def __init__(
        self,
        *,
        hyperparameters: Mapping[str, Any] | None = None,
        class_names: Sequence[str],
        image_size: tuple[int, int],
        batch_size: int = 32,
        epochs: int = 1,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        training_feed: DeltaFeed | None = None,
        validation_feed: DeltaFeed | None = None,
    ) -> None:
        self.class_names = list(class_names)
        self.image_size = image_size
        self.batch_size = batch_size
        self.epochs = epochs
        self.rank = rank
        self.size = size
        self.seed = seed
        self.training_feed = training_feed
        self.validation_feed = validation_feed
        self._given = dict(hyperparameters or {})
        self._used: dict[str, Any] = {}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Every hyperparameter that the Trial has asked for so far, with the value that it got."""
        return dict(self._used)

    def get_hparam(self, name: str, default: Any = REQUIRED) -> Any:
        """Gives the value of a hyperparameter.

        Args:
            name: Its name; `global_batch_size` is always known.
            default: Its value when the job gives none. A given value must be of the default's type; an integer is
                accepted where the default is a float.

        Raises:
            TrialError: If it is neither given nor has a default, or is of another type than the default.
        """
        if name in self._given:
            value = _of_the_type(name, self._given[name], default)
        elif name == _BATCH_SIZE:
            return self.batch_size
        elif default is REQUIRED:
            raise TrialError(
                f"hyperparameter {name!r} is missing ({_list(self._given)}); pass hyperparameters={{{name!r}: ...}}"
            )
        else:
            value = default
        self._used[name] = value
        return value

    def require_all_used(self) -> None:
        """Checks that the Trial has asked for every hyperparameter that was given, so that none is misspelt.

        Raises:
            TrialError: If it has not; names the nearest one that it knows.
        """
        unused = [name for name in self._given if name not in self._used]
        if unused:
            near = difflib.get_close_matches(unused[0], list(self._used), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it asks for: {_list(self._used)}."
            raise TrialError(f"the Trial never asks for hyperparameter {unused[0]!r}; {hint}")


class Trial(ABC):
    """One way to train a model on the images of a table.

    A subclass must say which model; everything else has a default. The job calls it once per rank and adds what
    distribution needs: gradients averaged over ranks, metrics averaged over ranks, checkpoints from rank 0.

    Attributes:
        context: The job, as far as a Trial may know it.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_model(self) -> keras.Model:
        """Builds the compiled model.

        It takes images [batch, height, width, 3] with pixels from 0 to 255 (scaling is a layer of it, so that whoever
        loads the model need not know it) and gives a probability per class [batch, classes]; of two classes it may
        give the second's alone [batch, 1]. Logits will do, where the last layer has no activation. Compile it with
        `weighted_metrics` rather than `metrics`: the last batch of an epoch is filled with rows of weight zero.
        """

    def preprocess(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Augments a training batch: images float32 [batch, height, width, 3] from 0 to 255, labels int32 [batch].

        Validation and inference never see it: what they need too belongs into the model as a layer.
        """
        return images, labels

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Gives callbacks for every rank; the metrics that they see are those over all ranks, equal on each."""
        return []

    def build_training_dataset(self) -> tf.data.Dataset | None:
        """Gives the batches (images, labels, weights) of this rank; None takes the job's feed, which is what most want.

        Every rank must give `context.training_feed.steps_per_epoch(batch_size, size)` batches per epoch.
        """
        return None

    def build_validation_dataset(self) -> tf.data.Dataset | None:
        """Gives this rank's share of the validation batches (images, labels, weights); None takes the job's feed."""
        return None


def _of_the_type(name: str, value: Any, default: Any) -> Any:
    if default is REQUIRED or default is None:
        return value
    expected = type(default)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if expected in (list, tuple) and isinstance(value, (list, tuple)):
        return expected(value)
    if isinstance(value, expected) and isinstance(value, bool) == isinstance(default, bool):
        return value
    raise TrialError(
        f"hyperparameter {name!r} is {value!r} ({type(value).__name__}); its default is {default!r}, so it must be "
        f"{expected.__name__}"
    )


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
