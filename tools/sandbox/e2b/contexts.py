"""Code contexts of a sandbox: interpreters that keep their state from cell to cell, and pass on output while it comes.

The default Python context is the session's own interpreter: it starts with the libraries loaded, and is forked with the
sandbox. Every other one is a program beside it, which shares its files and ends with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.resources
import json
import secrets
import shlex
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus, Session
from toolgym.tools.sandbox.e2b.cell_output import cell_result, drop, lines_of, new_mark, read_until
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, Emit
from toolgym.tools.sandbox.e2b.file_agent import FileAgent, source_of
from toolgym.tools.sandbox.processes import Process

SETUP = 20.0
"""Seconds for each step around a cell."""

INTERRUPTED = 5.0
"""Seconds that an interrupted cell of a program has to end, before the program is killed."""


_RELAY = 'cat "$1" & cat "$2" >&2 & wait'

_BASH = (
    "trap : INT; while { :; } >/dev/null 2>&1; do { \\builtin eval "
    "\"$(\\builtin trap '' INT; IFS= \\builtin read -r -d '' text && \\builtin printf %s \"$text\" || "
    '\\builtin printf exit)"; } 3>&1 4>&2 >/dev/null 2>&1; done'
)
"""Runs each text on standard input. A cell finds no variable, function or trace of this loop; see `_bash_request`."""

LANGUAGES = {"python": "python", "py": "python", "python3": "python", "bash": "bash", "sh": "bash", "shell": "bash"}
"""The languages that are served, by the names that clients use."""

_LOCAL = "toolgym.tools.sandbox.local"
_INSIDE = "toolgym.tools.sandbox.e2b.inside"
_MODULES = {
    "protocol": ("frames", "answer_codec", "marks"),
    "kernel": ("syscalls", "syscall_batch", "users", "seccomp", "landlock", "jail", "child_cgroups", "harden"),
    "child": ("recursion_depth", "generators", "program", "display", "cells", "notebook"),
}
"""The modules that run the cells of a session, by their rooms, each behind those that it needs: a further context runs
its cells with the same ones."""


def language_of(name: object) -> str:
    """Return the language that a client means. Raises E2bRefusedError."""
    language = LANGUAGES.get(str(name).lower())
    if language is None:
        raise E2bRefusedError("unimplemented", f"the language {name!r} is not served; there are python and bash")
    return language


class Cell(NamedTuple):
    """A cell, the variables that it has for itself, its seconds, and the text that ends its output."""

    code: str
    env: Mapping[str, str]
    timeout: float
    mark: bytes


@dataclass(eq=False)
class CodeContext(ABC):
    """An interpreter with a name of its own. One cell at a time; a second one waits."""

    session: Session
    files: FileAgent
    language: str
    cwd: str
    env: Mapping[str, str]
    is_default: bool = False

    def __post_init__(self) -> None:
        self.name = secrets.token_hex(16)
        self._count = 0
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        """The program that its output comes from."""

    def check(self, code: str) -> None:
        """Raise E2bRefusedError for code that cannot be run."""
        if self.language == "bash" and "\0" in code:
            raise E2bRefusedError("invalid_argument", "code of bash cannot hold a NUL character")

    async def run(self, code: str, env: Mapping[str, str], timeout: float, emit: Emit) -> None:
        """Run a cell, and pass on its output and its results. Cancelling interrupts the cell; its state lives on."""
        async with self._lock:
            self._count += 1
            process, cell = await self._running(), Cell(code, env, timeout, new_mark())
            reading = asyncio.create_task(read_until(process, cell.mark, emit))
            try:
                lines = await self._run(process, cell, reading)
            except BaseException:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await shielded(self._calm(process, cell))
                raise
            for line in (*lines, {"type": "number_of_executions", "execution_count": self._count}):
                await emit(line)

    @abstractmethod
    async def _run(self, process: Process, cell: Cell, reading: asyncio.Task[bool]) -> Sequence[Mapping[str, Any]]:
        """Run a cell, write the mark, and return the lines of its end once all of its output is read."""

    @abstractmethod
    async def _interrupt(self, process: Process, cell: Cell) -> None:
        """Interrupt a cell that still runs, and read on until its end."""

    @abstractmethod
    async def restart(self) -> None:
        """Forget all variables."""

    async def close(self) -> None:
        """End it, or forget its variables if it cannot end alone."""
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(SandboxError):
                await process.close()

    async def _running(self) -> Process:
        if self._process is None or (await self._process.poll()) is not None:
            await self._end()
            self._process = await self._begin()
        return self._process

    @abstractmethod
    async def _begin(self) -> Process: ...

    async def _calm(self, process: Process, cell: Cell) -> None:
        """Drop the rest of an interrupted cell's output; end the program if that goes on."""
        try:
            async with asyncio.timeout(INTERRUPTED):
                await self._interrupt(process, cell)
        except (TimeoutError, SandboxError):
            await self._end()


