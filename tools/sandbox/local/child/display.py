"""Rich output of a session, as in a notebook: the forms of a value, and the functions that libraries show it with.

The interpreter of a sandbox need not have IPython, so the part that libraries use is written here.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from toolgym.tools.sandbox.local.protocol import answer_codec, marks

MAX_ECHO = 64 * 1024
"""Characters of a last expression's `repr` that are echoed, and of one line of a traceback."""

MAX_STRUCTURE = 50_000
"""Commas and brackets that the JSON of one rich form may have, if it is not a text."""

_MIME_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}

_NO_METHOD = "_repr_of_no_value_"

_IPYTHON = ("IPython.core.display_functions", "IPython.core.display", "IPython.display")
"""The module that defines `display` and the like, and those that import them from it."""

_PYPLOT = "matplotlib.pyplot"


def bundle(offered: Mapping[Any, Any]) -> dict[str, Any]:
    """The forms of one value to send, bytes in base64; its text names those that cannot be sent."""
    shown: dict[str, Any] = {}
    left_out = []
    for mime, form in offered.items():
        data = base64.b64encode(form).decode() if isinstance(form, bytes) else form
        if not isinstance(data, str):
            try:
                encoded = json.dumps(data).encode()
                why = "" if answer_codec.count(encoded) <= MAX_STRUCTURE else "has too many parts"
                why = why if len(encoded) <= answer_codec.MAX_HEAD // 2 else "is too large"
            except (TypeError, ValueError, RecursionError):
                why = "is not JSON"
            if why:
                left_out.append(f"[left out: its {mime}, which {why}]")
                continue
        shown[str(mime)] = data[:MAX_ECHO] if mime == "text/plain" and isinstance(data, str) else data
    if left_out:
        shown["text/plain"] = "\n".join([str(shown.get("text/plain", "")), *left_out])
    return shown


def shows_itself(value: Any) -> bool:
    """Call the method that shows a value. Returns whether it has one."""
    shower = None if _has_any_name(value) else _method(value, "_ipython_display_")
    if shower is not None:
        shower()
    return shower is not None


def _rich(value: Any, further: Mapping[str, Callable[[Any], Any]]) -> dict[Any, Any]:
    """The forms that a value's methods offer; its text only if one method offers several forms."""
    if _has_any_name(value):
        return {}
    shown: dict[Any, Any] = {}
    for mime, method in (("", "_repr_mimebundle_"), *_MIME_METHODS.items()):
        shower = _method(value, method)
        if mime in shown or shower is None:
            continue
        try:
            data = shower() if mime else shower(include=None, exclude=None)
            data = data[0] if isinstance(data, tuple) else data  # a tuple has metadata as well
            if not mime:
                shown.update(data or {})
            elif isinstance(data, str | bytes) or (mime == "application/json" and data is not None):
                shown[mime] = data
        except Exception as error:  # noqa: BLE001  the other forms are shown
            with contextlib.suppress(Exception):
                print(f"{method} raised {type(error).__name__}: {error}", file=sys.stderr)
    shown |= {mime: form for mime, function in further.items() if (form := function(value)) is not None}
    figures = sys.modules.get("matplotlib.figure")
    is_figure = isinstance(value, getattr(figures, "Figure", ()))
    if is_figure and "image/png" not in shown and (value.axes or value.lines):  # else it is empty
        data = io.BytesIO()
        value.savefig(data, format="png", bbox_inches="tight")
        shown["image/png"] = data.getvalue()
    return shown


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        about = os.fstat(fd)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _has_any_name(value: Any) -> bool:
    """Whether a value's methods say nothing about it: a class has those of its instances, and a mock has any."""
    return isinstance(value, type | types.ModuleType) or _method(value, _NO_METHOD) is not None


def _method(value: Any, name: str) -> Callable[..., Any] | None:
    try:
        method = getattr(value, name, None)
    except Exception:  # noqa: BLE001  a `__getattr__` may raise anything
        return None
    return method if callable(method) else None


