"""Trajectories and their groups in a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from toolgym.envs.types import ToolCallRecord
from toolgym.rollout.advantages.advantages import group_advantages, grouped
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn
from toolgym.rollout.views.tokens import STYLE, Texts, tokens_html, tokens_of
from toolgym.tools.views.conversation import conversation_html
from toolgym.tools.views.html import block, facts, fold, grid, note, page

MOST_ROWS = 200
"""Trajectories of a view of groups, and turns of a view of one trajectory."""

_FACTS = (
    *("id", "group_id", "task_index", "sample_index", "source", "ground_truth", "usable", "seconds", "engine_seconds"),
    *("env_seconds", "training_step", "validate", "role", "parent", "branch_turn", "sampling", "metrics", "settings"),
)
_TURN = ("prompt_tokens", "generated_tokens", "observation_tokens", "finish_reason", "reward", "engine_seconds")


def trajectory_html(trajectory: Trajectory, texts: Texts | None = None, first_token: int = 0) -> str:
    """The conversation, and folded: turns, tokens from `first_token` on, and facts."""
    problems = "\n".join(trajectory.problems)
    remarks = {record.id: _remark(record) for record in trajectory.tool_calls}
    conversation = conversation_html(trajectory.messages, where="trajectory.messages", remarks=remarks)
    tokens = list(tokens_of(trajectory))
    words = {} if texts is not None else {number: turn.text[:300] for number, turn in enumerate(trajectory.turns)}
    picture = tokens_html(tokens, texts, first_token, words)
    opened = texts is not None or first_token > 0
    versions = dict.fromkeys(token.version for token in tokens if token.version is not None)
    rows = [
        ("stop reason", f"{trajectory.stop_reason.value} (blame: {trajectory.stop_reason.blame.value})"),
        ("weight versions", ", ".join(versions)),
        *((name, getattr(trajectory, name)) for name in _FACTS),
    ]
    return page(
        repr(trajectory)[1:-1],
        f'<div class="bad">{block(problems)}</div>' if problems else "",
        fold(f"conversation, {len(trajectory.messages)} messages", conversation, shown=first_token == 0),
        fold(f"turns, {len(trajectory.turns)}", _turns(trajectory.turns)),
        fold(f"tokens, {trajectory.policy_tokens:,} of {len(tokens):,} the policy's", picture, shown=opened),
        fold("facts", facts(row for row in rows if row[1] not in (None, "", {}))),
        style=STYLE,
    )


def groups_html(trajectories: Sequence[Trajectory]) -> str:
    """A table for each group, with rewards and advantages."""
    advantages = dict(zip(map(id, trajectories), group_advantages(trajectories), strict=True))
    groups, parts, room = grouped(trajectories), [], MOST_ROWS
    head = ["sample", "reward", "advantage", "turns", "policy tokens", "stop reason", "blame", "problems"]
    for group in groups:
        members = sorted(group, key=lambda member: member.sample_index)[:room]
        room -= len(members)
        rewards = [member.reward for member in group if member.usable]
        figures = f"mean reward {sum(rewards) / len(rewards):.3g}" if rewards else "no reward counts"
        task = f"{group[0].env_id}, task {group[0].task_id or group[0].task_index}"
        table = grid(head, (_row(member, advantages[id(member)]) for member in members))
        if members:
            parts.append(fold(f"{task}: {len(group)} trajectories, {figures}", table, shown=len(groups) <= 20))
    if len(trajectories) > MOST_ROWS:
        parts.append(note(f"[{len(trajectories) - MOST_ROWS} trajectories left out: show a slice of the list]"))
    return page(f"{len(trajectories)} trajectories in {len(groups)} groups", *parts)


def _row(member: Trajectory, advantage: float | None) -> tuple[object, ...]:
    place = f"{member.sample_index}{f', from turn {member.branch_turn}' if member.parent else ''}"
    gain = "not trained on" if advantage is None else f"{advantage:+.3f}"
    end = (member.stop_reason.value, member.stop_reason.blame.value, "; ".join(member.problems))
    return place, f"{member.reward:g}", gain, len(member.turns), member.policy_tokens, *end


def _turns(turns: Sequence[Turn]) -> str:
    rows = (
        (number, *(getattr(turn, name) for name in _TURN), _counted(turn.tool_calls))
        for number, turn in enumerate(turns[:MOST_ROWS])
    )
    more = len(turns) - MOST_ROWS
    left_out = note(f"[{more} more turns left out: trajectory.turns[{MOST_ROWS}:]]") if more > 0 else ""
    return grid(["turn", *(name.replace("_", " ") for name in _TURN), "calls"], rows) + left_out


def _counted(records: Sequence[ToolCallRecord]) -> str:
    counts = Counter(f"{record.name or 'call'}: {record.status}" for record in records)
    return "; ".join(f"{count} × {call}" if count > 1 else call for call, count in counts.items())


def _remark(record: ToolCallRecord) -> str:
    return f"{record.status}, {record.seconds:.3f} s" + (", infrastructure" if record.infra_failure else "")
