"""What one question to a server is, and short ways to write it."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: of the case, unique.
        path: where it goes.
        body: what is sent: a value as JSON, text and bytes as they are, None for no body.
        method: of the request.
        language: what runs it, so that the case is left out where that is not installed; empty: nothing does.
        headers: of the request.
        gist: how much of stderr is compared; see `compare.GISTS`.
        needs: a Python package that the runtime must have, of the recorded version.
        versioned: whether the answer is that of one minor version of Python.
    """

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    language: str = ""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    gist: str = "exact"
    needs: str = ""
    versioned: bool = False


def b64(data: str | bytes) -> str:
    """A file's content as requests carry it."""
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


GIST = {
    "python": "python",
    "cpp": "gcc",
    "go": "go",
    "java": "java",
    "nodejs": "node",
    "ruby": "ruby",
    "pytest": "pytest",
}
"""How much of stderr is compared, by language; the others' whole."""


def run(
    name: str,
    code: str,
    language: str = "python",
    *,
    needs: str = "",
    gist: str = "",
    versioned: bool = False,
    **fields: Any,
) -> Case:
    """A program for `/run_code`."""
    limits = {} if language in ("python", "bash") else {"compile_timeout": 60, "run_timeout": 30}
    body = {"code": code, "language": language, **limits, **fields}
    gist = gist or GIST.get(language, "exact")
    return Case(f"{language}/{name}", "/run_code", body, language=language, gist=gist, needs=needs, versioned=versioned)


def raw(name: str, path: str, body: Any = None, method: str = "POST", versioned: bool = False, **headers: str) -> Case:
    """A request that is about HTTP and its body rather than about a program."""
    named = {key.replace("_", "-"): headers[key] for key in headers}
    return Case(f"http/{name}", path, body, method, headers=named, versioned=versioned)


def code(name: str, *, gist: str = "python", **fields: Any) -> Case:
    """A request to `/run_code` that is about its fields; `print(1)` in Python where it does not say."""
    body = {"code": "print(1)", "language": "python"} | fields
    body = {key: value for key, value in body.items() if value is not ...}
    return Case(f"fields/{name}", "/run_code", body, language="python", gist=gist)


def cells(name: str, *programs: Any, needs: str = "", **fields: Any) -> Case:
    """A notebook for `/run_jupyter`."""
    body = {"cells": list(programs), **fields}
    return Case(f"jupyter/{name}", "/run_jupyter", body, language="python", needs=needs)
