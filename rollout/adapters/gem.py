"""Our envs in GEM: importing this module registers each id as `toolgym:ID`, and `gem.make` makes a text env of it.

In `gem-llm` 0.1.0 (`gem/core.py`) an episode that reached its last turn is terminated as well as truncated. ROLL has no
import of its own for envs, so this module also has the names of its env managers.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from typing import Any

from toolgym.envs.base import require_growing_context
from toolgym.envs.driven_episode import DrivenEpisode
from toolgym.envs.registry import make, registered
from toolgym.rollout.adapters.versions import needs
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, described
from toolgym.tools.schema import ToolSchema

with needs("gem-llm", "An env for GEM"):
    import gem
    from gem.envs.registration import ENV_REGISTRY
    from gem.utils.constants import TERMINAL_STATE

PREFIX = "toolgym:"

_MANAGERS = {"TrajEnvManager": "traj_env_manager", "StepEnvManager": "step_env_manager"}


class ToolgymGemEnv(gem.Env):  # type: ignore[misc]  # GEM may be missing
    """An env of ours as a GEM env: texts in, texts out. `kwargs` are for `toolgym.make`.

    GEM's texts say themselves how tools are called, so the first observation ends with `instructions`; None: the tools'
    schemas, and that calls are JSON between `<tool_call>` tags. Leave them empty if a chat template tells of the tools.
    An episode that the infrastructure broke off raises `EpisodeFailedError`: GEM has no other way to say it.

    Args:
        end_of_turn: the text that ends a turn, for callers that decode special tokens, as ROLL does: `<|im_end|>`.
        seed: of the first episode, unless `reset` is given one.
    """

    def __init__(
        self,
        env: str,
        *,
        instructions: str | None = None,
        end_of_turn: str = "",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if instructions is None and kwargs.get("parser", "hermes") != "hermes":
            raise ConfigError(f"say with instructions=... how calls are written for the parser {kwargs['parser']!r}")
        inner = make(env, **kwargs)
        require_growing_context(inner, "GEM's loop")
        self._episode = DrivenEpisode(inner)
        self._bridge = EventLoopThread(name="toolgym-gem", on_close=self._episode.close)
        self._instructions, self._end, self._seed = instructions, end_of_turn, seed

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the same seed gives the same task, None goes on from where the env is."""
        seed, self._seed = self._seed if seed is None else seed, None
        messages, _ = self._bridge.run(self._episode.reset(seed=seed))
        tools = self._episode.env.tool_schemas
        instructions = describe_tools(tools) if self._instructions is None else self._instructions
        return "\n\n".join(filter(None, [_text(messages), instructions])), {"suffix": ""}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a turn; the info has `use_tool`, the env's `metrics` that are numbers, and `stop_reason` at the end."""
        if not isinstance(action, str):
            raise ConfigError(f"GEM's actions are texts, got {type(action).__name__}: {action!r}")
        text = action.partition(self._end)[0] if self._end else action
        result = self._bridge.run(self._episode.step(text))
        metrics = {
            name: value for name, value in result.info.get("metrics", {}).items() if isinstance(value, int | float)
        }
        facts: dict[str, Any] = {"suffix": "", "metrics": metrics, "metrics_agg_mode": dict.fromkeys(metrics, "last")}
        facts["use_tool"] = any(message["role"] == "tool" for message in result.obs)
        if result.done:
            facts["stop_reason"] = str(self._episode.stop_reason)
        observation = TERMINAL_STATE if result.done else _text(result.obs)
        return observation, float(result.reward), result.done, result.truncated, facts

    def close(self) -> None:
        self._bridge.close()


def describe_tools(tools: Iterable[ToolSchema]) -> str:
    lines = [json.dumps(schema.to_openai()["function"], ensure_ascii=False) for schema in tools]
    if not lines:
        return ""
    return "\n".join(
        [
            "You can call these tools, each described by a line of JSON:",
            *lines,
            'Write each call as {"name": ..., "arguments": {...}} between <tool_call> and </tool_call>.',
            "A turn without a call is your answer.",
        ]
    )


def register_all() -> None:
    """Register every env id that GEM does not have yet, as `toolgym:ID`; call it again after `toolgym.register`."""
    for env_id in registered():
        if PREFIX + env_id not in ENV_REGISTRY:
            gem.register(PREFIX + env_id, "toolgym.rollout.adapters.gem:ToolgymGemEnv", env=env_id)


def __getattr__(name: str) -> Any:
    """Give ROLL's env managers by their names there: loading one from here registers our ids first."""
    if name not in _MANAGERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll.pipeline.agentic.env_manager.{_MANAGERS[name]}"), name)


def _text(messages: Iterable[Message]) -> str:
    return "\n\n".join(described(message["content"]) for message in messages)


register_all()
