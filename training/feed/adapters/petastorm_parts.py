"""The parts of Petastorm that the adapters stand on; where it is missing, the error names the extra that brings it."""

from __future__ import annotations

import warnings

from .... import petastorm_names
from ....errors import MissingDependencyError

petastorm_names.check_loaded()
try:
    with warnings.catch_warnings():
        # Petastorm 0.13 imports pyarrow's legacy file systems, each of which warns.
        warnings.simplefilter("ignore")
        from petastorm.ngram import NGram
        from petastorm.transform import TransformSpec, transform_schema
        from petastorm.unischema import Unischema, UnischemaField
except ImportError as error:
    raise MissingDependencyError(
        f"Petastorm's readers and transforms need Petastorm, which cannot be imported ({error}): "
        "pip install 'lakelens[petastorm]'"
    ) from error

__all__ = ["NGram", "TransformSpec", "Unischema", "UnischemaField", "transform_schema"]
