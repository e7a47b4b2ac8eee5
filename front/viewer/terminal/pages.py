"""One trajectory as blocks of text: its conversation, its times, its facts, and the tree of its branches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.segment import Segment

from toolgym.envs.types import ToolCallRecord
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn, plain
from toolgym.tools.message import Message, described
from toolgym.tools.views.conversation import arguments_text
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.terminal.run_list import number, outcome
from toolgym.viewer.terminal.text_view import Block, piece

ROLES = {"system": "bold magenta", "user": "bold cyan", "assistant": "bold green", "tool": "bold yellow"}
LONG = 2_000
"""Characters above which a message of the user or the policy begins folded."""

BAR = 32
"""Cells of the longest bar of times."""

DEEPEST = 60
"""Characters of the lines before a branch in the tree."""

PHASES = (("engine", "green", "█"), ("tools", "yellow", "▓"), ("queue", "red", "▒"))
IDENTITY = ("id", "env_id", "task_id", "source", "group_id", "task_index", "sample_index", "training_step", "role",
            "validate", "parent", "branch_turn", "seconds")  # fmt: skip


def conversation(trajectory: Trajectory) -> list[Block]:
    """Messages, reasoning, calls and results. Calls, results and what is long begin folded."""
    turns = dict(zip(trajectory.turn_places, enumerate(trajectory.turns), strict=False))
    blocks: list[Block] = []
    records: dict[str, ToolCallRecord] = {}
    for place, message in enumerate(trajectory.messages):
        role, text, thinking = message["role"], described(message["content"]), message.get("reasoning_content", "")
        title = [piece(role, ROLES.get(role, "bold"))]
        if place in turns:
            at, turn = turns[place]
            records = {record.id: record for record in turn.tool_calls}
            title.append(piece(f"  turn {at}  {turn.generated_tokens} tokens  {turn.engine_seconds:.2f} s", "dim"))
            title += [piece(f"  cut: {turn.finish_reason}", "bold red")] if turn.truncated else []
        if role == "tool":
            title = _result_title(message, records.get(message.get("tool_call_id", "")))
        if thinking:
            blocks.append(Block([*title, piece("  reasoning", "italic")], thinking, "dim italic"))
        if text or not thinking:
            blocks.append(Block(title, text, folded=role in ("system", "tool") or len(text) > LONG))
        for call in message.get("tool_calls", ()):
            heading = [piece(f"→ {call['function']['name']}", "bold yellow")]
            blocks.append(Block(heading, arguments_text(call["function"]["arguments"]), "yellow", folded=True))
    failure = trajectory.error
    text = "" if failure is None else f"in turn {failure.turn}: {failure.message}"
    end = f"{'■' if failure is None else '✗'} {trajectory.stop_reason}, reward {trajectory.reward:g}"
    return [*blocks, Block([piece(end, "bold" if failure is None else "bold red")], text, "red")]


def _result_title(message: Message, record: ToolCallRecord | None) -> list[Segment]:
    title = [piece(f"← {message.get('name') or 'call'}", "bold yellow")]
    if record is None:
        return title
    status = record.status + (" (infrastructure)" if record.infra_failure else "")
    style = "green" if record.status == "ok" else "bold red"
    return [*title, piece(f"  {status}", style), piece(f"  {record.seconds:.2f} s", "dim")]


def message_text(message: Message) -> str:
    """All that a message says as one text: reasoning, content and calls."""
    calls = (call["function"] for call in message.get("tool_calls", ()))
    texts = [f"→ {call['name']}\n{arguments_text(call['arguments'])}" for call in calls]
    return "\n".join(filter(None, [message.get("reasoning_content"), described(message["content"]), *texts]))


def laid_out(text: str) -> str:
    """JSON with a key in each line, and lists of numbers in one; another text as it is."""
    try:
        text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    except ValueError:
        return text
    return re.sub(r"\[[\s\d.,eE+-]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)


def times(trajectory: Trajectory) -> list[Block]:
    """A bar for each turn, of one scale, with the calls of its tools; and what the whole episode took."""
    phases = [(turn.engine_seconds, turn.env_seconds, turn.queue_seconds) for turn in trajectory.turns]
    sums = [sum(phase) for phase in zip(*phases, strict=True)] or [0.0] * 3
    scale = BAR / (max(map(sum, phases), default=0.0) or 1.0)
    named = zip(PHASES, sums, strict=True)
    legend = [piece(f"{sign} {name} {total:.3f} s   ", colour) for (name, colour, sign), total in named]
    rest = piece(f"rest {trajectory.seconds - sum(sums):.3f} s")
    blocks = [Block([piece(f"{trajectory.seconds:.3f} s in all   ", "bold"), *legend, rest])]
    for at, (turn, seconds) in enumerate(zip(trajectory.turns, phases, strict=True)):
        bar = [piece(sign * round(scale * s), colour) for (_, colour, sign), s in zip(PHASES, seconds, strict=True)]
        blank = " " * (BAR + 1 - sum(len(part.text) for part in bar))
        blocks.append(Block([piece(f"turn {at:<3} ", "bold"), *bar, piece(blank + _speed(turn))], _calls(turn), "dim"))
    return blocks


def _speed(turn: Turn) -> str:
    speed = f", {turn.generated_tokens / turn.engine_seconds:,.0f}/s" if turn.engine_seconds else ""
    waited = f" + {turn.queue_seconds:.3f}" if turn.queue_seconds else ""
    return f"{turn.engine_seconds:.3f} + {turn.env_seconds:.3f}{waited} s  {turn.generated_tokens} tokens{speed}"


def _calls(turn: Turn) -> str:
    return "\n".join(
        f"{call.name or 'call'}: {call.status}, {call.seconds:.3f} s"
        + (f", sent again {call.retries} times" if call.retries else "")
        for call in turn.tool_calls
    )


def facts(trajectory: Trajectory, advantage: float | None) -> list[Block]:
    """All else that is known of the trajectory."""
    rewards = {
        "reward": trajectory.reward,
        "success": succeeded(trajectory),
        "may be trained on": trajectory.usable,
        "advantage": "none" if advantage is None else advantage,
        "rewards of turns": [turn.reward for turn in trajectory.turns],
        **trajectory.metrics,
    }
    started = datetime.fromtimestamp(trajectory.started_at, UTC).isoformat(sep=" ", timespec="seconds")
    identity = {**{name: getattr(trajectory, name) for name in IDENTITY}, "started_at": started}
    blocks = [_table("reward and metrics", rewards)]
    if trajectory.error is not None:
        blocks.append(_table(f"error: {trajectory.stop_reason}", asdict(trajectory.error), "red"))
    blocks += [Block([piece("ground truth", "bold")], _text(trajectory.ground_truth)), _table("identity", identity)]
    for at, sequence in enumerate(trajectory.sequences):
        sizes = {
            "begun by": sequence.start_reason,
            "prompt tokens": len(sequence.prompt_ids),
            "response tokens": len(sequence.response_ids),
            "policy tokens": sequence.policy_tokens,
            "weight versions": ", ".join(dict.fromkeys(filter(None, sequence.weight_versions))),
        }
        blocks.append(_table(f"token sequence {at}", sizes))
    blocks += [_table("sampling", trajectory.sampling), _table("settings of the run", trajectory.settings)]
    blocks += [_table("peers", {peer.id: peer.reward for peer in trajectory.peers})] if trajectory.peers else []
    schemas = [json.dumps(plain(schema), indent=1, ensure_ascii=False) for schema in trajectory.tools]
    return blocks + [Block([piece("a tool's schema", "bold")], schema, folded=True) for schema in schemas]


def tree(index: RunIndex, row: Row) -> list[Block]:
    """The episode's oldest parent and all that was branched from it, the episode itself marked; Enter opens one."""
    root, seen = row, {row.number}
    while root.parent in index.by_id and (up := index.by_id[root.parent]) not in seen:
        seen.add(up)
        root = index.rows[up]
    notes = [] if root.parent is None else [Block([piece(f"its parent {root.parent} is not in these files", "red")])]
    blocks = [*notes, *_subtree(root, row, index.group(root))]
    alone = Block(text="no episode was branched from it, and it was branched from none", style="dim")
    return blocks if len(blocks) > 1 else [*blocks, alone]


