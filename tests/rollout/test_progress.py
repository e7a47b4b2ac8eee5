"""What a person sees of a run: in a terminal, in a notebook, and as lines of a log."""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from rich.console import Console

from tests.actors import until
from tests.rollout.held_engine import held_engine
from toolgym.envs import Task, ToolEnv
from toolgym.rollout import RunConfig, RunMetrics, Runner
from toolgym.rollout.runner.metrics import progress
from toolgym.rollout.runner.metrics.progress import Progress
from toolgym.tools import tool

CALL = '<tool_call>\n{"name": "ask_oracle", "arguments": {}}\n</tool_call>'
TASKS = [Task(({"role": "user", "content": text},), id=text) for text in ("a", "b", "c", "d")]


def run(engine, env, console, *, total=4, **kwargs):
    metrics = RunMetrics()
    observers = [metrics, Progress(metrics, total, console=console, **kwargs)]
    return Runner(env, engine, observers=observers, config=RunConfig(seed=0)).run(TASKS)


def screen(width=100):
    return Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False)


def plain(console):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


async def test_a_terminal_shows_what_the_slowest_wait_for(scripted, monkeypatch):
    monkeypatch.setattr(progress, "TICK", 0.01)
    answer = asyncio.Event()

    @tool
    async def ask_oracle() -> str:
        """Ask."""
        await asyncio.wait_for(answer.wait(), 120)
        return "yes"

    def script(prompt, request_id):
        if request_id.endswith("-1") or "\nb<" in prompt:
            return "done"
        return CALL

    console = screen()
    playing = asyncio.create_task(run(scripted(script), lambda: ToolEnv([ask_oracle], TASKS), console))
    async with asyncio.timeout(50):
        while not re.search(r"1 of 4 episodes.*\n.*\n3 in ask_oracle 0:\d\d", plain(console)):
            await asyncio.sleep(0.01)
            assert not playing.done()
    shown = plain(console)
    assert "left" in shown
    assert "reward 0.00" in shown
    answer.set()
    await asyncio.wait_for(playing, 50)
    assert re.match("━" * 40 + r" 4 of 4 episodes 0:\d\d", plain(console).rstrip().splitlines()[-2].strip())
    assert " 7 turns" in plain(console).rstrip().splitlines()[-1]


async def test_what_a_model_calls_a_tool_cannot_draw_in_the_terminal(scripted, monkeypatch):
    monkeypatch.setattr(progress, "TICK", 0.01)
    seen = asyncio.Event()

    class Slow(ToolEnv):
        async def step(self, action):
            await asyncio.wait_for(seen.wait(), 120)
            return await super().step(action)

    call = '<tool_call>\n{"name": "\\u001b[2J\\n[red]x' + "y" * 99 + '", "arguments": {}}\n</tool_call>'
    engine = scripted(lambda prompt, request_id: call if request_id.endswith("-0") else "done")
    console = screen()
    playing = asyncio.create_task(run(engine, lambda: Slow([], TASKS), console))
    async with asyncio.timeout(50):
        while "4 in ?[2J?[red]xyyy" not in plain(console):
            await asyncio.sleep(0.01)
            assert not playing.done()
    seen.set()
    await asyncio.wait_for(playing, 50)
    assert "y" * 50 not in plain(console)


async def test_a_transient_display_leaves_nothing(scripted):
    console = screen()
    await run(scripted(lambda p, r: "done"), lambda: ToolEnv([], TASKS), console, transient=True)
    assert console.file.getvalue().endswith("\x1b[2K")  # the last of the lines is erased


@pytest.mark.parametrize(("total", "said"), [(4, "4 of 4 episodes"), (None, None)])
async def test_a_log_gets_few_lines(scripted, total, said):
    console = Console(file=io.StringIO(), width=200)
    await run(scripted(lambda p, r: "done"), lambda: ToolEnv([], TASKS), console, total=total)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 4
    if said is not None:
        assert lines[-1].startswith(f"{said}, reward 0.00, 4 turns")


async def test_a_log_that_is_silent_for_long_says_what_is_waited_for(scripted_engine, tokenizer, monkeypatch):
    monkeypatch.setattr(progress, "TICK", 0.01)
    monkeypatch.setattr(progress, "SILENCE", 0.02)
    console, seen = Console(file=io.StringIO(), width=200), asyncio.Event()
    engine = held_engine(scripted_engine, tokenizer, lambda *_: ("done", seen))
    playing = asyncio.create_task(run(engine, lambda: ToolEnv([], TASKS), console))
    waited = r"0 of 4 episodes, 0 turns; waiting: 4 in the engine 0:\d\d"
    await until(lambda: playing.done() or re.search(waited, console.file.getvalue()))
    assert not playing.done()
    seen.set()
    await asyncio.wait_for(playing, 50)


NOTEBOOK = """
from toolgym.envs import ArithmeticTasks, ToolEnv
from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout
async with open_engine("tiny") as engine:
    config = RunConfig(seed=0, sampling=SamplingParams(max_new_tokens=8))
    tasks = ArithmeticTasks().take(2)
    await rollout(lambda: ToolEnv([], tasks), engine, tasks, config=config, progress=True);
"""


@pytest.mark.long
def test_a_notebook_shows_one_output_that_changes():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    nbclient.NotebookClient(notebook, timeout=100).execute()
    shown = [one["data"] for one in notebook.cells[0].outputs if one.output_type == "display_data"]
    assert len(shown) == 1
    assert shown[0]["text/html"].startswith('<progress value="2" max="2"></progress> 2 of 2 episodes')
    assert shown[0]["text/plain"].startswith("2 of 2 episodes")
