"""How busy SGLang is, as its schedulers say at `/v1/loads`.

SGLang answers there without a flag (0.5.23, `srt/entrypoints/v1_loads.py`): one entry for each data-parallel
rank, whose `token_usage` is the share of its KV cache that running requests take. What the prefix cache merely keeps
counts as free.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.rollout.engines.base import EngineLoad
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import EngineError, shorten

TIMEOUT = 5.0
"""Seconds that a replica gets to say how busy it is."""

_log = logging.getLogger("toolgym.rollout")
_silent = LogThrottle(3600.0)


def read_load(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> EngineLoad | None:
    """Put the entries of all replicas and ranks together; None, with a line in the log, where one says nothing.

    Args:
        answers: the entries of each replica, by its name.

    Raises:
        EngineError: an entry has not the fields of `/v1/loads`.
    """
    silent = [name for name, loads in answers.items() if not loads]
    if silent or not answers:
        if _silent.due(", ".join(silent)) is not None:
            _log.warning(
                "%s says nothing at /v1/loads of how busy it is, so the number of episodes cannot follow its KV cache: "
                "look in its log for 'load snapshot', or give RunConfig(max_concurrent=...) as a number",
                " and ".join(silent) or "no replica",
            )
        return None
    loads = [load for entries in answers.values() for load in entries]
    try:
        return EngineLoad.of_replicas(
            [
                EngineLoad(
                    kv_cache_use=min(1.0, max(0.0, float(load["token_usage"]))),
                    running=int(load["num_running_reqs"]),
                    queued=int(load["num_waiting_reqs"]),
                    max_running=int(load["max_running_requests"]) or None,
                )
                for load in loads
            ]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            "/v1/loads must say token_usage, num_running_reqs, num_waiting_reqs and max_running_requests of each "
            f"scheduler, as SGLang 0.5.23 does, got {shorten(repr(loads))}"
        ) from error
