"""`ToolgymServer`: an env as a resources server of NeMo-Gym 0.7.0, a session of its own for each rollout.

NeMo-Gym's agent owns the turns (`responses_api_agents/simple_agent/app.py`) and its model server keeps the tokens. Each
tool call is a turn of the env, and so is the answer, which `/verify` finds at the end of the response.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from toolgym.envs.served.env_session import EnvSession
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.adapters.served_episodes import ServedEpisodes
from toolgym.rollout.adapters.versions import needs
from toolgym.tools.errors import ConfigError, EpisodeError, NoSessionError, shorten
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.serving.admission import BusyError

with needs("nemo-gym", "A resources server of NeMo-Gym"):
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import PlainTextResponse
    from nemo_gym.base_resources_server import (
        BaseResourcesServerConfig,
        BaseSeedSessionRequest,
        BaseSeedSessionResponse,
        BaseVerifyRequest,
        BaseVerifyResponse,
        ResourcesCloseSessionRequest,
        ResourcesCloseSessionResponse,
        ResourcesSeedSessionRequest,
        ResourcesSeedSessionResponse,
        ReverifyMode,
        SimpleResourcesServer,
    )
    from nemo_gym.failure_kinds import SESSION_LOST
    from nemo_gym.server_utils import SESSION_ID_KEY
    from pydantic import ConfigDict, Field, PrivateAttr

REMEMBERED = 100_000
"""Names of closed sessions that are kept, so that a seed that comes late does not open one again."""

OVER = "The episode is over: no tool can be called any more."
UNAVAILABLE = "The tools are not available: the environment failed."


class ToolgymServerConfig(BaseResourcesServerConfig):  # type: ignore[misc]  # NeMo-Gym has no types
    """The server's settings, beside NeMo-Gym's own: an env id with its arguments, and bounds.

    `max_sessions` episodes play at once, and `max_concurrent` resets and steps. The timeouts are seconds for a reset,
    for a tool call or scoring, for a call's wait for its turn and permits, and until an idle session is closed.
    """

    REVERIFY_MODE = ReverifyMode.UNSUPPORTED
    env: str
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_sessions: int = 8192
    max_concurrent: int = 1024
    reset_timeout: float = 600.0
    step_timeout: float = 600.0
    queue_timeout: float = 600.0
    idle_timeout: float = 3600.0


class SeedRequest(BaseSeedSessionRequest):  # type: ignore[misc]
    model_config = ConfigDict(extra="allow")


class VerifyRequest(BaseVerifyRequest):  # type: ignore[misc]
    model_config = ConfigDict(extra="allow")


class VerifyResponse(BaseVerifyResponse):  # type: ignore[misc]
    model_config = ConfigDict(extra="allow")
    stop_reason: str | None = None
    turns: int = 0


class ToolgymServer(SimpleResourcesServer):  # type: ignore[misc]
    """Serves the env that its config names. The first session finds out if the env cannot be made."""

    ray_enabled = False
    config: ToolgymServerConfig
    _episodes: ServedEpisodes = PrivateAttr()
    _closed: dict[str, None] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        self._episodes = ServedEpisodes(self.config, queue_timeout=self.config.queue_timeout)
        app = super().setup_webserver()
        app.post("/{tool}")(self.call_tool)  # behind the routes of NeMo-Gym
        inner = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with inner(app) as state:
                try:
                    yield state
                finally:
                    await self._episodes.sessions.close()

        app.router.lifespan_context = lifespan
        return app

    async def seed_session(
        self, request: Request, body: ResourcesSeedSessionRequest | SeedRequest
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        """Begin the episode of a row. One whose env fails is begun all the same, and masked by `verify`."""
        if isinstance(body, ResourcesSeedSessionRequest):
            name = request.session[SESSION_ID_KEY] = body.resources_session_id
            await self._begin(name, body.task_data)
            return ResourcesSeedSessionResponse(resources_session_id=name)
        await self._begin(request.session[SESSION_ID_KEY], body.model_extra or {})
        return BaseSeedSessionResponse()

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        """Close a session, if it is there, and keep it from being opened again."""
        name = body.resources_session_id
        self._closed[name] = None
        if len(self._closed) > REMEMBERED:
            del self._closed[next(iter(self._closed))]
        await self._episodes.sessions.discard(name)
        return ResourcesCloseSessionResponse(resources_session_id=name)

    async def call_tool(self, tool: str, request: Request) -> PlainTextResponse:
        arguments = await _json(request)
        try:
            session = self._episodes.sessions.find(request.session[SESSION_ID_KEY])
            if session.episode is None and not session.busy:
                return PlainTextResponse(UNAVAILABLE, 503)
            return PlainTextResponse((await session.call_tool(tool, arguments)).text)
        except EpisodeError:
            return PlainTextResponse(OVER)
        except NoSessionError as error:
            return PlainTextResponse(str(error), 404)
        except EpisodeFailedError:
            return PlainTextResponse(UNAVAILABLE, 503)
        except BusyError as error:
            raise HTTPException(429, str(error)) from error

    async def verify(self, request: Request, body: VerifyRequest) -> VerifyResponse:
        """Take the answer as the episode's last turn, and say what the episode is worth."""
        name = request.session[SESSION_ID_KEY]
        try:
            return await self._verified(self._episodes.sessions.find(name), body)
        except NoSessionError as error:
            return _masked(body, SESSION_LOST, str(error))
        except EpisodeFailedError as error:
            return _masked(body, f"toolgym:{error.stop_reason.value}", str(error))
        finally:
            await self._episodes.sessions.discard(name)

    async def _verified(self, session: EnvSession, body: VerifyRequest) -> VerifyResponse:
        episode, answer, cut = session.episode, answer_of(body.response), body.response.incomplete_details is not None
        if episode is None:
            return _masked(body, f"toolgym:{StopReason.RESET_FAILED.value}", "the env could not be made or reset")
        turn = None if answer is None else ParsedTurn(answer, answer, [], [])
        if turn is not None and not cut and episode.stop_reason is None:
            await session.step(turn)
            turn = None
        if episode.stop_reason is None:
            await session.truncate(StopReason.LENGTH if cut else StopReason.MAX_TURNS, turn)
        reason = episode.stop_reason
        if reason is not None and not reason.in_group_statistics:
            return _masked(body, f"toolgym:{reason.value}", f"the episode ended with {reason.value}")
        return VerifyResponse(
            **body.model_dump(),
            reward=episode.reward,
            stop_reason=None if reason is None else reason.value,
            turns=episode.steps,
        )

    async def _begin(self, name: str, row: Mapping[str, Any]) -> None:
        if name in self._closed:
            raise HTTPException(409, f"the session {name!r} was closed")
        await self._episodes.served()
        with contextlib.suppress(NoSessionError):
            self._episodes.sessions.find(name)
            return  # a seed that is repeated
        try:
            await self._episodes.begin(Task.from_row(row), name)
        except EpisodeFailedError:
            return  # logged; `verify` masks it
        except ConfigError as error:
            raise HTTPException(422, str(error)) from error
        except BusyError as error:
            raise HTTPException(429, str(error)) from error


def answer_of(response: Any) -> str | None:
    """Return the text of the response's last message; None if it ends otherwise."""
    kinds = ("message", "function_call", "function_call_output")
    last = next((item for item in reversed(response.output) if item.type in kinds), None)
    if last is None or last.type != "message" or last.role != "assistant":
        return None
    content = last.content
    return content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content)


def _masked(body: VerifyRequest, kind: str, reason: str) -> VerifyResponse:
    return VerifyResponse(
        **{
            **body.model_dump(),
            "instance_config": {"mask_sample": True},  # what older versions of NeMo-RL read
            "reward": 0.0,
            "mask_sample": True,
            "failure_kind": kind,
            "failure_reason": reason,
        }
    )


async def _json(request: Request) -> dict[str, Any]:
    try:
        arguments = await request.json()
    except ValueError as error:
        raise HTTPException(422, f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise HTTPException(422, f"the arguments must be a JSON object, got {shorten(repr(arguments))}")
    return arguments
