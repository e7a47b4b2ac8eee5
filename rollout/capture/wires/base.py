"""`Wire`: an API that agents speak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.wires.memory import RequestMemory

DEFAULT = CaptureRules()


class Wire(Protocol):
    """One API. `path` is that of its requests behind an episode's base address, such as `/chat/completions`, and
    `counting_path` that of requests for the number of a prompt's tokens."""

    name: str
    path: str
    counting_path: str | None

    def read(self, body: Mapping[str, Any], memory: RequestMemory, rules: CaptureRules = DEFAULT) -> AgentCall:
        """Read a request of the session with this memory and these rules. Raises CallRefusedError (400), with the name
        of the field, for a request that cannot be answered as it asks, or has a shape that the wire does not know."""
        ...

    def answer(self, call: AgentCall, *replies: Reply) -> dict[str, Any]:
        """Return the body of an answer that is not streamed, with a reply for each of the call's choices."""
        ...

    def events(self, call: AgentCall, *replies: Reply, heartbeats: int = 0) -> Iterator[bytes]:
        """Yield the server-sent events of a streamed answer, with their blank lines. `heartbeats` were sent before."""
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
