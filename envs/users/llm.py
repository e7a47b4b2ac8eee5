"""`LLMUser`: a language model plays the user."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolgym.envs.failure import fault_at_model, policy_fault
from toolgym.envs.rewards.judge import checked_template
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, PolicyFaultError, StopReason
from toolgym.envs.users.base import User, UserReply, UserSession
from toolgym.tools.errors import ConfigError
from toolgym.tools.http.chat_endpoint import ChatEndpoint, ChatReply, PromptTooLongError
from toolgym.tools.http.client import CallError, ClientClosedError
from toolgym.tools.message import Message, assistant, system, text_of, user

STOP = "###STOP###"
"""What the user says when it is done, as in tau-bench (https://arxiv.org/abs/2406.12045)."""

GREETING = "Hello, how can I help you?"
"""What the user reads first if it begins the conversation."""

TRIES = 3
"""How often a user's model is asked for a message, as long as its replies are empty."""

NOTHING_HEARD = "(The assistant says nothing.)"
"""What the user reads in place of an empty turn, such as a turn of thinking alone."""

PROMPT = """\
You play a person who talks to an assistant. This is what you want, and all that you know:

{instruction}

Write one short message at a time, in your own words. Say only what is needed next, and do not give away everything at
once. Never invent what is not written above. When the assistant has done what you want, or cannot, write {stop} alone.
"""


class LLMUser(User):
    """A user played by a model behind an OpenAI-compatible chat address.

    The model reads neither the policy's tool calls nor its thinking, and the policy does not read the model's thinking.
    A stop word in thinking does not count. The trace begins with the system prompt. The user's aim is the row's
    `interaction_kwargs.instruction` or `extra_info.instruction`.

    An empty message, or a message of thinking alone, is asked for again, `TRIES` times in all. If the model does not
    answer, or gives only such messages, the episode fails (`ENV_FAILED`). If that is due to what the policy wrote,
    because the model answers without it, the episode ends with the score 0 and the component `broken_by_policy`, and
    stays in its group.

    Args:
        model: asks the model; closed with the user.
        prompt: the system prompt, with `{instruction}`, `{stop}` and `{ground_truth}`. Other braces are doubled.
        stop: the text that ends the conversation if a message of the user has it outside of thinking.

    Example:
        >>> from toolgym.tools.http.chat_endpoint import ChatEndpoint
        >>> user = LLMUser(ChatEndpoint("http://localhost:8000/v1", "user-model", request={"temperature": 0.7}))
    """

    def __init__(self, model: ChatEndpoint, *, prompt: str = PROMPT, stop: str = STOP) -> None:
        if not isinstance(model, ChatEndpoint):
            raise ConfigError(f"an LLMUser asks a ChatEndpoint, got {model!r}")
        self.prompt = checked_template("prompt", prompt, {"instruction", "stop", "ground_truth"})
        self.model, self.stop = model, stop

    async def open(self, task: Task, **interaction_kwargs: Any) -> UserSession:
        instruction = interaction_kwargs.get("instruction", task.extra_info.get("instruction"))
        if not isinstance(instruction, str) or not instruction:
            raise ConfigError(
                f"task {task.id!r}: an LLMUser needs a text 'instruction' in extra_info.interaction_kwargs, or in "
                f"extra_info, which says what the user wants; got {instruction!r}"
            )
        truth = task.ground_truth if isinstance(task.ground_truth, str) else json.dumps(task.ground_truth)
        prompt = self.prompt.format(instruction=instruction, stop=self.stop, ground_truth=truth)
        return _LLMSession(self.model, self.stop, [system(prompt)])

    async def close(self) -> None:
        await self.model.close()


class _LLMSession(UserSession):
    def __init__(self, model: ChatEndpoint, stop: str, trace: list[Message]) -> None:
        self._model, self._stop, self._trace = model, stop, trace

    @property
    def trace(self) -> list[Message]:
        return [*self._trace]

    async def reply(self, messages: Sequence[Message]) -> UserReply:
        heard = text_of(messages[-1]["content"]).strip() if messages[-1]["role"] == "assistant" else GREETING
        trace = [*self._trace, user(heard or NOTHING_HEARD)]
        reply = await self._answer(trace)
        message = assistant(reply.text)
        if reply.thinking:
            message["reasoning_content"] = reply.thinking
        self._trace = [*trace, message]
        text = reply.text.replace(self._stop, "").strip()
        return UserReply(text or None, done=self._stop in reply.text)

    async def _answer(self, trace: Sequence[Message]) -> ChatReply:
        """Ask for the user's message.

        Raises:
            PolicyFaultError: what the policy wrote is too long for the user's model, or makes the model fail.
            EpisodeFailedError: the model did not answer, or gave no message.
            ConfigError: the model's server refused the request.
        """
        for _ in range(TRIES):
            try:
                reply = await self._model.ask(trace)
            except PromptTooLongError as error:
                raise await self._too_long(error, trace) from error
            except (CallError, ClientClosedError) as error:
                failure = EpisodeFailedError(StopReason.ENV_FAILED, f"the user's model did not answer: {error}")
                raise (await self._fault(error, trace) or failure) from error
            except ConfigError as error:
                fault = await self._fault(error, trace)
                if fault is None:
                    raise
                raise fault from error
            if _is_message(reply):
                return reply
        problem = "a message of thinking alone" if reply.thinking else "an empty message"
        failure = EpisodeFailedError(StopReason.ENV_FAILED, f"the user's model gave {problem}, {TRIES} times")
        raise await self._fault(failure, trace) or failure

    async def _fault(self, error: Exception, trace: Sequence[Message]) -> PolicyFaultError | None:
        """Return the error for a failure of the user's model that is due to what the policy wrote."""
        without = _without_policy(trace)
        if without == trace:
            return None
        what = "the user's model failed at what the policy wrote"
        return await fault_at_model(error, self._model, trace, without, _is_message, what)

    async def fork(self) -> UserSession:
        return _LLMSession(self._model, self._stop, self._trace)

    async def _too_long(
        self, error: PromptTooLongError, trace: Sequence[Message]
    ) -> PolicyFaultError | EpisodeFailedError:
        """Return the error for a conversation that is too long: the policy's if it fits without what the policy
        wrote."""
        without = _without_policy(trace)
        problem = "what the policy wrote is too long for the user's model"
        if sum(map(_length, trace)) > 2 * sum(map(_length, without)):
            return PolicyFaultError(f"{problem}: {error}")
        fault = await policy_fault(error, lambda: self._model.ask(without), problem) if without != trace else None
        if fault is not None:
            return fault
        message = f"the user's own prompt is too long for its model: {error}"
        return EpisodeFailedError(StopReason.ENV_FAILED, message, error)


def _is_message(reply: ChatReply) -> bool:
    """Whether a reply says something, if only that the conversation is over."""
    return bool(reply.text.strip())


def _without_policy(trace: Sequence[Message]) -> list[Message]:
    return [user(NOTHING_HEARD) if _is_of_policy(message) else message for message in trace]


def _is_of_policy(message: Message) -> bool:
    return message["role"] == "user" and message["content"] != GREETING


def _length(message: Message) -> int:
    return len(text_of(message["content"]))
