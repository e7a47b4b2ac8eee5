"""`Record`: every episode as a line of a JSON Lines file."""

from __future__ import annotations

import copy
import fcntl
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from toolgym.envs.actions import action_message
from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import EpisodeFailedError, ResetOptions, ResetResult, StopReason
from toolgym.tools.errors import ConfigError, EpisodeError, error_text
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.wrappers.base import Wrapper


class Record(Wrapper):
    """Appends each episode to a JSON Lines file when it is over. Changes nothing of what the env gives.

    A line has `task` (its id), `source`, `seed`, `messages` (all of them, in order), `actions` (each a text as
    generated, or a message), `rewards` (of each step), `reward` (their sum), `stop_reason`, `error` and `metrics`. An
    episode that `reset` or `close` breaks off has the `stop_reason` None; one whose step raised has its `error`. Lines
    are written whole, so any number of envs and forks may share a file. Put it around `RetryOnInfraError`: its forks
    would be episodes here. A file that cannot be written is an `OSError`. Its folder must be there.

    Example:
        >>> import json, tempfile, toolgym
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     env = toolgym.envs.GymnasiumEnv(Record(toolgym.make("CodeInterpreter-v0"), file.name))
        ...     _, _, _ = env.reset(seed=0), env.step("#### 1"), env.close()
        ...     json.load(file)["actions"]
        ['#### 1']
    """

    def __init__(self, env: BaseEnv, path: str | Path) -> None:
        super().__init__(env)
        if not isinstance(path, str | Path):
            raise ConfigError(f"path must be the name of a file, got {path!r}")
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ConfigError(f"path must be a file in a folder that is there, got {str(path)!r}")
        self._episode: dict[str, Any] | None = None  # None while none is under way

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._write()
        messages, info = await self.env.reset(seed=seed, options=options)
        task = info.get("task")
        self._episode = {
            "task": None if task is None else task.id,
            "source": None if task is None else task.source,
            "seed": seed,
            "messages": copy.deepcopy(messages),
            "actions": [],
            "rewards": [],
            "metrics": {},
        }
        return messages, info

    async def step(self, action: Action) -> StepResult:
        return await self._noted(self.env.step(action), action)

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        return await self._noted(self.env.truncate(reason, turn), turn)

    async def close(self) -> None:
        try:
            self._write()
        finally:
            await self.env.close()

    async def fork(self) -> BaseEnv:
        twin: Any = await super().fork()
        twin._episode = copy.deepcopy(self._episode)
        return cast(BaseEnv, twin)

    async def _noted(self, call: Coroutine[Any, Any, StepResult], action: Action | None) -> StepResult:
        try:
            result = await call
        except EpisodeError:  # called out of order: no step of an episode
            raise
        except Exception as error:
            reason = error.stop_reason if isinstance(error, EpisodeFailedError) else None
            self._write(stop_reason=reason, error=error_text(error))
            raise
        self._add(result, action)
        return result

    def _add(self, result: StepResult, action: Action | None) -> None:
        """Take over a turn and its result, or what the end adds to the last turn. Write an episode that is over."""
        if self._episode is None:
            return
        if action is not None:
            turn = action_message(action)
            written = action.text or turn if isinstance(action, ParsedTurn) else action
            self._episode["actions"].append(written)
            self._episode["messages"] += copy.deepcopy([result.info.get("message") or turn, *result.obs])
            self._episode["rewards"].append(result.reward)
        elif self._episode["rewards"]:
            self._episode["rewards"][-1] += result.reward
        self._episode["metrics"] |= result.info.get("metrics", {})
        if result.done:
            self._write(stop_reason=result.stop_reason)

    def _write(self, *, stop_reason: StopReason | None = None, error: str | None = None) -> None:
        episode, self._episode = self._episode, None
        if episode is None:
            return
        episode |= {"reward": sum(episode["rewards"]), "stop_reason": stop_reason, "error": error}
        line = json.dumps(episode, ensure_ascii=False, default=str).encode("utf-8", errors="replace") + b"\n"
        with self.path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # freed with the file
            end = os.fstat(file.fileno()).st_size
            written = file.write(line)
            if written != len(line):
                file.truncate(end)  # else the next episode, which may find room, would go on in the middle of this line
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an episode could be written to {str(self.path)!r}")
