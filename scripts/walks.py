"""The ways of a call through the library, as traced, for docs/architecture.md: walks.py [--write | --check]

A step is a function of the library that is on the stack when the call leaves a process or reaches its end. If a task
was started on the way, the steps are those of the task that started it, and then its own. Each way is walked twice, and
the second time is taken, when templates are warm and sessions open; so nothing in the tables is written from memory.

Without an option it prints the tables. With `--write` it puts them into the page, between `<!-- walk: NAME -->` and
`<!-- end of the walk -->`. With `--check` it ends with status 1 if the page has other tables, or if a way has more
steps than `MOST_STEPS`.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import re
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
from aiohttp import web

from toolgym.rollout import RunConfig, make_batch, open_engine, rollout
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.sandbox.local.host import template_process

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.tools.sandbox.served import serving  # noqa: E402
from toolgym.tools.sandbox import LocalSandbox  # noqa: E402

PAGE = ROOT / "docs" / "architecture.md"
LIBRARY = tuple(f"{ROOT / layer}/" for layer in ("tools", "envs", "wrappers", "rollout", "front"))
MOST_STEPS = {"cell": 29, "run_code": 17, "tensor": 19}
"""Steps of each way, which no change may add to without a reason."""

Row = tuple[str, list[str]]
"""Where some steps are taken, and their names."""


def frames_of(frame: FrameType | None) -> list[FrameType]:
    """The library's frames on a stack, outermost first."""
    frames = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(LIBRARY) and not frame.f_code.co_name.startswith("<"):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def name_of(frame: FrameType) -> str:
    return frame.f_code.co_qualname.replace(".<locals>", "")


class Tracer:
    """Keeps, for each landmark, the last way to it: the frames of each task on the way, the first task first."""

    def __init__(self, landmarks: Iterable[str], through: str = "") -> None:
        self._landmarks, self._through = frozenset(landmarks), through
        self._begun: dict[asyncio.Task[Any], list[list[FrameType]]] = {}
        self.ways: dict[str, list[list[str]]] = {}

    def _way(self, frame: FrameType | None) -> list[list[FrameType]]:
        stack = frames_of(frame)
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        before = self._begun.get(task, []) if task is not None else []
        kept = []
        for frames in before:  # a task's first step may run on the stack of the task that starts it
            kept.append([step for step in frames if step not in stack])
        return [frames for frames in [*kept, stack] if frames]

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        before = self._way(sys._getframe(1))
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._begun[task] = before
        return task

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_qualname in self._landmarks:
            way = [[name_of(step) for step in frames] for frames in self._way(frame)]
            if not self._through or any(self._through in names for names in way):
                self.ways[frame.f_code.co_qualname] = way

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Follow the tasks of the running loop, and the calls of this thread."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._task)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            loop.set_task_factory(None)


PROBE = """
import mmap, os, struct, sys, time
_file = os.open({path!r}, os.O_RDWR)
_memory = mmap.mmap(_file, {size})
os.close(_file)
def _probe(frame, event, argument):
    if event != "call" or not _memory[0]:
        return
    code = frame.f_code
    if code.co_qualname not in {landmarks!r}:
        return
    names = []
    while frame is not None:
        if "/tools/sandbox/local/" in frame.f_code.co_filename:
            names.append(frame.f_code.co_qualname.replace(".<locals>", ""))
        frame = frame.f_back
    text = "\\n".join([code.co_qualname, *names[::-1]]).encode()
    number = struct.unpack_from("i", _memory, 4)[0]
    struct.pack_into("i", _memory, 4, number + 1)
    place = 64 + (number % 200) * {record}
    struct.pack_into("qi", _memory, place, time.monotonic_ns(), len(text))
    _memory[place + 16:place + 16 + len(text)] = text
sys.setprofile(_probe)
"""
SIZE, RECORD = 1 << 20, 4096
BOOT = template_process._BOOT
INSIDE = frozenset({"Channel.send", "Notebook.run", "_run_python"})
"""Landmarks in the broker and in children."""


