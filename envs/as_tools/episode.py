"""`ToolEpisode`: an env's episode for a caller that runs tools one by one and owns the turns itself."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.driven_episode import DrivenEpisode, EpisodeStage
from toolgym.envs.tasks.row_fields import TASK_COLUMN
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import EpisodeError, error_text, on_one_line
from toolgym.tools.lazy import missing_package
from toolgym.tools.message import Message, described, image_data, images_of, joined
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolCall

_log = logging.getLogger("toolgym.envs")


class ToolEpisode:
    """Plays one episode after the other in one env, which it closes; each call of a tool is a turn for the env."""

    def __init__(self, env: BaseEnv) -> None:
        self.failure: str | None = None
        self._episode = DrivenEpisode(env)
        self._calls = 0
        self._one_at_a_time = asyncio.Lock()

    async def reset(self, row: Mapping[str, Any]) -> str | None:
        task = _task(row)
        async with self._one_at_a_time:
            self.failure, self._calls = None, 0
            try:
                if task is not None:
                    await self._episode.reset(options={"task": task})
                    return None
                messages, _ = await self._episode.reset(seed=row.get("seed"))
            except EpisodeFailedError as error:  # the trainer's step goes on without this episode
                self._fail(error)
                return None
        return _as_text(messages)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        """Call a tool and return what the policy reads, in parts if it sees images, too. Whatever goes wrong is said in
        that text."""
        async with self._one_at_a_time:
            if self.over:
                return f"[The call was not run: the episode is over, {self._end}]"
            call = ToolCall(f"call_{self._calls}", name, dict(arguments))
            self._calls += 1
            result = await self._try(self._episode.step(ParsedTurn("", "", [call], [])))
            if result is None:
                return f"[The tool {name!r} is not available now; your call is not to blame]"
            if any(images_of(message["content"]) for message in result.obs):
                return _as_parts(result.obs)
            text = _as_text(result.obs)
            return text if text or not result.done else f"[The call was not run: the episode is over, {self._end}]"

    async def answer(self, text: str) -> str:
        """Give the policy's last turn, without calls, and return the env's reply, if it has one."""
        async with self._one_at_a_time:
            if self.over:
                return f"[The episode is over already, {self._end}]"
            result = await self._try(self._episode.step(ParsedTurn(text, text, [], [])))
            return "" if result is None else _as_text(result.obs)

    async def cut(self, text: str | None = None) -> None:
        """End an episode that a limit on tokens cut, maybe within the turn that has this text; its env scores it."""
        async with self._one_at_a_time:
            if not self.over:
                reason = StopReason.BUDGET if text is None else StopReason.LENGTH
                turn = None if text is None else ParsedTurn(text, text, [], [])
                await self._try(self._episode.truncate(reason, turn))

    @property
    def over(self) -> bool:
        return self._episode.over

    @property
    def reward(self) -> float | None:
        """Sum of the rewards so far; None if a failure broke the episode off."""
        if self._episode.stage is EpisodeStage.NEW:
            raise EpisodeError("get_reward was called before reset")
        return None if self.failure is not None else self._episode.reward

    async def close(self) -> None:
        await self._episode.close()

    @property
    def _end(self) -> str:
        reason = self._episode.stop_reason
        if self._episode.stage is not EpisodeStage.OVER or reason is None:
            return self._episode.stage.value
        return "it failed" if reason.failed else reason.value

    async def _try(self, step: Coroutine[Any, Any, StepResult]) -> StepResult | None:
        try:
            return await step
        except EpisodeFailedError as error:  # the trainer's step goes on without this episode
            self._fail(error)
            return None

    def _fail(self, error: EpisodeFailedError) -> None:
        self.failure = error_text(error if error.cause is None else error.cause)
        _log.warning("an episode failed, and has no reward: %s", on_one_line(str(self.failure)))


def _task(row: Mapping[str, Any]) -> Task | None:
    if row.get(TASK_COLUMN) is None:
        prompt = row.get("prompt")
        if not prompt or (len(prompt) == 1 and isinstance(prompt, list) and not prompt[0].get("content")):
            return None
    return Task.from_row(row, from_arrow=True)


def _as_text(messages: list[Message]) -> str:
    return "\n\n".join(described(message["content"]) for message in messages if message.get("content"))


def _as_parts(messages: list[Message]) -> list[dict[str, Any]]:
    """Texts and images as TRL's loop takes them of a tool: an image is Pillow's."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_package("pillow", "An image for the trainer", error) from error

    content = joined([message["content"] for message in messages if message.get("content")], "\n\n")
    assert not isinstance(content, str)  # there are images
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append({"type": "text", "text": part["text"]})
        else:
            data = base64.b64decode(image_data(part["image_url"]["url"])[1])
            parts.append({"type": "image", "image": Image.open(io.BytesIO(data)).convert("RGB")})
    return parts
