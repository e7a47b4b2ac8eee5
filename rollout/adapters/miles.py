"""Miles: `run` plays one episode against a session of Miles' own server, for `--custom-agent-function-path`.

The contract is that of miles-rl 0.0.2 and of Miles' sources of August 2026 (`miles/rollout/generate_hub/
agentic_tool_call.py`, `miles/rollout/session/`). The session keeps the ids, log-probs and routed experts of each turn,
and Miles makes the samples of them. `reward` is for `--custom-rm-path`, and `abort` is found beside `run`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.row_fields import ENV_COLUMN, TASK_COLUMN
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import endpoint
from toolgym.rollout.adapters.episode_settings import require_neutral
from toolgym.rollout.adapters.slime.hooks import is_usable
from toolgym.rollout.adapters.slime.hooks import log_eval_rollout as log_eval_rollout
from toolgym.rollout.adapters.slime.samples import METADATA
from toolgym.rollout.adapters.task_rows import labelled_task
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, shorten

if TYPE_CHECKING:
    from miles.utils.types import Sample

log = logging.getLogger("toolgym.rollout.adapters.miles")

NO_ABORTED = "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted"
"""Miles' own filter, which draws another group for one with an episode that was broken off."""

_GRACE = 60.0
"""Seconds that `abort` waits for envs to be closed."""

_playing: set[asyncio.Task[float]] = set()


async def run(
    base_url: str,
    prompt: Any,
    request_kwargs: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Play one episode, and return what Miles adds to the metadata of its samples.

    The env is the row's `env_id`, with its `env_kwargs`, or that of the variables that `endpoint.arguments_of` reads.
    Of an episode that something broke off, or that `abort` ended, there is no `reward`, and `toolgym.usable` is False.
    Raises ConfigError if the row or the variables cannot be used, which Miles logs.
    """
    metadata = metadata or {}
    arguments = endpoint.arguments_of(os.environ)
    if metadata.get(ENV_COLUMN) is not None:
        arguments |= {"env": metadata[ENV_COLUMN], "env_kwargs": metadata.get("env_kwargs")}
    request = {**arguments.get("request", {}), **(request_kwargs or {})}
    require_neutral(request)
    facts: dict[str, Any] = {"temperature": request["temperature"]} if "temperature" in request else {}
    earned: list[float] = []
    playing = asyncio.create_task(
        endpoint.run(
            task_of(prompt, metadata),
            base_url=f"{base_url}/v1",
            on_turn=earned.append,
            **{**arguments, "request": request},
        )
    )
    _playing.add(playing)
    try:
        await asyncio.wait([playing])
    except asyncio.CancelledError:
        playing.cancel()
        await shielded(asyncio.wait([playing]))
        raise
    finally:
        _playing.discard(playing)
    try:
        reward = playing.result()
    except (asyncio.CancelledError, EpisodeFailedError) as error:
        reason, why = StopReason.ABORTED, "Miles ended it"
        if isinstance(error, EpisodeFailedError):
            reason, why = error.stop_reason, str(error)
        log.warning("an episode was broken off (%s): %s", reason.value, shorten(why))
        return {METADATA: {"usable": False, "stop_reason": reason.value, "error": why}}
    return {"reward": reward, METADATA: {"usable": True, **facts}, "agent_metrics": {"turns": len(earned)}}


async def abort(args: Namespace) -> None:
    """End the episodes that still play. Miles calls it when it has enough of them."""
    playing = list(_playing)
    for task in playing:
        task.cancel()
    if playing:
        await asyncio.wait(playing, timeout=_GRACE)


async def reward(args: Namespace, samples: Sample | Sequence[Sample], **_: Any) -> float | list[float]:
    """Return the rewards of episodes of `run`; a sample of one that something broke off becomes `ABORTED`, masked.

    Raises ConfigError if Miles would train on such a sample or count it as 0, would cut samples behind an episode that
    went on, or computes log-probabilities at another temperature than that of the episode.
    """
    require_usable(args)
    several = samples if isinstance(samples, Sequence) else [samples]
    for sample in several:
        _require_temperature(args, sample)
    rewards = [_reward(sample) for sample in several]
    return rewards if isinstance(samples, Sequence) else rewards[0]


def _require_temperature(args: Namespace, sample: Sample) -> None:
    sampled = ((sample.metadata or {}).get(METADATA) or {}).get("temperature")
    known = [getattr(args, name, None) for name in ("rollout_temperature", "eval_temperature")]
    if sampled is not None and known[0] is not None and sampled not in known:
        raise ConfigError(
            f"an episode was sampled at temperature {sampled}, and Miles computes log-probabilities at "
            f"--rollout-temperature {known[0]}, so importance ratios would not begin at 1: leave temperature out of "
            "the variable with the arguments of requests"
        )


def _reward(sample: Sample) -> float:
    earned = (sample.metadata or {}).get("reward")
    if is_usable(sample) and METADATA in (sample.metadata or {}) and earned is not None:
        return float(earned)
    sample.status, sample.remove_sample = type(sample).Status.ABORTED, True
    return 0.0


def require_usable(args: Namespace) -> None:
    if not getattr(args, "dynamic_sampling_filter_path", None):
        raise ConfigError(
            "Miles would train on an episode that the infrastructure broke off: add --dynamic-sampling-filter-path "
            f"{NO_ABORTED}, or a filter of your own"
        )
    if getattr(args, "eval_interval", None) and not getattr(args, "custom_eval_rollout_log_function_path", None):
        raise ConfigError(
            "Miles would count an episode that the infrastructure broke off as one with the reward 0: evaluate with "
            f"--custom-eval-rollout-log-function-path {__name__}.log_eval_rollout, or a function of your own"
        )
    if getattr(args, "max_seq_len", None):
        raise ConfigError(
            "--max-seq-len cuts samples when their episode is over and rewarded: leave it out, and bound the context "
            "with --sglang-context-length, which the env hears of"
        )


def task_of(prompt: Any, metadata: Mapping[str, Any]) -> Task:
    """Return the task of a row: the column `toolgym_task` of its metadata (see `task_column`), or the prompt with the
    metadata's `reward_model` or `ground_truth`; the label itself stays with Miles."""
    if metadata.get(TASK_COLUMN) is not None:
        return Task.from_row(metadata)
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        raise ConfigError(
            "the prompt must be a list of messages, which Miles' session renders with the env's tools: leave "
            f"--apply-chat-template out; got {shorten(repr(prompt))}"
        )
    label = metadata.get("reward_model", metadata.get("ground_truth"))
    return labelled_task(prompt, label, data_source=metadata.get("data_source") or "", extra_info=dict(metadata))
