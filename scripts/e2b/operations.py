"""Operations of E2B's SDKs against a server, a line of JSON for each: operations.py sync|async

The environment says where the server is, as for every program that uses the SDK: `E2B_API_KEY`, `E2B_API_URL` and
`E2B_SANDBOX_URL`. It runs with the SDK's own packages and needs nothing of the library.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import e2b_code_interpreter
from e2b import PtySize, SandboxQuery

IS_ASYNC = sys.argv[1] == "async"
LIMIT = 20.0
"""Seconds after which an operation counts as hanging."""

Sandbox = e2b_code_interpreter.AsyncSandbox if IS_ASYNC else e2b_code_interpreter.Sandbox


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the SDK, whichever kind it is of."""
    if IS_ASYNC:
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
    return await asyncio.to_thread(functools.partial(function, *args, **kwargs))


async def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the name of the error that a call raises."""
    try:
        await call(function, *args, **kwargs)
    except Exception as error:  # noqa: BLE001  which one it is is the result
        return type(error).__name__
    return "nothing was raised"


async def try_operation(name: str, work: Callable[[], Any]) -> Any:
    began, outcome, detail, value = time.monotonic(), "ok", "", None
    try:
        async with asyncio.timeout(LIMIT):
            value = await work()
            if value is False:
                outcome = "wrong"
    except TimeoutError:
        outcome, detail = "hangs", f"longer than {LIMIT:g} s"
    except AssertionError as error:
        outcome, detail = "wrong", str(error)[:300]
    except Exception as error:  # noqa: BLE001  it is the result
        outcome, detail = "fails", f"{type(error).__name__}: {error}"[:300]
    row = {"name": name, "outcome": outcome, "detail": detail, "ms": round(1e3 * (time.monotonic() - began))}
    print(json.dumps(row), flush=True)
    return value


def same(value: Any, wanted: Any) -> None:
    assert value == wanted, f"{value!r}, not {wanted!r}"


class Commands:
    def __init__(self, sandbox: Any) -> None:
        self.commands, self.pty = sandbox.commands, sandbox.pty

    async def run(self) -> None:
        done = await call(self.commands.run, "echo hello; echo err >&2; echo $FOO $BAR; pwd", envs={"BAR": "1"})
        same((done.stdout, done.stderr, done.exit_code), ("hello\nbar 1\n/home/user\n", "err\n", 0))

    async def run_exit_code(self) -> None:
        same(await refusal(self.commands.run, "exit 3"), "CommandExitException")

    async def run_timeout(self) -> None:
        same(await refusal(self.commands.run, "sleep 30", timeout=1), "TimeoutException")

    async def run_bad_folder(self) -> None:
        same(await refusal(self.commands.run, "pwd", cwd="/nope"), "InvalidArgumentException")

    async def run_callbacks(self) -> None:
        shown: list[str] = []
        await call(self.commands.run, "echo a; sleep .1; echo b", on_stdout=lambda text: shown.append(str(text)))
        same("".join(shown), "a\nb\n")

    async def large_output(self) -> None:
        same(len((await call(self.commands.run, "head -c 3000000 /dev/zero | tr '\\0' x")).stdout), 3_000_000)

    async def background_and_wait(self) -> None:
        handle = await call(self.commands.run, "sleep .1; echo done", background=True)
        same((await call(handle.wait)).stdout, "done\n")

    async def list_processes(self) -> None:
        handle = await call(self.commands.run, "sleep 60", background=True)
        assert handle.pid in [each.pid for each in await call(self.commands.list)]
        await call(handle.kill)

    async def send_stdin(self) -> None:
        handle = await call(self.commands.run, "read line; echo got $line", background=True, stdin=True)
        await call(self.commands.send_stdin, handle.pid, "ping\n")
        same((await call(handle.wait)).stdout, "got ping\n")

    async def close_stdin(self) -> None:
        handle = await call(self.commands.run, "cat", background=True, stdin=True)
        await call(self.commands.send_stdin, handle.pid, "text")
        await call(self.commands.close_stdin, handle.pid)
        same((await call(handle.wait)).stdout, "text")

    async def stream_input(self) -> None:
        handle = await call(self.commands.run, "head -n 2", background=True, stdin=True)

        if IS_ASYNC:
            stream = self.commands.stream_input(handle.pid)
            for line in ("a\n", "b\n"):
                await stream.send(line)
            await stream.close()
        else:
            await call(self.commands.stream_input, handle.pid, ["a\n", "b\n"])
        same((await call(handle.wait)).stdout, "a\nb\n")

    async def connect_to_process(self) -> None:
        handle = await call(self.commands.run, "sleep .5; echo late", background=True)
        other = await call(self.commands.connect, handle.pid)
        same((await call(other.wait)).stdout, "late\n")

    async def disconnect(self) -> None:
        handle = await call(self.commands.run, "sleep 60", background=True)
        await call(handle.disconnect)
        assert handle.pid in [each.pid for each in await call(self.commands.list)]
        same(await call(self.commands.kill, handle.pid), True)

    async def kill_process(self) -> None:
        handle = await call(self.commands.run, "sleep 60", background=True)
        same(await call(self.commands.kill, handle.pid), True)
        same(await call(self.commands.kill, handle.pid), False)
        same(await refusal(handle.wait), "CommandExitException")

    async def terminal(self) -> None:
        shown: list[bytes] = []
        size = PtySize(rows=10, cols=60)
        if IS_ASYNC:
            handle = await self.pty.create(size, on_data=shown.append)
        else:
            handle = await call(self.pty.create, size)
        await call(self.pty.resize, handle.pid, PtySize(rows=11, cols=61))
        await call(self.pty.send_stdin, handle.pid, b"stty size; exit\n")
        await (call(handle.wait) if IS_ASYNC else call(handle.wait, on_pty=shown.append))
        assert b"11 61" in b"".join(shown), shown

    async def kill_terminal(self) -> None:
        options = {"on_data": lambda _: None} if IS_ASYNC else {}
        handle = await call(self.pty.create, PtySize(rows=10, cols=60), **options)
        same(await call(self.pty.kill, handle.pid), True)


class Files:
    def __init__(self, sandbox: Any) -> None:
        self.files, self.sandbox = sandbox.files, sandbox

    async def write(self) -> None:
        same((await call(self.files.write, "/home/user/a.txt", "abc")).path, "/home/user/a.txt")

    async def write_many(self) -> None:
        rows = [{"path": "m1", "data": "x"}, {"path": "in/m2", "data": b"\x00\xff"}]
        same(len(await call(self.files.write_files, rows)), 2)

    async def read_text(self) -> None:
        same(await call(self.files.read, "a.txt"), "abc")

    async def read_bytes(self) -> None:
        same(bytes(await call(self.files.read, "in/m2", format="bytes")), b"\x00\xff")

    async def read_stream(self) -> None:
        parts = await call(self.files.read, "a.txt", format="stream")
        same(b"".join([part async for part in parts] if IS_ASYNC else list(parts)), b"abc")

    async def read_missing(self) -> None:
        assert await refusal(self.files.read, "none") in ("NotFoundException", "FileNotFoundException")

    async def large_file(self) -> None:
        await call(self.files.write, "large", b"x" * 9_000_000)
        same(len(await call(self.files.read, "large", format="bytes")), 9_000_000)

    async def octet_stream(self) -> None:
        await call(self.files.write, "o.bin", b"q" * 100_000, use_octet_stream=True)
        same((await call(self.files.get_info, "o.bin")).size, 100_000)

    async def metadata(self) -> None:
        await call(self.files.write, "tagged", b"1", metadata={"origin": "here"})
        same((await call(self.files.get_info, "tagged")).metadata, {"origin": "here"})

    async def make_dir(self) -> None:
        same(await call(self.files.make_dir, "d/e"), True)
        same(await call(self.files.make_dir, "d/e"), False)

    async def list_files(self) -> None:
        await call(self.files.write, "d/f", "1")
        same([each.name for each in await call(self.files.list, "d")], ["e", "f"])

    async def list_depth(self) -> None:
        await call(self.files.write, "d/e/g", "1")
        same([each.path for each in await call(self.files.list, "/home/user/d", depth=2)][1], "/home/user/d/e/g")

    async def exists(self) -> None:
        same([await call(self.files.exists, name) for name in ("a.txt", "none")], [True, False])

    async def get_info(self) -> None:
        info = await call(self.files.get_info, "a.txt")
        same((info.size, info.owner, info.permissions), (3, "user", "-rw-r--r--"))

    async def rename(self) -> None:
        same((await call(self.files.rename, "a.txt", "b/c.txt")).path, "/home/user/b/c.txt")

    async def remove(self) -> None:
        await call(self.files.remove, "b")
        same(await call(self.files.exists, "b/c.txt"), False)

    async def watch_dir(self) -> None:
        await call(self.files.make_dir, "watched")
        events: list[Any] = []
        if IS_ASYNC:
            handle = await self.files.watch_dir("watched", on_event=events.append)
            await self.files.write("watched/n", "1")
            await asyncio.sleep(0.5)
        else:
            handle = await call(self.files.watch_dir, "watched")
            await call(self.files.write, "watched/n", "1")
            events = await call(handle.get_new_events)
        same([(each.name, each.type.value) for each in events], [("n", kind) for kind in ("create", "write", "chmod")])
        await call(handle.stop)

    async def watch_recursively(self) -> None:
        await call(self.files.make_dir, "deep/in")
        events: list[Any] = []
        options = {"on_event": events.append} if IS_ASYNC else {}
        handle = await call(self.files.watch_dir, "deep", recursive=True, **options)
        await call(self.files.write, "deep/in/n", "1")
        await asyncio.sleep(0.5)
        events += [] if IS_ASYNC else await call(handle.get_new_events)
        assert "in/n" in [each.name for each in events]
        await call(handle.stop)

    async def download_url(self) -> None:
        await call(self.files.write, "signed", "by url")
        same(await asyncio.to_thread(fetched, await call(self.sandbox.download_url, "signed")), b"by url")

    async def download_url_expires(self) -> None:
        url = await call(self.sandbox.download_url, "signed", use_signature_expiration=60)
        same(await asyncio.to_thread(fetched, url), b"by url")

    async def upload_url(self) -> None:
        url = await call(self.sandbox.upload_url, "uploaded")
        await asyncio.to_thread(fetched, url, b"sent", {"Content-Type": "application/octet-stream"})
        same(await call(self.files.read, "uploaded"), "sent")


class Code:
    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox
        self.run = functools.partial(call, sandbox.run_code)

    async def run_code(self) -> None:
        done = await self.run('x = 41\nprint("hi")\nx + 1')
        same((done.text, done.logs.stdout), ("42", ["hi\n"]))

    async def run_code_state(self) -> None:
        same((await self.run("x")).text, "41")

    async def run_code_text(self) -> None:
        same((await self.run("'bar'")).text, "bar")

    async def run_code_error(self) -> None:
        same((await self.run("1/0")).error.name, "ZeroDivisionError")

    async def run_code_envs(self) -> None:
        same((await self.run("import os; os.environ['Q'] + os.environ['FOO']", envs={"Q": "w"})).text, "wbar")

    async def run_code_callbacks(self) -> None:
        shown: list[str] = []
        code = "import time\nfor n in range(3):\n    print(n)\n    time.sleep(.1)"
        await self.run(code, on_stdout=lambda message: shown.append(message.line))
        same(shown, ["0\n", "1\n", "2\n"])

    async def run_code_timeout(self) -> None:
        same(await refusal(self.sandbox.run_code, "import time; time.sleep(60)", timeout=1), "TimeoutException")
        same((await self.run("x")).text, "41")

    async def rich_results(self) -> None:
        code = "class R:\n    def _repr_html_(self): return '<b>'\n    def _repr_png_(self): return b'png'\nR()"
        (result,) = (await self.run(code)).results
        same((result.html, result.png, result.is_main_result), ("<b>", "cG5n", True))

    async def data_frame(self) -> None:
        done = await self.run("import numpy\nnumpy.arange(3).sum()")
        same(done.text.removeprefix("np.int64(").removesuffix(")"), "3")

    async def bash(self) -> None:
        await self.run("A=1; cd /tmp", language="bash")
        same("".join((await self.run("echo $A $PWD", language="bash")).logs.stdout), "1 /tmp\n")

    async def contexts(self) -> None:
        context = await call(self.sandbox.create_code_context, cwd="/tmp")
        await self.run("y = 1", context=context)
        same((await self.run("import os; y, os.getcwd()", context=context)).text, "(1, '/tmp')")
        same((await self.run("y")).error.name, "NameError")

    async def list_contexts(self) -> None:
        context = await call(self.sandbox.create_code_context)
        assert context.id in [each.id for each in await call(self.sandbox.list_code_contexts)]

    async def restart_context(self) -> None:
        context = await call(self.sandbox.create_code_context)
        await self.run("z = 1", context=context)
        await call(self.sandbox.restart_code_context, context)
        same((await self.run("z", context=context)).error.name, "NameError")

    async def remove_context(self) -> None:
        context = await call(self.sandbox.create_code_context)
        await call(self.sandbox.remove_code_context, context)
        assert context.id not in [each.id for each in await call(self.sandbox.list_code_contexts)]


class Life:
    """The sandbox itself; these operations come last, and the last ones end it."""

    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox

    async def is_running(self) -> None:
        same(await call(self.sandbox.is_running), True)

    async def sandbox_info(self) -> None:
        info = await call(self.sandbox.get_info)
        same((info.sandbox_id, info.metadata), (self.sandbox.sandbox_id, {"k": "v"}))

    async def set_timeout(self) -> None:
        before = (await call(self.sandbox.get_info)).end_at
        await call(self.sandbox.set_timeout, 900)
        assert (await call(self.sandbox.get_info)).end_at > before

    async def list_sandboxes(self) -> None:
        pages = Sandbox.list(query=SandboxQuery(metadata={"k": "v"}))
        assert self.sandbox.sandbox_id in [each.sandbox_id for each in await call(pages.next_items)]

    async def metrics(self) -> None:
        (point,) = await call(self.sandbox.get_metrics)
        assert point.mem_total > point.mem_used > 0

    async def fork(self) -> None:
        await call(self.sandbox.files.write, "forked", "x")
        forks = await call(self.sandbox.fork, count=2)
        same([await call(each.files.read, "forked") for each in forks], ["x", "x"])
        same([(await call(each.run_code, "x")).text for each in forks], ["41", "41"])

    async def snapshot(self) -> None:
        await call(self.sandbox.files.write, "kept", "x")
        kept = await call(self.sandbox.create_snapshot)
        other = await call(Sandbox.create, kept.snapshot_id)
        same(await call(other.files.read, "kept"), "x")
        await call(other.kill)
        same(await call(Sandbox.delete_snapshot, kept.snapshot_id), True)

    async def pause(self) -> None:
        await call(self.sandbox.pause if hasattr(self.sandbox, "pause") else self.sandbox.beta_pause)
        same(await call(self.sandbox.is_running), False)

    async def use_paused(self) -> None:
        assert await refusal(self.sandbox.commands.run, "true") in ("TimeoutException", "SandboxNotRunningException")

    async def connect(self) -> None:
        other = await call(Sandbox.connect, self.sandbox.sandbox_id)
        same((await call(other.run_code, "x")).text, "41")

    async def kill(self) -> None:
        same(await call(self.sandbox.kill), True)
        same(await call(self.sandbox.kill), False)

    async def use_killed(self) -> None:
        assert await refusal(self.sandbox.files.read, "m1") in ("TimeoutException", "SandboxNotRunningException")


NEEDED = {
    "close_stdin": lambda sandbox: hasattr(sandbox.commands, "close_stdin"),
    "stream_input": lambda sandbox: hasattr(sandbox.commands, "stream_input"),
    "octet_stream": lambda sandbox: "use_octet_stream" in inspect.signature(sandbox.files.write).parameters,
    "metadata": lambda sandbox: "metadata" in inspect.signature(sandbox.files.write).parameters,
    "fork": lambda sandbox: hasattr(sandbox, "fork"),
    "snapshot": lambda sandbox: hasattr(sandbox, "create_snapshot"),
    "list_contexts": lambda sandbox: hasattr(sandbox, "list_code_contexts"),
    "restart_context": lambda sandbox: hasattr(sandbox, "restart_code_context"),
    "remove_context": lambda sandbox: hasattr(sandbox, "remove_code_context"),
}
"""Operations that not every SDK has."""


def fetched(url: str, data: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=10) as response:
        content: bytes = response.read()
        return content


async def main() -> None:
    options = {"timeout": 300, "envs": {"FOO": "bar"}, "metadata": {"k": "v"}}
    sandbox = await try_operation("create", lambda: call(Sandbox.create, **options))
    if not sandbox:
        return
    for part in (Commands(sandbox), Files(sandbox), Code(sandbox), Life(sandbox)):
        for name, work in vars(type(part)).items():
            if not name.startswith("_") and NEEDED.get(name, lambda _: True)(sandbox):
                await try_operation(name, functools.partial(work, part))


asyncio.run(main())
