"""Whatever a policy breaks, its episode scores 0 and stays in its group: an infrastructure failure would let it off."""

from __future__ import annotations

import dataclasses

import pytest

from tests.actors import call
from tests.hostile.let_off.play import CELLS, PROGRAM_TASKS, REPOSITORIES, SHELLS, TASK, Try, cell, command, make, play
from tests.hostile.let_off.tries import TRIES
from tests.rollout.conftest import ScriptedEngine
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

FORM = 0.05
"""Most that reasoning-gym pays for the form of a wrong answer."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if TRIES[name].is_quick else pytest.mark.abuse) for name in TRIES]
)
async def test_a_policy_is_not_let_off(name):
    reward, result = await play(TRIES[name])
    assert reward <= (FORM if name.startswith("ReasoningGym") else 0.0)
    assert result.stop_reason.in_group_statistics


REPAIRED = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n"

HONEST = {
    **dict.fromkeys(SHELLS, command("echo 42 > answer.txt")),
    **dict.fromkeys(CELLS, cell("open('answer.txt', 'w').write('42')")),
    **dict.fromkeys(PROGRAM_TASKS, "```python\ndef f(n): return n + 1\n```"),
    **dict.fromkeys(
        ("judge, output", "judge, checker", "judge, interactor"), "```python\nprint(int(input()) + 1)\n```"
    ),
    **dict.fromkeys(REPOSITORIES, call("editor", command="create", path="calc.py", file_text=REPAIRED)),
}
LONG = ("repository, pytest", "repository, commands")


@pytest.mark.parametrize("env", [pytest.param(env, marks=pytest.mark.abuse if env in LONG else ()) for env in HONEST])
async def test_an_honest_policy_is_paid(env):
    """Else the tries would show nothing."""
    reward, result = await play(Try("honest", env, (HONEST[env], "done")))
    assert reward == 1.0
    assert "score/broken_by_policy" not in result.info["metrics"]


async def test_the_group_counts_all_its_members():
    names = ("kill all later", "a pipe as the answer", "a thousand nested folders")
    firsts = [TRIES[f"bash, file: {name}"].turns[0] for name in names] + [HONEST["bash, file"]]
    tokenizer = load_tokenizer(tiny_policy_path())

    def policy(prompt, request):
        return "done" if "<tool_response>" in prompt else firsts.pop()

    engine = ScriptedEngine(tokenizer, policy)
    config = RunConfig(sampling=SamplingParams(max_new_tokens=900), group_size=len(firsts), max_concurrent=1)
    async with Runner(lambda: make("bash, file"), engine, config=config, tokenizer=tokenizer) as runner:
        group = await runner.run([dataclasses.replace(TASK)])
    assert sorted(trajectory.reward for trajectory in group) == [0.0, 0.0, 0.0, 1.0]
    assert all(trajectory.in_group_statistics for trajectory in group)


def test_the_tries_are_many():
    assert len(TRIES) >= 150
    assert sum(attempt.is_quick for attempt in TRIES.values()) >= 20
