"""Reads the arrays of one large JSON document element by element, in memory bounded by the largest element; pure."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
# The largest elements of real files, polygons of crowds, take some hundred kilobytes.
MAX_ELEMENT_CHARACTERS = 64 * 1024 * 1024
_BLANKS = " \t\n\r"
_MAX_KEY = 1000
_NUMBER_CHARACTERS = "0123456789+-.eE"
# What is left of a number after the part that already was one: a fraction or an exponent of a few digits.
_MAX_NUMBER_TAIL = 8


class JsonStreamError(ValueError):
    """Raised when a document is not the JSON that it should be; says where."""


class _Window:
    """The part of a document that is held: text from a position on, filled as it is asked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._decode = json.JSONDecoder().raw_decode
        self._passed = 0
        self.text = ""
        self.position = 0
        self.ended = False

    def fill(self, characters: int = CHUNK_BYTES) -> bool:
        """Reads on; False when nothing is left."""
        if self.ended:
            return False
        data = self._stream.read(characters)
        try:
            more = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise JsonStreamError(f"it is not UTF-8 after character {self._at()}: {error}") from error
        self.ended = not data
        if self._passed == 0 and not self.text:
            more = more.removeprefix("\ufeff")
        self._passed += self.position
        self.text = self.text[self.position :] + more
        self.position = 0
        return not self.ended

    def peek(self) -> str:
        """Returns the next character that is no blank, or nothing at the end."""
        while True:
            while self.position < len(self.text):
                character = self.text[self.position]
                if character not in _BLANKS:
                    return character
                self.position += 1
            if not self.fill() and self.position >= len(self.text):
                return ""

    def expect(self, characters: str) -> str:
        """Takes one of the given characters."""
        found = self.peek()
        if not found or found not in characters:
            raise self.error(f"{' or '.join(characters)} was expected")
        self.position += 1
        return found

    def expect_end(self) -> None:
        """Checks that nothing is left but blanks."""
        if self.peek():
            raise self.error("the document goes on after its end")

    def value(self, limit: int = MAX_ELEMENT_CHARACTERS) -> Any:
        """Reads one whole value."""
        self.peek()
        wanted = CHUNK_BYTES
        while True:
            try:
                value, end = self._decode(self.text, self.position)
            except json.JSONDecodeError as error:
                failure = error.msg
            except RecursionError:
                raise self.error("values lie too deep in one another") from None
            except ValueError as error:  # a whole number of more digits than Python converts
                raise self.error(str(error)) from error
            else:
                if self.ended or not self._may_go_on(value, end):
                    self.position = end
                    return value
                failure = "a number has no end"
            if len(self.text) - self.position > limit:
                raise self.error(f"a value has more than {limit} characters or is malformed ({failure})")
            if not self.fill(wanted) and self.ended and failure != "a number has no end":
                raise self.error(failure)
            # Doubling keeps the repeated attempts linear in the size of the value.
            wanted *= 2

    def _may_go_on(self, value: Any, end: int) -> bool:
        """Whether the text ends within what may still be one number: `1` of `12`, `0` of `0.5`, `1` of `1e-7`."""
        if not isinstance(value, (int, float)):
            return False
        return not self.text[end:].strip(_NUMBER_CHARACTERS) if len(self.text) - end < _MAX_NUMBER_TAIL else False

    def error(self, message: str) -> JsonStreamError:
        """Builds an error that says where."""
        near = self.text[self.position : self.position + 40]
        where = f"near {near!r}" if near else "where the file ends"
        return JsonStreamError(f"{message} at character {self._at()}, {where}")

    def _at(self) -> int:
        return self._passed + self.position


def iterate_arrays(stream: BinaryIO, keys: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yields (key, element) for every element of the arrays at the given keys of a JSON object, in the file's order.

    Other keys are read over without keeping their values. A document is held one element at a time.

    Raises:
        JsonStreamError: If the document is not a JSON object in UTF-8, ends early, or one of the keys holds no array.
    """
    window = _Window(stream)
    window.expect("{")
    if window.peek() == "}":
        window.expect("}")
    else:
        separator = ","
        while separator == ",":
            key = window.value(_MAX_KEY)
            if not isinstance(key, str):
                raise window.error("a key is not a text")
            window.expect(":")
            if key in keys:
                for element in _elements(window, key):
                    yield key, element
            elif window.peek() == "[":
                for _ in _elements(window, key):
                    pass
            else:
                window.value()
            separator = window.expect(",}")
    window.expect_end()


def iterate_array(stream: BinaryIO) -> Iterator[Any]:
    """Yields every element of a document that is one array.

    Raises:
        JsonStreamError: If it is no JSON array in UTF-8, or ends early.
    """
    window = _Window(stream)
    yield from _elements(window, "the document")
    window.expect_end()


def _elements(window: _Window, key: str) -> Iterator[Any]:
    if window.peek() != "[":
        raise window.error(f"{key!r} is not an array")
    window.expect("[")
    if window.peek() == "]":
        window.expect("]")
        return
    separator = ","
    while separator == ",":
        yield window.value()
        separator = window.expect(",]")
