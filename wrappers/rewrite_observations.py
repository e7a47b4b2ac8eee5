"""`RewriteObservations`: changes the messages that the policy reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult, require_growing_context
from toolgym.envs.types import ResetOptions, ResetResult
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message
from toolgym.wrappers.base import Wrapper


class RewriteObservations(Wrapper):
    """Replaces the new messages of each step, and of `reset`, by what a function makes of them.

    The env inside goes on as if the policy had read the original ones. `Compact` goes around this wrapper.

    Args:
        rewrite: from new messages, of which it gets copies, to those that the policy reads. Not called if there are
            none.
        prompt: whether the messages of `reset` are rewritten too.

    Example:
        >>> import toolgym
        >>> loud = lambda messages: [{**message, "content": message["content"].upper()} for message in messages]
        >>> inner = RewriteObservations(toolgym.make("CodeInterpreter-v0"), loud, prompt=False)
        >>> env = toolgym.envs.GymnasiumEnv(inner)
        >>> _ = env.reset(seed=0)
        >>> env.step('<tool_call>{"name": "calculator", "arguments": {}}</tool_call>')[0][0]["content"], env.close()
        ("UNKNOWN TOOL 'CALCULATOR'. AVAILABLE TOOLS: CODE_INTERPRETER.", None)
    """

    def __init__(self, env: BaseEnv, rewrite: Callable[[list[Message]], list[Message]], *, prompt: bool = True) -> None:
        super().__init__(env)
        require_growing_context(env, "RewriteObservations")
        if not callable(rewrite):
            raise ConfigError(f"rewrite must be a function from messages to messages, got {rewrite!r}")
        self.rewrite = rewrite
        self.prompt = prompt

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        messages, info = await self.env.reset(seed=seed, options=options)
        return (self._rewritten(messages) if self.prompt else messages), info

    async def step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        return result._replace(obs=self._rewritten(result.obs))

    def _rewritten(self, messages: list[Message]) -> list[Message]:
        if not messages:
            return messages
        new: Any = self.rewrite([message.copy() for message in messages])
        if not isinstance(new, list) or not all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in new):
            raise ConfigError(f"rewrite must return a list of messages, {self.rewrite!r} returned {new!r}")
        return new