class Display:
    """Rich output of a cell, in order, and the functions for it. `shown` has data by MIME type for each value.

    The text of each value is printed between two marks as well, so that the host learns where it was shown, and what
    was shown before a cell that never answers: see `protocol.marks`. `serials` are the numbers in the marks, or
    `marks.ECHO` for the last expression's value, which has no mark. `further` are functions for other forms of a value,
    by MIME type; None stands for no form.
    """

    def __init__(self) -> None:
        self.further: dict[str, Callable[[Any], Any]] = {}
        self.use_output()
        self.begin("")

    def use_output(self) -> None:
        """Take standard output as it is now for that of the session: marks go nowhere else."""
        self._output = _identity(1)

    def begin(self, token: str) -> None:
        """Start on a cell. `token` is for its marks; without one, none are printed."""
        self.shown: list[dict[str, Any]] = []
        self.serials: list[int] = []
        self._token, self._serial = token, 0
        self._named: dict[str, dict[str, Any]] = {}
        self._clear_first = False

    def forms(self, value: Any) -> dict[Any, Any]:
        """The forms of a value by MIME type, always with `text/plain`."""
        offered = _rich(value, self.further)
        text = offered.pop("text/plain", None)
        return {"text/plain": text if isinstance(text, str) else repr(value), **offered}

    def add(
        self, offered: Mapping[Any, Any], name: str | None = None, *, update: bool = False, echo: bool = False
    ) -> None:
        """Show one more value, given its forms. With `update`, it replaces the value that the cell showed by `name`.
        `echo` is for the value of the last expression."""
        fresh = bundle(offered)
        if self._clear_first:
            self._clear_first = False
            self.shown.clear()
            self.serials.clear()
            self._named.clear()
        old = self._named.get(name) if update and name is not None else None
        if old is not None:
            old.clear()
            old.update(fresh)
            return
        self._serial += 1
        self.shown.append(fresh)
        self.serials.append(marks.ECHO if echo else self._serial)
        if not echo:
            self._print(marks.block(self._token, self._serial, str(fresh.get("text/plain", ""))))
        if name is not None:
            self._named[name] = fresh

    def _print(self, mark: str) -> None:
        """Print a mark, even while the program redirects its output."""
        if self._token and _identity(1) == self._output:
            with contextlib.suppress(Exception):  # the program may have closed or replaced the streams
                sys.stdout.flush()
            with contextlib.suppress(Exception):
                sys.__stdout__.write(mark)  # type: ignore[union-attr]
                sys.__stdout__.flush()  # type: ignore[union-attr]

    def display(
        self,
        *values: Any,
        include: Any = None,
        exclude: Any = None,
        raw: bool = False,
        display_id: Any = None,
        update: bool = False,
        clear: bool = False,
        **_: Any,
    ) -> DisplayHandle | None:
        """Show values as Jupyter's `display` does; `raw` ones are forms by MIME type. Other options do nothing."""
        if clear:
            self.clear_output()
        name = os.urandom(8).hex() if display_id is True else display_id
        for value in values:
            if not raw and shows_itself(value):
                continue
            offered = value if raw else self.forms(value)
            kept = {mime: form for mime, form in offered.items() if not include or mime in include}
            self.add({mime: form for mime, form in kept.items() if mime not in (exclude or ())}, name, update=update)
        return DisplayHandle(self, name) if name is not None else None

    def publish_display_data(self, data: Mapping[str, Any], *_: Any, **options: Any) -> None:
        transient = options.get("transient") or {}
        self.add(data, transient.get("display_id"), update=bool(options.get("update")))

    def clear_output(self, wait: bool = False) -> None:
        """Drop what the cell has shown; `wait`: when it shows the next. What it has printed is marked as cleared."""
        self._print(marks.clearing(self._token))
        self._clear_first = wait
        if not wait:
            self.shown.clear()
            self.serials.clear()
            self._named.clear()

    def show_figures(self) -> None:
        pyplot: Any = sys.modules.get(_PYPLOT)
        numbers = pyplot.get_fignums() if hasattr(pyplot, "get_fignums") else ()
        try:
            for number in numbers:
                self.add(self.forms(pyplot.figure(number)))
        finally:
            if numbers:
                pyplot.close("all")

    def put_in_place(self) -> None:
        """Make libraries show here: without IPython's shell they would print values, and draw figures unseen. Modules
        that are loaded already are changed at once, others when they are imported."""
        for name in (*_IPYTHON, _PYPLOT):
            module = sys.modules.get(name)
            if module is not None:
                self.change(module)
        sys.meta_path.insert(0, _Finder(self))

    def change(self, module: types.ModuleType) -> None:

        def show(*_: Any, **__: Any) -> None:  # a function, because pyplot sets attributes on it
            self.show_figures()

        functions = (
            [show] if module.__name__ == _PYPLOT else [self.display, self.clear_output, self.publish_display_data]
        )
        for function in functions:
            name = function.__name__
            if name in vars(module):
                setattr(module, name, function)


class DisplayHandle:
    def __init__(self, shows: Display, display_id: str) -> None:
        self._shows = shows
        self.display_id = display_id

    def __repr__(self) -> str:
        return f"<DisplayHandle display_id={self.display_id}>"

    def display(self, value: Any, **options: Any) -> None:
        self._shows.display(value, display_id=self.display_id, **options)

    def update(self, value: Any, **options: Any) -> None:
        """Show a value in place of the one that this cell showed by the name; in a later cell, show it again."""
        self._shows.display(value, display_id=self.display_id, update=True, **options)


class _Finder:
    """Finds modules with the other finders, and changes some once they are loaded."""

    __slots__ = ("_display",)

    def __init__(self, display: Display) -> None:
        self._display = display

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in (_IPYTHON[0], _PYPLOT):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            self._display.change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
