"""Agent-Lightning 1.0.2: one episode against its gateway, which keeps the tokens, for its controllers to start.

`agent_class` names `ToolgymAgent`; a Kubernetes job runs this module. Addresses and key are in variables `AGL_...`; the
controller's `env_map` fills the three below (`agentlightning/controller/local_reconciler.py`, `k8s_reconciler.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.versions import require_version
from toolgym.rollout.endpoint import arguments_of, json_object, run
from toolgym.rollout.engines.openai.chat import CONNECT_TIMEOUT
from toolgym.tools.errors import ConfigError, EngineError, shorten
from toolgym.tools.http.retries import AttemptError, Retries, repeat
from toolgym.tools.http.session import BrokenError, HttpSession, NotSentError

require_version("agentlightning", "An agent of Agent-Lightning")  # a job of Kubernetes needs none

TASK = "TOOLGYM_TASK"
"""The row as JSON; see `arguments_of` for the others."""

BROKEN_OFF = "broken-off"
"""Name of an attempt that has no events."""

TIMEOUT = 60.0
_RETRIES = Retries(attempts=8)


class ToolgymAgent:
    """The class for `local.agent_class`: `run` plays the episode of this process."""

    async def run(self) -> None:
        await play(os.environ)


async def play(variables: Mapping[str, str]) -> float:
    """Play one episode as these environment variables say, report its reward, and return it.

    The trainer trains on the turns that the gateway kept of an episode that something broke off, with a reward of its
    own choice. So such a rollout has failed in an attempt that has none.
    """
    base_url, events = (_required(variables, name) for name in ("AGL_OPENAI_BASE_URL", "AGL_EVENT_URL"))
    rollout, _, attempt = events.partition("/attempt/")
    if not attempt:
        raise ConfigError(f"AGL_EVENT_URL must end with /attempt/NAME/events, got {events!r}")
    key = variables.get("AGL_KEY") or None
    session = HttpSession(key, 0, CONNECT_TIMEOUT)
    try:
        try:
            task = Task.from_row(json_object(TASK, _required(variables, TASK)))
            reward = await run(task, base_url=base_url, api_key=key, **arguments_of(variables))
        except Exception as error:
            status = {"state": "failed", "last_attempt_id": BROKEN_OFF, "error_message": shorten(str(error))}
            await _send(session, "PATCH", rollout, {"status": status})
            raise
        event = {"event_type": "reward", "data": {"value": reward, "source": "agent"}}
        await _send(session, "POST", events, event)
        return reward
    finally:
        await session.close()


def _required(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        raise ConfigError(f"the environment variable {name} is missing; Agent-Lightning's controller sets it")
    return variables[name]


async def _send(session: HttpSession, method: str, url: str, content: Mapping[str, Any]) -> None:
    """Send it until the server has taken it: the last reward counts, so one that arrives twice does no harm."""
    body = json.dumps(content).encode()

    async def attempt() -> None:
        try:
            reply = await session.exchange(method, url, body, TIMEOUT)
        except (NotSentError, BrokenError) as error:
            raise AttemptError(str(error), sent=True) from error
        if reply.status >= 500:
            raise AttemptError(f"it answered {reply.status}", sent=True)
        if reply.status >= 400:
            raise EngineError(f"{url} answered {reply.status}: {shorten(reply.body.decode('utf-8', 'replace'))}")

    try:
        await repeat(attempt, _RETRIES, repeatable=True)
    except AttemptError as error:
        raise EngineError(f"{method} {url}: {error}") from error


if __name__ == "__main__":
    asyncio.run(ToolgymAgent().run())
