"""What a run keeps when it is interrupted, and what it shows on its way."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, Runner, SamplingParams, read_trajectories, rollout
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
    assert str(interrupted.value) == "the run was interrupted; 2 episodes had finished: see error.trajectories"
    assert sorted(read_trajectories(path), key=lambda one: one.task_index) == sorted(
        interrupted.value.trajectories, key=lambda one: one.task_index
    )


async def test_an_error_of_the_run_keeps_it_too(scripted, tmp_path, monkeypatch):
    class Interrupting:
        def __init__(self):
            self.count = 0

        def write(self, trajectory):
            self.count += 1
            if self.count == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("toolgym.rollout.orchestrator.TrajectoryWriter", lambda path, append: _Entered(Interrupting()))
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


class _Entered:
    def __init__(self, sink):
        self.sink = sink

    def __enter__(self):
        return self.sink

    def __exit__(self, *_):
        pass


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
