"""The contract of a transport, which knows where SGLang is, and which replica gets what: `http_transport`,
`in_process`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from toolgym.rollout.engines.base import PauseMode
from toolgym.rollout.engines.sglang.messages import ServerInfo
from toolgym.tools.errors import EngineError

Body: TypeAlias = Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None
"""The same for every replica, or a function from a replica's number to its body."""


@dataclass(eq=False)
class InFlightRequest:
    """One `generate` call that is on its way. SGLang knows it by `rid` once it is `sent`. `updates` had begun and
    `label` was that of the newest weights when it was sent; with `own_cache`, it begins on no other request's keys
    and values. An answer to a `dropped` one is not waited for."""

    task: asyncio.Task[Any] = field(init=False)
    carrier: Any = None
    rid: str = ""
    label: str = ""
    updates: int = 0
    own_cache: bool = False
    sent: bool = False
    aborted: bool = False
    dropped: bool = False

    def next_rid(self) -> str:
        """Return a new id for one send, always of one length: SGLang aborts every request whose id *begins* so."""
        self.rid = uuid.uuid4().hex
        self.sent = True
        return self.rid


@dataclass
class ClientState:
    """The state that a client and its transport share. `label` is that of the newest weights that are known (see
    `label_of`). `running` is set while the engine is not paused."""

    label: str = ""
    updates_begun: int = 0
    updates_ended: int = 0
    pause_mode: PauseMode | None = None
    running: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.running.set()

    async def admit(self, request: InFlightRequest, body: dict[str, Any]) -> None:
        await self.running.wait()
        request.updates = self.updates_begun
        request.label = self.label
        # Keys and values of other weights are no context of these: the prefix cache is kept apart by label.
        body["extra_key"] = f"weights {request.label}" if not request.own_cache else uuid.uuid4().hex


class ReplicaError(EngineError):
    def __init__(self, path: str, failed: Mapping[str, Exception], succeeded: Sequence[str] = ()) -> None:
        reasons = "; ".join(str(error) for error in failed.values())
        many = len(failed) + len(succeeded)
        super().__init__(reasons if many == 1 else f"{path} failed on {len(failed)} of {many} servers: {reasons}")
        self.failed, self.succeeded = tuple(failed), tuple(succeeded)


class SGLangTransport(Protocol):
    """Way to SGLang. `start` before the first other call and `close` after the last."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> Mapping[str, int]:
        """Tensor-parallel ranks of each replica, by name, in order."""
        ...

    async def start(self, state: ClientState) -> ServerInfo:
        """Connect, or start SGLang. A start that raises leaves nothing behind."""
        ...

    async def dispatch(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        """Have one request generated, sending it again if that is safe. `ClientState.admit` comes before each send.
        Returns SGLang's answer, decoded; None if the request was aborted while nothing of it was out."""
        ...

    async def abort(self, request: InFlightRequest) -> None: ...

    async def command(self, path: str, body: Body, *, timeout: float, all_required: bool = False) -> dict[str, Any]:
        """Have every replica that is reachable do something, and return their answers by name.

        Raises:
            ReplicaError: one refused, or gave no answer in time.
            EngineUnavailableError: none is reachable, or not all are and `all_required`.
        """
        ...

    async def query(self, path: str, *, timeout: float) -> dict[str, Any]: ...

    def mark_outdated(self, names: Sequence[str]) -> None:
        """Suspend replicas that did not take an update of the weights which others took."""
        ...

    async def close(self) -> None: ...
