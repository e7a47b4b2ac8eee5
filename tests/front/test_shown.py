"""What objects look like in a terminal and in a notebook."""

from __future__ import annotations

import dataclasses
import re

import pytest

import toolgym
from toolgym.envs import StepResult, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import Batch, Trajectory, make_batch, show
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Failure
from toolgym.tools import ToolResult, tool
from toolgym.tools.sandbox import RemoteSandbox
from toolgym.tools.sandbox.base import CellError, CellResult, ExecutionResult, ExecutionStatus
from toolgym.tools.views.html import MAX_CHARS

EVIL = "<script>alert('x')</script>\ud800\x1b[31m\u202e"


@tool
def convert(amount: float, unit: str = EVIL[:8]) -> str:
    """Convert <b>it</b>."""
    return f"{amount} {unit}"


def trajectory(**changes):
    values = {
        "id": "t1",
        "env_id": "Towns-v0",
        "task_id": "a",
        "source": "",
        "group_id": "g",
        "task_index": 3,
        "sample_index": 1,
        "messages": (
            {"role": "user", "content": EVIL},
            {
                "role": "assistant",
                "content": EVIL,
                "reasoning_content": EVIL,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": EVIL, "arguments": {EVIL: EVIL}}}],
            },
            {"role": "tool", "content": EVIL, "name": EVIL, "tool_call_id": "1"},
        ),
        "tools": (),
        "sequences": (TokenSequence([1, 2], (Segment.policy([3, 4], [-0.1, -0.2], ["0", "0"]),)),),
        "reward": 0.5,
        "stop_reason": StopReason.ANSWERED,
    }
    return Trajectory(**(values | changes))


class EvilTokenizer:
    def decode(self, ids):
        return EVIL


@pytest.fixture
async def shown():
    made = trajectory()
    env = ToolEnv([convert], [Task(({"role": "user", "content": EVIL},), id=EVIL, ground_truth=EVIL)])
    await env.reset(seed=0)
    return [
        made,
        show([made], tokenizer=EvilTokenizer()),
        show(made, tokenizer=EvilTokenizer()),
        env,
        trajectory(error=Failure(EVIL, 0), stop_reason=StopReason.ENV_FAILED, task_id=EVIL, env_id=EVIL),
        make_batch([made], pad_token_id=0),
        convert.tool,
        ToolResult(EVIL, 1.0, {EVIL: EVIL}),
        StepResult([{"role": "tool", "content": EVIL}], 0.0, False, {}),
        ExecutionResult(ExecutionStatus.ERROR, EVIL, EVIL, return_code=1, message=EVIL, files={EVIL: b""}),
        CellResult(ExecutionStatus.ERROR, EVIL, EVIL, result=EVIL, error=CellError(EVIL, EVIL, (EVIL,)), message=EVIL),
    ]


def test_a_notebook_shows_text_of_a_model_as_text(shown):
    for value in shown:
        html = value._repr_html_()
        html.encode("utf-8")
        tags = "div|style|b|table|tr|th|td|pre|details|summary|i|svg|path"
        assert not re.findall(rf"<(?!/?(?:{tags})[ >])", html), value
        assert not re.findall(r"<[^>]*(?:\bon\w+=|href|src=|url\()", html), value
        assert "<b>it" not in html
        assert not {"\x1b", "\u202e"} & set(html)


def test_a_notebook_shows_a_conversation_with_its_calls_and_its_end():
    html = trajectory(messages=(
        {"role": "user", "content": "How far?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "convert", "arguments": {"amount": 3.0}}},
        ]},
    ))._repr_html_()  # fmt: skip
    for part in ("How far?", "→ convert(amount=3.0)", "reward 0.5", "answered", "task a", "sample 1"):
        assert part in html
    assert "boom" in trajectory(error=Failure("boom", 2), stop_reason=StopReason.ENV_FAILED)._repr_html_()


def test_a_long_text_is_cut_in_the_middle():
    html = ToolResult("a" * 100_000 + "end")._repr_html_()
    assert len(html) < 2 * MAX_CHARS
    assert "95003 characters left out" in html
    assert "end" in html


async def test_a_terminal_shows_a_line(shown):
    assert repr(trajectory()) == (
        "<Trajectory t1: Towns-v0, task a, sample 1, 0 turns, 2 policy tokens, reward 0.5, answered>"
    )
    assert "task 3," in repr(trajectory(task_id=""))
    assert (
        repr(next(value for value in shown if isinstance(value, Batch)))
        == "<Batch: 1 rows of 2 + 2 tokens, 2 of them the policy's, 1 groups>"
    )
    assert repr(convert.tool) == "<FunctionTool convert(amount, unit)>"
    assert repr(toolgym.make("CodeInterpreter-v0")) == "<CodeInterpreterEnv with code_interpreter; not reset>"
    env = ToolEnv([], [Task(({"role": "user", "content": "q"},))], max_turns=4)
    await env.reset()
    assert repr(env) == "<ToolEnv with no tools; turn 0 of 4>"
    await env.step("x")
    assert repr(env) == "<ToolEnv with no tools; over after turn 1 of 4>"
    async with RemoteSandbox(["http://a:1", "http://b:1"]) as sandbox:
        assert repr(sandbox) == "<RemoteSandbox http://a:1, http://b:1>"


def test_what_is_half_made_has_a_repr_too():
    class Half(ToolEnv):
        def __init__(self):
            self.shown = repr(self)

    class HalfTool(type(convert.tool)):
        def __init__(self):
            self.shown = repr(self)

    assert (Half().shown, HalfTool().shown) == ("<Half>", "<HalfTool>")


def test_an_equal_trajectory_is_still_equal():
    assert dataclasses.replace(trajectory()) == trajectory()
