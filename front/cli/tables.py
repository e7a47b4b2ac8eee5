"""A rollout in a terminal: a table of figures, and one conversation in colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from toolgym.tools.message import described
from toolgym.tools.views.conversation import call_text
from toolgym.tools.views.html import without_controls

if TYPE_CHECKING:
    from toolgym.rollout.trajectory.trajectory import Trajectory
    from toolgym.tools.message import Message

_COLOURS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def summary_table(
    trajectories: Sequence[Trajectory], seconds: float, played: Sequence[Trajectory] | None = None
) -> Table:
    """Figures of a run; the trajectories that were `played` took these wall seconds, an earlier run had the others."""
    from toolgym.rollout.trajectory.summary import summarize

    figures = summarize(trajectories)
    count = len(trajectories)
    statuses = _counted(figures, "tool_calls/status/", 1)
    bad = Counter({name: number for name, number in statuses.items() if name != "ok"})
    failed = round(figures["failed/rate"] * count)
    episode_seconds = figures["seconds/mean"] or 1.0
    engine, tools = figures["engine_seconds/mean"], figures["env_seconds/mean"]

    envs = list(dict.fromkeys(trajectory.env_id for trajectory in trajectories))
    table = Table(title=f"{count} episodes of {', '.join(envs)}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    if "reward/mean" in figures:
        table.add_row("reward", f"{figures['reward/mean']:.3f} ± {figures['reward/std']:.3f}")
        table.add_row("success", f"{figures['success/mean']:.1%}")
        for env in envs:
            if (place := f"envs/{env}") + "/reward" in figures:
                reward, success = figures[f"{place}/reward"], figures[f"{place}/success"]
                text = f"{figures[f'{place}/episodes']:.0f} episodes, reward {reward:.3f}, success {success:.1%}"
                table.add_row(f"  {env}", text)
    else:
        table.add_row("reward", "no episode counts")
    table.add_row("turns", f"{figures['turns/mean']:.2f} per episode")
    table.add_row("tool calls", f"{figures['tool_calls/mean']:.2f} per episode, {_counts(bad) or 'all ok'}")
    policy = figures["tokens/policy"]
    rate = sum(trajectory.policy_tokens for trajectory in (trajectories if played is None else played)) / seconds
    table.add_row("tokens", f"{policy:,.0f} by the policy, {policy / count:.1f} per episode, {rate:,.0f}/s")
    table.add_row("stop reasons", _counts(_counted(figures, "stop_reason/", count)))
    table.add_row("failed", f"{failed} of {count} episodes")
    table.add_row("wall time", f"{seconds:.2f} s")
    table.add_row("time in engine", f"{engine:.3f} s per episode ({engine / episode_seconds:.0%} of it)")
    table.add_row("time in tools", f"{tools:.3f} s per episode ({tools / episode_seconds:.0%} of it)")
    return table


def pick_conversation(trajectories: Sequence[Trajectory]) -> Trajectory | None:
    """The conversation to show: a successful one with a tool call if there is one, else the liveliest."""
    from toolgym.rollout.trajectory.summary import succeeded

    return max(
        trajectories,
        key=lambda trajectory: (
            any(r.status == "ok" for r in trajectory.tool_calls),
            succeeded(trajectory),
            len(trajectory.messages),
        ),
        default=None,
    )


def message_text(message: Message) -> Text:
    role = message["role"]
    text = Text()
    text.append(f"{role}\n", style=f"bold {_COLOURS[role]}")
    text.append(without_controls(described(message["content"])), style=_COLOURS[role])
    for call in message.get("tool_calls", ()):
        separator = "\n" if message["content"] else ""
        text.append(f"{separator}→ {call_text(call['function'])}", style="bold magenta")
    return text


def conversation(trajectory: Trajectory) -> Panel:
    blocks = map(message_text, trajectory.messages)
    end = Text(f"reward {trajectory.reward:g}, {trajectory.stop_reason.value}", style="bold")
    title = f"task {trajectory.task_id or trajectory.task_index}, sample {trajectory.sample_index}"
    return Panel(Group(*blocks, end), title=Text(title), title_align="left")


def _counted(figures: Mapping[str, float], prefix: str, count: int) -> Counter[str]:
    """The figures of a prefix, those of 0 left out. Rates are multiplied by `count`, 1 if there are none."""
    return Counter(
        {
            name.removeprefix(prefix): round(value * count)
            for name, value in figures.items()
            if name.startswith(prefix) and value
        }
    )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counter.most_common())
