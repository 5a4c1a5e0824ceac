"""The job as seen by a Trial: data, sizes, ranks, hyperparameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import TrialError
from ...options import closest

if TYPE_CHECKING:
    from ..feed.feed import DeltaFeed
    from ..tasks.task import Task


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
# A Trial need not read it.
_BATCH_SIZE = "global_batch_size"


class TrialContext:
    """The job as seen by a Trial.

    Attributes:
        task: The task of the labels.
        image_size: Height and width of the images that the feed delivers, in pixels.
        global_batch_size: Images per step over all ranks.
        epochs: Planned epochs.
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
        task: Task,
        image_size: tuple[int, int],
        global_batch_size: int = 32,
        epochs: int = 1,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        training_feed: DeltaFeed | None = None,
        validation_feed: DeltaFeed | None = None,
    ) -> None:
        self.task = task
        self.image_size = image_size
        self.global_batch_size = global_batch_size
        self.epochs = epochs
        self.rank = rank
        self.size = size
        self.seed = seed
        self.training_feed = training_feed
        self.validation_feed = validation_feed
        self._given = {name: python_value(value) for name, value in (hyperparameters or {}).items()}
        self._used: dict[str, Any] = {}

    @property
    def class_names(self) -> list[str]:
        """Class names by label number."""
        return list(self.task.class_names)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.task.class_names)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Every hyperparameter that the Trial has read so far, with its value."""
        return dict(self._used)

    def get_hparam(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns the value of a hyperparameter.

        Args:
            name: Its name; `global_batch_size` is always known.
            default: Its value if the job gives none. A given value must be of the default's type; an integer is
                accepted where the default is a float. NumPy's numbers are converted to Python's.

        Raises:
            TrialError: If it is neither given nor has a default, or is of another type than the default.
        """
        if name in self._given:
            value = _of_the_type(name, self._given[name], default)
        elif name == _BATCH_SIZE:
            return self.global_batch_size
        elif default is REQUIRED:
            raise TrialError(
                f"hyperparameter {name!r} is missing ({_list(self._given)}); pass hyperparameters={{{name!r}: ...}}"
            )
        else:
            value = default
        self._used[name] = value
        return value

    def require_all_used(self) -> None:
        """Checks that the Trial has read every given hyperparameter, so that none is misspelt.

        Raises:
            TrialError: If it has not; names the nearest known one.
        """
        unused = [name for name in self._given if name not in self._used]
        if unused:
            near = closest(unused[0], self._used)
            hint = f"did you mean {near!r}?" if near else f"it asks for: {_list(self._used)}."
            raise TrialError(f"the Trial never asks for hyperparameter {unused[0]!r}; {hint}")


def _of_the_type(name: str, value: Any, default: Any) -> Any:
    default = python_value(default)
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


def python_value(value: Any) -> Any:
    """Converts NumPy's numbers in a value to Python's, at any depth."""
    if isinstance(value, Mapping):
        return {name: python_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(python_value(item) for item in value)
    return value.item() if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0 else value


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
