"""What the tests' workers play: an engine that answers at once, and envs that do what a test wants."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from toolgym.envs import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout.engines.base import Engine, EngineLoad, FinishReason, Generation, PauseMode
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools import CodeInterpreterTool
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import EngineError
from toolgym.tools.message import user
from toolgym.tools.schema import ToolSchema


class Instant(Engine):
    """Answers at once, unless it is paused: a call of the tool in each turn but the last."""

    weight_version = "0"

    def __init__(self, turns=2, tool="work", arguments=None, pauses=True):
        self.tokenizer = load_tokenizer(tiny_policy_path())
        self._turns, self._call = turns, json.dumps({"name": tool, "arguments": arguments or {}})
        self._pauses, self._running = pauses, asyncio.Event()
        self._running.set()

    @property
    def vocab_size(self):
        return len(self.tokenizer)

    @property
    def context_length(self):
        return 4096

    async def load(self):
        return EngineLoad(0.25, running=3, queued=1, max_running=8)

    async def abort(self, request_id):
        pass

    async def pause(self, mode=PauseMode.IN_PLACE):
        if not self._pauses:
            raise EngineError("it cannot pause")
        self._running.clear()

    async def resume(self):
        self._running.set()

    async def update_weights(self, source, *, version):
        if not version:
            raise EngineError("no such weights")
        self.weight_version = version

    async def _generate(self, request):
        await self._running.wait()
        ids = [*self.tokenizer.encode(self.answer(request), add_special_tokens=False), self.tokenizer.eos_token_id]
        seed = (request.params.seed or 0) % 1000 / 1000
        return Generation(tuple(ids), (-seed,) * len(ids), FinishReason.STOP, ("0",) * len(ids))

    def answer(self, request):
        turn = int(request.request_id.rpartition("-")[2])
        return f"<tool_call>\n{self._call}\n</tool_call>" if turn < self._turns - 1 else "#### 12"


class NimPlayer(Instant):
    """Takes 1 or 2 stones, as the turn's seed says, or always so many; `closed` are those of this process."""

    closed = 0

    def __init__(self, takes=None):
        super().__init__()
        self._takes = takes

    def answer(self, request):
        return str(self._takes or request.params.seed % 2 + 1)

    async def close(self):
        NimPlayer.closed += 1


class Slow(Instant):
    """Answers after a moment, so that requests are in flight."""

    async def _generate(self, request):
        await asyncio.sleep(0.05)
        return await super()._generate(request)


class Work(BaseTool):
    """Does what a task's `execute_kwargs` say: sleeps, kills its process, and writes a line to a file."""

    default_schema = ToolSchema("work", "Works.", {"type": "object", "properties": {}})

    async def execute(self, instance_id, parameters, *, seconds=0.0, kill="", note="", **_):
        if note:
            with open(note, "a") as file:
                file.write(f"{os.getpid()}\n")
        if kill and not (kill != "always" and Path(kill).exists()):
            if kill != "always":
                Path(kill).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if note:
                with open(note, "a") as file:
                    file.write(f"cancelled {time.time()}\n")
            raise
        return ToolResult(f"worked in {os.getpid()}")


def task(at, **execute_kwargs):
    kwargs = {"work": {"execute_kwargs": execute_kwargs}} if execute_kwargs else {}
    return Task(messages=[user(f"What is {at}?")], id=str(at), ground_truth="12", tools_kwargs=kwargs)


def make_env():
    return ToolEnv([Work({})], [task(0)], max_turns=8)


def make_coding_env():
    """An env with a code interpreter, whose reward is the number of servers that this has."""
    tool = CodeInterpreterTool()
    return ToolEnv(
        [tool],
        [task(0)],
        owns_tools=True,
        max_turns=8,
        scorer=lambda text, task: float(len(getattr(tool.sandbox, "urls", ()))),
    )
