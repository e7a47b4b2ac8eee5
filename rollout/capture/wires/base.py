"""`Wire`: an API that agents speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply
from toolgym.rollout.capture.wires.memory import RequestMemory


class Wire(Protocol):
    """One API. `path` is that of its requests behind an episode's base address, such as `/chat/completions`, and
    `counting_path` that of requests for the number of a prompt's tokens."""

    name: str
    path: str
    counting_path: str | None

    def read(self, body: Mapping[str, Any], memory: RequestMemory) -> AgentCall:
        """Read a request; `memory` is of its session. Raises CallRefusedError (400) for a request that cannot be
        answered as it asks, by the name of its field: several choices, or a shape that the wire does not have."""
        ...

    def answer(self, call: AgentCall, reply: Reply) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def events(self, call: AgentCall, reply: Reply, heartbeats: int = 0) -> Iterator[bytes]:
        """The events of a streamed answer, as server-sent events with their blank lines. `heartbeats` were sent before
        them."""
        ...

    def heartbeat(self, call: AgentCall, sent: int) -> bytes:
        """An event that clients overlook, for a stream that has no other one yet; `sent` of them went before it."""
        ...

    def refusal(self, error: CallRefusedError) -> dict[str, Any]:
        """The body of an error."""
        ...

    def failed_event(self, call: AgentCall, error: CallRefusedError) -> bytes:
        """The event that ends a stream of nothing but heartbeats."""
        ...
