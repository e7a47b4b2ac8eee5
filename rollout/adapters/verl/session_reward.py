"""`compute_score`: rewards from session servers, for verl's `custom_reward_function` (see `docs/sessions.md`).

The id of an episode's session is `sid`, or `sids` (a number, or a list whose last one counts), in `extra_info`: verl
puts there what its agent loop has in `extra_fields`.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolgym.envs.served.sessions.client import SessionClient
from toolgym.tools.concurrency.deadline import together
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, RemoteSessionError, shorten

URL_VARIABLE = "TOOLGYM_SESSIONS_URL"
"""Environment variable with the servers' addresses, with commas between them, for a missing `base_url`."""

TOKEN_VARIABLE = "TOOLGYM_SESSIONS_TOKEN"
"""Environment variable with the servers' token, for a missing `token`."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, float]:
    """Return an episode's worth as its session server has it, see `compute_score_async`; verl calls it in a thread."""
    arguments = data_source, solution_str, ground_truth, extra_info
    return _thread(os.getpid()).run(compute_score_async(*arguments, **options))


async def compute_score_async(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    base_url: str | Sequence[str] | None = None,
    token: str | None = None,
    on_failure: Literal["raise", "mark"] = "raise",
    timeout: float = 300.0,
    patience: float = 120.0,
    **further: Any,
) -> dict[str, float]:
    """Return what a session server says that an episode is worth. verl's managers await it: it is a coroutine function.

    The first three arguments are not used, and `extra_info` has the session's id. `base_url` and `token` default to
    `URL_VARIABLE` and `TOKEN_VARIABLE`. A server may take `timeout` seconds, and all attempts together `patience` more.
    If a reward cannot be had, `on_failure` says whether to `raise` RemoteSessionError, which ends the batch, or to
    `mark` the episode: a score of 0 with `infra_failure` 1, which the trainer then sees as a 0.

    Returns:
        `score` and `acc` (the reward), `f2p_count`, `f2p_total` (0 if the server does not say) and `infra_failure`:
        always the same keys, as verl demands it.
    """
    if on_failure not in ("raise", "mark"):
        raise ConfigError(f"on_failure must be 'raise' or 'mark', got {on_failure!r}")
    sid = session_id(extra_info or {})
    async with _client(base_url, token, timeout, patience) as client:
        try:
            reward = await client.reward(sid)
        except RemoteSessionError:
            if on_failure == "raise":
                raise
            return {"score": 0.0, "acc": 0.0, "f2p_count": 0.0, "f2p_total": 0.0, "infra_failure": 1.0}
    counts = {name: reward.answer.get(name) for name in ("f2p_count", "f2p_total")}
    return {
        "score": reward.value,
        "acc": reward.value,
        **{name: float(value) if isinstance(value, int | float) else 0.0 for name, value in counts.items()},
        "infra_failure": 0.0,
    }


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any]],
    **kwargs: Any,
) -> list[dict[str, float]]:
    """Do as `compute_score` for many at the same time: for verl's `BatchRewardManager`, which calls it so."""

    rows = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
    return _thread(os.getpid()).run(together([compute_score_async(*row, **kwargs) for row in rows]))


def session_id(extra_info: Mapping[str, Any]) -> int:
    """Return the id of the session that an episode had, of `sid` or `sids`: numbers, digits, arrays or tensors."""
    for name in ("sid", "sids"):
        value: Any = extra_info.get(name)
        if hasattr(value, "tolist"):  # of NumPy or torch
            value = value.tolist()
        if isinstance(value, list | tuple) and value:
            value = value[-1]
        try:
            if value is not None:
                return int(value) if isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            raise ConfigError(f"extra_info[{name!r}] must be a session's id, got {shorten(repr(value))}") from None
    raise ConfigError(
        f"extra_info needs 'sid' or 'sids', the id of the episode's session; it has {sorted(map(str, extra_info))}"
    )


def _client(base_url: str | Sequence[str] | None, token: str | None, timeout: float, patience: float) -> SessionClient:
    urls = base_url if base_url is not None else [url for url in os.environ.get(URL_VARIABLE, "").split(",") if url]
    if not urls:
        raise ConfigError(f"give base_url in reward_kwargs, or set the environment variable {URL_VARIABLE}")
    if not isinstance(urls, str):
        urls = list(urls)  # of OmegaConf
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
    return SessionClient(urls, token=token, reward_timeout=timeout, patience=patience)


@functools.cache
def _thread(process: int) -> EventLoopThread:
    """Return the event loop of a process's synchronous callers; a forked child has one of its own."""
    return EventLoopThread(name="toolgym-session-rewards")
