"""Failed episodes are not dropped without a word: a warning for each kind, and an error where all failed at once."""

from __future__ import annotations

import logging

import pytest

from tests.actors import echo, tasks
from toolgym.cli.app import main
from toolgym.envs import ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import RunConfig, RunFailedError, Runner, SamplingParams, make_batch, read_trajectories, rollout
from toolgym.tools.errors import EngineError

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>'


def env():
    return ToolEnv([echo], tasks("unused"))


def broken_score(text, task):
    raise ZeroDivisionError(f"no length in task {task.id}")


def config(**kwargs):
    return RunConfig(seed=1, sampling=SamplingParams(max_new_tokens=50), **kwargs)


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def answers(prompt, request_id):
    if "broken" in prompt:
        return EngineError(f"request {request_id} was lost")
    if "odd" in prompt:
        return RuntimeError("what is this")
    return "done"


async def test_each_kind_of_failure_is_one_warning_with_its_count_and_an_example(scripted, caplog):
    given = tasks("broken", "fine", "odd", "broken too")
    done = await rollout(env, scripted(answers), given, config=config(group_size=20))
    assert sum(one.failed for one in done) == 60
    lost, odd = warnings(caplog)
    assert lost.startswith("40 of 80 episodes failed with engine_failed; one of them: task 0, sample ")
    assert "turn 0: EngineError: request " in lost
    assert odd.startswith("20 of 80 episodes failed with engine_failed; one of them: task 2, sample ")
    assert "RuntimeError: what is this" in odd


async def test_a_batch_says_what_it_leaves_out(scripted, caplog):
    done = await rollout(env, scripted(answers), tasks("broken", "fine", "odd"), config=config(group_size=4))
    caplog.clear()
    batch = make_batch(done, pad_token_id=0)
    assert len(batch) == 4
    [said] = warnings(caplog)
    assert said.startswith("8 of 12 trajectories were left out of the batch")
    assert "8 times engine_failed: " in said
    caplog.clear()
    make_batch([one for one in done if not one.failed], pad_token_id=0)
    assert warnings(caplog) == []


async def test_a_run_without_failures_says_nothing(scripted, caplog):
    await rollout(env, scripted(answers), tasks("a", "b"), config=config())
    assert warnings(caplog) == []


async def test_an_error_where_all_failed_alike_at_the_first_turn(scripted, caplog):
    with pytest.raises(
        RunFailedError, match=r"all 6 episodes .* with engine_failed: EngineError: request .* lost"
    ) as e:
        await rollout(env, scripted(answers), tasks("broken", "broken too"), config=config(group_size=3))
    assert e.value.stop_reason is StopReason.ENGINE_FAILED
    assert [(one.task_index, one.sample_index) for one in e.value.trajectories] == [
        (task, sample) for task in range(2) for sample in range(3)
    ]
    assert len(warnings(caplog)) == 1


async def test_a_scorer_that_always_raises_is_no_reward_of_0(scripted):
    with pytest.raises(RunFailedError, match=r"score_failed: .*ZeroDivisionError: no length in task a"):
        await rollout(
            lambda: ToolEnv([], tasks("x"), scorer=broken_score), scripted(answers), tasks("a", "b"), config=config()
        )


@pytest.mark.parametrize("given", [("broken", "odd"), ("broken", "fine")])
async def test_no_error_where_they_failed_in_different_ways(scripted, given):
    assert len(await rollout(env, scripted(answers), tasks(*given), config=config())) == 2


async def test_no_error_where_they_failed_later(scripted):
    engine = scripted(lambda prompt, _: EngineError("gone") if "<tool_response>" in prompt else CALL)
    done = await rollout(env, engine, tasks("a", "b"), config=config())
    assert [one.error.turn for one in done] == [1, 1]


async def test_a_runner_gives_what_failed(scripted):
    assert len(await Runner(env, scripted(answers), config=config()).run(tasks("broken"))) == 1


def test_the_command_says_so_and_keeps_the_trajectories(tmp_path, monkeypatch, capfd):
    async def reset(self, **kwargs):
        raise OSError("the dataset is not mounted")

    monkeypatch.setattr("toolgym.envs.library.code_interpreter.CodeInterpreterEnv.reset", reset)
    arguments = ["--tasks", "2", "--group-size", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["toolgym", "rollout", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    stderr = capfd.readouterr().err
    assert "error: all 4 episodes failed in the same way at their first turn, with reset_failed: " in stderr
    assert "OSError: the dataset is not mounted" in stderr
    assert len(list(read_trajectories(tmp_path / "0.jsonl"))) == 4