class Probe:
    """Sees the stacks in the broker and in the child, through memory that it shares with them."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(dir="/dev/shm")  # noqa: SIM115  closed with the script
        self._file.truncate(SIZE)
        self._memory = mmap.mmap(self._file.fileno(), SIZE)
        probe = PROBE.format(path=self._file.name, size=SIZE, landmarks=INSIDE, record=RECORD)
        template_process._BOOT = probe + BOOT

    @contextmanager
    def watching(self) -> Iterator[None]:
        struct.pack_into("i", self._memory, 4, 0)
        self._memory[0] = 1
        try:
            yield
        finally:
            time.sleep(0.2)
            self._memory[0] = 0

    def ways(self) -> dict[str, list[str]]:
        """By the landmark, the last stack on which it was called."""
        records = []
        for number in range(min(200, struct.unpack_from("i", self._memory, 4)[0])):
            place = 64 + number * RECORD
            at, length = struct.unpack_from("qi", self._memory, place)
            records.append((at, bytes(self._memory[place + 16 : place + 16 + length]).decode()))
        stacks = {}
        for _, text in sorted(records):
            landmark, *names = text.split("\n")
            stacks[landmark] = names
        return stacks


CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}</tool_call>'
TURNS = [CALL, CALL, "#### 42"]
"""An episode with two calls: the session is open at the second one."""


@asynccontextmanager
async def sglang() -> AsyncIterator[str]:
    """A server that answers SGLang's `/generate` with the turns above, in the order of each episode."""
    tokenizer = load_tokenizer(tiny_policy_path())

    async def generate(request: web.Request) -> web.Response:
        asked = await request.json()
        done = tokenizer.decode(asked["input_ids"]).count("<tool_response>")
        ids = [*tokenizer.encode(TURNS[done], add_special_tokens=False), tokenizer.eos_token_id]
        meta = {
            "id": asked["rid"],
            "finish_reason": {"type": "stop", "matched": tokenizer.eos_token_id},
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "1",
            "output_token_logprobs": [[-0.1, token, None] for token in ids],
        }
        return web.json_response({"text": "", "output_ids": ids, "meta_info": meta})

    async def about(request: web.Request) -> web.Response:
        return web.json_response({"model_path": str(tiny_policy_path()), "tokenizer_path": str(tiny_policy_path()),
                                  "weight_version": "1", "context_length": 4096, "version": "0.5.23",
                                  "max_req_input_len": 4000, "internal_states": [{}]})  # fmt: skip

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_route("*", "/{anything:.*}", about)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def twice(walk: Callable[[], Awaitable[Any]], tracer: Tracer, probe: Probe | None = None) -> None:
    """Walk a way twice, and trace the second time."""
    await walk()
    with tracer.tracing(), probe.watching() if probe is not None else nullcontext():
        await walk()


def after(steps: list[str], last: str) -> list[str]:
    """The steps behind the last one of this name."""
    assert last in steps, f"{last} is not on the way: {steps}"
    return steps[len(steps) - steps[::-1].index(last) :]


def rows_of(way: list[list[str]]) -> list[Row]:
    """A row for each task of this process."""
    return [
        ("the caller's task" if number == 0 else "a task that it starts", steps) for number, steps in enumerate(way)
    ]


async def walk_of_a_cell() -> list[Row]:
    """From `rollout()` to the child that runs a cell, in a session that is open."""
    tracer, probe = (
        Tracer(["Outbox.write_soon"], through="StatefulTool.execute"),
        Probe(),
    )
    async with sglang() as url, open_engine(url) as engine:

        async def walk() -> None:
            await rollout("CodeInterpreter-v0", engine, num_tasks=1, config=RunConfig(group_size=1, seed=0))

        await twice(walk, tracer, probe)
    seen = probe.ways()
    return [
        *rows_of(tracer.ways["Outbox.write_soon"]),
        ("the broker, another process", after(seen["Channel.send"], "Broker.serve")),
        ("the session's process", after(seen["Notebook.run"], "Zygote._carry_out")),
    ]


