"""Installs packages into this Python's environment with uv, under the user's pip configuration.

    PYTHON .ci/packages.py ARGUMENT...      arguments of `uv pip install`

uv takes a third of pip's time. It does not read pip's configuration: this script passes on what locates packages.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

UV = "uv==0.13.9"
# By pip's option: the variable of uv, and what stands there between several values.
_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("HTTPS_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}


def uv_settings(configuration: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which uv finds packages where pip does; what it says to uv itself wins.

    Args:
        configuration: Lines of `pip config list`, such as `global.index-url='https://host/simple'`; later ones win.
        environment: The variables of this process.
    """
    # pip takes the best version of all indexes; by default, uv takes the first index that has the package.
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for line in configuration:
        name, _, value = line.partition("=")
        if option := _SETTINGS.get(name.rpartition(".")[2]):
            settings[option[0]] = option[1].join(ast.literal_eval(value).split())
    return settings | dict(environment)


def main() -> None:
    """Installs uv and becomes it."""
    pip = [sys.executable, "-m", "pip"]
    # What would install elsewhere is left out of the user's configuration.
    elsewhere = dict.fromkeys(("PIP_TARGET", "PIP_PREFIX", "PIP_CONSTRAINT"), "")
    here = os.environ | elsewhere | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if subprocess.run([*pip, "install", "--quiet", UV], env=here, check=False).returncode != 0:
        sys.exit(f"error: pip cannot install {UV}, which installs the other packages")
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
    uv = Path(sys.executable).with_name("uv")
    # Compiled now, as pip does: where PYTHONDONTWRITEBYTECODE is set, each process would compile what it imports.
    command = [str(uv), "pip", "install", "--python", sys.executable, "--compile-bytecode", *sys.argv[1:]]
    # In this process's place: the caller's lock and its signals are uv's.
    os.execve(uv, command, uv_settings(listed.splitlines(), os.environ))  # noqa: S606


if __name__ == "__main__":
    main()
