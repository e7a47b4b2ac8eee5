"""A small env to serve, whose tools add, hang and fail, and the env server over it in this process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from aiohttp import web

from toolgym.envs.registry import register
from toolgym.envs.served.catalog import Catalog, load_env
from toolgym.envs.served.environments.app import EnvApp
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import End, StopReason
from toolgym.tools.errors import SandboxError
from toolgym.tools.function import tool
from toolgym.tools.message import system, user

SECRET = "the ground truth 4711"

TASKS = [
    Task(
        (system("Add."), user(f"What is {n} + 1?")),
        ground_truth=f"{SECRET} {n + 1}",
        id=f"sum-{n}",
        source="sums",
        row={"level": n, "hidden": SECRET, "extra_info": {"kind": "easy"}},
    )
    for n in range(5)
]


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: one.
        b: the other.
    """
    return str(a + b)


@tool
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


@tool
async def unreachable() -> str:
    """Need a server that is down."""
    raise ConnectionRefusedError("10.1.2.3:4444 refused")


class SumEnv(ToolEnv):
    """The answer "crash" breaks the scorer, "lost" and "no host" the sandbox, "nan" the reward; "go on" is answered."""

    open = 0
    """Envs that were reset and not closed."""

    def __init__(self, max_turns: int = 6, tool_timeout: float = 30.0) -> None:
        super().__init__(
            [add, hang, unreachable], TASKS, max_turns=max_turns, tool_timeout=tool_timeout, scorer=self.score
        )
        self._counted = False

    async def reset(self, *, seed=None, options=None):
        if seed == 13:
            raise RuntimeError("reset failed at 10.1.2.3")
        if not self._counted:
            self._counted = True
            SumEnv.open += 1
        return await super().reset(seed=seed, options=options)

    def respond(self, turn):
        if turn.content.startswith("go on"):
            return [user("Yes?" + turn.content.removeprefix("go on"))]
        if turn.content == "no host":
            raise SandboxError("no sandbox at 10.1.2.3")
        return End(StopReason.SANDBOX_FAILED) if turn.content == "lost" else End()

    def score(self, outcome):
        if outcome.final_text == "crash":
            raise RuntimeError("scorer failed at 10.1.2.3")
        if outcome.final_text == "nan":
            return float("nan")
        return float(outcome.task.ground_truth == f"{SECRET} {outcome.final_text}")

    async def close(self):
        if self._counted:
            self._counted = False
            SumEnv.open -= 1
        await super().close()


class EndlessEnv(SumEnv):
    """Another env, for servers with two."""


register("tests/Sum-v0", SumEnv, description="Add numbers.")
register("Other-v0", EndlessEnv, description="Add other numbers.")


@dataclasses.dataclass
class Service:
    """A running service."""

    url: str
    app: EnvApp


@contextlib.asynccontextmanager
async def serving(*names, **settings):
    """The env server over these envs, with these settings."""
    kwargs = settings.pop("kwargs", {})
    config = EnvServerConfig(**settings)
    envs = [
        await load_env(
            name, kwargs, answer_tool=config.answer_tool, endless=config.num_tasks, fields=config.task_fields
        )
        for name in names or ("tests/Sum-v0",)
    ]
    app = EnvApp(Catalog(envs), config)
    await app.start()
    runner = web.ServerRunner(app.listener(), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Service(f"http://127.0.0.1:{runner.addresses[0][1]}", app)
    finally:
        await runner.cleanup()
        await app.close()
