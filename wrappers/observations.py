"""`RewriteObservations` and `TruncateResults`: other messages for the policy to read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult, require_growing_context
from toolgym.envs.result_text import Side, check_cut, cut, cut_tokens
from toolgym.envs.types import ResetOptions, ResetResult
from toolgym.tools.concurrency.execution_pool import call_function
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, mapped, text_of
from toolgym.wrappers.base import Wrapper
from toolgym.wrappers.token_count import apart, token_count


class RewriteObservations(Wrapper):
    """Replaces the new messages of each step, and of `reset`, by what a function makes of them.

    The env inside goes on as if the policy had read the original ones. `Compact` goes around this wrapper.

    Args:
        rewrite: from copies of the new messages, if there are any, to those that the policy reads.
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
        return (await self._rewritten(messages) if self.prompt else messages), info

    async def step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        return result._replace(obs=await self._rewritten(result.obs))

    async def _rewritten(self, messages: list[Message]) -> list[Message]:
        if not messages:
            return messages
        new: Any = await call_function(self.rewrite, [message.copy() for message in messages])
        if not isinstance(new, list) or not all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in new):
            raise ConfigError(f"rewrite must return a list of messages, {self.rewrite!r} returned {new!r}")
        return new


class TruncateResults(Wrapper):
    """Cuts the text of tool messages to a number of characters or tokens, and says in the text that it was cut.

    Args:
        max_chars: characters that may remain of one result, the note not counted.
        max_tokens: tokens that may remain, in place of characters. The text is cut between two characters.
        tokenizer: counts them: a tokenizer, or a function from a text to its number of tokens.
        side: as in verl, `left` keeps the beginning, `right` the end, `middle` both.

    Example:
        >>> import toolgym
        >>> call = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(10**9)"}}</tool_call>'
        >>> env = toolgym.envs.GymnasiumEnv(TruncateResults(toolgym.make("CodeInterpreter-v0"), 4, side="left"))
        >>> _ = env.reset(seed=0)
        >>> env.step(call)[0][0]["content"], env.close()
        ('1000 [... 6 characters left out ...]', None)
    """

    def __init__(
        self,
        env: BaseEnv,
        max_chars: int | None = None,
        *,
        max_tokens: int | None = None,
        tokenizer: Any = None,
        side: Side = "middle",
    ) -> None:
        super().__init__(env)
        if (max_chars is None) == (max_tokens is None):
            raise ConfigError(f"give one of max_chars and max_tokens, got {max_chars!r} and {max_tokens!r}")
        if (max_tokens is None) != (tokenizer is None):
            raise ConfigError("max_tokens and tokenizer go together: give both, or max_chars alone")
        name, most = ("max_chars", max_chars) if max_tokens is None else ("max_tokens", max_tokens)
        check_cut(name, most, side)
        self.max_chars, self.max_tokens, self.side = max_chars, max_tokens, side
        self._count = None if tokenizer is None else token_count(tokenizer)

    async def step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        return result._replace(obs=[await self._cut(message) for message in result.obs])

    async def _cut(self, message: Message) -> Message:
        if message["role"] != "tool":
            return message
        content = message["content"]
        if self.max_tokens is not None and self._count is not None:
            cut_text = partial(cut_tokens, max_tokens=self.max_tokens, side=self.side, count=self._count)
            shorter = await apart(partial(mapped, content, cut_text), [text_of(content)])
        else:
            assert self.max_chars is not None
            shorter = mapped(content, partial(cut, max_chars=self.max_chars, side=self.side))
        return {**message, "content": shorter}
