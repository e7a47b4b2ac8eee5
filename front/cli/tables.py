"""What a rollout looks like in a terminal: a table of figures, and one conversation in colour."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from toolgym.rollout.trajectory import Trajectory

_COLOURS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the scorer gave full marks (where an env reports no score, whether the reward reached 1)."""
    return not trajectory.failed and float(trajectory.metrics.get("score", trajectory.reward)) >= 1.0


def summary_table(trajectories: Sequence[Trajectory], seconds: float) -> Table:
    """Figures of a run.

    Args:
        trajectories: at least one.
        seconds: wall seconds of the run.
    """
    count = len(trajectories)
    calls = [record for one in trajectories for record in one.tool_calls]
    bad = Counter(record.status for record in calls if record.status != "ok")
    failures = Counter(one.stop_reason.value for one in trajectories if one.error is not None)
    reasons = Counter(one.stop_reason.value for one in trajectories)
    policy = sum(one.policy_tokens for one in trajectories)
    episode_seconds = sum(one.seconds for one in trajectories) or 1.0
    engine = sum(one.engine_seconds for one in trajectories)
    tools = sum(one.env_seconds for one in trajectories)
    rewards = [one.reward for one in trajectories]
    spread = statistics.stdev(rewards) if count > 1 else 0.0

    table = Table(title=f"{count} episodes of {trajectories[0].env_id}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("reward", f"{statistics.fmean(rewards):.3f} ± {spread:.3f}")
    table.add_row("success", f"{sum(map(succeeded, trajectories)) / count:.1%}")
    table.add_row("turns", f"{sum(len(one.turns) for one in trajectories) / count:.2f} per episode")
    table.add_row("tool calls", f"{len(calls) / count:.2f} per episode, {_counts(bad) or 'all ok'}")
    table.add_row("tokens", f"{policy:,} by the policy, {policy / count:.1f} per episode, {policy / seconds:,.0f}/s")
    table.add_row("stop reasons", _counts(reasons))
    table.add_row("errors", f"{sum(failures.values())} failed episodes: {_counts(failures)}" if failures else "0")
    table.add_row("wall time", f"{seconds:.2f} s")
    table.add_row("time in engine", f"{engine / count:.3f} s per episode ({engine / episode_seconds:.0%} of it)")
    table.add_row("time in tools", f"{tools / count:.3f} s per episode ({tools / episode_seconds:.0%} of it)")
    return table


def pick_conversation(trajectories: Sequence[Trajectory]) -> Trajectory | None:
    """The conversation to show: a successful one with a tool call if there is one, else the liveliest."""
    return max(
        trajectories,
        key=lambda one: (any(r.status == "ok" for r in one.tool_calls), succeeded(one), len(one.messages)),
        default=None,
    )


def conversation(trajectory: Trajectory) -> Panel:
    """One conversation, a colour per role."""
    blocks = []
    for message in trajectory.messages:
        role = message["role"]
        text = Text()
        text.append(f"{role}\n", style=f"bold {_COLOURS[role]}")
        text.append(message["content"], style=_COLOURS[role])
        for call in message.get("tool_calls", ()):
            function = call["function"]
            separator = "\n" if message["content"] else ""
            text.append(f"{separator}→ {function['name']}({_arguments(function['arguments'])})", style="bold magenta")
        blocks.append(text)
    end = Text(f"reward {trajectory.reward:g}, {trajectory.stop_reason.value}", style="bold")
    title = f"task {trajectory.task_id}, sample {trajectory.sample_index}"
    return Panel(Group(*blocks, end), title=Text(title), title_align="left")


def _arguments(arguments: object) -> str:
    if not isinstance(arguments, dict):
        return repr(arguments)
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counter.most_common())
