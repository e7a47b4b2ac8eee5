"""The connection to Ray, and what its errors mean here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ClusterError, ConfigError, shorten
from toolgym.tools.lazy import missing_extra

try:
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
except ImportError as error:
    raise missing_extra("ray", "Running on several machines", error) from error

UNREACHABLE = 30.0
"""Seconds that an actor may be out of reach before it counts as dead."""

RETRY_PAUSE = 0.5
"""Seconds between two attempts to reach an actor."""

OURS = ("name", "namespace", "lifetime", "get_if_exists", "max_restarts", "max_task_retries", "max_concurrency")
"""Options of an actor that the runner sets itself: it replaces workers, and reruns what they played."""


class WorkerLostError(ClusterError):
    """A worker is dead, or does not answer."""


class WorkerDiedError(WorkerLostError):
    """A worker is dead, and does not come back."""


def connect(address: str | None) -> None:
    """Connect to Ray as `ray.init(address)` does, unless this process is connected. Raises `ClusterError` if it cannot.

    It blocks, for several seconds if it starts a cluster, which ends with the thread that called: so no helper thread
    can call it.
    """
    if not ray.is_initialized():
        try:
            ray.init(address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(f"cannot connect to Ray at {address!r}: {error}") from error


def check_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"ray_options must map names to Ray's options of an actor, got {options!r}")
    wrong = sorted(set(options or {}) & set(OURS))
    if wrong:
        raise ConfigError(f"ray_options cannot have {', '.join(wrong)}: the runner sets that for its workers")
    return dict(options or {})


async def call(actor: Any, method: str, *args: Any, seconds: float) -> Any:
    """Call a method of an actor, and return or raise what it does. A call may be made twice if its reply was lost.

    Raises:
        WorkerDiedError: the actor is dead.
        WorkerLostError: it was out of reach for too long, or gave no answer within `seconds`.
    """
    loop = asyncio.get_running_loop()
    lost_at: float | None = None
    while True:
        ref = getattr(actor, method).remote(*args)
        try:
            async with asyncio.timeout(seconds):
                return await ref
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except ActorUnavailableError as error:
            lost_at = loop.time() if lost_at is None else lost_at
            if loop.time() - lost_at > UNREACHABLE:
                raise WorkerLostError(f"out of reach for {UNREACHABLE:g} s: {_text(error)}") from error
            await asyncio.sleep(RETRY_PAUSE)
        except ActorDiedError as error:
            raise WorkerDiedError(_text(error)) from error
        except RayError as error:
            raise WorkerLostError(_text(error)) from error
        except TimeoutError as error:
            raise WorkerLostError(f"it did not answer {method!r} within {seconds:g} s") from error


def _text(error: RayError) -> str:
    """The first line of what Ray says; the others are its advice."""
    return f"{type(error).__name__}: {shorten(str(error).partition(chr(10))[0])}"


def nodes() -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def kill(actor: Any) -> None:
    """End an actor's process at once, if it is there."""
    if ray.is_initialized():
        ray.kill(actor, no_restart=True)
