"""What a session has in common with a notebook: what cells may say beyond Python, and the forms in which values show.

It is loaded before sessions are forked, and makes nothing per session but one small object.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from toolgym.tools.sandbox.local import answers

MAX_ECHO = 64 * 1024
"""Characters of a last expression's `repr` that are echoed, and of one line of a traceback."""

MAX_STRUCTURE = 50_000
"""How many commas and brackets the JSON of one rich form may have that is not a text."""

_MIME_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
}

_DISPLAY_MODULE = "IPython.core.display_functions"

_DISPLAY_USERS = ("IPython.core.display", "IPython.display")

# ---------------------------------------------------------------------- values


def forms(value: Any) -> dict[Any, Any]:
    """How a value shows, by MIME type. Its text is always there, as `text/plain`."""
    offered = _rich(value)
    text = offered.pop("text/plain", None)
    return {"text/plain": text if isinstance(text, str) else repr(value), **offered}


def bundle(offered: Mapping[Any, Any]) -> dict[str, Any]:
    """The forms of one value that are shown, bytes in base64; those that cannot be are named in its text."""
    shown: dict[str, Any] = {}
    left_out = []
    for mime, form in offered.items():
        data = base64.b64encode(form).decode() if isinstance(form, bytes) else form
        if not isinstance(data, str):
            try:
                encoded = json.dumps(data).encode()
                why = "" if answers.count(encoded) <= MAX_STRUCTURE else "has too many parts"
                why = why if len(encoded) <= answers.MAX_HEAD // 2 else "is too large"
            except (TypeError, ValueError, RecursionError):
                why = "is not JSON"
            if why:
                left_out.append(f"[left out: its {mime}, which {why}]")
                continue
        shown[str(mime)] = data[:MAX_ECHO] if mime == "text/plain" and isinstance(data, str) else data
    if left_out:
        shown["text/plain"] = "\n".join([str(shown.get("text/plain", "")), *left_out])
    return shown


def _rich(value: Any) -> dict[Any, Any]:
    """The forms that a value offers. Its text is among them only where it offers several at once."""
    if isinstance(value, type | types.ModuleType):
        return {}
    shown: dict[Any, Any] = {}
    offered = getattr(value, "_repr_mimebundle_", None)
    if callable(offered):
        with contextlib.suppress(Exception):
            data = offered()
            data = data[0] if isinstance(data, tuple) else data
            shown.update(data)
    for mime, method in _MIME_METHODS.items():
        shower = getattr(value, method, None)
        if mime in shown or not callable(shower):
            continue
        with contextlib.suppress(Exception):
            data = shower()
            data = data[0] if isinstance(data, tuple) else data  # metadata may come with it
            if data is not None:
                shown[mime] = data
    return shown


# ---------------------------------------------------------------------- `display`


def put_display(display: Callable[..., None]) -> None:
    """Have IPython's `display` do what it does in a notebook: without IPython's shell it would only print.

    Args:
        display: is put in its place, at once where IPython is loaded already, else whenever it is imported.
    """
    for name in (_DISPLAY_MODULE, *_DISPLAY_USERS):
        module = sys.modules.get(name)
        if module is not None and "display" in vars(module):
            module.display = display  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _DisplayFinder(display))


class _DisplayFinder:
    """Finds one module of IPython as other finders do, and changes its `display` once it is loaded."""

    __slots__ = ("_display",)

    def __init__(self, display: Callable[..., None]) -> None:
        self._display = display

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's own specification, which then loads it with that change; None for all other modules."""
        if name != _DISPLAY_MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            module.display = self._display  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# ---------------------------------------------------------------------- cells


def silenced(code: str, last: ast.stmt) -> bool:
    """Whether a semicolon follows a cell's last statement: then Jupyter echoes nothing. Comments are no matter."""
    if ";" not in code:
        return False
    # The parser counts lines as Python does, which `splitlines` does not, and columns in bytes.
    lines = code.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
    end, column = last.end_lineno or 0, last.end_col_offset or 0
    rest = b"\n".join([lines[end - 1][column:], *lines[end:]])
    return b";" in rest.partition(b"#")[0]


def answer_magics(code: str) -> str:
    """Replace lines that only IPython understands by a sentence that says so; plain Python stays as it is.

    What `%time` and `%%time` time runs, untimed, and `%matplotlib` is silent: figures are shown without it.
    """
    if not any(line.lstrip().startswith(("%", "!")) for line in code.splitlines()):
        return code
    try:
        ast.parse(code)
        return code  # a `%` at the beginning of a continued line is just Python
    except SyntaxError:
        pass
    lines = code.splitlines()
    if lines[0].startswith("%%"):
        if lines[0].split() != ["%%time"]:
            return _unavailable(lines[0])
        lines[0] = ""
    answered = []
    for line in lines:
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        magic, _, rest = bare.partition(" ")
        if bare.startswith("!"):
            answered.append(f"{indent}__import__('subprocess').run({bare[1:].strip()!r}, shell=True) and None")
        elif magic == "%matplotlib":
            answered.append(f"{indent}pass")
        elif magic == "%time" and rest.strip() and not rest.lstrip().startswith("-"):
            answered.append(indent + rest.lstrip())
        elif bare.startswith("%") and not bare.startswith("%%"):
            answered.append(indent + _unavailable(bare))
        else:
            answered.append(line)
    return "\n".join(answered)


def _unavailable(line: str) -> str:
    return f"print({f'[{line.split()[0]} is not available here: this is plain Python]'!r})"
