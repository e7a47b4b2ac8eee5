"""What a run keeps when it is interrupted, and what it shows on its way."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest

from tests.actors import until
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, Runner, SamplingParams, read_trajectories, rollout
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.tools.errors import ConfigError

TASKS = [Task(({"role": "user", "content": text},), id=text) for text in ("a", "slow", "b", "slow")]
CONFIG = RunConfig(seed=1, sampling=SamplingParams(max_new_tokens=50))


def env():
    return ToolEnv([], TASKS)


def slowly(seconds):
    return lambda prompt, _: seconds if "slow" in prompt else "done"


async def test_a_cancelled_run_keeps_what_has_finished(scripted, tmp_path):
    path = tmp_path / "t.jsonl"
    running = asyncio.create_task(rollout(env, scripted(slowly(3600)), TASKS, config=CONFIG, out=path))
    while not path.exists() or len(list(read_trajectories(path))) < 2:
        await asyncio.sleep(0.01)
        assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as interrupted:
        await running
    assert sorted(one.task_id for one in interrupted.value.trajectories) == ["a", "b"]
    assert str(interrupted.value) == (
        "the run was interrupted; 2 episodes had finished: see error.trajectories (in a notebook: "
        f"sys.last_value.trajectories), and the file {str(path)!r}, which resume=True goes on with"
    )
    assert sorted(read_trajectories(path), key=lambda one: one.task_index) == sorted(
        interrupted.value.trajectories, key=lambda one: one.task_index
    )


async def test_an_error_of_the_run_keeps_it_too(scripted, tmp_path, monkeypatch):
    class Interrupting(TrajectoryWriter):
        def write(self, trajectory):
            if self.path.read_bytes():
                raise KeyboardInterrupt
            super().write(trajectory)

    monkeypatch.setattr("toolgym.rollout.orchestrator.TrajectoryWriter", Interrupting)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        await rollout(env, scripted(slowly(0)), TASKS, config=CONFIG, out=tmp_path / "x")
    assert len(interrupted.value.trajectories) == 1
    assert "; 1 episodes had finished" in str(interrupted.value)


async def test_a_run_that_is_interrupted_at_once_says_so_too(scripted):
    running = asyncio.create_task(rollout(env, scripted(slowly(3600)), TASKS[1:2], config=CONFIG))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError, match="0 episodes had finished") as interrupted:
        await running
    assert interrupted.value.trajectories == []


async def test_an_interrupt_before_the_first_episode_says_where_those_of_the_file_are(scripted, tmp_path):
    class Waiting(ToolEnv):
        async def reset(self, **kwargs):
            await asyncio.sleep(3600)

    path = tmp_path / "t.jsonl"
    running = asyncio.create_task(
        rollout(lambda: Waiting([], TASKS), scripted(slowly(0)), TASKS, config=CONFIG, out=path)
    )
    await until(path.exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError, match="0 episodes had finished.*which resume=True goes on with"):
        await running


def test_ctrl_c_in_a_script_keeps_what_has_finished(scripted, tmp_path):
    path = tmp_path / "t.jsonl"

    async def interrupt():
        await until(lambda: path.exists() and len(list(read_trajectories(path))) == 2)
        signal.raise_signal(signal.SIGINT)

    async def main():
        interrupting = asyncio.create_task(interrupt())
        await rollout(env, scripted(slowly(3600)), TASKS, config=CONFIG, out=path)
        await interrupting

    with pytest.raises(KeyboardInterrupt) as interrupted:
        asyncio.run(main())
    error = interrupted.value.__context__  # asyncio.run makes another error of it
    assert "2 episodes had finished" in str(error)
    assert len(error.trajectories) == 2


NOTEBOOK = (
    """
from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout
config = RunConfig(seed=0, sampling=SamplingParams(max_new_tokens=32), max_concurrent=2)
async with open_engine("tiny") as engine:
    await rollout("CodeInterpreter-v0", engine, num_tasks=100_000, config=config, progress=True, out=OUT)
""",
    "import sys; print(len(sys.last_value.trajectories), sum(1 for line in open(OUT)))",
)


@pytest.mark.long
async def test_the_stop_button_of_a_notebook_keeps_what_has_finished(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    out = tmp_path / "t.jsonl"
    sources = [f"OUT = {str(out)!r}", *NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(notebook, timeout=300, allow_errors=True)

    async def press_stop():
        await until(lambda: out.exists() and len(out.read_bytes().splitlines()) >= 2, 300)
        await client.km.interrupt_kernel()

    async with client.async_setup_kernel():
        pressing = asyncio.create_task(press_stop())
        for number, cell in enumerate(notebook.cells):
            await client.async_execute_cell(cell, number)
        await pressing
    _, run, kept = (cell.outputs for cell in notebook.cells)
    error = next(each for each in run if each.output_type == "error")
    assert error.ename == "CancelledError"
    assert re.fullmatch(r"the run was interrupted; \d+ episodes had finished: see .*goes on with", error.evalue)
    [bar] = [each["data"]["text/plain"] for each in run if each.output_type == "display_data"]
    assert re.match(r"\d+ of 100000 episodes · 0:\d\d, over · ", bar)
    count, lines = kept[0].text.split()
    assert count == lines
    assert int(count) >= 2
    assert f"{count} episodes had finished" in error.evalue


async def test_a_full_disk_ends_the_run_but_not_the_episodes_that_run(scripted, tmp_path):
    """As a disk: it takes the first trajectory and refuses the second."""

    class Full:
        def __init__(self):
            self.given = []

        def write(self, trajectory):
            self.given.append(trajectory.task_id)
            if len(self.given) >= 2:
                raise OSError(28, "No space left on device")

    sink, got = Full(), []
    config = RunConfig(seed=1, sampling=CONFIG.sampling, max_concurrent=3)
    runner = Runner(env, scripted(slowly(0.2)), sinks=[sink], config=config)

    async def consume():
        async for one in runner.stream(TASKS * 50):
            got.append(one.task_id)

    with pytest.raises(OSError, match="No space left"):
        await consume()
    assert got == sink.given
    assert "slow" in got[2:]
    assert len(got) < 12


async def test_an_earlier_runs_file_is_refused(scripted, tmp_path):
    path = tmp_path / "t.jsonl"
    await rollout(env, scripted(slowly(0)), TASKS, config=CONFIG, out=str(path))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="holds the results of an earlier run"):
        await rollout(env, scripted(slowly(0)), TASKS, config=CONFIG, out=path)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="cannot write trajectories"):
        await rollout(env, scripted(slowly(0)), TASKS, config=CONFIG, out=path / "x")


async def test_progress_is_shown_on_standard_error_when_asked(scripted, capsys):
    await rollout(env, scripted(slowly(0)), TASKS, config=CONFIG, progress=True)
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert "4 of 4 episodes, reward 0.00, 4 turns" in errors
    await rollout(env, scripted(slowly(0)), TASKS, config=CONFIG)
    assert capsys.readouterr().err == ""
