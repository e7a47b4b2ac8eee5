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
from collections.abc import Mapping

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionStatus, Session
from toolgym.tools.sandbox.e2b.cell_output import cell_result, drop, lines_of, new_mark, read_until
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, Emit
from toolgym.tools.sandbox.e2b.file_agent import PART, FileAgent, source_of
from toolgym.tools.sandbox.processes import Process

SETUP = 20.0
"""Seconds for each step around a cell."""

INTERRUPTED = 5.0
"""Seconds that an interrupted cell of a program has to end, before the program is killed."""


_RELAY = 'cat "$1" & cat "$2" >&2 & wait'

_BASH = """
trap : INT
while IFS= read -r -d '' __mark && IFS= read -r -d '' __code; do
  eval "$__code" < /dev/null
  printf '%s' "$__mark"
  printf '%s' "$__mark" >&2
done
"""

_CHILD = "toolgym.tools.sandbox.local"
_MODULES = {
    "child": ("cells", "display", "notebook", "program", "recursion_depth"),
    "kernel": ("harden", "jail", "landlock", "seccomp", "syscall_batch", "syscalls", "users"),
    "protocol": ("answer_codec", "frames"),
}
"""The modules that run the cells of a session, by their rooms: a further context runs its cells with the same ones."""


class CodeContext(ABC):
    """An interpreter with a name of its own. One cell at a time; a second one waits."""

    def __init__(self, language: str, cwd: str, env: Mapping[str, str], *, is_default: bool) -> None:
        self.name = secrets.token_hex(16)
        self.language, self.cwd, self.is_default = language, cwd, is_default
        self._env = env
        self._count = 0
        self._lock = asyncio.Lock()

    async def run(self, code: str, env: Mapping[str, str], timeout: float, emit: Emit) -> None:
        """Run a cell, and pass on its output and its results. Cancelling interrupts the cell; its state lives on."""
        async with self._lock:
            self._count += 1
            await self._run(code, env, timeout, emit)
            await emit({"type": "number_of_executions", "execution_count": self._count})

    @abstractmethod
    async def _run(self, code: str, env: Mapping[str, str], timeout: float, emit: Emit) -> None: ...

    @abstractmethod
    async def restart(self) -> None:
        """Forget all variables."""

    @abstractmethod
    async def close(self) -> None:
        """End it, or forget its variables if it cannot end alone."""


