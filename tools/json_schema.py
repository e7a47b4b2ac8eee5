"""`ArgumentChecker`: check a model's arguments against JSON Schema, within a bounded amount of work.

The arguments are hostile, and the schema may come from another program. `jsonschema` alone would loop for minutes over
nested alternatives, compare all items of a list with each other, backtrack in a regular expression, and fetch a remote
`$ref`. Here each check has a budget, lists are compared by hash, regular expressions have a timeout, and nothing is
fetched.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from toolgym.tools.errors import ConfigError, shorten

MAX_STEPS = 30_000
"""Keywords of the schema that one check may evaluate. One takes about 9 microseconds, and the event loop waits."""

MAX_ERRORS = 20
"""Errors of one check that the model reads."""

PATTERN_SECONDS = 0.05
"""CPU seconds that all regular expressions of one check may take."""

_TOO_MUCH = "The arguments are too large or too deeply nested to be checked. Send fewer or simpler ones."


PLAIN_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
"""Types of Python that surely fit a type of JSON Schema."""

ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
"""Keywords of JSON Schema that forbid nothing."""


class _Budget:
    """Work that one check may still do."""

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.pattern_seconds = PATTERN_SECONDS

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise _OverBudgetError


class _OverBudgetError(Exception):
    """The arguments take too much work to check."""


_budget: ContextVar[_Budget] = ContextVar("toolgym-schema-budget")


class ArgumentChecker:
    """Checks arguments against the parameters of one tool.

    Args:
        parameters: a JSON Schema. Its `$schema` selects the draft; without it, or with an unknown one, 2020-12 holds.
        external: whether another program wrote the schema and checks the arguments again. Then the newest draft that
            accepts the schema is used, and keywords that cannot be checked here (a `$ref` that leads nowhere, a regular
            expression of another dialect, a schema that no draft accepts) are passed over.

    Raises ConfigError if `parameters` are not JSON, or not a valid schema and not `external`.
    """

    def __init__(self, parameters: Mapping[str, Any], *, external: bool = False) -> None:
        try:
            text = json.dumps(dict(parameters))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"must be JSON: {error}") from error
        self._draft, problem = _draft_of(text, external)
        if problem is not None and not external:
            raise ConfigError(problem)
        self._parameters = dict(parameters)
        self._external = external

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return a sentence that a model can act on for each argument that is wrong, at most `MAX_ERRORS`."""
        from referencing.exceptions import Unresolvable

        if self._draft is None:
            return []
        token = _budget.set(_Budget())
        try:
            errors = list(itertools.islice(self._validator.iter_errors(dict(arguments)), MAX_ERRORS))
            errors.sort(key=lambda error: list(map(str, error.absolute_path)))
            return [sentence for error in errors for sentence in _sentences(error)][:MAX_ERRORS]
        except (_OverBudgetError, RecursionError):
            return [_TOO_MUCH]
        except Unresolvable as error:
            if self._external:
                return []
            raise ConfigError(f"a $ref of the tool's schema leads nowhere: {error}") from error
        finally:
            _budget.reset(token)

    @functools.cached_property
    def _validator(self) -> Any:
        import referencing

        # An empty registry: a remote `$ref` is not fetched.
        return _validator_class(self._draft)(self._parameters, registry=referencing.Registry())


@functools.lru_cache(maxsize=1024)
def _draft_of(text: str, external: bool) -> tuple[str | None, str | None]:
    """Return the name of the first draft that accepts a schema, and why the draft that it names rejects it.

    Args:
        text: the schema as JSON. Each text is checked once, because a check takes 1 ms and envs make their tools often.
        external: whether regular expressions that cannot be compiled are accepted.
    """
    from jsonschema import validators

    schema = json.loads(text)
    named = validators.validator_for(schema, default=validators.Draft202012Validator)
    names = [named.__name__, "Draft202012Validator", "Draft7Validator", "Draft4Validator"]
    first = None
    for name in dict.fromkeys(names):
        problem = _problem_of_schema(getattr(validators, name), schema, external)
        if problem is None:
            return name, first
        first = first or problem
    return None, first


def _problem_of_schema(draft: Any, schema: Any, external: bool) -> str | None:
    """Return why a schema is invalid in a draft; None if it is valid."""
    import jsonschema

    formats = jsonschema.FormatChecker(formats=())
    if not external:
        formats.checks("regex")(lambda pattern: not isinstance(pattern, str) or compiled_pattern(pattern) is not None)
    try:
        draft.check_schema(schema, format_checker=formats)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path) or "its top"
        return f"are not a valid JSON Schema at {where}: {shorten(error.message, 300)}"
    except RecursionError:
        return "are nested too deeply"
    return None if external else _problem_of_references(schema)


def _problem_of_references(schema: Any) -> str | None:
    """Return which `$ref` within a schema leads nowhere; None if all can be followed."""
    import referencing
    from referencing.jsonschema import DRAFT202012

    references = {node["$ref"] for node in _objects(schema) if isinstance(node.get("$ref"), str)}
    if any("$id" in node for node in _objects(schema)):  # then a reference may be relative to another base
        return None
    registry = referencing.Registry().with_resource("", DRAFT202012.create_resource(schema))
    for reference in sorted(references):
        try:
            registry.resolver().lookup(reference)
        except referencing.exceptions.Unresolvable:
            return f"have a $ref that leads nowhere: {shorten(reference, 200)!r}"
    return None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each JSON object within a value, itself included."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


