"""Commands in the foreground and in the background, shells that keep their state, and cells of code in contexts."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.e2b.cell_output import new_mark
from toolgym.tools.sandbox.e2b.connect import CutError, E2bRefusedError, Emit, read_json, section
from toolgym.tools.sandbox.e2b.contexts import CodeContext, language_of
from toolgym.tools.sandbox.e2b.file_agent import HOME
from toolgym.tools.sandbox.e2b.programs import E2bProgram
from toolgym.tools.sandbox.e2b.sandboxes import stamp
from toolgym.tools.sandbox.opensandbox.execd import ExecdPart, Lines, OpenSandbox, Run, bad, failure
from toolgym.tools.serving.routes import Call, Route
from toolgym.tools.serving.transport import answer

CURSOR = "EXECD-COMMANDS-TAIL-CURSOR"
USER = 1000
"""The id of a sandbox's only user, and of its group."""


class Execution(ExecdPart):
    """Answers `/command`, `/session` and `/code`."""

    def routes(self) -> list[Route]:
        return [
            self.route("/command", POST=self.run, DELETE=self.interrupt),
            self.route("/command/status/{run}", GET=self.status),
            self.route("/command/{run}/logs", GET=self.logs),
            self.route("/session", POST=self.open_shell),
            self.route("/session/{shell}", DELETE=self.close_shell),
            self.route("/session/{shell}/run", POST=self.run_in_shell),
            self.route("/code", POST=self.run_code, DELETE=self.interrupt),
            self.route("/code/context", POST=self.create_context),
            self.route("/code/contexts", GET=self.contexts, DELETE=self.remove_contexts),
            self.route("/code/contexts/{context}", GET=self.context, DELETE=self.remove_context),
        ]

    async def run(self, box: OpenSandbox, call: Call) -> web.StreamResponse:
        """Run a command. Its deadline kills it, and one in the foreground ends with its client's connection."""
        asked = read_json(call.body)
        command, seconds = asked.get("command"), _seconds(asked)
        argv: list[Any] = asked["argv"] if isinstance(asked.get("argv"), list) else ["/bin/bash", "-c", command]
        if not argv or not all(isinstance(word, str) for word in argv):
            raise bad("command should be a text, or argv a list of texts")
        if any(asked.get(name) not in (None, USER) for name in ("uid", "gid")):
            raise E2bRefusedError("unimplemented", f"uid, gid: the only user of a sandbox is {USER}")
        config = {"cmd": argv[0], "args": argv[1:], "cwd": asked.get("cwd"), "envs": section(asked, "envs")}
        run = Run(command or shlex.join(argv), is_background=asked.get("background") is True)

        async def events(emit: Emit) -> None:
            try:
                async with self.boxes.gate.slot():
                    program = await E2bProgram.start(box.session, {"process": config, "stdin": False}, box.env)
            except Exception as error:
                run.end(255, str(error))
                await emit({"type": "init", "text": box.begin(run).name})
                raise
            box.begin(run)
            box.add(program)
            lines, run.program = Lines(emit), program
            keep = partial(run.keep, most=self.config.limits.output_bytes)
            run.task = asyncio.create_task(_follow(run, program, seconds, keep if run.is_background else lines.take))
            if run.is_background:
                await emit({"type": "init", "text": run.name})
            else:
                await _finish(run, run.task, emit)
                await lines.finish()
            await emit(run.last_event())

        return await self.stream(call, events, box.ended)

    async def interrupt(self, box: OpenSandbox, call: Call) -> web.Response:
        """End a command: SIGTERM, and SIGKILL if it goes on. A cell is interrupted, and its context lives on."""
        name = call.request.query.get("id", "")
        named = (run for run in box.runs.values() if name in (run.name, run.context and run.context.name))
        run = next((run for run in named if run.finished is None), None)
        if run is None:
            raise E2bRefusedError("not_found", f"no execution {name[:100]} is running")
        if run.context is not None and run.task is not None:
            run.task.cancel()
        elif run.program is not None:
            await _signal(run.program, signal.SIGTERM)
            await _signal(run.program, signal.SIGKILL)
        return web.Response()

    async def status(self, box: OpenSandbox, call: Call) -> web.Response:
        run = _run(box, call)
        row = {"id": run.name, "content": run.content, "running": run.finished is None, "exit_code": run.exit_code}
        times = {"started_at": stamp(run.started), "finished_at": stamp(run.finished) if run.finished else None}
        return answer(row | times | ({"error": run.error} if run.error else {}))

    async def logs(self, box: OpenSandbox, call: Call) -> web.Response:
        """Answer with a background command's output from a cursor on, which counts bytes."""
        run, cursor = _run(box, call), call.request.query.get("cursor") or "0"
        if not run.is_background:
            raise bad(f"command {run.name} is not one in the background")
        if not cursor.isascii() or not cursor.isdigit():
            raise bad(f"cursor should be that of an answer, got {cursor[:100]!r}")
        data = bytes(run.log[max(0, int(cursor) - run.dropped) :])
        headers = {CURSOR: str(run.dropped + len(run.log))}
        return web.Response(body=data, content_type="text/plain", charset="utf-8", headers=headers)

    async def open_shell(self, box: OpenSandbox, call: Call) -> web.Response:
        cwd = str(read_json(call.body).get("cwd") or HOME)
        await box.files.ask("MakeDir", path=cwd, exist_ok=True)
        shell = await box.add_context("bash", cwd, self.boxes.gate)
        box.shells.add(shell.name)
        return answer({"session_id": shell.name})

    async def close_shell(self, box: OpenSandbox, call: Call) -> web.Response:
        await box.remove_context(call.params["shell"])
        box.shells.discard(call.params["shell"])
        return web.Response()

    async def run_in_shell(self, box: OpenSandbox, call: Call) -> web.StreamResponse:
        """Run a command in a shell, which stays in the folder and keeps the variables that the command leaves."""
        shell, asked, mark = box.context(call.params["shell"]), read_json(call.body), new_mark().decode()
        command, seconds = asked.get("command"), _seconds(asked) or self.config.max_timeout
        if not isinstance(command, str):
            raise bad(f"command should be a text, got {type(command).__name__}")
        place = f"cd -- {shlex.quote(str(asked['cwd']))} && " if asked.get("cwd") else ""
        code = f"{place}eval {shlex.quote(command)}\nprintf '%s%s' {shlex.quote(mark)} $?"
        shell.check(command)
        run = Run(command, shell)

        async def events(emit: Emit) -> None:
            lines, why = Lines(emit), ""

            async def taken(message: Mapping[str, Any]) -> None:
                nonlocal why
                if message["type"] in ("stdout", "stderr"):
                    await lines.feed(message["type"], message["text"])
                elif message["type"] == "error":
                    why = message["value"]

            is_whole = await _cell(box, run, code, seconds, emit, taken)
            status = await lines.finish(mark)
            run.end(int(status) if status.isdigit() else -1, why if is_whole else "interrupted")
            await emit(run.last_event())

        return await self.stream(call, events, box.interrupted)

    async def run_code(self, box: OpenSandbox, call: Call) -> web.StreamResponse:
        """Run a cell, in the context that is named or in the default one of its language."""
        asked = read_json(call.body)
        code, about = asked.get("code"), section(asked, "context")
        if not isinstance(code, str):
            raise bad(f"code should be a text, got {type(code).__name__}")
        name = about.get("id")
        context = box.context(str(name)) if name else box.default_context(about.get("language") or "python")
        context.check(code)
        run = Run(code, context)

        async def events(emit: Emit) -> None:
            async def taken(message: Mapping[str, Any]) -> None:
                if message["type"] == "error":
                    run.error = message["name"]
                await emit(_event(message))

            if not await _cell(box, run, code, self.config.max_timeout, emit, taken):
                await emit(failure("KeyboardInterrupt", "the cell was interrupted", []))
            elif not run.error:
                await emit(run.last_event())

        async with self.boxes.gate.slot():
            return await self.stream(call, events, box.interrupted)

    async def create_context(self, box: OpenSandbox, call: Call) -> web.Response:
        asked = read_json(call.body)
        language, cwd = asked.get("language") or "python", str(asked.get("cwd") or HOME)
        return answer(_about(await box.add_context(language, cwd, self.boxes.gate)))

    async def contexts(self, box: OpenSandbox, call: Call) -> web.Response:
        return answer([_about(context) for context in _of_language(box, call)])

    async def context(self, box: OpenSandbox, call: Call) -> web.Response:
        return answer(_about(box.context(call.params["context"])))

    async def remove_context(self, box: OpenSandbox, call: Call) -> web.Response:
        await box.remove_context(call.params["context"])
        return web.Response()

    async def remove_contexts(self, box: OpenSandbox, call: Call) -> web.Response:
        for context in _of_language(box, call):
            await box.remove_context(context.name)
        return web.Response()


