"""The contract of a kind of session: a `SessionBackend` opens an `Instance` for each session."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from toolgym.envs.served.sessions.protocol import MAX_SID
from toolgym.tools.closeable import AsyncCloseable


class ActionReply(NamedTuple):
    """Answer of an instance to a turn: the text for the policy, and whether the episode is over."""

    content: str
    done: bool = False


class Instance(ABC):
    """One task being worked on. Its calls come one at a time.

    A mistake of the policy belongs into a reply. Any exception means that the infrastructure failed: the server closes
    the instance, and opens it again in the state before the call.
    """

    greeting: str = ""
    """Text that the policy reads first, if the task's messages are the server's."""

    spent: bool = False
    """Whether `compute_reward` ended the work: for a further action the server opens the instance again."""

    @abstractmethod
    async def process_action(self, content: str) -> ActionReply:
        """Carry out a turn of the policy, given as generated."""

    @abstractmethod
    async def state(self) -> bytes:
        """Return all that `SessionBackend.open` needs to continue from here, in another process too."""

    @abstractmethod
    async def compute_reward(self) -> Mapping[str, Any]:
        """Return the worth of the work so far: `reward`, and further JSON values for clients."""

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Called once, also after a failure."""


class SessionBackend(AsyncCloseable):
    """Opens instances. A backend of your own is named as `module:Class`."""

    async def start(self) -> None:
        """Prepare for instances, on the event loop that will serve. Default: nothing."""

    @abstractmethod
    async def open(self, instance_hash: str, state: bytes | None = None) -> Instance:
        """Open an instance, in a state of `Instance.state` or a new one. Raises UnknownNameError: no such task."""

    async def close(self) -> None:
        """Free what the instances shared, once they are closed. Default: nothing."""


def number_of(task_id: str) -> str:
    """Return the number that stands for a task in `instance_hash`: the first 63 bits of the SHA-256 of its id."""
    digest = hashlib.sha256(task_id.encode()).digest()
    return str(int.from_bytes(digest[:8], "big") & MAX_SID)