class SessionContext(CodeContext):
    """The interpreter of the sandbox's session, whose output goes through a program that is read while a cell runs."""

    async def _run(self, process: Process, cell: Cell, reading: asyncio.Task[bool]) -> Sequence[Mapping[str, Any]]:
        if cell.env:
            await self._hidden(f"s.e2b_saved = dict(o.environ); o.environ.update({dict(cell.env)!r})")
        result = await self.session.run_cell(cell.code, timeout=cell.timeout)
        try:
            if result.alive:
                await self._settle(cell)
            async with asyncio.timeout(SETUP):
                await reading
        except (TimeoutError, SandboxError):
            await self._end()  # the rest of this output is not the next cell's
        return lines_of(result)

    async def _interrupt(self, process: Process, cell: Cell) -> None:
        last = cell._replace(mark=new_mark())  # the cell's own may have been written
        await self._settle(last)
        await read_until(process, last.mark, drop)

    async def restart(self) -> None:
        async with self._lock:
            forget = "[names.pop(n) for n in [*names] if not n.startswith('__') and n != 'display']"
            await self._hidden(f"{forget}; o.chdir({self.cwd!r})")
            self._count = 0

    async def close(self) -> None:
        if self.session.alive:
            with contextlib.suppress(SandboxError):
                await self.restart()
        await self._end()

    async def _begin(self) -> Process:
        """Get the interpreter ready, once for it and its forks, and lead its output through a program."""
        once = f"{source_of('forms.py')}\nadd_to(names); o.chdir({self.cwd!r}); s.e2b_ready = True"
        pipes = [f"/tmp/.{secrets.token_hex(8)}" for _ in range(2)]
        ready = f"hasattr(s, 'e2b_ready') or exec({once!r}, globals())"
        await self._hidden(f"{ready}; o.environ.update({dict(self.env)!r}); [o.mkfifo(n) for n in {pipes!r}]")
        relay = await self.session.start(["/bin/sh", "-c", _RELAY, "sh", *pipes])
        parts = [f"f = o.open({name!r}, o.O_WRONLY); o.dup2(f, {fd}); o.close(f)" for fd, name in enumerate(pipes, 1)]
        lines = "with c.suppress(Exception):\n    s.stdout.reconfigure(line_buffering=True)"
        await self._hidden("\n".join([*parts, f"[o.unlink(n) for n in {pipes!r}]", lines]))
        return relay

    async def _settle(self, cell: Cell) -> None:
        """Put the variables of one cell back, and mark the end of its output."""
        flush = "with c.suppress(Exception):\n    s.stdout.flush(); s.stderr.flush()"
        steps = [flush, f"[o.write(fd, {cell.mark!r}) for fd in (1, 2)]"]
        if cell.env:
            steps.append("saved = s.e2b_saved; o.environ.clear(); o.environ.update(saved)")
        await self._hidden("\n".join(steps))

    async def _hidden(self, code: str) -> None:
        """Run code that leaves no trace in the variables (`names`). `o`, `s` and `c` are modules."""
        modules = "'o': __import__('os'), 's': __import__('sys'), 'c': __import__('contextlib')"
        python = "__import__('builtins')"  # the cells may have variables that are called exec or globals
        program = f"{python}.exec({code!r}, {{{modules}, 'names': {python}.globals()}})"
        result = await self.session.run_cell(program, timeout=SETUP)
        if result.status is not ExecutionStatus.OK:
            why = result.error.value if result.error is not None else result.message or result.status.value
            raise SandboxError(f"the interpreter cannot be got ready for a cell: {why}")