async def _follow(run: Run, program: E2bProgram, seconds: float | None, taken: Emit) -> None:
    """Pass on the output of a command until it has ended. It is killed if its client or its sandbox is gone."""
    try:
        await program.follow(taken, begins=True, seconds=seconds)
    except CutError:
        if not run.is_background:
            raise
    finally:
        if program.end is None:
            await shielded(_signal(program, signal.SIGKILL))
        end = (program.end or {}).get("end", {})
        run.end(end.get("exitCode", -1), end.get("error", "" if end else "it was killed"))


async def _cell(box: OpenSandbox, run: Run, code: str, seconds: float, emit: Emit, taken: Emit) -> bool:
    """Run a cell, and return whether it came to its end: an `interrupt` is no error."""
    assert run.context is not None
    task = box.begin(run).task = asyncio.create_task(run.context.run(code, {}, seconds, taken))
    try:
        await _finish(run, task, emit)
    finally:
        run.end(None, run.error)
    return not task.cancelled()


async def _finish(run: Run, task: asyncio.Task[None], emit: Emit) -> None:
    """Tell a client that its run has begun, and wait for the end, which comes at the latest with the client's."""
    try:
        await emit({"type": "init", "text": run.name})
        await asyncio.wait({task})
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled():
        task.result()


async def _signal(program: E2bProgram, number: int) -> None:
    with contextlib.suppress(SandboxError, E2bRefusedError):  # it has ended
        await program.signal(number, wait=True)


