"""`SingleTurn-v0`: the first turn is the answer, compared as the task wants it."""

from __future__ import annotations

import pytest

import toolgym
from toolgym.envs import StopReason, Task
from toolgym.tools.errors import ConfigError

CALL = '<tool_call>{"name": "python", "arguments": {}}</tool_call>'


def task(truth, source=""):
    return Task(({"role": "user", "content": "q"},), ground_truth=truth, source=source, id="t")


@pytest.mark.parametrize(
    ("source", "truth", "answer", "score"),
    [
        ("openai/gsm8k", "72", "It is #### 72", 1.0),
        ("openai/gsm8k", "6*12=<<6*12=72>>72\n#### 72", "so 72", 1.0),
        ("openai/gsm8k", "72", "71", 0.0),
        ("", 0.5, "1/2", 1.0),
        ("trivia", "Paris", "paris", 1.0),
        ("trivia", "Paris", "It is Paris", 0.0),
        ("trivia", ["Paris", "3"], "<answer>Paris</answer>", 1.0),
        ("trivia", "Apollo 11", "11", 0.0),
        ("lighteval/MATH", "1/2", r"\boxed{0.50}", 1.0),
        ("DigitalLearningGmbH/MATH-lighteval", "x+1", r"\boxed{1+x}", 1.0),
        ("aime2024", "204", r"\boxed{204}", 1.0),
        ("aime2024", "204", r"\boxed{205}", 0.0),
    ],
)
async def test_an_answer_is_compared_as_the_task_wants_it(source, truth, answer, score):
    async with toolgym.make("SingleTurn-v0") as env:
        await env.reset(options={"task": task(truth, source)})
        result = await env.step(answer)
        assert (result.done, result.stop_reason, result.reward) == (True, StopReason.ANSWERED, score)


async def test_what_looks_like_a_call_is_text():
    async with toolgym.make("SingleTurn-v0", scorer=lambda text, task: float(text == CALL)) as env:
        await env.reset(options={"task": task(None)})
        result = await env.step(CALL)
        assert (result.stop_reason, result.reward) == (StopReason.ANSWERED, 1.0)
        assert env.messages[-1] == {"role": "assistant", "content": CALL}


@pytest.mark.parametrize(("truth", "said"), [(None, "no ground truth"), ({"a": 1}, "'a'")])
async def test_a_task_that_it_cannot_score_is_the_users_error(truth, said):
    async with toolgym.make("SingleTurn-v0") as env:
        with pytest.raises(ConfigError, match=said):
            await env.reset(options={"task": task(truth)})


async def test_with_a_scorer_a_task_needs_no_ground_truth():
    async with toolgym.make("SingleTurn-v0", scorer=lambda outcome: 0.5) as env:
        await env.reset(options={"task": task(None)})
        assert (await env.step("x")).reward == 0.5
