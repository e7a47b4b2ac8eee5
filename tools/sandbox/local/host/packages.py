"""An operator's packages for programs: one folder, with a subfolder for each language, as `docs/sandboxfusion.md` says.

Programs see the folder read-only, at its own path. Python's packages are those of the sandbox's interpreter.
"""

from __future__ import annotations

import os
import shlex

from toolgym.tools.errors import ConfigError

NODE_PATH = ("/usr/local/lib/node_modules", "/usr/lib/node_modules", "/usr/share/nodejs")
"""Folders of Node's packages that are installed for all."""


def check(folder: str) -> str:
    """Return the real path of the folder. Raises ConfigError if it is none, or root's programs cannot read it."""
    real = os.path.realpath(folder)
    if not os.path.isdir(real) or real == "/":
        raise ConfigError(f"packages must be a folder with a subfolder for each language, got {folder!r}")
    if os.geteuid() == 0 and os.stat(real).st_mode & 0o5 != 0o5:
        raise ConfigError(
            f"packages must be readable for all users, and {folder!r} is not; `chmod -R a+rX` makes it so"
        )
    return real


def variables(folder: str | None) -> dict[str, str]:
    """Return the environment variables that let programs find packages."""
    node = NODE_PATH if folder is None else (f"{folder}/node/node_modules", *NODE_PATH)
    environment = {"NODE_PATH": ":".join(node)}
    if folder is not None:
        lua = f"{folder}/lua/?"
        environment |= {
            "LUA_PATH": f"{lua}.lua;{lua}/init.lua;;",  # the two semicolons stand for the usual folders
            "LUA_CPATH": f"{lua}.so;;",
            "PERL5LIB": f"{folder}/perl/lib/perl5:{folder}/perl",
            "RUBYLIB": f"{folder}/ruby",
            "GEM_PATH": f"{folder}/ruby:",  # the colon at the end, for the usual ones
            "R_LIBS": f"{folder}/R",
        }
    return environment


def jars(folder: str | None) -> str:
    """Return the packages' part of Java's class path."""
    return "" if folder is None else f":{folder}/java/*"


def go_module(folder: str | None) -> str:
    """Return a line of shell that makes a program without a `go.mod` part of the operator's module."""
    if folder is None or not os.path.exists(f"{folder}/go/go.mod"):
        return ""
    module = shlex.quote(f"{folder}/go")
    return f"[ -e go.mod ] || [ -e vendor ] || {{ cp {module}/go.* . && ln -s {module}/vendor vendor; }}; "


def node_project(folder: str | None) -> str:
    """Return a line of shell that makes a test without a `package.json` part of the operator's Node project."""
    if folder is None or not os.path.exists(f"{folder}/node/package.json"):
        return ""
    project = shlex.quote(f"{folder}/node")
    files = f"{project}/package.json {project}/*.config.*"
    copy = f'for f in {files}; do [ ! -e "$f" ] || [ -e "${{f##*/}}" ] || cp "$f" .; done'
    return f"[ -e package.json ] || [ -e node_modules ] || {{ {copy}; ln -s {project}/node_modules .; }}; "
