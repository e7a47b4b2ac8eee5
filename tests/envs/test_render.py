"""The conversation of an env, as text and in a notebook."""

from __future__ import annotations

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.envs.base import BaseEnv, StepResult
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError
from toolgym.tools.views.html import View
from toolgym.wrappers import TurnLimit

TASKS = [Task(({"role": "user", "content": "How <far>?"},), id="far", ground_truth="5 km")]
CALL = '<tool_call>\n{"name": "measure", "arguments": {"a": "here"}}\n</tool_call>'


@tool
async def measure(a: str) -> str:
    """Measure it."""
    return f"5 km from {a}"


class Silent(BaseEnv):
    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "q"}], {}

    async def step(self, action):
        return StepResult([], 0.0, True, {})

    async def close(self):
        pass


class Board(Silent):
    def render(self):
        return View("x.o", "<b>x.o</b>")


async def test_an_env_shows_its_conversation_so_far():
    env = TurnLimit(ToolEnv([measure], TASKS), max_turns=4)
    assert "No messages yet." in env.render().html
    await env.reset(seed=0)
    await env.step(CALL)
    text = '[user]\nHow <far>?\n\n[assistant]\n-> measure {"a": "here"}\n\n[tool measure]\n5 km from here'
    assert env.render() == text
    assert "How &lt;far&gt;?" in env.render().html
    await env.close()


async def test_an_env_in_a_notebook_has_its_task_its_tools_and_the_conversation():
    env = ToolEnv([measure], TASKS)
    assert "Measure it." in env._repr_html_()
    await env.reset(seed=0)
    await env.step(CALL)
    html = env._repr_html_()
    for part in (
        "turn 1 of 8",
        "<summary>task far</summary>",
        "5 km",
        "→ measure(a=&#x27;here&#x27;)",
        "5 km from here",
    ):
        assert part in html
    assert "in a notebook" not in Silent()._repr_html_()


def test_an_env_that_keeps_no_conversation_says_how_to_get_one():
    with pytest.raises(ConfigError, match=r"<Silent> keeps no conversation.*render_mode='ansi'"):
        Silent().render()


def test_a_wrapper_shows_what_the_env_inside_draws():
    assert TurnLimit(Board(), max_turns=2).render().html == "<b>x.o</b>"
