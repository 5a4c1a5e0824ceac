"""Records the code of a run: entry point, the modules next to it that it imports, git's state, and packages."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import InvalidArgumentError
from ...stores.data_files import write_files
from ...tracking.requests import TRIAL_TAG
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.run_writer import log_files
from ...tracking.runs import PARENT_TAG, RunReference, as_tracking_errors, open_client
from ..trials.entrypoint import EntryPoint

logger = logging.getLogger(__name__)

CODE_ARTIFACT, ENVIRONMENT_ARTIFACT = "code", "environment"
# MLflow's own tag names, which its UI shows.
GIT_COMMIT_TAG, SOURCE_TAG = "mlflow.source.git.commit", "mlflow.source.name"
GIT_DIRTY_TAG = "lakelens.git_dirty"
_GIT_TIMEOUT_S = 10.0
# A larger module is generated data; it is left out with a warning.
_LARGEST_BYTES = 1 << 20


def code_of(entry: EntryPoint) -> dict[str, bytes]:
    """Collects the entry point's file and the modules that it imports from its import root; none of a notebook."""
    first = _file_of(entry)
    if first is None:
        return {} if entry.source is None else {Path(entry.target).name: entry.source.encode()}
    is_own = entry.source is None and entry.target.split(".")[0] == "lakelens"
    root = first.parent if is_own or entry.source is not None else _import_root(first)
    found: dict[Path, bytes] = {}
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        # The trained code is the text read with the entry point, not the file's present content.
        content = entry.source.encode() if path == first and entry.source is not None else _content(path)
        if content is None:
            continue
        found[path] = content
        if not is_own:
            waiting.extend(_imported(content, path, root))
    return {path.relative_to(root).as_posix(): content for path, content in found.items()}


def installed_packages() -> list[str]:
    """Lists the installed packages as `pip freeze` does, without starting pip."""
    lines: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name:  # an interrupted removal leaves such a folder
            continue
        origin = distribution.read_text("direct_url.json")
        url = json.loads(origin).get("url") if origin else None
        # Of two packages of one name Python imports the first.
        lines.setdefault(name.lower(), f"{name} @ {url}" if url else f"{name}=={distribution.version}")
    return [lines[name] for name in sorted(lines)]


def record_code(run: RunReference, entry: EntryPoint) -> None:
    """Writes the code, git's state and the environment of this process into a run."""
    path = _file_of(entry)
    folder = path.parent if path is not None else Path.cwd()
    commit = _git(folder, "rev-parse", "HEAD")  # None without git or outside a repository
    dirty = None if commit is None else bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git_commit": commit,
        "git_dirty": dirty,
    }
    files = {
        **{f"{CODE_ARTIFACT}/{name}": content for name, content in code_of(entry).items()},
        f"{ENVIRONMENT_ARTIFACT}/requirements.txt": "\n".join(installed_packages()).encode(),
        f"{ENVIRONMENT_ARTIFACT}/environment.json": json.dumps(environment, indent=2).encode(),
    }
    with as_tracking_errors(run.tracking_uri, f"store the code of run {run.run_id}"):
        client = open_client(run.tracking_uri)
        log_files(client, run.run_id, files)
        client.set_tag(run.run_id, SOURCE_TAG, entry.name)
        if commit is not None:
            client.set_tag(run.run_id, GIT_COMMIT_TAG, commit)
            client.set_tag(run.run_id, GIT_DIRTY_TAG, str(dirty).lower())


def read_code(tracking_uri: str, run_id: str) -> dict[str, bytes]:
    """Reads the code stored by `record_code`, in the form of `code_of`; empty for a run without code."""
    return _read_record(tracking_uri, run_id, CODE_ARTIFACT, "*.py")


def restore_code(run_id: str, folder: str | Path, *, tracking_uri: str | None = None) -> list[Path]:
    """Writes the code that a run has recorded into a new folder."""
    place = Path(folder).expanduser().absolute()
    if place.exists():
        raise InvalidArgumentError(f"{place} exists; give a folder that does not, for the code of run {run_id}")
    uri, _ = open_existing_store(tracking_uri)
    code = read_code(uri, run_id)
    if not code:
        raise InvalidArgumentError(f"run {run_id} has no recorded code: its Trial was defined in a notebook or console")
    write_files(place, code)
    return [place / name for name in code]


def read_packages(tracking_uri: str, run_id: str) -> list[str]:
    """Reads the packages listed by `record_code`; empty for a run without a list."""
    found = _read_record(tracking_uri, run_id, ENVIRONMENT_ARTIFACT, "requirements.txt")
    return [line for content in found.values() for line in content.decode().splitlines()]


def _read_record(tracking_uri: str, run_id: str, artifact: str, names: str) -> dict[str, bytes]:
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"read the code of run {run_id}"), tempfile.TemporaryDirectory() as folder:
        tags = get_run(client, run_id).data.tags
        # The code of a trial is that of its search. Another parent is a run of the caller's own.
        parent = tags.get(PARENT_TAG) if TRIAL_TAG in tags else None
        for source in (run_id, *([parent] if parent else [])):
            if client.list_artifacts(source, artifact):
                place = Path(client.download_artifacts(source, artifact, folder))
                return {path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(place.rglob(names))}
    return {}


def _file_of(entry: EntryPoint) -> Path | None:
    """Finds the file of an entry point on this machine."""
    if entry.source is not None:
        path = Path(entry.target)
        return path if path.is_file() else None
    if entry.trial_class is not None:
        try:
            origin = inspect.getsourcefile(entry.trial_class)
        except (TypeError, OSError):
            origin = None
    else:
        spec = importlib.util.find_spec(entry.target)
        origin = spec.origin if spec is not None else None
    found = Path(origin) if origin else None
    return found if found is not None and found.suffix == ".py" and found.is_file() else None


def _import_root(path: Path) -> Path:
    """Returns the folder that contains the outermost package of a file."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _imported(content: bytes, path: Path, root: Path) -> Iterator[Path]:
    """Finds the files below `root` that a module imports, with the packages that they are in."""
    try:
        tree = ast.parse(content)
    except SyntaxError:  # a module for another Python; importing it raises the error
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(root, alias.name.split("."), root)
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else root
            if not base.is_relative_to(root):
                continue
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files_of(base, [*parts, alias.name], root)


def _files_of(base: Path, parts: list[str], root: Path) -> Iterator[Path]:
    for count in range(len(parts) + 1):
        place = base.joinpath(*parts[:count])
        # The root folder is not a package.
        for file in (place / "__init__.py" if place != root else None, place.with_suffix(".py") if count else None):
            if file is not None and file.is_file():
                yield file


def _content(path: Path) -> bytes | None:
    content = path.read_bytes()
    if len(content) <= _LARGEST_BYTES:
        return content
    logger.warning("%s has %d bytes and is not recorded with the run's code", path, len(content))
    return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