async def walk_of_run_code() -> list[Row]:
    """From POST /run_code to the child that runs the program."""
    tracer, probe = Tracer(["Outbox.write_soon"]), Probe()
    async with LocalSandbox() as sandbox, serving(sandbox) as service, aiohttp.ClientSession() as client:

        async def walk() -> None:
            body = {
                "language": "python",
                "code": "print(6 * 7)",
                "files": {"a.txt": "aGVsbG8="},
                "fetch_files": ["a.txt"],
            }
            async with client.post(f"{service.url}/run_code", json=body) as response:
                assert (await response.json())["run_result"]["stdout"] == "42\n"

        await twice(walk, tracer, probe)
    seen = probe.ways()
    return [
        *[("the worker's loop, the connection's task", steps) for steps in tracer.ways["Outbox.write_soon"]],
        ("the broker, another process", after(seen["Channel.send"], "Broker.serve")),
        ("the child, forked before by the zygote", after(seen["_run_python"], "Zygote._be_child")),
    ]


async def walk_of_the_ids() -> list[Row]:
    """From the ids that an engine's server answers to the tensor that a trainer gets."""
    answer, kept, finished = "read_generation", "Conversation.add_generation", "EpisodeRecord.trajectory"
    sent, filled, checked = "BoundedStream.send", "padded", "check_rows"
    tracer = Tracer([answer, kept, finished, sent, "rows_of", filled, checked])
    async with sglang() as url, open_engine(url) as engine:

        async def walk() -> None:
            config = RunConfig(group_size=1, seed=0)
            trajectories = await rollout("CodeInterpreter-v0", engine, num_tasks=1, config=config)
            make_batch(trajectories, pad_token_id=0)

        await twice(walk, tracer)
    ways = {name: [step for steps in way for step in steps] for name, way in tracer.ways.items()}
    episode = [step for step in ways[kept] if step.startswith("Episode.")]
    steps = {
        "the engine's answer, innermost first": after(ways[answer], episode[-1])[::-1],
        "the episode": [*after(ways[kept], episode[-1])[::-1], *after(ways[finished], "Episode.run")],
        "the run": after(ways[sent], "_Run._start"),
        "the caller's task": ["RunnerProtocol.run"],
        "the trainer's code": [*ways["rows_of"], *ways[filled], *ways[checked]],
    }
    known: set[str] = set()
    rows = []
    for where, names in steps.items():
        rows.append((where, [name for name in dict.fromkeys(names) if name not in known]))
        known |= set(names)
    return rows


WALKS = {"cell": walk_of_a_cell, "run_code": walk_of_run_code, "tensor": walk_of_the_ids}


def table(rows: list[Row]) -> str:
    """The steps as Markdown, numbered through."""
    lines, number = ["| where | steps |", "| --- | --- |"], 0
    for where, steps in rows:
        numbered = []
        for step in steps:
            number += 1
            numbered.append(f"{number} `{step}`")
        lines.append(f"| {where} | {', '.join(numbered)} |")
    return "\n".join([*lines, "", f"{number} steps."])


def main() -> int:
    """Walk, and print, write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    parser.add_argument("--check", action="store_true", help="fail if the page has other tables")
    options = parser.parse_args()
    page = text = PAGE.read_text(encoding="utf-8")
    status = 0
    for name, walk in WALKS.items():
        rows = asyncio.run(walk())
        count = sum(len(steps) for _, steps in rows)
        if count > MOST_STEPS[name]:
            print(f"{name}: {count} steps, {MOST_STEPS[name]} are allowed")
            status = 1
        mark, end = f"<!-- walk: {name} -->", "<!-- end of the walk -->"
        page, places = re.subn(
            f"{re.escape(mark)}.*?{re.escape(end)}",
            lambda _, rows=rows, mark=mark, end=end: f"{mark}\n{table(rows)}\n{end}",
            page,
            count=1,
            flags=re.DOTALL,
        )
        if (options.write or options.check) and not places:
            print(f"{PAGE.name} has no place for the walk {name}: {mark}")
            status = 1
        if not (options.write or options.check):
            print(f"{walk.__doc__}\n\n{table(rows)}\n")
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    elif options.check and page != text:
        print(f"{PAGE.name} has other walks than the calls take: run scripts/walks.py --write")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
