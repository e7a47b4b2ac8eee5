"""The contract of a transport, which carries requests and control calls to SGLang.

There are two: over HTTP (`http_transport`) and in this process (`in_process`).

`SGLangClient` knows what to ask; a transport knows where SGLang is, how to reach it, and which replica gets what. Both
see one `ClientState`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from toolgym.rollout.engines.base import Generation, PauseMode
from toolgym.rollout.engines.sglang.messages import ServerInfo
from toolgym.tools.errors import EngineError

Body: TypeAlias = Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None
"""What a control call sends: the same to every replica, or a function from a replica's number to its body."""


class InFlightRequest:
    """One `generate` call that is on its way.

    Attributes:
        rid: the id that SGLang knows it by.
        updates: how many updates of the weights had begun when it was sent.
        label: the label of the weights whose keys and values it may begin on.
        own_cache: whether it is to begin on no other request's keys and values.
        sent: whether SGLang may know it.
        aborted: whether it is to end early.
        dropped: whether its answer is no longer waited for.
        carrier: where it was sent.
        task: the task that runs it.
    """

    task: asyncio.Task[Generation]

    def __init__(self) -> None:
        self.rid = ""
        self.updates = 0
        self.label = ""
        self.own_cache = False
        self.sent = False
        self.aborted = False
        self.dropped = False
        self.carrier: Any = None

    def next_rid(self) -> str:
        """Return a new id for one send, always of one length: SGLang aborts every request whose id *begins* so."""
        self.rid = uuid.uuid4().hex
        self.sent = True
        return self.rid


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass
class ClientState:
    """The state that a client and its transport share.

    Attributes:
        label: that of the newest weights that are known, see `label_of` in `messages`.
        updates_begun: how many updates of the weights have begun.
        updates_ended: how many have ended, well or not.
        pause_mode: how the engine is paused; None when it is not.
        running: set while the engine is not paused.
    """

    label: str = ""
    updates_begun: int = 0
    updates_ended: int = 0
    pause_mode: PauseMode | None = None
    running: asyncio.Event = field(default_factory=_open_gate)

    async def admit(self, request: InFlightRequest, body: dict[str, Any]) -> None:
        """Wait for the end of a pause, and mark a request with the weights that it will meet."""
        await self.running.wait()
        request.updates = self.updates_begun
        request.label = self.label
        # Keys and values of other weights are no context of these: the prefix cache is kept apart by label.
        body["extra_key"] = f"weights {request.label}" if not request.own_cache else uuid.uuid4().hex


class ReplicaError(EngineError):
    """Some replicas did not carry out a control call; the message names each.

    Attributes:
        failed: the names of those.
        succeeded: the names of the others.
    """

    def __init__(self, message: str, failed: Sequence[str], succeeded: Sequence[str]) -> None:
        super().__init__(message)
        self.failed, self.succeeded = tuple(failed), tuple(succeeded)

    @classmethod
    def of(cls, path: str, failed: Mapping[str, Exception], succeeded: Sequence[str]) -> ReplicaError:
        """Make the error of one control call that went to every replica."""
        reasons = "; ".join(str(error) for error in failed.values())
        many = len(failed) + len(succeeded)
        message = reasons if many == 1 else f"{path} failed on {len(failed)} of {many} servers: {reasons}"
        return cls(message, list(failed), succeeded)


class SGLangTransport(Protocol):
    """Way to SGLang. `start` before the first other call and `close` after the last."""

    @property
    def name(self) -> str:
        """Name of the whole in error messages."""
        ...

    @property
    def ranks(self) -> Mapping[str, int]:
        """Tensor-parallel ranks of each replica, by name, in order."""
        ...

    async def start(self, state: ClientState) -> ServerInfo:
        """Connect, or start SGLang. A start that raises leaves nothing behind.

        Raises:
            EngineUnavailableError: it does not answer, or was not ready in time.
            EngineError: what answers is not SGLang.
            ConfigError: an argument or the model is not usable.
        """
        ...

    async def dispatch(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        """Have one request generated, sending it again if that is safe.

        Args:
            request: its `rid`, `sent` and `carrier` are kept current here; `ClientState.admit` comes before each send.
            body: of `/generate`, without the `rid`.
            affinity: see `GenerationRequest`.

        Returns:
            SGLang's answer, decoded; None if the request was aborted while nothing of it was out.

        Raises:
            ConfigError: SGLang refused the request.
            EngineError: it failed, or was lost too often.
            EngineUnavailableError: nothing answers.
        """
        ...

    async def abort(self, request: InFlightRequest) -> None:
        """Ask SGLang once to end a request. Raises EngineError if it does not answer."""
        ...

    async def command(self, path: str, body: Body, *, timeout: float, all_required: bool = False) -> dict[str, Any]:
        """Have every replica do something, at once.

        Args:
            path: the endpoint.
            body: see `Body`.
            timeout: seconds for each replica.
            all_required: whether it is an error when a replica is not reachable.

        Returns:
            The answers of those that are reachable, by name.

        Raises:
            ReplicaError: one refused, or gave no answer in time; names it.
            EngineUnavailableError: those that are needed are not reachable.
        """
        ...

    async def query(self, path: str, *, timeout: float) -> dict[str, Any]:
        """Ask every replica something; returns their answers by name. Raises as `command` does."""
        ...

    def mark_outdated(self, names: Sequence[str]) -> None:
        """Suspend replicas that did not take an update of the weights which others took."""
        ...

    async def close(self) -> None:
        """Free everything; nothing is in flight any more."""
        ...
