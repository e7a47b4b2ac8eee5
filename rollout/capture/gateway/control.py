"""The API that opens sessions and ends them: for trainers and harnesses, with the server's token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Self, TypeVar

import pydantic
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.gateway.config import CaptureConfig
from toolgym.rollout.capture.gateway.hosting import EndedOtherwiseError, Episodes, HostedEpisode
from toolgym.rollout.capture.journal import NotWrittenError
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.config import read_options
from toolgym.tools.errors import ConfigError
from toolgym.tools.serving.json_bodies import encode, parse
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, answer

T = TypeVar("T")

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

NO_PROMPT = [{"role": "user", "content": ""}]
"""Prompt of a task whose agent brings its own."""

FINAL = {"x-should-retry": "false"}
"""Header of an answer that the official SDKs do not ask for again."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewSession(_Body):
    """A session to open.

    Attributes:
        task: a row in verl's shape, which needs no prompt, or the task's id.
        group: name of its group: sessions of one task, whose rewards are compared. None: that of the task's id.
        sample: its number in the group. None: the next.
        limits: fields of `EpisodeLimits`.
        sampling: fields of `SamplingParams`.
        rules: fields of `CaptureRules`.
        training_step: recorded in its trajectory.
        id: its name; None: a new one.
    """

    task: dict[str, Any] | str = ""
    group: str | None = Field(None, min_length=1)
    sample: int | None = Field(None, ge=0)
    limits: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)
    rules: dict[str, Any] = Field(default_factory=dict)
    training_step: int = Field(0, ge=0)
    id: str | None = Field(None, pattern=NAME)

    @classmethod
    def of(cls, **values: Any) -> Self:
        """A session of these fields. Raises ConfigError if one is not usable."""
        return read_options(cls, values, "a session")

    def open(self, episodes: Episodes, defaults: CaptureConfig, key: str | None = None) -> HostedEpisode:
        """Open it; the agent's `key` is a new one if it is None. Raises ConfigError if a field is not usable, and
        BusyError."""
        config = EpisodeConfig(
            sampling=_filled(SamplingParams, defaults, self.sampling),
            limits=_filled(EpisodeLimits, defaults, self.limits),
            training_step=self.training_step,
        )
        rules = _filled(CaptureRules, defaults, self.rules)
        row = {"id": self.task} if isinstance(self.task, str) else self.task
        task = Task.from_row({"prompt": NO_PROMPT, **row}, id=str(row.get("id") or ""))
        job = episodes.run.place(task, self.group, self.sample)
        return episodes.open(job, config, rules, name=self.id, key=key)


def _filled(kind: type[T], defaults: CaptureConfig, values: Mapping[str, Any]) -> T:
    """Settings of this kind from the values, or else from those of the server that have the same names."""
    names = {field.name for field in fields(kind)} - {"seed"}  # type: ignore[arg-type]
    usual = {name: value for name, value in defaults if name in names}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**{**usual, **values})


class OpenedSession(_Body):
    """An open session: the agent gets one of the addresses, as its base URL, and the key."""

    id: str
    key: str
    openai_url: str
    anthropic_url: str
    group_id: str
    task_index: int
    sample_index: int

    @classmethod
    def at(cls, episode: HostedEpisode, base: str) -> Self:
        """An episode at a server's address."""
        url = f"{base.rstrip('/')}/sessions/{episode.name}"
        return cls(id=episode.name, key=episode.key, openai_url=f"{url}/v1", anthropic_url=url, **episode.place())


class SessionEnd(_Body):
    """The end of a session. With an `error`, it failed: the agent or its machine broke, and the reward says nothing."""

    reward: pydantic.FiniteFloat = 0.0
    metrics: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None


def alive_routes() -> list[Route]:
    """Return the routes that agents ask for before their first request. They say nothing about sessions."""
    alive = Operation(_alive)
    return [
        Route("/sessions/{session}/v1", {"HEAD": alive, "GET": alive}, public=True),
        Route("/v1", {"HEAD": alive, "GET": alive}, public=True),
    ]


async def _alive(call: Call) -> web.Response:
    return answer({"service": "toolgym capture"})


class Control:
    """The operations on sessions. `check` raises for a client without the server's token."""

    def __init__(self, episodes: Episodes, config: CaptureConfig, check: Callable[[web.BaseRequest], None]) -> None:
        self._episodes, self._config, self._check = episodes, config, check

    def routes(self) -> list[Route]:
        opening = Operation(self._open, "Open a session for an agent", NewSession, OpenedSession)
        listing = Operation(self._list, "List the open sessions", None, "application/json")
        finishing = Operation(self._finish, "End a session, and get its figures", SessionEnd, "application/json")
        showing = Operation(self._show, "Show a session's figures", None, "application/json")
        dropping = Operation(self._drop, "Drop a session with all that was captured", None, "application/json")
        session = "/sessions/{session}"
        return [
            Route("/sessions", {"POST": opening, "GET": listing}),
            Route(f"{session}/finish", {"POST": finishing}, while_draining=True),
            Route(session, {"HEAD": Operation(_alive), "GET": showing, "DELETE": dropping}, True, while_draining=True),
        ]

    async def _open(self, call: Call) -> web.Response:
        request = parse(NewSession, call.body or b"{}")
        try:
            episode = request.open(self._episodes, self._config)
        except NotWrittenError:
            raise
        except ConfigError as error:
            taken = request.id is not None and self._episodes.known(request.id) is not None
            raise RequestRefusedError(409 if taken else 400, str(error)) from error
        base = self._config.public_url or f"{call.request.scheme}://{call.request.host}"
        return answer(OpenedSession.at(episode, base))

    async def _list(self, call: Call) -> web.Response:
        return answer({"sessions": [episode.state() for episode in self._episodes.table]})

    async def _show(self, call: Call) -> web.Response:
        self._check(call.request)
        episode = self._episodes.table.find(call.params["session"])
        return answer({**episode.capture.figures(), **episode.state()})

    async def _drop(self, call: Call) -> web.Response:
        self._check(call.request)
        episode = await self._episodes.end(call.params["session"], drop=True)
        if episode.trajectory is not None:
            raise RequestRefusedError(409, "the session has finished: its trajectory is written", reason="finished")
        return answer({"dropped": True})

    async def _finish(self, call: Call) -> web.Response:
        end = parse(SessionEnd, call.body or b"{}")
        try:
            episode = await self._episodes.end(call.params["session"], end.reward, end.metrics, error=end.error)
        except EndedOtherwiseError as error:
            refused = RequestRefusedError(409, str(error), FINAL, reason="ended_otherwise")
            refused.body |= _summary(error.trajectory)
            raise refused from error
        if (trajectory := episode.trajectory) is None:
            raise RequestRefusedError(410, "the session was dropped", FINAL, reason="dropped")
        if call.request.query.get("full") not in ("1", "true"):
            return answer(_summary(trajectory))
        body = await in_thread(lambda: encode({**_summary(trajectory), "trajectory": trajectory.to_json()}))
        return web.Response(body=body, content_type="application/json")


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    names = ("id", "group_id", "task_index", "sample_index", "reward", "trainable", "policy_tokens")
    return {
        **{name: getattr(trajectory, name) for name in names},
        "stop_reason": trajectory.stop_reason.value,
        "error": None if trajectory.error is None else trajectory.error.message,
        "turns": len(trajectory.turns),
        "sequences": [sequence.start_reason for sequence in trajectory.sequences],
        "metrics": plain(trajectory.metrics),
    }
