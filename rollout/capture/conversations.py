"""`Conversations`: the tokens that stand before each call of a captured episode."""

from __future__ import annotations

from collections import deque
from functools import partial

from toolgym.rollout.capture.agent_call import AgentCall
from toolgym.rollout.capture.forest import CapturedCall, Forest
from toolgym.rollout.capture.prompts import CallIds, delta_form, image_forms, prompt_forms, to_messages
from toolgym.rollout.episode.context import EpisodeBudget, encoded_apart
from toolgym.rollout.limits import HistoryMode
from toolgym.rollout.tokens.conversation import Conversation, Extension
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn

_KEPT = 16
"""Calls whose conversations are kept as they stand. The conversation of another call is rebuilt from its tokens."""


class Conversations:
    """The conversations of one episode's calls, each up to the point where the policy speaks.

    A call that goes on from another one gets the stored tokens of that call, and only its new messages are rendered.
    """

    def __init__(self, forest: Forest, budget: EpisodeBudget) -> None:
        self._forest, self._budget = forest, budget
        self._recent: deque[CapturedCall] = deque()

    async def of(self, request: AgentCall, call: CapturedCall, *, bounded: bool = True) -> Conversation:
        """The conversation up to where the policy speaks. Raises TooManyTokensError if it is `bounded`."""
        if call.parent is not None:
            conversation = self._up_to(call.parent).fork()
            before = len(conversation.context)
            if not call.renderer.ends_turn(conversation.turn_ids):
                conversation.add_env_tokens(conversation.missing_end())
            ids = CallIds(call.parent.requests, call.parent.seen)
            observation = delta_form(to_messages(call.messages, ids), call.renderer)
            if observation is not None:
                most = self._budget.longest(conversation) - 1 if bounded else None
                for form in image_forms(observation):
                    extension = await self._extension(conversation, form, most)
                    if extension is not None:
                        conversation.apply(extension, form)
                        call.observation, call.lead = tuple(form), tuple(conversation.context[before:])
                        call.images = conversation.images
                        return conversation
            self._forest.uproot(call, request)
        return await self._begun(call, self._budget.prompt if bounded else None)

    async def _extension(self, conversation: Conversation, form: list[Message], most: int | None) -> Extension | None:
        """Return how the conversation goes on with these messages; None if the chat template cannot."""
        try:
            return await encoded_apart(partial(conversation.extended_with, form, most=most), form)
        except TemplateError:
            return None
        except TooManyTokensError as error:
            raise TooManyTokensError(len(conversation.context) + error.least) from error

    async def _begun(self, call: CapturedCall, most: int | None) -> Conversation:
        messages = to_messages(call.messages, CallIds())
        refusal: TemplateError | None = None
        for form in prompt_forms(messages, call.renderer):
            begin = partial(Conversation, call.renderer, HistoryMode.APPEND, form, most=most)
            try:
                conversation = await encoded_apart(begin, form)
            except TemplateError as error:
                refusal = refusal or error
                continue
            if most is not None and len(conversation.context) > most:
                raise TooManyTokensError(len(conversation.context))
            call.observation, call.lead = tuple(form), conversation.context.as_tuple()
            call.images = conversation.images
            return conversation
        assert refusal is not None
        raise refusal

    def _up_to(self, call: CapturedCall) -> Conversation:
        """The conversation up to the end of an answered call."""
        missing = []
        last: CapturedCall | None = call
        while last is not None and last.conversation is None:
            missing.append(last)
            last = last.parent
        conversation = None if last is None or last.conversation is None else last.conversation.fork()
        for each in reversed(missing):
            messages = [*each.observation]
            if conversation is None:
                conversation = Conversation(each.renderer, HistoryMode.APPEND, messages)
            else:
                added = [*each.lead]
                view, tokens = [*conversation.view, *messages], len(conversation.context) + len(added)
                conversation.apply(Extension(view, added, None, "", tokens, each.images), messages)
            for generation in each.parts:
                conversation.add_generation(generation)
            conversation.add_turn()
            self.read(each, conversation)
        assert conversation is not None
        if missing:
            self.remember(call, conversation)
        return conversation

    def remember(self, call: CapturedCall, conversation: Conversation) -> None:
        call.conversation = conversation
        if call.parent is not None and (earlier := call.parent.parent) is not None:
            earlier.conversation = earlier.prompt = None  # agents seldom go back by two turns
        self._recent.append(call)
        if len(self._recent) > _KEPT:
            self._recent.popleft().conversation = None

    def read(self, call: CapturedCall, conversation: Conversation) -> ParsedTurn | None:
        """Put the reading of a turn into the conversation; None if it is to be a text, or the parser, a user's own,
        failed."""
        if call.plain:
            return None
        try:
            parsed = conversation.parse_turn(end=call.end)
        except Exception:  # noqa: BLE001  the turn is answered as the text that it is
            return None
        conversation.set_message(parsed.message)
        return parsed
