"""`captured_rows`: the sequences of an episode, and what a trajectory says of them.

The first call that goes on from another one continues its sequence. Each further one begins a sequence, whose prompt
has all that stands before it, so a sampled token is trained on in one sequence only. An answer that no agent got, and a
sequence of a kind that is not trained on, are left out and counted by name: a row in which nothing is trained on says
nothing to a trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from toolgym.rollout.capture.forest import ASIDE, GOES_ON, CapturedCall, Forest, State
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Turn
from toolgym.tools.message import Message


@dataclass(frozen=True)
class CapturedRows:
    """The rows of an episode, those of its main conversation first; `turns` and `messages` in the same order.

    `main` is the root of the main conversation, and `left_out` counts calls and tokens that are in no row, by reason.
    Messages of a row begin behind the last turn in its prompt, so that each turn of the policy has its message.
    """

    main: CapturedCall | None
    sequences: tuple[TokenSequence, ...]
    turns: list[Turn]
    messages: list[Message]
    left_out: Counter[str]


@dataclass(frozen=True)
class _Row:
    calls: tuple[CapturedCall, ...]
    cause: str
    kind: str

    @property
    def first(self) -> CapturedCall:
        return self.calls[0]


def captured_rows(forest: Forest, untrained: Collection[str], reward: float) -> CapturedRows:
    """The rows of all calls that are trained on; `untrained` names causes of sequences, and states of calls, that are
    not. The last turn that is none of a sub-agent or a side call has the reward."""
    main = _main(forest.roots)
    lost = {*_LOST, *untrained}
    left_out: Counter[str] = Counter()
    rows: list[_Row] = []
    for row in _rows(forest, main, lost):
        kept = []
        for call in row.calls:
            names = (call.state, *([CONSTRAINED] if call.constrained else []), row.kind, row.cause)
            reasons = [name for name in names if name in lost]
            if reasons:
                left_out[reasons[0]] += 1
                left_out[f"{reasons[0]}_tokens"] += len(call.token_ids)
            else:
                kept.append(call)
        if kept:
            rows.append(_Row(tuple(kept), row.cause, row.kind))
    rows.sort(key=lambda row: (row.cause != "start", row.kind != "start", row.first.number))
    last = max((row.calls[-1].number for row in rows if row.kind not in ASIDE), default=None)
    turns: list[Turn] = []
    messages: list[Message] = []
    for number, row in enumerate(rows):
        for place, call in enumerate(row.calls):
            turns.append(_turn(row, place, number, reward if call.number == last else None))
            messages += _messages(call, begins=not place and number > 0)
    return CapturedRows(main, tuple(map(_sequence, rows)), turns, messages, left_out)


CONSTRAINED = "constrained"
"""Name of calls whose turns were sampled under a grammar."""

_LOST = (State.UNDELIVERED,)
"""States of calls whose answers never reached the agent, and whose tokens are left out."""


def _main(roots: Sequence[CapturedCall]) -> CapturedCall | None:
    """The root of the main conversation: the first that goes on or has tools; none of a sub-agent, and none whose
    answer was lost, if there are others."""
    answered = [root for root in roots if root.state is not State.GENERATING]
    usable = [root for root in answered if root.state not in _LOST] or answered
    ours = [root for root in usable if not root.agent] or usable
    main = next((root for root in ours if root.children or root.renderer.tools), ours[0] if ours else None)
    if main is None or main.children:
        return main
    return next((root for root in ours if root.children and _are_twins(root, main)), main)


def _rows(forest: Forest, main: CapturedCall | None, lost: Collection[str]) -> list[_Row]:
    calls_of: dict[int, list[CapturedCall]] = {}
    row_of: dict[int, int] = {}
    for call in forest:
        if call.state is State.GENERATING:
            continue
        parent, row = call.parent, call.number
        if parent is not None and _successor(parent, lost) is call:
            row = row_of[parent.number]
        row_of[call.number] = row
        calls_of.setdefault(row, []).append(call)
    return [_Row(tuple(calls), _cause(calls[0], main, forest), _kind(calls[0], main)) for calls in calls_of.values()]


def _successor(call: CapturedCall, lost: Collection[str]) -> CapturedCall | None:
    """The call that continues the sequence of another one: the first whose answer was delivered, or the call that asked
    for the same and whose answer the agent went on from."""
    answered = [child for child in call.children if child.state is not State.GENERATING]
    first = min(answered, key=lambda child: (child.state in lost, child.number), default=None)
    if first is None or first.children:
        return first
    return next((child for child in answered if child.children and _are_twins(child, first)), first)


def _are_twins(call: CapturedCall, other: CapturedCall) -> bool:
    """Whether two calls asked for the same in the same place."""
    return call.twin is not None and call.twin is other.twin


def _cause(call: CapturedCall, main: CapturedCall | None, forest: Forest) -> str:
    """The cause of a sequence by its first call, now that it is known how all calls went on."""
    if call is main:
        return "start"
    cause = call.cause
    if cause not in ASIDE and call.twin is not None:
        if call is not _used_twin(call, forest):
            return "fork" if call.children else "retry"
        cause = call.twin.cause
    if cause == "start":
        kind = _kind(call, main)
        return kind if kind != "start" or main is None else main.cause
    if call.summarizes is not None and _is_summary(call, call.summarizes):
        return "compaction"
    return "fork" if cause == GOES_ON else cause


def _used_twin(call: CapturedCall, forest: Forest) -> CapturedCall:
    """Of the calls that asked for the same as this one, the one that the agent went on from, or else the first."""
    siblings = forest.roots if call.parent is None else call.parent.children
    answered = [twin for twin in siblings if _are_twins(twin, call) and twin.state is not State.GENERATING]
    return min(answered, key=lambda twin: (twin.state in _LOST, not twin.children, twin.number), default=call)


def _is_summary(call: CapturedCall, known: CapturedCall) -> bool:
    """Whether a call without tools was a compaction: the agent went on with its answer as a text, or went on from the
    history before it. Otherwise it is the conversation's last answer."""
    return call.is_quoted or any(child.number > call.number for child in known.children)


