"""Output and results of cells as lines of an answer: read from a program until a mark, or what a cell returns."""

from __future__ import annotations

import codecs
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import CellError, CellResult, ExecutionStatus
from toolgym.tools.sandbox.e2b.connect import CutError, Emit
from toolgym.tools.sandbox.processes import Process, ProcessRequest

LOOK = 20.0
"""Seconds that one question for output waits."""

_CHUNK = 64 * 1024

_FORMS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
"""The names of a result's forms by their MIME types; others are below `extra`."""


async def drop(_: Mapping[str, Any]) -> None:
    return


def new_mark() -> bytes:
    """Make a text that ends a cell's output: nothing that was printed before can hold it."""
    return f"\x1e{secrets.token_hex(16)}\x1e".encode()


async def read_until(process: Process, mark: bytes, emit: Emit) -> bool:
    """Pass on a program's output until the mark has come in both streams. Returns False if the program ends before."""
    streams = {name: _Stream(name, mark) for name in ("stdout", "stderr")}
    while True:
        state = await process.ask(ProcessRequest(until="output", wait=LOOK, read=True))
        output = state.output
        for name, data in (("stdout", output.stdout), ("stderr", output.stderr)):
            for text in streams[name].feed(data):
                await emit({"type": name, "text": text, "timestamp": int(time.time() * 1e9)})
        if all(stream.is_over for stream in streams.values()):
            return True
        if not state.running:
            return False


class _Stream:
    """One stream of a cell, decoded, until its mark."""

    def __init__(self, name: str, mark: bytes) -> None:
        self.name, self.is_over = name, False
        self._mark, self._held = mark, b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> Sequence[str]:
        if self.is_over:
            return []
        data = self._held + data
        at = data.find(self._mark)
        self.is_over = at >= 0
        if not self.is_over:  # it may end with the beginning of the mark
            starts = range(max(0, len(data) - len(self._mark) + 1), len(data))
            at = next((start for start in starts if self._mark.startswith(data[start:])), len(data))
        self._held = data[at:]
        text = self._decoder.decode(data[:at], self.is_over)
        return [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]


def cell_result(data: bytes) -> CellResult:
    """Return the result that a kernel wrote. The program may have written it, so each part is checked."""
    try:
        answer = json.loads(data)
        error, display, result = answer["error"], answer["display"], answer["result"]
        shown = tuple(form for form in display if isinstance(form, dict))
        failure = None
        if error is not None:
            failure = CellError(str(error["name"]), str(error["value"]), tuple(map(str, error["traceback"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SandboxError("what the interpreter of this context says about its cell makes no sense") from None
    status = ExecutionStatus.OK if failure is None else ExecutionStatus.ERROR
    return CellResult(status, result=result if isinstance(result, str) else None, display=shown, error=failure)


def lines_of(result: CellResult) -> Sequence[Mapping[str, Any]]:
    """Return the lines of a cell's end: what it showed and its value, with their `forms` by MIME type, and why it
    failed."""
    if result.status is ExecutionStatus.SANDBOX_ERROR:
        raise CutError(result.message)
    shown, main = [*result.display], -1
    if result.result is not None:
        main = max((at for at, form in enumerate(shown) if form.get("text/plain") == result.result), default=len(shown))
        if main == len(shown):
            shown.append({"text/plain": result.result})
    lines: list[Mapping[str, Any]] = [
        {"type": "result", "is_main_result": at == main, "forms": form} for at, form in enumerate(shown)
    ]
    error = result.error
    if error is not None:
        traceback = "".join(error.traceback) or f"{error.name}: {error.value}"
        lines.append({"type": "error", "name": error.name, "value": error.value, "traceback": traceback})
    elif result.status is not ExecutionStatus.OK:
        why = result.message or f"the cell was ended: {result.status.value.replace('_', ' ')}"
        lines.append({"type": "error", "name": "CellEnded", "value": why, "traceback": why})
    return lines


def e2b_line(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line as E2B's SDKs read it: a result's forms have names, and a text has no quotes."""
    if "forms" not in message:
        return message
    line = dict(message)
    form = line.pop("forms")
    extra = {mime: data for mime, data in form.items() if mime not in _FORMS}
    line |= {name: form[mime] for mime, name in _FORMS.items() if mime in form}
    text = line.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        line["text"] = text[1:-1]
    return line | ({"extra": extra} if extra else {})
