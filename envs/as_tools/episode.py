"""`ToolEpisode`: an env's episode for a caller that runs tools one by one and owns the turns itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.tasks.row_fields import TASK_COLUMN
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason, finite_reward
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError, error_text
from toolgym.tools.message import Message
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolCall

TIMEOUT = 600.0
"""Seconds for one call of an env that has no clocks of its own."""

_log = logging.getLogger("toolgym.envs")


class ToolEpisode:
    """Plays one episode after the other in one env; each call of a tool is a turn of the policy for the env.

    Args:
        env: the env; closed with this object.

    Attributes:
        failure: what broke the episode off, in words; None while nothing has. Its reward says nothing then.
    """

    def __init__(self, env: BaseEnv) -> None:
        self.env = env
        self.failure: str | None = None
        self._reward = 0.0
        self._calls = 0
        self._end: str | None = "it was not reset yet"
        self._one_at_a_time = asyncio.Lock()

    async def reset(self, row: Mapping[str, Any]) -> str | None:
        """Begin an episode, ending the one before.

        Args:
            row: one row of a data set: a column `toolgym_task` with a task as JSON, or a row in verl's shape. Without
                a prompt in it the env draws a task, from the row's `seed` where it has one.

        Returns:
            The task's messages as text, where the env drew it; None where the row's `prompt` shows them.

        Raises:
            ConfigError: the row does not have that shape.
        """
        task = _task(row)
        seed = None if task is not None else row.get("seed")
        async with self._one_at_a_time:
            self.failure, self._reward, self._calls, self._end = None, 0.0, 0, None
            try:
                options = None if task is None else {"task": task}
                messages, _ = await with_deadline(self.env.reset(seed=seed, options=options), TIMEOUT)
            except ConfigError:
                self._end = "it could not begin"
                raise
            except Exception as error:  # noqa: BLE001  the trainer's step goes on without this episode
                self._fail(error)
                return None
        return None if task is not None else _as_text(messages)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return what the policy reads. Whatever goes wrong is said in that text."""
        async with self._one_at_a_time:
            if self._end is not None:
                return f"[The call was not run: the episode is over, {self._end}]"
            call = ToolCall(f"call_{self._calls}", name, dict(arguments))
            self._calls += 1
            result = await self._ask(self.env.step(ParsedTurn("", "", [call], [])))
            if result is None:
                return f"[The tool {name!r} is not available now; your call is not to blame]"
            text = _as_text(result.obs)
            return text if text or not result.done else f"[The call was not run: the episode is over, {self._end}]"

    async def answer(self, text: str) -> str:
        """Give the policy's last turn, without calls, and return what the env replies to it, if it replies."""
        async with self._one_at_a_time:
            if self._end is not None:
                return f"[The episode is over already, {self._end}]"
            result = await self._ask(self.env.step(ParsedTurn(text, text, [], [])))
            return "" if result is None else _as_text(result.obs)

    async def cut(self, text: str | None = None) -> None:
        """End an episode that a limit on tokens cut; its env scores it.

        Args:
            text: what the policy wrote of its last turn; None: its last turn was whole.
        """
        async with self._one_at_a_time:
            if self._end is None:
                reason = StopReason.BUDGET if text is None else StopReason.LENGTH
                turn = None if text is None else ParsedTurn(text, text, [], [])
                await self._ask(self.env.truncate(reason, turn))
                self._end = self._end or reason.value

    @property
    def over(self) -> bool:
        """Whether the episode has ended, or has not begun."""
        return self._end is not None

    @property
    def reward(self) -> float | None:
        """Sum of the rewards so far; None where a failure broke the episode off.

        Raises:
            EpisodeError: nothing has been reset yet.
        """
        if self._end == "it was not reset yet":
            raise EpisodeError("get_reward was called before reset")
        return None if self.failure is not None else self._reward

    async def close(self) -> None:
        """End the episode and free everything."""
        self._end = "it was closed"
        await self.env.close()

    async def _ask(self, asked: Coroutine[Any, Any, StepResult]) -> StepResult | None:
        """Await a step of the env; None where that failed."""
        try:
            result = await with_deadline(asked, TIMEOUT)
            reason = result.stop_reason
            self._reward += finite_reward(result.reward)
        except Exception as error:  # noqa: BLE001  the trainer's step goes on without this episode
            self._fail(error)
            return None
        if reason is not None:
            self._end = reason.value
            if reason.failed:
                self.failure = f"the env ended the episode with {reason.value}"
        return result

    def _fail(self, error: Exception) -> None:
        self._end, self.failure = "it failed", error_text(error)
        _log.warning("an episode failed, and has no reward: %s", self.failure)


def close_later(episode: ToolEpisode, submit: Callable[[Any], Any]) -> None:
    """Let a loop close an episode whose owner is gone."""
    coroutine = episode.close()
    try:
        submit(coroutine)
    except EpisodeError:  # the loop has ended, and closed it
        coroutine.close()


def _task(row: Mapping[str, Any]) -> Task | None:
    """The task of a row; None where the env is to draw one."""
    if row.get(TASK_COLUMN) is None:
        prompt = row.get("prompt")
        if not prompt or (len(prompt) == 1 and isinstance(prompt, list) and not prompt[0].get("content")):
            return None
    return Task.from_row(row, from_arrow=True)


def _as_text(messages: list[Message]) -> str:
    return "\n\n".join(message["content"] for message in messages if message.get("content"))
