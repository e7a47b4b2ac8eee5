"""`called`, `called_successfully` and `failed_calls`: how the policy used its tools."""

from __future__ import annotations

from toolgym.envs.rewards.base import Outcome, OutcomeScorer
from toolgym.envs.types import ToolCallRecord
from toolgym.tools.errors import ConfigError


def called(tool: str | None = None) -> OutcomeScorer:
    """Return a scorer: 1 where a call reached the tool, else 0. A malformed call, which was not run, does not count.

    Args:
        tool: the tool's name; None: any.
    """
    _check(tool)
    return lambda outcome: float(any(one.arguments is not None for one in _of(outcome, tool)))


def called_successfully(tool: str | None = None) -> OutcomeScorer:
    """Return a scorer: 1 where a call of the tool went well (its status is `ok`), else 0.

    Args:
        tool: the tool's name; None: any.
    """
    _check(tool)
    return lambda outcome: float(any(one.status == "ok" for one in _of(outcome, tool)))


def failed_calls(tool: str | None = None) -> OutcomeScorer:
    """Return a scorer: how many calls failed, malformed ones included. In `weighted`, give it a weight below 0.

    A call that failed because of the infrastructure is not the policy's, and does not count.

    Args:
        tool: the tool's name; None: any, also calls whose name could not be read.
    """
    _check(tool)
    return lambda outcome: float(sum(one.status != "ok" and not one.infra_failure for one in _of(outcome, tool)))


def _check(tool: str | None) -> None:
    if not isinstance(tool, str | None):
        raise ConfigError(f"tool must be a tool's name or None, got {tool!r}")


def _of(outcome: Outcome, tool: str | None) -> list[ToolCallRecord]:
    return [one for one in outcome.tool_calls if tool is None or one.name == tool]
