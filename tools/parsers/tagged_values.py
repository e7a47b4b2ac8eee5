"""Values between tags that nothing escapes, as `<parameter=key>value</parameter>`, and their types.

The tool's schema says whether 5 or "5" is meant. What it does not settle stays text: the check against the schema then
tells the model whether it is right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.tools.errors import ToolgymError
from toolgym.tools.parsers.python_literals import LiteralError, read_literal
from toolgym.tools.parsers.scan import NULLS, TurnBuilder, region_end
from toolgym.tools.parsers.strict_json import read_whole_json
from toolgym.tools.schema import ToolSchema

_PYTHON = {"True": True, "False": False, "None": None}
"""Chat templates of such formats write these values with Python's `str`."""

_MAX_DEPTH = 20
"""How deep types are looked for in references and unions of a schema."""

_TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


class MalformedError(ToolgymError, ValueError):
    """A call is not written as its format wants it; `at` is where, and `name` the tool's, as far as it was read."""

    def __init__(self, why: str, at: int, name: str = "") -> None:
        super().__init__(why)
        self.at, self.name = at, name


class ValueTags:
    """The tags around values of one format, and what a value may hold of them.

    Nothing escapes a value, so a value that holds a tag of its own format may be two values, of which one tag was
    forgotten or misspelt. A value may therefore hold

    * an opening tag (`opening`) only if its key is not a parameter of the tool, and a closing tag follows;
    * a closing tag (`close`) only behind an opening tag with the same name, as in `<parameter>x</parameter>`;
    * a tag with a name that is nearly one of the `names` only if it has another form than the format's, or is one of a
      pair with the same name.

    Other tags, such as those of HTML, are data. A closing or misspelt tag is data as well if all parameters of the tool
    have values, since the value cannot hold another argument then.

    Args:
        close: the tag that closes a value.
        opening: pattern of the tag that opens an argument; its group `key` is the argument's name, if it holds one.
        follows: pattern of what stands after the closing tag of a value.
        names: names of the tags that stand between two values.
        form: pattern of what follows a name in an opening tag, such as `=`.
    """

    def __init__(
        self, close: str, opening: re.Pattern[str], follows: re.Pattern[str], names: Sequence[str], form: str
    ) -> None:
        self.close, self.opening, self.follows = close, opening, follows
        self.name = close.strip("</>")
        self.names = tuple(names)
        self.form = re.compile(form)

    def nearly(self, name: str) -> bool:
        """Whether a tag's name may be a misspelt one of this format."""
        return any(abs(len(name) - len(known)) <= 2 and _is_near(name, known) for known in self.names)


_TAG = re.compile(r"<(/?)([A-Za-z_][\w:.-]*)|<(/?)")


class Value(NamedTuple):
    """A value, the position after its closing tag, and the error that it is if another argument may be part of it."""

    text: str
    end: int
    doubt: MalformedError | None


def require_whole(
    doubts: Sequence[MalformedError | None], keys: Collection[str], known: Collection[str] | None
) -> None:
    """Raise the first of the doubts, unless all `known` parameters are among the `keys` of the call."""
    doubt = next((doubt for doubt in doubts if doubt is not None), None)
    if doubt is not None and not (known and all(key in keys for key in known)):
        raise doubt


