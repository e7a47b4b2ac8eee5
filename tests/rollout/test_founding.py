"""Two tests of the founding document, by their names: what a request is made of, and an end where tokens run out; and
the episode that it shows.

Its others are in `tests/tools/library/test_sandbox_tool.py` and `tests/tools/concurrency/test_cluster_rate_limit.py`.
"""

from __future__ import annotations

import json

from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, make_batch
from toolgym.tools import tool

CALL = json.dumps({"name": "repeat", "arguments": {"word": "six ", "times": 40}})
TASK = Task(({"role": "system", "content": "Compute."}, {"role": "user", "content": "2*3?"}), ground_truth="6")


@tool
def repeat(word: str, times: int) -> str:
    """Repeat a word.

    Args:
        word: which.
        times: how often.
    """
    return word * times


async def play(engine, **kwargs):
    config = RunConfig(seed=3, sampling=SamplingParams(max_new_tokens=200, temperature=0.7, top_p=0.9), **kwargs)
    [one] = await Runner(lambda: CodeInterpreterEnv(tools=[repeat], own_tools=False), engine, config=config).run([TASK])
    return one


async def test_the_episode_that_the_document_shows(scripted):
    """Its first turn opens `<think>`, never closes it, and calls the tool."""
    program = "total_pay_this_year = 200000\nbonus_percentage = 10 / 100\n"
    program += "bonus_this_year = total_pay_this_year * bonus_percentage\n"
    program += "total_income_this_year = total_pay_this_year + bonus_this_year\nprint(total_income_this_year)"
    call = json.dumps({"name": "code_interpreter", "arguments": {"code": program, "executes": "True"}})
    turns = (
        f"<think>\nOkay, let me use the code interpreter to make sure.\n<tool_call>\n{call}\n</tool_call>",
        "<think>\nThe code shows that the total is 220,000.\n</think>\n\n#### 220000.0",
    )
    read = {}
    for parser in ("hermes", "open_thinking:hermes"):
        said = iter(turns)
        config = RunConfig(sampling=SamplingParams(max_new_tokens=400), seed=0, parser=parser)
        runner = Runner("CodeInterpreter-v0", scripted(lambda *_, said=said: next(said)), config=config)
        [read[parser]] = await runner.run([TASK])
    assert [one.status for one in read["hermes"].tool_calls] == ["open_thinking"]
    [called] = read["open_thinking:hermes"].tool_calls
    assert (called.status, called.text.strip()) == ("ok", "220000.0")
    assert read["open_thinking:hermes"].messages[-1]["content"].endswith("#### 220000.0")


def call_for_ever(prompt, request_id):
    return f"<tool_call>\n{CALL}\n</tool_call>"


async def test_rollout_req_creation(scripted, tokenizer):
    """A request has the template's prompt with the tools' schemas, the sampling, the stop tokens and a seed."""
    answers = iter([f"<tool_call>\n{CALL}\n</tool_call>", "#### 6"])
    engine = scripted(lambda *_: next(answers))
    one = await play(engine)
    (first, params), (second, later) = engine.seen.values()
    prompt = tokenizer.apply_chat_template(
        list(TASK.messages), tools=list(one.tools), tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(first) == prompt
    assert [schema["function"]["name"] for schema in one.tools] == ["repeat"]
    assert (params.max_new_tokens, params.temperature, params.top_p) == (200, 0.7, 0.9)
    assert tokenizer.eos_token_id in params.stop_token_ids
    assert [params.seed, later.seed] == [turn.seed for turn in one.turns]
    assert set(engine.affinities.values()) == {one.id}
    # The second request is the first, what was generated, and the tool's answer.
    generated = list(engine.given[f"{one.id}-0"].token_ids)
    assert second[: len(first) + len(generated)] == first + generated
    assert "six six" in tokenizer.decode(second[len(first) + len(generated) :])
    assert one.reward == 1.0


async def test_over_size_case(scripted, tokenizer):
    """An episode ends early where its tokens run out: nothing is cut, and what there is can be trained on."""
    whole = await play(scripted(call_for_ever), limits=EpisodeLimits(max_response_tokens=1_000))
    assert whole.stop_reason is StopReason.BUDGET
    turn, observation = whole.turns[0].generated_tokens, whole.turns[0].observation_tokens
    for budget, turns, reason in [
        (turn - 1, 1, "in the middle of a turn"),
        (turn + observation, 1, "no room for a turn behind the observation"),
        (turn + observation + 1, 2, "room for one token"),
        (2 * turn + observation, 2, "room for two turns"),
    ]:
        engine = scripted(call_for_ever)
        one = await play(engine, limits=EpisodeLimits(max_response_tokens=budget))
        assert (one.stop_reason, len(one.turns)) == (StopReason.BUDGET, turns), reason
        assert len(one.response_ids) <= budget
        assert one.response_ids.tolist() == whole.response_ids.tolist()[: len(one.response_ids)]
        assert all(
            len(prompt) + sent.max_new_tokens <= len(one.prompt_ids) + budget for prompt, sent in engine.seen.values()
        )
        assert one.trainable
        assert len(make_batch([one], pad_token_id=0)) == 1