@functools.cache
def _validator_class(name: str) -> Any:
    """Return the class of `jsonschema` for a draft, with keywords that spend the budget of the check."""
    from jsonschema import validators

    draft = getattr(validators, name)
    keywords = dict(draft.VALIDATORS)
    keywords |= {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    keywords["items"] = _quick_items(keywords["items"])
    extend: Any = validators.extend  # untyped
    return extend(draft, {keyword: _spending(check) for keyword, check in keywords.items()})


def _spending(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _budget.get().spend()
        return check(validator, value, instance, schema)

    return checked


# ---------------------------------------------------------------------- keywords whose work `jsonschema` does not bound


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str):
        matches = matches_pattern(pattern, instance)
        if matches is None:
            yield ValidationError(f"it takes too long to match it with {shorten(pattern, 100)!r}; send a shorter text")
        elif not matches:
            yield ValidationError(f"it does not match {shorten(pattern, 200)!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            _budget.get().spend()
            if matches_pattern(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if unique and validator.is_type(instance, "array"):
        _budget.get().spend(len(instance))
        keys = [json.dumps(_comparable(item), sort_keys=True) for item in instance]
        if len(set(keys)) < len(keys):
            yield ValidationError("it has equal items, and all must differ")


def _quick_items(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return the keyword `items` with a quick way for long lists of plain values, such as a million numbers."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        kinds = PLAIN_KINDS.get(value.get("type", "")) if is_plain(value) else None
        if kinds is None or not isinstance(instance, list) or "prefixItems" in schema:
            return check(validator, value, instance, schema)
        if all(type(item) in kinds for item in instance):
            return ()
        return check(validator, value, instance, schema)

    return checked


def is_plain(schema: Any) -> bool:
    """Return whether a schema demands a type and nothing else."""
    if not isinstance(schema, Mapping) or schema.keys() - {"type"} - ANNOTATIONS:
        return False
    return isinstance(schema.get("type"), str) and schema["type"] in PLAIN_KINDS


def _comparable(value: Any) -> Any:
    """Return a value whose JSON text equals that of equal values: 1 and 1.0 are equal in JSON Schema."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


def matches_pattern(pattern: str, text: str) -> bool | None:
    """Return whether a regular expression of JSON Schema matches somewhere in a text; None if that takes too long.

    JSON Schema uses ECMA-262 expressions such as `^\\p{L}+$`, which Python's `re` does not have and `regex` has. An
    expression that `regex` cannot read either matches everything: `external` schemas may have one.
    """
    compiled = compiled_pattern(pattern)
    if compiled is None:
        return True
    budget = _budget.get(None) or _Budget()
    if budget.pattern_seconds <= 0:
        return None
    try:
        matches = compiled.search(text, timeout=budget.pattern_seconds) is not None
    except TimeoutError:
        budget.pattern_seconds = 0.0
        return None
    return matches


@functools.lru_cache(maxsize=1024)
def compiled_pattern(pattern: str) -> Any:
    """Return a regular expression that `regex` has compiled; None if it cannot."""
    import regex

    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError):
        return None


# ---------------------------------------------------------------------- sentences for the model


def _sentences(error: Any) -> list[str]:
    path = _path(error.absolute_path)
    value, rule = error.instance, error.validator
    if rule == "required" and isinstance(error.validator_value, list):
        absent = [name for name in error.validator_value if name not in value]
        return [f"Missing required argument {_join(path, name)!r}." for name in absent]
    if rule == "additionalProperties" and isinstance(value, Mapping):
        allowed = list(error.schema.get("properties", {}))
        extra = itertools.islice((name for name in value if name not in allowed), MAX_ERRORS)
        expected = ", ".join(repr(name) for name in allowed) or "none"
        return [f"Unexpected argument {_join(path, shorten(name, 80))!r}; allowed: {expected}." for name in extra]
    subject = f"Argument {path!r}" if path else "The arguments"
    if rule == "type":
        expected = error.validator_value
        expected = " or ".join(expected) if isinstance(expected, list) else expected
        return [f"{subject} must be of type {expected}, got {_json_type(value)} {_short(value)}."]
    if rule == "enum":
        choices = ", ".join(json.dumps(item, ensure_ascii=False) for item in error.validator_value)
        return [f"{subject} must be one of {choices}, got {_short(value)}."]
    if rule in ("anyOf", "oneOf") and error.context:
        kinds = [child.validator_value for child in error.context if child.validator == "type"]
        if kinds and len(kinds) == len(error.context):
            return [
                f"{subject} must be of type {' or '.join(map(str, kinds))}, got {_json_type(value)} {_short(value)}."
            ]
    return [f"{subject} is not valid: {shorten(error.message, 500)}."]


def _path(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return shorten(text, 200)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _json_type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