class ProgramContext(CodeContext):
    """An interpreter that is a program of the sandbox: of Python, with the same cells as a session, or bash."""

    async def _run(self, process: Process, cell: Cell, reading: asyncio.Task[bool]) -> Sequence[Mapping[str, Any]]:
        place = f"/tmp/.{secrets.token_hex(8)}"
        if self.language == "bash":
            request = self._bash_request(cell).encode() + b"\0"
        else:
            message = {"code": cell.code, "env": dict(cell.env), "mark": cell.mark.decode(), "place": place}
            request = json.dumps(message).encode() + b"\n"
        await process.write_stdin(request, timeout=SETUP)
        async with asyncio.timeout(cell.timeout):
            is_over = await reading
        if not is_over:
            await self.close()
            what = "the interpreter of this context ended; its variables are lost"
            return [{"type": "error", "name": "ContextEnded", "value": what, "traceback": what}]
        if self.language == "bash":
            return []
        _, result = await self.files.read(place, most=-1)
        await self.files.ask("remove", path=place)
        return lines_of(cell_result(result))

    async def _interrupt(self, process: Process, cell: Cell) -> None:
        reading = asyncio.create_task(read_until(process, cell.mark, drop))
        try:
            while not reading.done():  # bash overlooks a signal that comes between two commands
                await process.kill(signal.SIGINT)
                await asyncio.wait({reading}, timeout=INTERRUPTED / 10)
            if not reading.result():
                raise SandboxError("the interpreter of this context ended")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def restart(self) -> None:
        async with self._lock:
            await self.close()
            self._count = 0
            await self._running()

    async def _begin(self) -> Process:
        if self.language == "bash":
            argv = ["/bin/bash", "--norc", "--noprofile", "-c", _BASH]
        else:
            argv = ["python3", "-c", source_of("kernel.py")]
        try:
            process = await self.session.start(argv, cwd=self.cwd, env=self.env)
        except FileNotFoundError:
            raise E2bRefusedError("invalid_argument", f"cwd {self.cwd!r} does not exist") from None
        if self.language == "python":
            await process.write_stdin(_sources() + b"\n", timeout=SETUP)
        return process

    def _bash_request(self, cell: Cell) -> str:
        """Return a text for `_BASH`: it runs the cell, with its own output and errors, and then prints the mark."""
        before = [f"\\builtin export {name}={shlex.quote(value)}" for name, value in cell.env.items()]
        after = [
            f"\\builtin export {name}={shlex.quote(self.env[name])}" if name in self.env else f"\\builtin unset {name}"
            for name in cell.env
        ]
        run = f"\\builtin eval {shlex.quote(cell.code)} </dev/null >&3 2>&4 3>&- 4>&-"
        mark = shlex.quote(cell.mark.decode())
        ends = [f"\\builtin printf %s {mark} >&{stream}" for stream in (3, 4)]
        return "; ".join([*before, run, *after, *ends])


def _sources() -> bytes:
    """Return the modules of `_MODULES`, and what they show for E2B, as JSON, in base64 and on one line."""
    root, modules = importlib.resources.files(_LOCAL), {"toolgym": "", _INSIDE: ""}
    for room, names in _MODULES.items():
        modules[f"{_LOCAL}.{room}"] = ""
        for name in names:
            modules[f"{_LOCAL}.{room}.{name}"] = root.joinpath(room, f"{name}.py").read_text(encoding="utf-8")
    modules[f"{_INSIDE}.forms"] = source_of("forms.py")
    return base64.b64encode(json.dumps(modules).encode())
