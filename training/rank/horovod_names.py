"""Gives a rank `lakelens.hvd` where its function imports Horovod's Keras modules, which do not work with Keras 3."""

from __future__ import annotations

from ...module_aliases import ModuleAliases

_OLD = ("horovod.tensorflow.keras", "horovod.keras")


def install() -> None:
    """Replaces these modules in imports of this process from now on."""
    ModuleAliases("lakelens.training.distributed", *_OLD).install()
