from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from toolgym.envs.base import StepResult
from toolgym.envs.failure import failing
from toolgym.envs.types import StopReason
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.tokens.context_policies import ContextPolicy, ContextState, checked_messages
from toolgym.rollout.tokens.conversation import Conversation, Extension
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import LONG
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.concurrency.eager_task import awaited
from toolgym.tools.errors import ConfigError, TemplateError
from toolgym.tools.message import Message, images_of

T = TypeVar("T")


class EpisodeBudget:
    """The tokens that the engine's context and the limits leave to an episode."""

    __slots__ = ("_engine", "_limits")

    def __init__(self, engine: Engine, limits: EpisodeLimits) -> None:
        self._engine, self._limits = engine, limits

    @property
    def prompt(self) -> int:
        most = self._engine.context_length - 1
        return most if self._limits.max_prompt_tokens is None else min(most, self._limits.max_prompt_tokens)

    def longest(self, conversation: Conversation) -> int:
        """Most tokens that the present sequence, or the next one, may have, the prompt included."""
        longest = self._engine.context_length
        if self._limits.max_response_tokens is not None:
            longest = min(longest, conversation.first_prompt_tokens + self._limits.max_response_tokens)
        return longest

    def room(self, conversation: Conversation, tokens: int | None = None, response_tokens: int | None = None) -> int:
        """Tokens that the conversation's sequence may still take; or one of `tokens`, `response_tokens` of them behind
        its prompt."""
        room = self.longest(conversation) - (len(conversation.context) if tokens is None else tokens)
        if self._limits.max_response_tokens is not None:
            behind = conversation.response_tokens if response_tokens is None else response_tokens
            room = min(room, self._limits.max_response_tokens - behind)
        return room


def long_prompt_error(tokens: str, most: int) -> ConfigError:
    return ConfigError(
        f"the prompt has {tokens} tokens, more than the {most} allowed; it is not cut, "
        "because the policy would see another task: shorten the task, or raise max_prompt_tokens"
    )


class EpisodeContext:
    """Puts the env's answers into an episode's conversation, as its context policies let them through."""

    def __init__(self, policies: Sequence[ContextPolicy], timeout: float, budget: EpisodeBudget) -> None:
        self._policies, self._timeout, self._budget = policies, timeout, budget

    async def extended(
        self, renderer: ChatRenderer, conversation: Conversation, result: StepResult
    ) -> tuple[list[Message], Extension]:
        """The new messages as the context policies admit them, and how the conversation goes on with them. Raises
        `TooManyTokensError` if there is no room for them, and `EpisodeFailedError` if a context policy, or the
        template, refused."""
        longest = self._budget.longest(conversation)
        admitted = list(result.obs)
        with failing(StopReason.CONTEXT_FAILED, unless=TooManyTokensError):
            for policy in self._policies:
                for index, message in enumerate(admitted):
                    admit = partial(policy.admit, message, renderer)
                    admitted[index] = await encoded_apart(admit, [message]) if policy.tokenizes else admit()
        if any(images_of(message.get("content") or "") for message in admitted):
            admitted = await in_thread(renderer.readable, admitted)
        # A context policy gets the conversation's length, and may shorten one that is too long.
        most = None if any(policy.revises for policy in self._policies) else longest - 1
        anew = _context_of(result)
        with failing(StopReason.PROMPT_REFUSED, unless=TooManyTokensError):
            if anew is None:
                extend = partial(conversation.extended_with, admitted, most=most)
            else:
                extend = partial(conversation.rewritten, anew, "env", most=most)
            extension = await encoded_apart(extend, conversation.to_encode(admitted) if anew is None else anew)
        for policy in self._policies:
            # A copy, so that a policy that changes a message in place gives another conversation, and not another past.
            messages, state = copy.deepcopy(extension.messages), ContextState(extension.tokens, longest)
            with failing(StopReason.CONTEXT_FAILED, StopReason.CONTEXT_TIMEOUT, unless=TooManyTokensError):
                revised = await with_deadline(awaited(policy.revise(messages, state)), self._timeout)
            with failing(StopReason.CONTEXT_FAILED, unless=TooManyTokensError):
                try:
                    if (
                        messages := checked_messages(f"the context policy {policy.name}", revised)
                    ) != extension.messages:
                        rewrite = partial(conversation.rewritten, messages, policy.name)
                        extension = await encoded_apart(rewrite, messages)
                except TemplateError:
                    # What the model wrote may be what the template refuses; then nothing is changed, and it goes on.
                    if conversation.renders(extension.messages):
                        raise
        return admitted, extension


async def encoded_apart(encode: Callable[[], T], messages: Sequence[Message]) -> T:
    """Call what encodes messages; in a thread if they are long or have images, so that other episodes go on."""
    contents = [message.get("content") or "" for message in messages]
    if all(isinstance(content, str) for content in contents) and sum(map(len, contents)) < LONG:
        return encode()
    return await in_thread(encode)


def _context_of(result: StepResult) -> list[Message] | None:
    """Return the conversation that a step begins again with; None if it goes on."""
    context = result.info.get("context")
    if context is None:
        return None
    with failing(StopReason.ENV_FAILED):
        return checked_messages("the env, as StepInfo.context,", copy.deepcopy(context))
