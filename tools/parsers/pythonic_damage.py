"""Damaged calls in Python's syntax, which has no tags: they are told from other brackets by the names of the tools.

A list of calls of which one sign is forgotten or changed looks like any text with brackets:

    [searchquery="fox")]        search(query="fox")]        [search(, get_time()]        [sea

Only the name of an offered tool at the beginning of a line counts, together with a sign that no sentence has: an
argument of the tool, a bracket that is not closed, or the end of the text. Nothing is repaired.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from toolgym.tools.parsers.python_literals import LiteralError, read_open_calls
from toolgym.tools.schema import ToolSchema

MAX_TRIES = 8
"""How many texts are tried as a list without its opening bracket. Each may be as long as the turn."""


class Damage(NamedTuple):
    """The start of a damaged call, what is wrong with it, and whether the text ended inside of it."""

    start: int
    why: str
    cut: bool = False


def find_damage(text: str, schemas: Mapping[str, ToolSchema]) -> Damage | None:
    """Find the first damaged call in a text in which no call could be read.

    Args:
        text: the text outside of calls and thinking.
        schemas: the offered tools by name.

    Returns:
        The damage; None if nothing in the text looks like a call of an offered tool.
    """
    if not schemas:
        return None
    keys = {key for schema in schemas.values() for key in schema.parameters.get("properties", {})}
    patterns = _patterns(tuple(sorted(schemas)), tuple(sorted(keys)))
    damages = [_broken(text, patterns), _without_bracket(text, patterns, schemas), _cut(text, schemas)]
    return min(filter(None, damages), default=None)


class _Patterns(NamedTuple):
    broken: re.Pattern[str]
    bare: re.Pattern[str]


@functools.lru_cache(maxsize=64)
def _patterns(names: tuple[str, ...], keys: tuple[str, ...]) -> _Patterns:
    name = f"(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"
    key = f"(?:{'|'.join(map(re.escape, sorted(keys, key=len, reverse=True)))})" if keys else "(?!)"
    not_opened = rf"{name}[^\S\n]?[^\n]?(?:{key}[^\S\n]?=|\)[^\S\n]?[\],])"
    not_closed = rf"{name}[^\S\n]?\([^()\[\]\n]*(?:\]|\Z|(?<=[\s,]){name}\()"
    begins = r"^[^\S\n]*"
    return _Patterns(
        re.compile(rf"{begins}\[[^\S\n]?(?:(?P<open>{not_opened})|{not_closed})", re.MULTILINE),
        re.compile(rf"{begins}\S?(?P<call>{name}\()", re.MULTILINE),
    )


def _broken(text: str, patterns: _Patterns) -> Damage | None:
    broken = patterns.broken.search(text)
    if broken is None:
        return None
    sign = "'('" if broken["open"] else "')'"
    return Damage(broken.start(), f"a {sign} is missing near {broken.group().strip()[-40:]!r}")


def _without_bracket(text: str, patterns: _Patterns, schemas: Mapping[str, ToolSchema]) -> Damage | None:
    """Find calls that a closing bracket follows, or that are all of the text."""
    for tries, bare in enumerate(patterns.bare.finditer(text)):
        if tries == MAX_TRIES:
            return None
        try:
            names, end, closed = read_open_calls(text, bare.start("call"))
        except LiteralError:
            continue
        alone = not text[: bare.start("call")].strip() and not text[end:].strip()
        if all(name in schemas for name in names) and (closed or alone):
            return Damage(bare.start(), "the list of calls has no '[' before it")
    return None


_BEGUN = re.compile(r"[^\S\n]*+\[\s*+(?P<name>[\w.-]*+)\s*+\Z")


def _cut(text: str, schemas: Mapping[str, ToolSchema]) -> Damage | None:
    begun = _BEGUN.match(text, text.rstrip().rfind("\n") + 1)
    if begun is None or not any(name.startswith(begun["name"]) for name in schemas):
        return None
    return Damage(begun.start(), "the text ended inside of it", cut=True)
