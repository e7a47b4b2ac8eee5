"""What two answers to the same request are compared by, field by field."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

OURS = frozenset({"cpu_time", "limit", "memory_bytes", "reason", "stdout_truncated", "stderr_truncated"})
"""Fields of a command's result that SandboxFusion does not have."""

UNCOMPARED = frozenset({"input", "url", "ctx", "msg"})
"""Parts of a 422's problems that are not compared: pydantic's words change with its version and ours names more
languages; SandboxFusion repeats the whole bad value and links pydantic's pages, ours is short."""

ABSENT = "<absent>"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _first(pattern: str) -> Callable[[str], str]:
    """The first match; the whole text where there is none."""

    def gist(text: str) -> str:
        found = re.search(pattern, text, re.MULTILINE)
        return found[0] if found else text

    return gist


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


GISTS: dict[str, Callable[[str], str]] = {
    "exact": str,
    "python": str,
    "last": _last_line,
    "first": _first(r"^.+$"),
    "some": lambda text: "some" if text else "",
    "gcc": _first(r"<program>\.cpp:\d+:\d+: error:"),
    "go": _first(r"^(<program>\.go:\d+:\d+: .*|panic: .*)$"),
    "java": _first(r"^(Main\.java:\d+: error: .*|Exception in thread .*)$"),
    "node": _first(r"^\w*Error.*$"),
    "ruby": _first(r"^<program>\.rb:\d+:.*$"),
    "pytest": lambda text: "",  # what the plugins that are installed have to say
    "not found": _first(r"command not found"),
}
"""How much of stderr is compared, where compilers and interpreters of other versions say it in other words."""


def fields(answer: dict[str, Any], gist: str) -> dict[str, Any]:
    """An answer as what is compared: values by their place, `body.run_result.stdout` for example."""
    found: dict[str, Any] = {}
    _walk(answer, "", gist, found)
    return found


def differing(theirs: dict[str, Any], ours: dict[str, Any], gist: str) -> dict[str, Any]:
    """What ours says, by place, wherever SandboxFusion does not say the same.

    A place that only theirs has is `ABSENT`; it is left out where that is plain: when ours has nothing at all at a
    place above it (null, an empty list), and when the status of the whole answer is another.
    """
    left, right = fields(theirs, gist), fields(ours, gist)
    found = {place: value for place, value in right.items() if left.get(place, ...) != value}
    if left["status"] == right["status"]:
        for place in left:
            parts = place.split(".")
            if place not in right and not any(".".join(parts[:at]) in right for at in range(1, len(parts))):
                found[place] = ABSENT
    return found


def _walk(value: Any, place: str, gist: str, found: dict[str, Any]) -> None:
    name = place.rpartition(".")[2]
    if isinstance(value, dict) and name != "input" and value:
        for key, item in value.items():
            if key in OURS and name.endswith("_result") | (name == "driver"):
                continue
            if key in UNCOMPARED and ".detail." in place:
                continue
            _walk(item, f"{place}.{key}".lstrip("."), gist, found)
    elif name == "traceback" and isinstance(value, list) and value and ".error." in place:
        # IPython's has colours and source lines around each; ours is Python's own. Both end alike.
        found[place] = _last_line(_COLOURS.sub("", value[-1])).rstrip(": ")
    elif isinstance(value, list) and value and name != "loc":
        for at, item in enumerate(value):
            _walk(item, f"{place}.{at}", gist, found)
    elif name == "stdout" and gist == "pytest" and value:
        found[place] = sorted(set(re.findall(r"\b\d+ (?:passed|failed|errors?)\b|no tests ran", value)))
    elif place in ("body.driver.stdout", "body.driver.stderr"):
        pass  # what SandboxFusion's driver says of itself
    elif name in ("stderr", "message") and isinstance(value, str):
        found[place] = GISTS[gist](value)
    else:
        found[place] = value
