"""The four calls of veRL's multi-turn sandbox protocol: bodies, session ids, rewards.

    POST /start_instance  {instance_hash}  -> {sid}
    POST /process_action  {sid, content}   -> {content}
    POST /postprocess     {sid}            -> {}
    POST /compute_reward  {sid}            -> {reward, f2p_count?, f2p_total?, ...}

Source: the `swedev` task of veRL-multiturn (`verl/utils/swedev_utils.py`, `verl/workers/reward_manager/swedev.py`).
`request_id`, `content` of a new session, and `done` are ours; clients of the original neither send nor read them.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic

from toolgym.tools.errors import ConfigError, shorten

MAX_SID = 2**63 - 1
"""The largest session id: trainers put them in int64 tensors."""


def new_sid() -> str:
    """Return a session id that cannot be guessed: the decimal digits of a number from 1 to `MAX_SID`."""
    return str(1 + secrets.randbelow(MAX_SID))


def read_sid(value: object) -> str:
    """Return a session id, a text or a number, as text. Raises ConfigError: it does not fit into an int64."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SID:
        raise ConfigError(f"a session id is a number from 1 to {MAX_SID}, or its digits, got {shorten(repr(value))}")
    return str(value)


def read_reward(answer: Mapping[str, Any]) -> float:
    """Return the reward in an answer of `/compute_reward`: `reward`, else `f2p_count / f2p_total`, else 0.

    Raises:
        ConfigError: a value is no finite number.
    """
    if "reward" in answer:
        return _number("reward", answer["reward"])
    if "f2p_count" not in answer or "f2p_total" not in answer:
        return 0.0
    total = _number("f2p_total", answer["f2p_total"])
    return _number("f2p_count", answer["f2p_count"]) / total if total else 0.0


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} of /compute_reward must be a number, got {shorten(repr(value))}")
    return float(value)


Sid = Annotated[str, pydantic.BeforeValidator(read_sid, json_schema_input_type=str | int)]
RequestId = Annotated[str, pydantic.Field(min_length=1, max_length=200)]


class InstanceRequest(pydantic.BaseModel):
    """Body of `/start_instance`, for a task's id or number. Fields that are not known are ignored, here and below.

    A second call with the same `request_id` gives the same session.
    """

    model_config = pydantic.ConfigDict(coerce_numbers_to_str=True)
    instance_hash: Annotated[str, pydantic.Field(min_length=1, max_length=1000)]
    request_id: RequestId | None = None


class StartResponse(pydantic.BaseModel):
    """Answer of `/start_instance`; `content` is the policy's first text, if the task's messages are the server's.

    It has the `request_id` of the request if the server heeds them: a client may then send an action again.
    """

    sid: Sid
    content: str = ""
    request_id: str | None = None


class ActionRequest(pydantic.BaseModel):
    """Body of `/process_action`: the policy's turn as generated.

    A second call with the same `request_id` gives the stored answer.
    """

    sid: Sid
    content: str
    request_id: RequestId | None = None


class ActionResponse(pydantic.BaseModel):
    """Answer of `/process_action`: what the policy reads, and whether its turn ended the episode."""

    content: str
    done: bool = False


class SidRequest(pydantic.BaseModel):
    """Body of `/postprocess` and `/compute_reward`."""

    sid: Sid


class RewardResponse(pydantic.BaseModel):
    """Answer of `/compute_reward`; a backend may add fields. Counts are of passing tests, and of all of a kind."""

    model_config = pydantic.ConfigDict(extra="allow")
    reward: float
    f2p_count: int | None = None
    f2p_total: int | None = None
    p2p_count: int | None = None
    p2p_total: int | None = None