def read_value(text: str, start: int, key: str, name: str, tags: ValueTags, known: Collection[str] | None) -> Value:
    """Read the value that begins at `start`.

    The value ends at the first closing tag that is not one of a pair inside of the value, and after which the format
    continues.

    Args:
        text: the turn.
        start: position of the value's first character.
        key: the argument's name, for errors.
        name: the tool's name, for errors.
        tags: the tags of the format.
        known: the tool's parameters; None if they are not known.

    Raises:
        MalformedError: the value has no closing tag, or may be two values.
    """
    open_tags: dict[str, int] = {}
    doubt: MalformedError | None = None
    at = start
    while (tag := _TAG.search(text, at)) is not None:
        at = tag.end()
        if text.startswith(tags.close, tag.start()):
            end, at = tag.start(), tag.start() + len(tags.close)
            if open_tags.get(tags.name, 0) > 0:
                open_tags[tags.name] -= 1
            elif tags.follows.match(text, at) and not any(
                count for tag_name, count in open_tags.items() if tag_name in tags.names
            ):
                return Value(text[start:end], at, doubt)
            else:
                doubt = doubt or _two_values(tags, key, name, tags.close, start)
            continue
        if (opening := tags.opening.match(text, tag.start())) is not None:
            other = opening.groupdict().get("key")
            if other is None or known is None or other.strip() in known:
                raise _two_values(tags, key, name, opening.group(), start)
        tag_name = tag[2]
        if tag_name is None:
            continue
        if tag_name not in tags.names and not tags.nearly(tag_name):
            if tag[1] and text.startswith("=", at):  # what is left of two tags in a row
                doubt = doubt or _two_values(tags, key, name, tag.group(), start)
            continue
        if not tag[1]:
            if tag_name not in tags.names and tags.form.match(text, at):
                doubt = doubt or _two_values(tags, key, name, tag.group(), start)
            open_tags[tag_name] = open_tags.get(tag_name, 0) + 1
        elif open_tags.get(tag_name, 0) > 0:
            open_tags[tag_name] -= 1
        else:
            doubt = doubt or _two_values(tags, key, name, tag.group(), start)
    raise MalformedError(f"the value of {key!r} has no closing {tags.close}", start, name)


def _two_values(tags: ValueTags, key: str, name: str, tag: str, at: int) -> MalformedError:
    why = (
        f"the value of {key!r} holds {tag[:60]!r}, or a closing {tags.close} is missing; a parser cannot tell which. "
        "Write tags of this format in another way inside of values"
    )
    return MalformedError(why, at, name)


@functools.lru_cache(maxsize=4096)
def _is_near(word: str, other: str) -> bool:
    """Whether at most two letters of the longer word are missing, added or changed (one if it has five or less)."""
    most = 1 if len(other) <= 5 else 2
    row = list(range(len(other) + 1))
    for count, letter in enumerate(word, 1):
        last, row = row, [count]
        for at, other_letter in enumerate(other):
            row.append(min(last[at] + (letter != other_letter), last[at + 1] + 1, row[-1] + 1))
    return row[-1] <= most


def add_malformed(
    turn: TurnBuilder, error: MalformedError, text: str, start: int, *, opening: str, close: str, shape: str
) -> int:
    end, closed = region_end(text, error.at, close, opening)
    if not closed:
        turn.add_unclosed(close, text[start:end], error.name)
        return end
    turn.add_misread(str(error), f"Write it as:\n{shape}", text[start:end], error.name)
    return end + len(close)


def parameters_of(name: str, schemas: Mapping[str, ToolSchema] | None) -> Collection[str] | None:
    """Return the names of a tool's parameters; None if they are not known."""
    schema = (schemas or {}).get(name)
    return None if schema is None else schema.parameters.get("properties", {}).keys()


def typed(
    name: str, texts: Mapping[str, str], schemas: Mapping[str, ToolSchema] | None, nulls: Collection[str] = NULLS
) -> dict[str, Any]:
    """Type the arguments of a call.

    * A parameter that may be a string gets the text as it is. If it may be null as well, a text of `nulls` is null.
    * Any other gets the JSON value that the text holds, or `True`, `False`, `None`, a list or a dict as Python
      writes them.
    * If an `enum` or `const` lists the values, the listed string counts before the listed other value.
    * A text that holds no such value, a parameter whose type the schema leaves open, one that it does not have, and all
      parameters of an unknown tool stay text.
    """
    schema = (schemas or {}).get(name)
    if schema is None:
        return dict(texts)
    root = schema.parameters
    properties, others = root.get("properties", {}), root.get("additionalProperties")
    return {key: typed_text(text, types_of(properties.get(key, others), root), nulls) for key, text in texts.items()}


