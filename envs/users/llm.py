"""`LLMUser`: a language model plays the user."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolgym.envs.rewards.judge import checked_template
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.envs.users.base import User, UserReply, UserSession
from toolgym.tools.errors import ConfigError
from toolgym.tools.http.chat_endpoint import ChatEndpoint
from toolgym.tools.http.client import CallError, ClientClosedError
from toolgym.tools.message import Message, assistant, system, user

STOP = "###STOP###"
"""What the user says when it is done, as in tau-bench (https://arxiv.org/abs/2406.12045)."""

PROMPT = """\
You play a person who talks to an assistant. This is what you want, and all that you know:

{instruction}

Write one short message at a time, in your own words. Say only what is needed next, and do not give away everything at
once. Never invent what is not written above. When the assistant has done what you want, or cannot, write {stop} alone.
"""


class LLMUser(User):
    """A user played by a model behind an OpenAI-compatible chat address.

    It reads none of the policy's tool calls. Its trace has its system prompt. If the model does not answer, the episode
    fails (`ENV_FAILED`). The user's aim is the row's `interaction_kwargs.instruction` or `extra_info.instruction`.

    Args:
        model: asks the model; closed with the user.
        prompt: the system prompt, with `{instruction}`, `{stop}` and `{ground_truth}`. Other braces are doubled.
        stop: the text that ends the conversation when it stands in a message of the user.

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
        heard = messages[-1]["content"] if messages[-1]["role"] == "assistant" else "Hello, how can I help you?"
        trace = [*self._trace, user(heard)]
        try:
            reply = await self._model.ask(trace)
        except (CallError, ClientClosedError) as error:
            raise EpisodeFailedError(StopReason.ENV_FAILED, f"the user's model did not answer: {error}") from error
        self._trace = [*trace, assistant(reply)]
        text = reply.replace(self._stop, "").strip()
        done = self._stop in reply
        if not done and not text:
            raise EpisodeFailedError(StopReason.ENV_FAILED, "the user's model gave an empty message")
        return UserReply(text or None, done=done)

    async def fork(self) -> UserSession:
        return _LLMSession(self._model, self._stop, self._trace)
