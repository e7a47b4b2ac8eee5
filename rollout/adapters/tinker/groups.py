"""Trajectories that were played elsewhere as tinker-cookbook's own, which its `data_processing` makes `Datum`s of.

One transition is a turn, with the whole context as its observation. A context that does not begin with the one before
becomes a `Datum` of its own there (`rl/data_processing.py`), so several token sequences need nothing special.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolgym.rollout.adapters.tinker.contract import TokensWithLogprobs, tinker, types
from toolgym.rollout.adapters.tinker.env import stop_metric
from toolgym.rollout.advantages.advantages import grouped
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory


def to_groups(trajectories: Iterable[Trajectory]) -> list[types.TrajectoryGroup]:
    """Return the groups of trajectories, for `compute_advantages` and `assemble_training_data` of tinker-cookbook.

        groups = to_groups(trajectories)
        data, _ = assemble_training_data(groups, compute_advantages(groups))

    Those of one run, one task and one role are a group. A trajectory that is not usable is among its group's
    `rollout_errors`; a group without any usable one is left out.
    """
    groups = grouped(trajectories)
    return [_group(members) for members in groups if any(member.usable for member in members)]


def _group(members: list[Trajectory]) -> types.TrajectoryGroup:
    usable = [member for member in members if member.usable]
    return types.TrajectoryGroup(
        trajectories_G=[_trajectory(member) for member in usable],
        final_rewards_G=[float(member.reward) for member in usable],
        metrics_G=[{} for _ in usable],
        rollout_errors=[
            types.RolloutError(member.stop_reason.value, "" if member.error is None else member.error.message)
            for member in members
            if not member.usable
        ],
    )


def _trajectory(trajectory: Trajectory) -> types.Trajectory:
    turns = [turn for sequence in trajectory.sequences for turn in _turns(sequence)]
    transitions = [
        types.Transition(
            ob=tinker.ModelInput.from_ints(context) if context else tinker.ModelInput.empty(),
            ac=TokensWithLogprobs(tokens=ids, maybe_logprobs=logprobs),
            reward=0.0,  # the group has the whole episode's
            episode_done=False,
        )
        for context, ids, logprobs in turns
    ]
    transitions[-1].episode_done = True
    transitions[-1].metrics = stop_metric(trajectory)
    [reason] = transitions[-1].metrics
    return types.Trajectory(
        transitions=transitions,
        final_ob=tinker.ModelInput.empty(),
        stop_reason=reason.removeprefix(types.STOP_METRIC_PREFIX),
    )


def _turns(sequence: TokenSequence) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Yield context, ids and log-probabilities of each turn. Parts of a turn that was resumed follow each other."""
    context = sequence.prompt_ids.tolist()
    ids: list[int] = []
    logprobs: list[float] = []
    for segment in sequence.segments:
        if segment.is_policy:
            ids += segment.token_ids.tolist()
            logprobs += segment.logprobs.tolist()
        elif len(segment):
            if ids:
                yield context, ids, logprobs
            context, ids, logprobs = [*context, *ids, *segment.token_ids.tolist()], [], []
    if ids:
        yield context, ids, logprobs