def _seconds(asked: Mapping[str, Any]) -> float | None:
    ms = asked.get("timeout")
    if ms is not None and (type(ms) is not int or ms < 0):
        raise bad(f"timeout should be milliseconds, got {ms!r}")
    return ms / 1000 if ms else None


def _run(box: OpenSandbox, call: Call) -> Run:
    run = box.runs.get(call.params["run"])
    if run is None:
        raise E2bRefusedError("not_found", f"command {call.params['run'][:100]} not found")
    return run


def _of_language(box: OpenSandbox, call: Call) -> list[CodeContext]:
    """Return the contexts of the language that a request names; all, if it names none."""
    name = call.request.query.get("language")
    language = language_of(name) if name else None
    contexts = (context for context in box.contexts.values() if context.name not in box.shells)
    return [context for context in contexts if language in (None, context.language)]


def _about(context: CodeContext) -> Mapping[str, Any]:
    return {"id": context.name, "language": context.language}


def _event(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line of a context as OpenSandbox's event."""
    kind = message["type"]
    if kind == "result":
        forms = {mime: data for mime, data in message["forms"].items() if not mime.startswith("e2b/")}
        return {"type": kind, "results": {"text" if mime == "text/plain" else mime: forms[mime] for mime in forms}}
    if kind == "error":
        return failure(message["name"], message["value"], message["traceback"].splitlines())
    if kind == "number_of_executions":
        return {"type": "execution_count", "execution_count": message["execution_count"]}
    return message
