"""tau2-bench's Gymnasium envs: a conversation with a simulated user, and a domain's tools.

The contract (`tau2/gym/gym_agent.py`): Gymnasium's, with texts. An action is one tool call as JSON, or what is said
to the user. An observation has a line `role: text` for each new message. The info holds the domain's policy, the tools,
and at the end the record of the simulation, which names its `termination_reason`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolgym.envs.foreign.base import Adapter, Begun, Start, Stepped
from toolgym.envs.foreign.values import led_by, opened
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import shorten
from toolgym.tools.message import Message, tool, user
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolSchema

_REASONS = {
    "max_steps": StopReason.MAX_TURNS,
    "context_window_exceeded": StopReason.MAX_TURNS,
    "too_many_errors": StopReason.TOO_MANY_BAD_CALLS,
}
_FAILED = {
    "timeout": StopReason.ENV_TIMEOUT,
    "user_error": StopReason.ENV_FAILED,
    "infrastructure_error": StopReason.ENV_FAILED,
    "unexpected_error": StopReason.ENV_FAILED,
}
_ROLES = ("user", "assistant", "tool", "system")


class Tau2Adapter(Adapter):
    """tau2-bench's envs. The policy is the agent (`AgentGymEnv`) or the user (`UserGymEnv`)."""

    project = "tau2"
    max_calls = 1

    async def reset(self, start: Start) -> Begun:
        await self.threads.run(self._abandon)
        text, info = await self.threads.run(self.env.reset, seed=start.seed, options=dict(start.options) or None)
        if not _ran(info) and self._is_over():
            raise EpisodeFailedError(
                StopReason.RESET_FAILED, f"the simulation of {self.name} ended at once; see tau2's log"
            )
        messages = opened(start.messages, [user(_said(text))] if text else [])
        if not messages:
            messages = [user("(The user is silent.)")]
        if "tools" in info:
            prompt, tools = info.get("policy"), info["tools"]
        else:  # the policy plays the user, who has a scenario to follow and perhaps tools
            prompt, tools = str(info["task"].user_scenario), info.get("user_tools") or ()
        return Begun(
            led_by(prompt, messages),
            [ToolSchema.from_openai(tool.openai_schema, external=True) for tool in tools],
            info,
        )

    async def step(self, turn: ParsedTurn) -> Stepped:
        call = turn.calls[0] if turn.calls else None
        if call is not None:
            action = json.dumps({"id": call.id, "name": call.name, "arguments": call.arguments})
        else:
            action = turn.visible_content
        text, reward, terminated, truncated, info = await self.threads.run(self.env.step, action)
        reason = self._reason(info) if terminated else None
        messages: list[Message] = [user(_said(text))] if text else []
        if call is not None and text:
            messages = [tool(_said(text), tool_call_id=call.id, name=call.name)]
        return Stepped(messages, reward, terminated, truncated, info, reason)

    async def close(self) -> None:
        """End the simulation, whose thread would wait for a turn for ever. tau2's envs have nothing else to close."""
        await self.threads.close(self._abandon)

    def _reason(self, info: Mapping[str, Any]) -> StopReason | None:
        """Return why the simulation is over. Raises EpisodeFailedError: it broke; tau2 gives a reward of 0 then."""
        ran = _ran(info)
        if not ran:
            raise EpisodeFailedError(StopReason.ENV_FAILED, f"the simulation of {self.name} raised; see tau2's log")
        why = str(ran.get("termination_reason") or "")
        if why in _FAILED:
            raise EpisodeFailedError(_FAILED[why], f"the simulation of {self.name} ended with {why}; see tau2's log")
        return _REASONS.get(why)

    def _is_over(self) -> bool:
        done = getattr(getattr(self.env, "unwrapped", self.env), "_simulation_done", None)
        return done is not None and done.is_set()

    def _abandon(self) -> None:
        inside = getattr(self.env, "unwrapped", self.env)
        for role, waits in (("_agent", "is_agent_turn"), ("_user", "is_user_turn")):
            player = getattr(inside, role, None)
            if player is not None and getattr(player, waits, False):
                from tau2.data_model.message import AssistantMessage, UserMessage

                kind = AssistantMessage if role == "_agent" else UserMessage
                stop = str(getattr(player, "STOP_TOKEN", "###STOP###"))
                player.set_action(kind(role="user" if role == "_user" else "assistant", content=stop))


def _ran(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record of the simulation; empty if there is none."""
    text = info.get("simulation_run") or "{}"
    record = json.loads(text) if isinstance(text, str) else text
    if not isinstance(record, Mapping):
        raise EpisodeFailedError(
            StopReason.ENV_FAILED, f"tau2 gave no record of its simulation: {shorten(repr(record))}"
        )
    return record


def _said(text: str) -> str:
    """An observation without the role before it, if it is one message."""
    role, colon, rest = text.partition(": ")
    return rest if colon and role in _ROLES else text
