"""Runs the cells of a session, which share their names as in a notebook.

It differs from Jupyter's kernel on purpose:

- The echo is Python's own `repr`, where IPython has a pretty printer, and `get_ipython`, `In` and `Out` do not exist:
  libraries that look for them treat this as plain Python. `_`, `__` and `___` are there.
- Tracebacks are Python's own, and `exit()` ends the cell only.
- No event loop runs while a cell does, so that `asyncio.run` works; tasks run on while a cell awaits.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import linecache
import os
import sys
import threading
import traceback
import types
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local.child import cells, display, program
from toolgym.tools.sandbox.local.child.display import MAX_ECHO
from toolgym.tools.sandbox.local.protocol import answer_codec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import CellAnswer, CellErrorAnswer, CellMessage

_OURS = os.path.dirname(os.path.dirname(__file__))

_UNDERSCORES = ("_", "__", "___")
_NOTHING = object()

_COROUTINE = 0x80
_FUTURES = 0
for _feature in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _feature).compiler_flag

# Python warns of a coroutine that was never awaited, with the place where it was dropped: not one in our code.
_DROP = compile("dropped.clear()", "<session>", "eval")


class Notebook:
    def __init__(self, main: types.ModuleType) -> None:
        sys.path[0] = ""  # modules are found in the current folder, even after a change of it
        vars(main).pop("__file__", None)  # without it, `multiprocessing` does not try to run it in fresh processes
        self._names: dict[str, Any] = main.__dict__
        self._display = display.Display()
        self._display.put_in_place()
        sys.unraisablehook = threading.excepthook = _show_unraised  # those of C do not show the lines of cells
        self._names["display"] = self._display.display
        setattr(builtins, cells.SHELL, cells.run_shell)  # among the names of the program it could be lost
        self._count = 0
        self._futures = 0
        self._loop: Any = None
        self._echoed: list[Any] = [_NOTHING] * len(_UNDERSCORES)
        self._dropped: list[Any] = []

    def run(self, request: CellMessage) -> CellAnswer:
        self._count += 1
        self._display.begin(request.get("marks", ""))
        self._names.pop("__warningregistry__", None)  # each cell gets its own warnings
        result: str | None = None
        error: CellErrorAnswer | None = None
        why, line, code, name = "", None, None, f"<cell {self._count}>"
        try:
            result = self._execute(request["code"], name)
            self._display.show_figures()
        except BaseException as raised:  # noqa: BLE001  all that the cell raises is its result
            program.ignore_interrupts()
            if isinstance(raised, Exception):
                with contextlib.suppress(BaseException):
                    self._display.show_figures()
            line = _line_of(raised, name)
            error, why = _describe(raised), program.limit_of(raised)
            code = program.exit_status(raised.code) if isinstance(raised, SystemExit) else None
            self._dropped.append(raised)
            if isinstance(raised, SystemExit):
                program.reopen_stdin()
        eval(_DROP, {"dropped": self._dropped})
        return {
            "result": result,
            "error": error,
            "line": line,
            "why": why,
            "exit": code,
            "display": self._display.shown,
            "serials": self._display.serials,
        }

    def be_copy(self) -> None:
        """In the copy of a session: give the event loop its own selector and wake-up pipe. Its tasks go on in the copy.
        The kernel's list of watched descriptors would be shared with the origin, and the executor's threads do not
        exist here."""
        self._display.use_output()
        self._renew_loop()

    def _renew_loop(self) -> None:
        loop: Any = self._loop
        if loop is None or loop.is_closed() or not hasattr(loop, "_selector"):
            return
        watched, wake_up = loop._selector, loop._ssock.fileno()
        loop._selector = type(watched)()
        for key in [*watched.get_map().values()]:
            if key.fd != wake_up:
                with contextlib.suppress(OSError, ValueError):
                    loop._selector.register(key.fileobj, key.events, key.data)
        watched.close()
        for end in (loop._ssock, loop._csock):
            end.close()
        loop._internal_fds -= 1
        loop._make_self_pipe()
        loop._default_executor = None

    def be_shadow(self) -> None:
        """In the shadow of a session, once it is the interpreter: renew the event loop, whose threads and pipes do not
        exist here. The cell that was lost counts."""
        self._count += 1
        self._renew_loop()

    def _execute(self, code: str, name: str) -> str | None:
        tree, code = _parse(code, name)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not cells.silenced(code, tree.body[-1]):
            statement = tree.body.pop()
            assert isinstance(statement, ast.Expr)
            last = ast.Expression(statement.value)
        parts = [self._compile(tree, name, "exec")] if tree.body else []
        parts += [self._compile(last, name, "eval")] if last is not None else []
        program.catch_interrupts()
        value = self._complete(parts) if any(map(_awaits, parts)) else self._evaluate(parts)
        if value is None or last is None:
            return None
        self._remember(value)
        if display.shows_itself(value):
            return None
        forms = self._display.forms(value)
        if len(forms) > 1:
            self._display.add(forms, echo=True)
        return answer_codec.cut(forms["text/plain"], MAX_ECHO)

    def _compile(self, tree: Any, name: str, mode: str) -> types.CodeType:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self._futures
        compiled: types.CodeType = compile(tree, name, mode, flags=flags, dont_inherit=True)
        self._futures |= compiled.co_flags & _FUTURES  # a `from __future__` import holds for all later cells
        return compiled

    def _evaluate(self, parts: list[types.CodeType]) -> Any:
        value = None
        for part in parts:
            value = eval(part, self._names)
        return value

    async def _await(self, parts: list[types.CodeType]) -> Any:
        value = None
        for part in parts:
            value = eval(part, self._names)
            if _awaits(part):
                value = await value
        return value

    def _complete(self, parts: list[types.CodeType]) -> Any:
        """Run code with a top-level await, all of it in one task. Tasks of earlier cells run beside it."""
        import asyncio
        import contextvars

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        context = contextvars.copy_context()
        task = self._loop.create_task(self._await(parts), context=context)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt as error:
            if task.done():
                raise
            task.cancel()  # otherwise it would run on in the next cell that awaits
            try:
                self._loop.run_until_complete(task)
            except asyncio.CancelledError as cancelled:
                raise error.with_traceback(cancelled.__traceback__) from None
            raise
        finally:
            for variable, value in context.items():  # as if there had been no task
                variable.set(value)

    def _remember(self, value: Any) -> None:
        """Set `_`, `__` and `___` to the last echoes, unless the program uses `_` itself."""
        names, echoed = self._names, self._echoed
        ours = names.get("_", echoed[0]) is echoed[0]
        self._dropped.append(echoed.pop())
        echoed.insert(0, value)
        if ours:
            names.update((name, old) for name, old in zip(_UNDERSCORES, echoed, strict=True) if old is not _NOTHING)


def _awaits(part: types.CodeType) -> bool:
    return bool(part.co_flags & _COROUTINE)


def _parse(code: str, name: str) -> tuple[ast.Module, str]:
    """Parse a cell, as Python or else as notebook syntax. Returns the tree and the Python code."""

    def parse(code: str) -> ast.Module:
        linecache.cache[name] = (len(code), None, f"{code}\n".splitlines(True), name)
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags=flags, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        return tree

    try:
        return parse(code), code
    except SyntaxError:
        plain = cells.plain(code)
        if plain == code:
            raise
    return parse(plain), plain


def _describe(error: BaseException) -> CellErrorAnswer:
    try:
        value = str(error)
    except BaseException:  # noqa: BLE001  `__str__` may be the cell's own code
        value = "<its text cannot be shown>"
    if isinstance(error, SystemExit):
        return {"name": "SystemExit", "value": answer_codec.cut(value, MAX_ECHO), "traceback": []}
    frames = error.__traceback__
    if isinstance(error, SyntaxError):
        _find_source(error)
    try:
        frames = _from_cell(program.own_frames(frames))
        error.__traceback__ = frames
        _forget_our_frames(error)
        lines = traceback.format_exception(type(error), error, frames)
    except BaseException:  # noqa: BLE001
        lines = []
    lines = [answer_codec.cut(line, MAX_ECHO) for line in lines]
    return {"name": type(error).__name__, "value": answer_codec.cut(value, MAX_ECHO), "traceback": lines}


def _line_of(error: BaseException, name: str) -> int | None:
    """Return the line of the cell called `name` that ran last before an exception, or that is not Python."""
    if isinstance(error, SyntaxError) and error.filename == name:
        return error.lineno
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == name:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _show_unraised(about: Any) -> None:
    """Print an exception that nobody can catch, of a finalizer or of a thread, as Python does, with its source."""
    if about.exc_type is SystemExit:
        return
    thread = getattr(about, "thread", None)
    if isinstance(about, threading.ExceptHookArgs):
        title = f"Exception in thread {thread.name if thread is not None else threading.get_ident()}:"
    elif about.err_msg and about.object is None:
        title = f"{about.err_msg}:"
    else:
        title = f"{about.err_msg or 'Exception ignored in'}: {about.object!r}"
    frames = program.own_frames(about.exc_traceback)
    lines = traceback.format_exception(about.exc_type, about.exc_value, frames)
    sys.stderr.write(f"{title}\n{''.join(lines)}")


def _find_source(error: SyntaxError) -> None:
    """Give an error that the compiler finds late its line, which the compiler of a syntax tree does not know."""
    with contextlib.suppress(Exception):  # the program may raise anything as a SyntaxError
        if error.text is None and error.filename and error.lineno:
            error.text = linecache.getline(error.filename, error.lineno) or None


def _from_cell(frames: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from its first frame in a cell on, if it has one: the event loop's frames are above that."""
    frame = frames
    while frame is not None and not frame.tb_frame.f_code.co_filename.startswith("<cell "):
        frame = frame.tb_next
    return frames if frame is None else frame


def _forget_our_frames(error: BaseException) -> None:
    """Remove the sandbox's frames, such as those of `display`, from an exception's traceback and from its causes'."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        link = left.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        left += [link.__cause__, link.__context__, *members]
        frame = link.__traceback__
        while frame is not None:
            inner = frame.tb_next
            while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OURS):
                inner = inner.tb_next
            frame.tb_next = inner
            frame = inner