class SessionContext(CodeContext):
    """The interpreter of the sandbox's session. `forked`: it goes on from another sandbox's, in its folder."""

    def __init__(self, session: Session, cwd: str, env: Mapping[str, str], *, forked: bool) -> None:
        super().__init__("python", cwd, env, is_default=True)
        self._session = session
        self._placed = forked
        self._relay: Process | None = None

    async def _run(self, code: str, env: Mapping[str, str], timeout: float, emit: Emit) -> None:
        relay = await self._prepared()
        if env:
            await self._hidden(f"s.e2b_saved = dict(o.environ); o.environ.update({dict(env)!r})")
        mark = new_mark()
        reading = asyncio.create_task(read_until(relay, mark, emit))
        try:
            result = await self._session.run_cell(code, timeout=timeout)
        except BaseException:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await shielded(self._calm(relay, mark, env))
            raise
        try:
            if result.alive:
                await self._settle(mark, env)
            async with asyncio.timeout(SETUP):
                await reading
        except BaseException as error:
            reading.cancel()
            await shielded(self._end_relay())  # the rest of this output is not the next cell's
            if not isinstance(error, TimeoutError | SandboxError):
                raise
        for line in lines_of(result):
            await emit(line)

    async def restart(self) -> None:
        async with self._lock:
            forget = "[names.pop(n) for n in [*names] if not n.startswith('__') and n != 'display']"
            await self._hidden(f"{forget}; o.chdir({self.cwd!r})")
            self._count = 0

    async def close(self) -> None:
        if self._session.alive:
            with contextlib.suppress(SandboxError):
                await self.restart()
        await self._end_relay()

    async def _prepared(self) -> Process:
        """Put the interpreter in its folder, and lead its output through a program that is read while a cell runs."""
        if not self._placed:
            await self._hidden(f"o.chdir({self.cwd!r})")
            self._placed = True
        if self._relay is not None and (await self._relay.poll()) is None:
            return self._relay
        await self._end_relay()
        await self._hidden(f"o.environ.update({dict(self._env)!r})")
        pipes = [f"/tmp/.{secrets.token_hex(8)}" for _ in range(2)]
        await self._hidden(f"[o.mkfifo(n) for n in {pipes!r}]")
        relay = self._relay = await self._session.start(["/bin/sh", "-c", _RELAY, "sh", *pipes])
        parts = [f"f = o.open({name!r}, o.O_WRONLY); o.dup2(f, {fd}); o.close(f)" for fd, name in enumerate(pipes, 1)]
        lines = "with c.suppress(Exception):\n    s.stdout.reconfigure(line_buffering=True)"
        await self._hidden("\n".join([*parts, f"[o.unlink(n) for n in {pipes!r}]", lines]))
        return relay

    async def _settle(self, mark: bytes, env: Mapping[str, str]) -> None:
        """Put the variables of one cell back, and mark the end of its output."""
        flush = "with c.suppress(Exception):\n    s.stdout.flush(); s.stderr.flush()"
        steps = [flush, f"[o.write(fd, {mark!r}) for fd in (1, 2)]"]
        if env:
            steps.append("o.environ.clear(); o.environ.update(s.e2b_saved)")
        await self._hidden("\n".join(steps))

    async def _calm(self, relay: Process, mark: bytes, env: Mapping[str, str]) -> None:
        """Drop the rest of an interrupted cell's output."""
        try:
            await self._settle(mark, env)
            async with asyncio.timeout(INTERRUPTED):
                await read_until(relay, mark, drop)
        except (TimeoutError, SandboxError):
            await self._end_relay()

    async def _hidden(self, code: str) -> None:
        """Run code that leaves no trace in the variables (`names`). `o`, `s` and `c` are modules."""
        modules = "'o': __import__('os'), 's': __import__('sys'), 'c': __import__('contextlib')"
        python = "__import__('builtins')"  # the cells may have variables that are called exec or globals
        program = f"{python}.exec({code!r}, {{{modules}, 'names': {python}.globals()}})"
        result = await self._session.run_cell(program, timeout=SETUP)
        if result.status is not ExecutionStatus.OK:
            why = result.error.value if result.error is not None else result.message or result.status.value
            raise SandboxError(f"the interpreter cannot be got ready for a cell: {why}")

    async def _end_relay(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            with contextlib.suppress(SandboxError):
                await relay.close()


class ProgramContext(CodeContext):
    """An interpreter that is a program of the sandbox: of Python, with the same cells as a session, or bash."""

    def __init__(
        self,
        session: Session,
        files: FileAgent,
        language: str,
        cwd: str,
        env: Mapping[str, str],
        *,
        is_default: bool = False,
    ) -> None:
        super().__init__(language, cwd, env, is_default=is_default)
        self._session, self._files = session, files
        self._process: Process | None = None

    async def _run(self, code: str, env: Mapping[str, str], timeout: float, emit: Emit) -> None:
        process = await self._running()
        mark, place = new_mark(), f"/tmp/.{secrets.token_hex(8)}"
        if self.language == "bash":
            request = mark + b"\0" + self._bash_code(code, env).encode() + b"\0"
        else:
            message = {"code": code, "env": dict(env), "mark": mark.decode(), "place": place}
            request = json.dumps(message).encode() + b"\n"
        await process.write_stdin(request, timeout=SETUP)
        try:
            async with asyncio.timeout(timeout):
                is_over = await read_until(process, mark, emit)
        except BaseException:
            await shielded(self._interrupt(process, mark))
            raise
        if not is_over:
            await self._end()
            what = "the interpreter of this context ended; its variables are lost"
            await emit({"type": "error", "name": "ContextEnded", "value": what, "traceback": what})
        elif self.language == "python":
            for line in lines_of(await self._result(place)):
                await emit(line)

    async def restart(self) -> None:
        async with self._lock:
            await self._end()
            self._count = 0
            await self._running()

    async def close(self) -> None:
        await self._end()

    async def _running(self) -> Process:
        process = self._process
        if process is not None and (await process.poll()) is None:
            return process
        await self._end()
        if self.language == "bash":
            argv = ["/bin/bash", "--norc", "--noprofile", "-c", _BASH]
        else:
            argv = ["python3", "-c", source_of("kernel.py")]
        try:
            process = await self._session.start(argv, cwd=self.cwd, env=self._env)
        except FileNotFoundError:
            raise E2bRefusedError("invalid_argument", f"cwd {self.cwd!r} does not exist") from None
        self._process = process
        if self.language == "python":
            await process.write_stdin(_sources() + b"\n", timeout=SETUP)
        return process

    async def _interrupt(self, process: Process, mark: bytes) -> None:
        reading = asyncio.create_task(read_until(process, mark, drop))
        try:
            async with asyncio.timeout(INTERRUPTED):
                while not reading.done():  # bash overlooks a signal that comes between two commands
                    await process.kill(signal.SIGINT)
                    await asyncio.wait({reading}, timeout=INTERRUPTED / 10)
                if reading.result():
                    return
        except (TimeoutError, SandboxError):
            pass
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(SandboxError):
                await process.close()

    async def _result(self, place: str) -> CellResult:
        data, size = b"", 1
        while len(data) < size:
            meta, part = await self._files.read(place, len(data), PART)
            if not part:
                break
            size, data = int(meta["size"]), data + part
        await self._files.ask("remove", path=place)
        return cell_result(data)

    def _bash_code(self, code: str, env: Mapping[str, str]) -> str:
        if "\0" in code:
            raise E2bRefusedError("invalid_argument", "code of bash cannot hold a NUL character")
        before = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        after = [
            f"export {name}={shlex.quote(self._env[name])}" if name in self._env else f"unset {name}" for name in env
        ]
        return "\n".join([*before, code, *after])


def _sources() -> bytes:
    """Return the modules of `_MODULES` as JSON, in base64 and on one line."""
    root = importlib.resources.files(_CHILD)
    modules = {
        f"{_CHILD}.{room}.{name}": root.joinpath(room, f"{name}.py").read_text(encoding="utf-8")
        for room, names in _MODULES.items()
        for name in names
    }
    return base64.b64encode(json.dumps(modules).encode())
