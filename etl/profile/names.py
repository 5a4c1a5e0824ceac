"""Names of classes, splits and reasons in pictures: short enough for their place, and still told apart; pure."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

from ...errors import MissingDependencyError

LABEL_LENGTH = 28
NEEDS_MATPLOTLIB = "the plots of a profile need matplotlib: pip install 'lakelens[search]'"
_FONT = "DejaVu Sans"
_ELLIPSIS = "…"


def readable(name: str | None, length: int = LABEL_LENGTH) -> str:
    """Makes one name fit for a picture: no characters that the font lacks, cut in the middle where it is too long."""
    return _both_ends(drawable(name), length)


def readable_names(names: Sequence[str | None], length: int = LABEL_LENGTH) -> list[str]:
    """Makes names that stand together fit for a picture, so that as many as can be are still told apart.

    Long names are elided at the end where they do not differ: `…/sports/model 1` of folders in folders, `n01440764 te…`
    of numbered ones.
    """
    texts = [drawable(name) for name in names]
    if all(len(text) <= length for text in texts):
        return texts
    first, last = min(texts), max(texts)
    shared = next((place for place, (one, two) in enumerate(zip(first, last, strict=False)) if one != two), len(first))
    ways: list[Callable[[str, int], str]] = [_head, _tail, functools.partial(_from, shared), _both_ends]
    shortened = [[way(text, length) for text in texts] for way in ways]
    alone = [{text for text, count in Counter(found).items() if count == 1} for found in shortened]
    return [
        next((text for text, unique in zip(tried, alone, strict=True) if text in unique), tried[-1])
        for tried in zip(*shortened, strict=True)
    ]


def drawable(name: str | None) -> str:
    """Replaces the characters that the font of pictures lacks; None stands for images without a class."""
    text = "no class" if name is None else name
    known = _known_characters()
    return "".join(character if ord(character) in known else "□" for character in text)


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + _ELLIPSIS


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else _ELLIPSIS + text[1 - length :].lstrip()


def _both_ends(text: str, length: int) -> str:
    end = length // 2
    return text if len(text) <= length else f"{text[: length - end - 1]}{_ELLIPSIS}{text[-end:]}"


def _from(start: int, text: str, length: int) -> str:
    """Cuts what all names begin with, and the end where the rest is too long too."""
    return text if len(text) <= length else _head(_ELLIPSIS + text[start:], length)


def find_font() -> str:
    """Returns the path of the font that every matplotlib brings.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        from matplotlib.font_manager import findfont
    except ImportError as error:
        raise MissingDependencyError(NEEDS_MATPLOTLIB) from error
    return str(findfont(_FONT))


@functools.lru_cache(maxsize=1)
def _known_characters() -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(find_font()).get_charmap())
