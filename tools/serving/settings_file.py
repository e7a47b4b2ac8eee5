"""A configuration file with every setting and what it means, from the settings' class and its docstring."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import docstring_parser
import yaml

from toolgym.tools.serving.config import Settings

_WIDTH = 100


def settings_file(config: Settings, command: str) -> str:
    """Return settings as YAML that `load_settings` takes, each with its meaning as a comment.

    A setting that follows the machine and was not set is commented out: the file may go to another machine. A token is
    left out.

    Args:
        config: the settings.
        command: what takes the file, for its first line.
    """
    return "\n".join([f"# Settings of `{command}`.", *_lines(config, "")]) + "\n"


def meanings(model: type[Settings]) -> dict[str, str]:
    """Return what each setting means, by its name, as the docstrings of the class and its bases say it."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        parsed = docstring_parser.parse(inspect.cleandoc(one.__doc__ or ""), docstring_parser.DocstringStyle.GOOGLE)
        found |= {each.arg_name: each.description or "" for each in parsed.params}
    return found


def _lines(config: Settings, indent: str) -> list[str]:
    lines = []
    said = meanings(type(config))
    plain = config.model_dump(mode="json") | ({"token": None} if "token" in type(config).model_fields else {})
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        lines += ["", *textwrap.wrap(_words(said[name]), _WIDTH - len(indent), initial_indent=f"{indent}# ",
                                     subsequent_indent=f"{indent}# ")]  # fmt: skip
        if isinstance(value, Settings):
            lines += [f"{indent}{name}:", *_lines(value, f"{indent}  ")]
        else:
            follows = field.default_factory is not None and name not in config.model_fields_set
            lines.append(f"{indent}{'# ' if follows else ''}{name}: {_yaml(plain[name])}")
    return lines


def _words(text: str) -> str:
    """Return a meaning in one line, in YAML's words."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
