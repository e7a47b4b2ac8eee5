"""`CaptureServer`: the gateway in a program of its own user, such as a training script."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.gateway.app import CaptureApp, sessions_of
from toolgym.rollout.capture.gateway.captured_run import CapturedRun, captured_run
from toolgym.rollout.capture.gateway.config import CaptureConfig
from toolgym.rollout.capture.gateway.control import NewSession, OpenedSession
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.capture.wires import WIRES
from toolgym.rollout.engines.base import Engine, require_tokenizer
from toolgym.rollout.runner.base import Sink
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, EpisodeError
from toolgym.tools.keywords import named_keywords
from toolgym.tools.serving.worker import CUT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CaptureServer:
    """A gateway over an engine, on this event loop, from `async with` to its end.

    Args:
        engine: started; it stays the caller's to close.
        out: a folder, with the files that `toolgym serve capture` writes, or a sink; None: `finish` alone gives the
            trajectories.
        tokenizer: of the model that the engine serves; None: the engine's.
        config: further settings; its `engine`, `tokenizer` and `out` are not used. Its port is any free one by default.
            The control API is served with its token, or a random one (`server.config.secret`).
        has_control: whether the control API is served. Without it, sessions are opened and ended by this object only.
    """

    @named_keywords
    def __init__(
        self,
        engine: Engine,
        *,
        out: str | Path | Sink | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        config: CaptureConfig | None = None,
        has_control: bool = True,
    ) -> None:
        self._engine, self._out, self._tokenizer = engine, out, tokenizer
        self.config = CaptureConfig.load(flags={"port": 0} if config is None else dict(config))
        self._has_control = has_control
        self._app: CaptureApp | None = None
        self._stack = contextlib.AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            begin = sessions_of(self._engine, self._tokenizer, self.config)
            app = CaptureApp(self.config, self._run(stack), begin, WIRES, has_control=self._has_control)
            await app.episodes.restore()
            self.url = await stack.enter_async_context(listening(app))
            self._app, self._stack = app, stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving; sessions that are open are written as aborted."""
        await self._stack.aclose()
        self._app = None

    async def open(self, task: Task | dict[str, Any] | str = "", **options: Any) -> OpenedSession:
        """Open a session for one episode of an agent; the options are the fields of `NewSession`. Raises ConfigError if
        one is not usable, and BusyError if too many sessions are open."""
        row = task.to_json_row() if isinstance(task, Task) else task
        episode = NewSession.of(task=row, **options).open(self._serving().episodes, self.config)
        return OpenedSession.at(episode, self.config.public_url or self.url)

    def host(self, capture: CaptureSession) -> OpenedSession:
        """Open a session for an episode of a run of its own; `drop` ends it."""
        return OpenedSession.at(self._serving().episodes.host(capture), self.config.public_url or self.url)

    @named_keywords
    async def finish(
        self,
        session: OpenedSession | str,
        reward: float = 0.0,
        *,
        metrics: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> Trajectory:
        """End an episode with its reward; or with an `error`, if the agent or its machine broke: then it has none.
        The same end again returns the same trajectory. Raises NoSessionError; EpisodeError if the session was dropped,
        or ended in another way before; NotWrittenError if the trajectory could not be written, and then the session is
        still open."""
        episode = await self._serving().episodes.end(_name(session), reward, metrics, error=error)
        if episode.trajectory is None:
            raise EpisodeError("the session was dropped, so it has no trajectory")
        return episode.trajectory

    async def drop(self, session: OpenedSession | str) -> None:
        """End an episode and keep nothing of it. Raises NoSessionError."""
        await self._serving().episodes.end(_name(session), drop=True)

    def _serving(self) -> CaptureApp:
        if self._app is None:
            raise ConfigError("the gateway serves inside of `async with CaptureServer(...)` only")
        return self._app

    def _run(self, stack: contextlib.AsyncExitStack) -> CapturedRun:
        out = self._out
        if out is None:
            return CapturedRun(_Nowhere(), seed=self.config.seed)
        if not isinstance(out, str | Path):
            return CapturedRun(out, seed=self.config.seed)
        tokenizer = require_tokenizer(self._tokenizer, self._engine)
        name = str(tokenizer.name_or_path)
        return stack.enter_context(
            captured_run(
                Path(out),
                tokenizer,
                engine=name,
                tokenizer_name=name,
                seed=self.config.seed,
                fsync=self.config.fsync == "turn",
            )
        )


@contextlib.asynccontextmanager
async def listening(app: CaptureApp) -> AsyncIterator[str]:
    """Serve on this event loop, and give the address. At the end what is open is written as aborted."""
    await app.start()
    runner = web.ServerRunner(app.listener(), shutdown_timeout=CUT, handle_signals=False)
    try:
        await runner.setup()
        await web.TCPSite(runner, app.settings.host, app.settings.port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()
        await app.close()


class _Nowhere:
    """A sink for callers that keep what `finish` returns."""

    def write(self, trajectory: Trajectory) -> None:
        pass


def _name(session: OpenedSession | str) -> str:
    return session if isinstance(session, str) else session.id
