"""The root of a session with an image: its interpreter stays the sandbox's, and all names are the image's."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from toolgym.tools.sandbox.local.kernel import jail

_OF_MACHINE = ("LD_LIBRARY_PATH", "OPENSSL_CONF", "GIT_CONFIG_NOSYSTEM")
_LINES = (("passwd", "user:x:1000:1000::/tmp:/bin/sh\n", ":1000:"), ("hosts", "127.0.0.1 localhost\n", "localhost"))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def enter(image: Mapping[str, Any]) -> None:
    """Change to the image's root, folder and variables, and find the interpreter's modules below `HOST_PYTHON`."""
    os.chroot(jail.IMAGE_ROOT)
    for name in _OF_MACHINE:
        os.environ.pop(name, None)
    os.environ.update({"PATH": _PATH, **image["env"]})
    for folder in image["folders"]:
        os.makedirs(folder, exist_ok=True)
    for name, line, mark in _LINES:  # of files that the image may have without them
        with contextlib.suppress(OSError), open(f"/etc/{name}", "a+") as about:
            about.seek(0)
            if mark not in about.read():
                about.write(line)
    home = image["workdir"] or "/tmp"
    os.makedirs(home, exist_ok=True)
    os.chdir(home)
    sys.path[:] = [_moved(path) for path in sys.path]
    sys.path_importer_cache.clear()
    for module in [*sys.modules.values()]:
        path, file = getattr(module, "__path__", None), getattr(module, "__file__", None)
        if isinstance(path, list):
            path[:] = [_moved(folder) for folder in path]
        if isinstance(file, str):
            module.__file__ = _moved(file)


def _moved(path: str) -> str:
    return jail.HOST_PYTHON + path if path.startswith("/") else path