def _kind(call: CapturedCall, main: CapturedCall | None) -> str:
    """The kind of conversation that a call belongs to, now that the main one is known. Others began before it."""
    origin = call.origin
    if call.summarizes is not None and _is_summary(call, call.summarizes):
        return "compaction"
    if main is not None and origin is main.origin:
        return "start"
    if origin.cause != "start":
        return origin.cause
    return "sub_agent" if origin.children or origin.renderer.tools else "side_call"


def _sequence(row: _Row) -> TokenSequence:
    before = [ids for call in row.first.path[:-1] for ids in (call.lead, call.token_ids)]
    prompt = np.concatenate([np.asarray(ids, np.int32) for ids in (*before, row.first.lead)])
    segments: list[Segment] = []
    for place, call in enumerate(row.calls):
        if place and call.lead:
            segments.append(Segment.env(call.lead))
        segments += [
            Segment.policy(part.token_ids, part.logprobs, part.weight_versions, part.aligned)
            for part in call.parts
            if part.token_ids
        ]
    return TokenSequence(prompt, tuple(segments), row.cause, row.calls[-1].images)


def _turn(row: _Row, place: int, sequence: int, reward: float | None) -> Turn:
    turn = row.calls[place].turn
    assert turn is not None
    behind = len(row.calls[place + 1].lead) if place + 1 < len(row.calls) else 0
    return replace_fields(turn, sequence=sequence, observation_tokens=behind, reward=reward)


def _messages(call: CapturedCall, *, begins: bool) -> list[Message]:
    """The messages of a call and its answer; at the beginning of a further row those behind the last turn in them, for
    that turn is none of the policy's in this row."""
    observation = [*call.observation]
    if begins:
        turns = [place for place, message in enumerate(observation) if message["role"] == "assistant"]
        observation = observation[turns[-1] + 1 :] if turns else observation
    return [*observation, *([] if call.message is None else [call.message])]
