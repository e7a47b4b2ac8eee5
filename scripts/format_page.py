"""Make docs/trajectory.schema.json, and the tables of docs/format.md, from `TrajectoryRow`.

    python scripts/format_page.py [--check]

With `--check` nothing is written; it prints what differs and ends with status 1.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from toolgym.exports.row_model import TrajectoryRow, json_schema

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- made by scripts/format_page.py -->\n", "<!-- end of what is made -->\n"
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any JSON", type(None): "null"}


def models_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a model and those of its fields, each once, as they are met."""
    met = [model]
    for field in model.model_fields.values():
        for inner in _leaves(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                met += [part for part in models_of(inner) if part not in met]
    return met


def _leaves(annotation: Any) -> Iterator[Any]:
    arguments = get_args(annotation)
    if not arguments:
        yield annotation
    for argument in arguments:
        yield from _leaves(argument)


def title_of(model: type[BaseModel]) -> str:
    return model.__name__.removesuffix("Row")


def type_text(annotation: Any) -> str:
    """Return a type in words; that of a part is a link to its table."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return "object" if arguments[1] is Any else f"object of {type_text(arguments[1])}"
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(argument) for argument in arguments)
    if hasattr(annotation, "__metadata__"):
        return type_text(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{title_of(annotation)}](#{title_of(annotation).lower()})"
    if arguments:  # a literal
        return "string"
    return NAMES[annotation]


def tables() -> str:
    """Return the tables in Markdown, one for each model."""
    lines: list[str] = []
    for model in models_of(TrajectoryRow):
        about = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
        lines += [f"## {title_of(model)}", "", about, "", "| field | type | meaning |", "| --- | --- | --- |"]
        for name, field in model.model_fields.items():
            key = f"`{field.alias or name}`" + ("" if field.is_required() else ", may be missing")
            lines.append(f"| {key} | {type_text(field.annotation)} | {field.description} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return what each file should be."""
    page = DOCS / "format.md"
    text = page.read_text(encoding="utf-8")
    text = re.sub(
        re.escape(BEGIN) + ".*" + re.escape(END), lambda _: f"{BEGIN}\n{tables()}\n{END}", text, flags=re.DOTALL
    )
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    return {page: text, DOCS / "trajectory.schema.json": schema}


def main() -> int:
    """Write or compare; return the exit status."""
    status = 0
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        print(f"{path.name} is not what scripts/format_page.py makes")
        status = 1
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    return status if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
