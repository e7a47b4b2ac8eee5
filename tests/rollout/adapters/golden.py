"""The golden set: one trajectory of each kind that a trainer must take, and the rows that it must train on.

A trainer's test reads its own objects back, and compares:

    def read(trajectories):
        return [[response_row(one.prompt, one.response, one.mask, one.logprobs, one.reward) for one in their_rows(t)]
                for t in trajectories]

    assert_golden(read)

Float32 holds all of the numbers without rounding, so they are compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.rollout import Trajectory, Turn
from toolgym.rollout.trajectory import Failure, Segment, TokenSequence


class Row(NamedTuple):
    """What a trainer trains on in one row: a value for each token of prompt and response, padding taken away.

    `versions` are -1 where the policy did not sample, `earned` are the rewards of turns, and `kept` and `entropy` are
    payloads. None: the trainer has no place for it.
    """

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float
    versions: list[int] | None = None
    earned: list[float] | None = None
    kept: list[list[int]] | None = None
    entropy: list[float] | None = None


Read = Callable[[list[Trajectory]], Sequence[Sequence[Row]]]
"""Takes trajectories through a trainer's objects and back: for each its rows. Masked ones may be left out."""

_ELSEWHERE = {"mask": 0, "logprobs": 0.0, "versions": -1, "earned": 0.0, "kept": [], "entropy": 0.0}


def response_row(prompt: Any, response: Any, mask: Any, logprobs: Any, reward: Any, **per_token: Any) -> Row:
    """A row of a trainer whose values stand at the response's tokens alone, as tensors, arrays or lists."""
    prompt = _plain(prompt)
    given = {"mask": mask, "logprobs": logprobs, **per_token}
    whole = {name: [_ELSEWHERE[name]] * len(prompt) + _plain(values) for name, values in given.items()}
    return Row(tokens=prompt + _plain(response), reward=float(reward), **whole)


def sequence_row(sequence: TokenSequence, reward: Any) -> Row:
    """A row of a trainer that takes a token sequence as it is."""
    return response_row(sequence.prompt_ids, sequence.response_ids, sequence.response_mask, sequence.logprobs, reward)


def whole_row(tokens: Any, mask: Any, logprobs: Any, reward: Any, **per_token: Any) -> Row:
    """A row of a trainer whose values stand at the tokens of prompt and response."""
    further = {name: _plain(values) for name, values in per_token.items()}
    return Row(_plain(tokens), _plain(mask), _plain(logprobs), float(reward), **further)


