"""`toolgym bench`: the library's speed on this machine, in half a minute."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from toolgym.tools.errors import SandboxError, UnknownNameError, nearest

CODE = "print(1+1)"
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
AT_ONCE, ENVS, STEPS, TURNS = 32, 16, 20, 4


def command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="sandbox, vector or turns.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the sandbox, a vector env, and the runner's own work. Other work on the machine slows it down."""
    measures = {"sandbox": _sandbox, "vector": _vector, "turns": _turns}
    for name in {*(names or ())} - {*measures}:
        raise UnknownNameError(f"nothing is called {name!r}{nearest(name, measures)}; known: {', '.join(measures)}")
    figures = {what: value for name in names or measures for what, value in measures[name]().items()}
    lines = [f"{value:10,.2f}  {what}" for what, value in figures.items()]
    typer.echo(json.dumps(figures, indent=2) if as_json else "\n".join(lines))
    typer.echo("What they mean, and the targets: docs/cli.md of the repository, section `bench`.", err=True)


def _sandbox() -> dict[str, float]:
    from toolgym.tools.sandbox import LocalSandbox

    async def measure() -> dict[str, float]:
        async with LocalSandbox() as sandbox, await sandbox.session() as session:
            await asyncio.gather(*(sandbox.run(CODE) for _ in range(AT_ONCE)))  # then its processes are warm
            alone = await _median(lambda: sandbox.run(CODE), 50)
            cell = await _median(lambda: session.run_cell(CODE), 200)
            began = time.perf_counter()
            await asyncio.gather(*(_median(lambda: sandbox.run(CODE), 10) for _ in range(AT_ONCE)))
            rate = AT_ONCE * 10 / (time.perf_counter() - began)
            return {"ms a program": alone, "ms a cell": cell, f"programs a second, {AT_ONCE} at once": rate}

    return asyncio.run(measure())


async def _median(call: Callable[[], Awaitable[Any]], times: int) -> float:
    """Milliseconds of a call that prints 2. Raises `SandboxError` if it prints something else."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        result = await call()
        seconds.append(time.perf_counter() - began)
        if result.stdout != "2\n":
            raise SandboxError(f"expected the program to print 2, got {result.stdout!r} ({result.status})")
    return statistics.median(seconds) * 1e3


def _vector() -> dict[str, float]:
    import gymnasium

    actions = (CALL.format("code_interpreter", json.dumps({"code": CODE})),) * ENVS
    env: Any = gymnasium.make_vec("CodeInterpreter-v0", num_envs=ENVS, max_turns=10**6)
    try:
        env.reset(seed=0)
        env.step(actions)  # opens the sessions
        began = time.perf_counter()
        for _ in range(STEPS):
            env.step(actions)
        return {f"code steps a second, {ENVS} envs": ENVS * STEPS / (time.perf_counter() - began)}
    finally:
        env.close()


def _turns() -> dict[str, float]:
    from toolgym.envs import Task, ToolEnv
    from toolgym.rollout import RunConfig, load_tokenizer, rollout, tiny_policy_path
    from toolgym.rollout.engines import CallableEngine
    from toolgym.tools import tool
    from toolgym.tools.message import user

    tokenizer = load_tokenizer(tiny_policy_path())
    ids = tokenizer.encode(CALL.format("nothing", "{}") + "<|im_end|>", add_special_tokens=False)

    async def generate(request: Any) -> Any:
        return ids, [-0.5] * len(ids)

    @tool
    async def nothing() -> str:
        """Do nothing."""
        return "done"

    engine, config = CallableEngine(generate, tokenizer=tokenizer), RunConfig(group_size=4)
    tasks, times = [Task(messages=(user("Call it."),))] * 16, []
    for _ in range(3):
        began = time.process_time()
        played = asyncio.run(rollout(lambda: ToolEnv([nothing], tasks, max_turns=TURNS), engine, tasks, config=config))
        times.append((time.process_time() - began) / sum(len(trajectory.turns) for trajectory in played))
    return {"ms of CPU a turn with a call": min(times) * 1e3}