def typed_text(text: str, types: set[str] | None, nulls: Collection[str]) -> Any:
    """Type one value. `types` is what `types_of` returns for its schema; the rules are those of `typed`."""
    if types is None:
        return text
    bare = text.strip()
    if "string" in types:
        return None if "null" in types and text in nulls else text
    if "null" in types and bare in ("null", "None"):
        return None
    if bare in _PYTHON:
        value: Any = _PYTHON[bare]
    else:
        value, _, problem = read_whole_json(bare)
        if problem and types & {"object", "array"}:
            value, problem = _python_literal(bare)
        if problem:
            return text
    return text if isinstance(value, str) else value


def _python_literal(text: str) -> tuple[Any, str]:
    """Read a list or dict as Python writes it. Several chat templates write them so."""
    try:
        value, end = read_literal(text, 0)
    except LiteralError as error:
        return None, str(error)
    return value, "" if end == len(text) else "text follows the value"


def types_of(schema: Any, root: Mapping[str, Any]) -> set[str] | None:
    """Return the types that a schema, a part of the schema `root`, allows; None if it leaves them open."""
    return _types(schema, root, 0, {})


def _types(schema: Any, root: Mapping[str, Any], depth: int, known: dict[int, set[str] | None]) -> set[str] | None:
    """See `types_of`. `known` has the types of schemas by their `id`, since many may refer to one, or to each other."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if id(schema) not in known:
        known[id(schema)] = None
        known[id(schema)] = _types_of_parts(schema, root, depth, known)
    return known[id(schema)]


def _types_of_parts(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, known: dict[int, set[str] | None]
) -> set[str] | None:
    alternatives: list[set[str]] = []
    if "type" in schema:
        kind = schema["type"]
        alternatives.append({kind} if isinstance(kind, str) else set(kind))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        alternatives.append({_type_of(value) for value in values})
    if isinstance(reference := schema.get("$ref"), str):
        alternatives.append(_types(_resolve(reference, root), root, depth + 1, known) or set())
    for rule in ("anyOf", "oneOf"):
        parts = [_types(part, root, depth + 1, known) for part in schema.get(rule, [])]
        if parts:
            alternatives.append(set().union(*parts) if all(parts) else set())  # type: ignore[arg-type]
    alternatives += [
        part for part_schema in schema.get("allOf", []) if (part := _types(part_schema, root, depth + 1, known))
    ]
    alternatives = [part for part in alternatives if part]
    whole = [part | {"integer"} if "number" in part else part for part in alternatives]
    return set.intersection(*whole) or None if whole else None


def schema_inside(schema: Any, root: Mapping[str, Any], key: str | None = None) -> Any:
    """Return the schema of a list's items, or of an object's property `key`; None if the schema has none.

    Args:
        schema: the schema of the list or object.
        root: the whole schema, which `$ref` points into.
        key: the property; None for the items of a list.
    """
    inside: dict[int, Any] = {}
    visited: set[int] = set()
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping) or id(part) in visited:
            continue
        visited.add(id(part))
        properties = part.get("properties")
        if key is None:
            value = part.get("items")
        elif isinstance(properties, Mapping) and key in properties:
            value = properties[key]
        else:
            value = part.get("additionalProperties")
        if isinstance(value, Mapping):
            inside[id(value)] = value
        if isinstance(reference := part.get("$ref"), str):
            left.append(_resolve(reference, root))
        for rule in ("anyOf", "oneOf", "allOf"):
            parts = part.get(rule)
            left += parts if isinstance(parts, list) else []
    schemas = list(inside.values())
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else None


def _type_of(value: Any) -> str:
    return next((name for name, kind in _TYPES.items() if isinstance(value, kind)), "number")


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):
        return None
    node: Any = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node
