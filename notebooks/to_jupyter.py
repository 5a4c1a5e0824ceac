"""Turns notebooks in Databricks source format into Jupyter notebooks.

python notebooks/to_jupyter.py notebooks/01_images_to_delta.py ...   writes 01_images_to_delta.ipynb next to it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_HEADER = "# Databricks notebook source"
_SEPARATOR = "# COMMAND ----------"
_MAGIC = "# MAGIC"


def notebook_of(source: str) -> dict[str, Any]:
    """Makes a Jupyter notebook: `%md` cells are Markdown, `%run ./x` runs `x.py` with the notebook's names."""
    cells = [_cell(text.strip("\n")) for text in source.removeprefix(_HEADER).split(_SEPARATOR)]
    return {
        "cells": [cell for cell in cells if cell["source"]],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def _cell(text: str) -> dict[str, Any]:
    lines = text.splitlines()
    if lines and all(line.startswith(_MAGIC) for line in lines):
        shown = [line.removeprefix(_MAGIC).removeprefix(" ") for line in lines]
        if shown[0].strip() == "%md":
            return {"cell_type": "markdown", "metadata": {}, "source": "\n".join(shown[1:])}
        lines = [f"%run -i {line.split()[1]}.py" if line.startswith("%run ") else line for line in shown]
    return {"cell_type": "code", "metadata": {}, "source": "\n".join(lines), "outputs": [], "execution_count": None}


def main() -> None:
    """Converts the files that are named."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.with_suffix(".ipynb").write_text(json.dumps(notebook_of(path.read_text()), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
