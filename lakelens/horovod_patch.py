"""The change that Horovod's source gets before it is compiled here.

Horovod 0.28.1 obeys HOROVOD_GLOO_IFACE for its first three groups of connections only. Those of process sets, of which
there is always one, are made with an empty name (gloo_context.cc, `InitializeForProcessSet`: the object's own
`gloo_iface_` was never set); Gloo then listens on whatever address the machine's host name resolves to. That may be an
outer interface where loopback was asked for, or 127.0.1.1 (Debian's default) where other hosts must connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError

# Marks an installed Horovod as one that has the change (PEP 440, local version).
MARK = "lakelens1"


@dataclass(frozen=True)
class Replacement:
    """One place of the source.

    Attributes:
        file: Below the source's folder.
        after: A text that stands once in the file; the place is behind it.
        old: The first occurrence behind `after` is replaced.
        new: By what.
    """

    file: str
    after: str
    old: str
    new: str


REPLACEMENTS = (
    Replacement(
        "horovod/common/gloo/gloo_context.cc",
        "void GlooContext::InitializeForProcessSet(",
        "device_attr.iface = gloo_iface_;",
        "gloo_iface_ = global_context.gloo_iface_;\n  device_attr.iface = gloo_iface_;",
    ),
    Replacement("horovod/__init__.py", "__version__ = ", "'0.28.1'", f"'0.28.1+{MARK}'"),
)


def apply(source: Path) -> None:
    """Changes an unpacked source.

    Raises:
        BuildError: If a place is not there: another release of Horovod.
    """
    for replacement in REPLACEMENTS:
        path = source / replacement.file
        before, found, behind = path.read_text(encoding="utf-8").partition(replacement.after)
        if not found or replacement.old not in behind:
            raise BuildError(
                f"{path} has no {replacement.old!r} behind {replacement.after!r}: not the release that is known"
            )
        changed = behind.replace(replacement.old, replacement.new, 1)
        path.write_text(before + found + changed, encoding="utf-8")


def is_applied(version: str) -> bool:
    """Tells by the version of an installed Horovod whether it has the change."""
    return version.partition("+")[2] == MARK
