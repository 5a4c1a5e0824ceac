"""The changes that Horovod's source gets before it is compiled here.

- Interface. Horovod 0.28.1 obeys HOROVOD_GLOO_IFACE for its first three groups of connections only. Those of process
  sets, of which there is always one, are made with an empty name (gloo_context.cc, `InitializeForProcessSet`: the
  object's own `gloo_iface_` was never set); Gloo then listens on whatever address the machine's host name resolves to.
  That may be an outer interface where loopback was asked for, or 127.0.1.1 (Debian's default) where other hosts must
  connect.
- TensorFlow 2.19 no longer ships the headers that `xla_mpi_ops.cc` includes. It holds operations for XLA, which are
  off unless HOROVOD_ENABLE_XLA_OPS is set, so it is left out.
- TensorFlow 2.21 no longer exports `AsGpuStreamValue`, which builds for GPUs call.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError

# Marks an installed Horovod as one that has the changes (PEP 440, local version).
MARK = "lakelens1"


@dataclass(frozen=True)
class Replacement:
    """One place of the source."""

    file: str  # Below the source's folder
    after: str  # A text that stands once in the file; the place is behind it
    old: str  # The first occurrence behind `after` is replaced
    new: str  # By what


_XLA_SOURCE = 'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")'
_GPU_STREAM = """\
#if TENSORFLOW_VERSION >= 2021000000
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
#endif // TENSORFLOW_VERSION >= 2021000000
"""
REPLACEMENTS = (
    Replacement(
        "horovod/common/gloo/gloo_context.cc",
        "void GlooContext::InitializeForProcessSet(",
        "device_attr.iface = gloo_iface_;",
        "gloo_iface_ = global_context.gloo_iface_;\n  device_attr.iface = gloo_iface_;",
    ),
    Replacement(
        "horovod/tensorflow/CMakeLists.txt",
        "# TF SOURCES",
        _XLA_SOURCE,
        f'if (Tensorflow_VERSION VERSION_LESS "2.19")\n    {_XLA_SOURCE}\nendif()',
    ),
    Replacement(
        "horovod/tensorflow/mpi_ops.cc",
        "// Forward declaration of AsGpuStreamValue",
        "#endif // HAVE_GPU",
        f"{_GPU_STREAM}#endif // HAVE_GPU",
    ),
    Replacement("horovod/__init__.py", "__version__ = ", "'0.28.1'", f"'0.28.1+{MARK}'"),
)


def apply(source: Path) -> None:
    """Changes an unpacked source."""
    for replacement in REPLACEMENTS:
        path = source / replacement.file
        before, found, behind = path.read_text(encoding="utf-8").partition(replacement.after)
        if not found or replacement.old not in behind:
            raise BuildError(f"{path} has no {replacement.old!r} behind {replacement.after!r}: not the known release")
        changed = behind.replace(replacement.old, replacement.new, 1)
        path.write_text(before + found + changed, encoding="utf-8")


def is_applied(version: str) -> bool:
    """Returns whether an installed Horovod of this version has the changes."""
    return version.partition("+")[2] == MARK
