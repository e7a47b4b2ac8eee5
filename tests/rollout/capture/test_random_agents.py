"""Agents that do at random what agents do: whatever they do, the one rule holds.

The prompt of a call that goes on begins with prompt and sample of the one that it goes on from, each sampled token is
trained on at most once, with what the engine saw before it, and what is left out is counted.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rollout.capture.played_agent import (
    START,
    TOOLS,
    PlayedAgent,
    back,
    foreign,
    result,
    rows_of,
    system,
    user,
    written_call,
)
from toolgym.rollout.capture.agent_call import CallRefusedError
from toolgym.rollout.capture.forest import State
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import EngineError

TURNS = [
    written_call("ls"),
    written_call("ls") + "\n" + written_call("a", "read"),
    "<think>Hm.</think>Let me see.\n" + written_call("ls"),
    "Hello.",
    "Hello.",
    "<tool_call>\n{broken\n</tool_call>",
    ("cut off", FinishReason.LENGTH),
    EngineError("broken"),
]
REPLAYS = [
    lambda turn: turn,
    lambda turn: replace(turn, reasoning=None),
    lambda turn: replace(turn, content=turn.content + "\n"),
    lambda turn: replace(turn, ids=frozenset()),
    lambda turn: replace(turn, content="edited"),
    lambda turn: replace(turn, calls=turn.calls[:1]),
]
MOVES = [
    "goes on",
    "goes on",
    "goes on",
    "rewinds",
    "repeats",
    "repeats at once",
    "sums up",
    "drops",
    "edits",
    "speaks for us",
    "loses",
    "sub",
    "title",
]

moves = st.lists(
    st.tuples(
        st.sampled_from(MOVES),
        st.integers(0, len(TURNS) - 1),
        st.integers(0, len(REPLAYS) - 1),
        st.integers(0, 10),
    ),
    min_size=1,
    max_size=14,
)


class RandomAgent:
    """An agent with one history for each answer that it got."""

    def __init__(self, agent):
        self.agent = agent
        self.histories = [(START, TOOLS, "")]
        self.last = None
        self.numbers = {}

    async def move(self, move, replay, pick):
        messages, tools, name = self.histories[-1] if move not in ("rewinds", "drops") else self._earlier(pick)
        if move.startswith("repeats") and self.last is not None:
            messages, tools, name = self.last
        elif move == "drops":
            messages = (*messages, user("That was no call."))
        elif move == "edits" and len(messages) > 3:
            place = pick % len(messages)
            messages = (*messages[:place], replace(messages[place], content=f"edit {pick}"), *messages[place + 1 :])
        elif move == "speaks for us":
            messages = (*messages, foreign("Yes."), user("Go on."))
        elif move == "sub":
            messages, tools, name = (system("You help."), user(f"Task {pick}.")), TOOLS[:1], f"sub-{pick}"
        elif move == "sums up":
            tools = ()
        elif move == "title":
            messages, tools, name = (system("Write a title."), user("Say it.")), (), ""
        self.last = (messages, tools, name)
        requests = [self.agent.ask(*messages, tools=tools, agent=name) for _ in range(1 + (move == "repeats at once"))]
        replies = await asyncio.gather(*requests, return_exceptions=True)
        answered = [reply for reply in replies if not isinstance(reply, CallRefusedError)]
        if not answered:
            return
        reply = answered[pick % len(answered)]
        if move == "loses":
            self.agent.session.undelivered(reply.id)
            return
        turn = REPLAYS[replay](back(reply))
        answers = [result(reply, f"result {pick}", number) for number in range(len(turn.calls))]
        self.histories.append(((*messages, turn, *(answers or [user(f"And {pick}?")])), tools, name))

    def _earlier(self, pick):
        return self.histories[pick % len(self.histories)]


@settings(
    max_examples=2 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moves, st.sampled_from([(), ("side_call",), ("retracted", "sub_agent")]))
def test_the_rule_holds_whatever_agents_do(scripted, tokenizer, moves, untrained):
    asyncio.run(_play(scripted, tokenizer, moves, untrained))


async def _play(scripted, tokenizer, moves, untrained):
    turns = iter([TURNS[turn] for _, turn, _, _ in moves for _ in range(2)])
    agent = PlayedAgent(scripted, tokenizer, turns, rules=CaptureRules(untrained=untrained), context_length=100_000)
    player = RandomAgent(agent)
    for move, _, replay, pick in moves:
        await player.move(move, replay, pick)
    for call in agent.session._forest:
        if call.parent is not None:
            agent.assert_goes_on(call.number, call.parent.number)
    agent.finish()
    trajectory = agent.trajectory
    rows_of(trajectory, agent.engine)
    sampled = sum(len(generation.token_ids) for generation in agent.engine.given.values())
    left_out = sum(
        count for name, count in trajectory.metrics.items() if name.startswith("left_out_") and name.endswith("_tokens")
    )
    assert trajectory.policy_tokens + left_out == sampled
    assert all(sequence.policy_tokens for sequence in trajectory.sequences)
    assert [sequence.start_reason for sequence in trajectory.sequences].count("start") <= 1
    delivered = [call for call in agent.session._forest if call.state is State.KEPT]
    assert untrained or len(trajectory.turns) >= len(delivered)
    assert Trajectory.from_json(json.loads(json.dumps(trajectory.to_json()))) == trajectory
