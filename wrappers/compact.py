"""`Compact`: replaces a long conversation by a summary that the policy writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult, require_growing_context
from toolgym.envs.types import ResetOptions, ResetResult, StopReason
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.message import Message, assistant, joined, text_of, user, visible_text
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.wrappers.base import Wrapper, with_metrics
from toolgym.wrappers.token_count import count_all, message_text, token_count, turn_text

REQUEST = (
    "This conversation has become long. Your next message is all that will be kept of it: write a summary of what you "
    "have found out and done, and of what is left to do. Call no tool in it."
)

NOTE = "[The conversation so far was removed. This is your summary of it:]"


class Compact(Wrapper):
    """Lets the policy summarise the conversation when it is long; then its context begins anew with the summary.

    Once the conversation has more than `max_tokens`, the next observation ends with a request. The policy's next turn
    is its summary, whose tokens are trained. The env inside does not see it, and its calls of tools are not run. The
    step that takes it has the reward 0, and `StepInfo.context`: the task's messages with the summary behind them, which
    is the next prompt. A caller that can only add to a conversation refuses the env.

    The metrics of a step hold `compactions`, the summaries of the episode so far. Only a `TurnLimit` around this
    wrapper counts a summary as a turn.

    Args:
        max_tokens: tokens of a conversation, the task's messages included, above which a summary is asked for. Only
            texts count, not what a chat template puts around them; leave room for the summary in the model's context.
        tokenizer: a tokenizer, or a function from a text to its number of tokens.
        request: asks for the summary.
        note: stands before the summary in the new context.

    Example:
        >>> import toolgym
        >>> inner = Compact(toolgym.make("CodeInterpreter-v0"), 400, tokenizer=len, request="Summarise.")
        >>> env = toolgym.envs.GymnasiumEnv(inner)
        >>> _ = env.reset(seed=0)
        >>> env.step("<tool_call>" + "no JSON " * 50 + "</tool_call>")[0][-1]["content"]
        'Summarise.'
        >>> env.step("The tool wants JSON.")[4]["context"][-1]["content"].splitlines()[-1], env.close()
        ('The tool wants JSON.', None)
    """

    def __init__(
        self, env: BaseEnv, max_tokens: int, *, tokenizer: Any, request: str = REQUEST, note: str = NOTE
    ) -> None:
        super().__init__(env)
        require_growing_context(env, "Compact")
        require_whole_number("max_tokens", max_tokens, at_least=1)
        if not isinstance(request, str) or not request or not isinstance(note, str):
            raise ConfigError(f"request and note must be texts, and request not empty, got {request!r} and {note!r}")
        self.max_tokens, self.request, self.note = max_tokens, request, note
        self._count = token_count(tokenizer)
        self._begin(())

    def _begin(self, prompt: Sequence[Message]) -> None:
        self._prompt = tuple(message.copy() for message in prompt)
        self._tokens = 0
        self._asked = False
        self._compactions = 0
        self._metrics: Mapping[str, Any] = {}

    @property
    def replaces_context(self) -> bool:  # type: ignore[override]  # read only here
        return True

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._asked = False
        messages, info = await self.env.reset(seed=seed, options=options)
        self._begin(messages)
        self._tokens = await self._size(messages)
        return messages, info

    async def step(self, action: Action) -> StepResult:
        if self._asked:
            return await self._begin_anew(action)
        result = await self.env.step(action)
        self._metrics = result.info.get("metrics", {})
        result = self._counted(result)
        if result.done:
            return result
        self._tokens += await count_all(self._count, [turn_text(action), *map(message_text, result.obs)])
        if self._tokens <= self.max_tokens:
            return result
        self._asked = True
        return result._replace(obs=_followed_by(result.obs, self.request))

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        turn = None if self._asked else turn  # a summary that was cut, which the env inside does not see
        self._asked = False
        return self._counted(await self.env.truncate(reason, turn))

    async def close(self) -> None:
        self._asked = False
        await self.env.close()

    async def _begin_anew(self, action: Action) -> StepResult:
        text = f"{self.note}\n{_summary(action)}"
        context = _followed_by(self._prompt, text)
        self._asked = False
        self._tokens = await self._size(context)
        self._compactions += 1
        info: dict[str, Any] = {"message": assistant(_content(action)), "context": context, "metrics": self._metrics}
        return self._counted(StepResult([user(text)], 0.0, False, info))  # type: ignore[arg-type]  # it is a StepInfo

    async def _size(self, messages: Sequence[Message]) -> int:
        return await count_all(self._count, [message_text(message) for message in messages])

    def _counted(self, result: StepResult) -> StepResult:
        return with_metrics(result, compactions=self._compactions)


def _followed_by(messages: Sequence[Message], text: str) -> list[Message]:
    """Add a user's text, to the last message if that is a user's: some templates take no two in a row."""
    copies = [message.copy() for message in messages]
    if not copies or copies[-1]["role"] != "user":
        return [*copies, user(text)]
    copies[-1]["content"] = joined([copies[-1]["content"], text], "\n\n")
    return copies


def _content(action: Action) -> str:
    if isinstance(action, str):
        return action
    return action.text or action.content if isinstance(action, ParsedTurn) else text_of(action["content"])


def _summary(action: Action) -> str:
    """The text of a turn without its thinking and its tool calls."""
    content = action.content if isinstance(action, ParsedTurn) else _content(action)
    return visible_text(content).strip()
