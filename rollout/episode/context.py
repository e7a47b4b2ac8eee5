from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from toolgym.envs.base import StepResult
from toolgym.envs.failure import failing
from toolgym.envs.types import StopReason
from toolgym.rollout.episode.budget import EpisodeBudget
from toolgym.rollout.tokens.context_policies import ContextPolicy, ContextState, checked_messages
from toolgym.rollout.tokens.conversation import Conversation, Extension
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import LONG
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message

T = TypeVar("T")


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
        # A context policy gets the conversation's length, and may shorten one that is too long.
        most = None if any(map(_revises, self._policies)) else longest - 1
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
                revised = await with_deadline(_revise(policy, messages, state), self._timeout)
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
    """Call what encodes messages; in a thread if they are long, so that other episodes go on."""
    contents = (message.get("content") for message in messages)
    if sum(len(content) for content in contents if isinstance(content, str)) < LONG:
        return encode()
    return await in_thread(encode)


def _context_of(result: StepResult) -> list[Message] | None:
    """Return the conversation that a step begins again with; None if it goes on."""
    context = result.info.get("context")
    if context is None:
        return None
    with failing(StopReason.ENV_FAILED):
        return checked_messages("the env, as StepInfo.context,", copy.deepcopy(context))


def _revises(policy: ContextPolicy) -> bool:
    return type(policy).revise is not ContextPolicy.revise


async def _revise(policy: ContextPolicy, messages: list[Message], state: ContextState) -> Sequence[Message]:
    return await policy.revise(messages, state)