def _subtree(root: Row, marked: Row, members: Iterable[Row]) -> Iterator[Block]:
    """Without recursion: a branch may be branched from thousands of times, each from the one before."""
    children: dict[str | None, list[Row]] = {}
    for member in sorted(members, key=lambda member: (member.branch_turn or 0, member.number), reverse=True):
        children.setdefault(member.parent, []).append(member)
    rest, seen = [(root, "", "")], set[int]()
    while rest:
        row, stem, below = rest.pop()
        if row.number in seen:
            continue
        seen.add(row.number)
        sign, colour = outcome(row)
        at = "" if row.branch_turn is None else f"left at turn {row.branch_turn}: "
        text = f"{sign} {at}sample {row.sample}  reward {number(row.reward)}  {row.stop}  turns {row.turns}"
        here = "  ◀ this one" if row.number == marked.number else ""
        yield Block([piece(stem, "dim"), piece(text, colour), piece(here, "bold")], key=row)
        below = below if len(below) < DEEPEST else f"…{below[-DEEPEST + 3 :]}"
        for place, child in enumerate(children.get(row.id, ()) if row.id else ()):
            rest.append((child, f"{below}{'├─ ' if place else '└─ '}", f"{below}{'│  ' if place else '   '}"))


def _table(title: str, values: Mapping[str, Any], style: str = "") -> Block:
    width = max(map(len, values), default=0)
    text = "\n".join(f"{name:<{width}}  {_text(value)}" for name, value in values.items())
    return Block([piece(title, "bold")], text or "nothing", style)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