def _plain(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


class Case(NamedTuple):
    """A trajectory and its rows; none, where nothing of it may be trained on."""

    name: str
    trajectory: Trajectory
    rows: tuple[Row, ...] = ()


def assert_golden(read: Read, *, several_rows: bool = True) -> None:
    """Assert that a trainer trains on the golden set's rows, token by token, in the order of the trajectories.

    What stands behind the last sampled token trains nothing, and some trainers leave it out.

    Args:
        read: see `Read`.
        several_rows: whether the trainer takes trajectories of several sequences.
    """
    cases = [case for case in CASES if several_rows or len(case.trajectory.sequences) < 2]
    found = read([case.trajectory for case in cases])
    assert len(found) == len(cases)
    for case, rows in zip(cases, found, strict=True):
        trained = [row for row in rows if any(row.mask)]
        assert len(trained) == len(case.rows), case.name
        for row, golden_row in zip(trained, case.rows, strict=True):
            assert not any(golden_row.mask[len(row.tokens) :]), f"length of {case.name!r}"
            for name, value in row._asdict().items():
                expected = getattr(golden_row, name)
                if isinstance(expected, list):
                    expected = expected[: len(row.tokens)]
                assert value is None or value == expected, f"{name} of {case.name!r}"


# ------------------------------------------------------------------ what is derived from an id


def logprob(token: int) -> float:
    return -token / 64


def entropy(token: int) -> float:
    return token / 32


def kept(token: int) -> list[int]:
    """Ids that a sampler kept, an even number of them for even ids."""
    return [token, token + 1] if token % 2 == 0 else [token]


def policy(*ids: int, versions: str | None = None) -> Segment:
    """Tokens that the policy sampled, and a digit for the version of each one's weights."""
    width = max(len(kept(one)) for one in ids)
    masks = [kept(one) + [-1] * (width - len(kept(one))) for one in ids]
    aligned = {
        "sampling_mask": np.array(masks, np.int32),
        "entropy": np.array([entropy(one) for one in ids], np.float32),
    }
    return Segment.policy(ids, [logprob(one) for one in ids], versions or "3" * len(ids), aligned)


def env(*ids: int) -> Segment:
    return Segment.env(ids)


def trained(
    prompt: Sequence[int], response: Sequence[int], versions: str, reward: float, earned: dict[int, float]
) -> Row:
    """A golden row.

    Args:
        prompt, response: ids.
        versions: of each id of the response, a digit where the policy sampled it and a point elsewhere.
        reward: of the whole trajectory.
        earned: rewards of turns, by the place in the response.
    """
    assert len(versions) == len(response)
    own = [one != "." for one in versions]

    def where_own(of: Callable[[int], Any], elsewhere: Any) -> list[Any]:
        return [elsewhere] * len(prompt) + [
            of(one) if is_own else elsewhere for one, is_own in zip(response, own, strict=True)
        ]

    before = len(prompt)
    return Row(
        tokens=[*prompt, *response],
        mask=where_own(lambda one: 1, 0),
        logprobs=where_own(logprob, 0.0),
        reward=reward,
        versions=[-1] * before + [-1 if one == "." else int(one) for one in versions],
        earned=[earned.get(place - before, 0.0) for place in range(before + len(response))],
        kept=where_own(kept, []),
        entropy=where_own(entropy, 0.0),
    )


# ------------------------------------------------------------------ the set

CALLED = ToolCallRecord(id="c", name="code_interpreter", arguments={}, status="ok", text="6", reward=0.25)
BROKEN = {"stop_reason": StopReason.ENGINE_FAILED, "error": Failure("EngineError: gone", 0)}


def turn(tokens: int, reward: float | None, sequence: int = 0) -> Turn:
    return Turn("said", "stop", 3, tokens, reward=reward, tool_calls=(CALLED,), sequence=sequence)


def trajectory(*segments: Segment, prompt=(5, 6, 7), reward=1.0, number=0, **changes: Any) -> Trajectory:
    """A trajectory of one sequence, two to a group. Each segment of the policy is a turn with half of the reward."""
    given = {
        "id": f"t{number}",
        "env_id": "CodeInterpreter-v0",
        "task_id": str(number // 2),
        "source": "sums",
        "group_id": f"group{number // 2}",
        "task_index": number // 2,
        "sample_index": number % 2,
        "messages": ({"role": "user", "content": "What is 2*3?"},),
        "tools": (),
        "sequences": (TokenSequence(np.array(prompt), segments),),
        "reward": reward,
        "stop_reason": StopReason.ANSWERED,
        "turns": tuple(turn(len(one), reward / 2) for one in segments if one.is_policy),
        "ground_truth": "6",
    }
    return Trajectory(**{**given, **changes})


def _sequences(*given: tuple[Sequence[int], tuple[Segment, ...]]) -> tuple[TokenSequence, ...]:
    reasons = ("start", *["template"] * (len(given) - 1))
    return tuple(
        TokenSequence(np.array(prompt), segments, reason)
        for (prompt, segments), reason in zip(given, reasons, strict=True)
    )


CASES: tuple[Case, ...] = (
    Case(
        "several turns",
        trajectory(policy(10, 11, 12), env(30, 31), policy(13, 14), number=0),
        (trained((5, 6, 7), (10, 11, 12, 30, 31, 13, 14), "333..33", 1.0, {2: 0.5, 6: 0.5}),),
    ),
    Case(
        "one token",
        trajectory(policy(15), prompt=(8,), reward=0.25, number=1),
        (trained((8,), (15,), "3", 0.25, {0: 0.25}),),
    ),
    Case(
        "cut at its length",
        trajectory(policy(16, 17), env(30, 31), reward=0.0, stop_reason=StopReason.LENGTH, number=2),
        (trained((5, 6, 7), (16, 17, 30, 31), "33..", 0.0, {}),),
    ),
    Case("nothing sampled", trajectory(reward=0.5, stop_reason=StopReason.BUDGET, number=3)),
    Case("failed on the way", trajectory(policy(18, 19, 20), env(30, 31), reward=0.75, number=4, **BROKEN)),
    Case("failed before its prompt", trajectory(sequences=(), reward=0.0, number=5, **BROKEN)),
    Case(
        "resumed under new weights",
        trajectory(policy(21, 22, 23, versions="334"), env(30, 31), policy(24, versions="4"), number=6),
        (trained((5, 6, 7), (21, 22, 23, 30, 31, 24), "334..4", 1.0, {2: 0.5, 5: 0.5}),),
    ),
    Case(
        "as long as can be",
        trajectory(policy(*range(40, 52)), prompt=tuple(range(60, 68)), reward=-1.5, number=7),
        (trained(tuple(range(60, 68)), tuple(range(40, 52)), "3" * 12, -1.5, {11: -1.5}),),
    ),
    Case(
        "an empty turn",
        trajectory(
            policy(25, 26),
            env(2, 32),  # the observation, then the end of a turn without a token, and what the env said to that
            policy(27),
            number=8,
            turns=(turn(2, 0.25), turn(0, 0.25), turn(1, 0.5)),
        ),
        (trained((5, 6, 7), (25, 26, 2, 32, 27), "33..3", 1.0, {1: 0.5, 4: 0.5}),),
    ),
    Case("aborted", trajectory(policy(28, 29), reward=0.5, stop_reason=StopReason.ABORTED, number=9)),
    Case(
        "the parent of a branch",
        trajectory(policy(10, 33), env(30), policy(34), reward=0.5, number=10),
        (trained((5, 6, 7), (10, 33, 30, 34), "33.3", 0.5, {1: 0.25, 3: 0.25}),),
    ),
    Case(
        "branched before its parent's second turn",
        trajectory(policy(10, 33), env(30), policy(35, 36), reward=0.0, number=11, parent="t10", branch_turn=1),
        (trained((5, 6, 7), (10, 33, 30, 35, 36), "33.33", 0.0, {}),),
    ),
    Case(
        "several sequences",
        trajectory(
            sequences=_sequences(
                ((5, 6, 7), (policy(37, 38), env(30))),
                ((5, 9), ()),
                ((5, 9, 8), (policy(39, versions="4"), env(31), policy(10, 11, versions="44"))),
            ),
            turns=(turn(2, 0.25), turn(1, 0.25, 2), turn(2, 0.25, 2)),
            number=12,
        ),
        (
            trained((5, 6, 7), (37, 38, 30), "33.", 1.0, {1: 0.25}),
            trained((5, 9, 8), (39, 31, 10, 11), "4.44", 1.0, {0: 0.25, 3: 0.5}),
        ),
    ),
)


def golden() -> list[Trajectory]:
    """The trajectories of one sequence at most, two to a group, as the groups of a run."""
    return [case.trajectory for case in CASES if len(case.trajectory.sequences) < 2]


# ------------------------------------------------------------------ a group of episodes with several sequences each


def _of_sequences(count: int, reward: float, number: int, **changes: Any) -> Trajectory:
    """An episode of the group, with a turn in each of its sequences."""
    given = [((5, 6, 7, *range(number)), (policy(10 + one, 20 + number),)) for one in range(count)]
    return trajectory(
        sequences=_sequences(*given),
        turns=tuple(turn(2, reward / count, one) for one in range(count)),
        reward=reward,
        number=number,
        **{"group_id": "grouped", "task_index": 0, "sample_index": number, **changes},
    )


GROUP = (
    _of_sequences(2, 0.0, 0),
    _of_sequences(1, 1.0, 1),
    _of_sequences(1, 0.75, 2, **BROKEN),
    _of_sequences(3, 0.25, 3),
)
"""A group of four: 2, 1 and 3 sequences, and an episode that broke."""


def assert_grouped(read: Callable[[list[Trajectory]], Sequence[Sequence[float]]], *, deviation: bool) -> None:
    """Assert that a trainer's group is made of episodes: each row has its episode's advantage, whatever their number.

    Args:
        read: takes `GROUP` through the trainer's own code and back: for each trajectory the advantages of its rows.
        deviation: whether they are divided by the deviation of the group's rewards.
    """
    rewards = np.array([one.reward for one in GROUP if not one.failed])
    scale = rewards.std(ddof=1) if deviation else 1.0
    for one, rows in zip(GROUP, read(list(GROUP)), strict=True):
        if one.failed:
            assert not any(rows)
        else:
            expected = (one.reward - rewards.mean()) / scale
            assert np.allclose(list(rows), [expected] * len(one.sequences), atol=1e-4), (one.id, rows, expected)
            assert len(rows) == len(one.sequences)
