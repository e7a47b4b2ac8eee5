"""`add_group_reward`: rewards that depend on the other trajectories of a group, added after the rollout."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolgym.envs.rewards.judge import question_of
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.advantages.advantages import by_group
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, require_trajectories
from toolgym.tools.concurrency.blocking import function_name
from toolgym.tools.concurrency.deadline import DeadlineError, together, with_deadline
from toolgym.tools.concurrency.execution_pool import call_function
from toolgym.tools.errors import ConfigError, check_seconds, error_text, finite_number, require_whole_number
from toolgym.tools.keywords import named_keywords
from toolgym.tools.library.final_answer import without_thinking

GroupReward = Callable[[Sequence[Trajectory]], Sequence[float] | Awaitable[Sequence[float]]]
"""From the trajectories of a group to a reward for each, in the same order. It may be async; a plain function is called
in a thread, unless `toolgym.tools.runs_inline` marks it."""

Comparison = Callable[[str, str, str], float | Awaitable[float]]
"""From a question and two answers to how much better the first answer is: 1 better, 0 worse, 0.5 equally good. It is
called as a `GroupReward` is."""

log = logging.getLogger("toolgym.rollout.advantages.group_rewards")


@named_keywords
async def add_group_reward(
    trajectories: Iterable[Trajectory],
    reward: GroupReward,
    *,
    weight: float = 1.0,
    name: str = "group",
    per: Callable[[Trajectory], Hashable] = by_group,
    timeout: float = 600.0,
) -> list[Trajectory]:
    """Return the trajectories in the order given, each with a reward of its group added.

    Call it on whole groups, before advantages are computed and batches are made. The function gets only trajectories
    that count (see `StopReason.in_group_statistics`); the others stay as they are. The reward goes to the policy's last
    token (see `token_rewards`), and to the metrics as `score/NAME`, without its weight. If the function fails for a
    group, or needs more than `timeout` wall seconds, the trajectories of that group fail, with `score_failed` or
    `score_timeout`.

    Args:
        trajectories: whole groups, in any order.
        reward: `pairwise_reward(...)`, `diversity_reward(...)`, or a function of your own.
        weight: the function's rewards are multiplied with it.
        name: its name in the metrics.
        per: what the trajectories of a group have in common, by default group and role.
        timeout: wall seconds for one group.

    Raises:
        ConfigError: an argument is of the wrong kind, or the function gave something else than a finite number for each
            trajectory.
    """
    episodes = require_trajectories(trajectories)
    if not callable(reward):
        raise ConfigError(f"a group's reward is a function of its trajectories, got {reward!r}")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"weight must be a finite number, got {weight!r}")
    check_seconds(timeout=timeout)
    groups: dict[Hashable, list[int]] = {}
    for index, episode in enumerate(episodes):
        if episode.in_group_statistics:
            groups.setdefault(per(episode), []).append(index)
    rewarded = list(episodes)

    async def add(places: list[int]) -> None:
        members = [episodes[index] for index in places]
        try:
            rewards = await with_deadline(_rewards(reward, members), timeout)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  one group that cannot be judged must not cost the others
            members = _failures(members, error)
        else:
            members = [_rewarded(*pair, weight, name) for pair in zip(members, rewards, strict=True)]
        for index, member in zip(places, members, strict=True):
            rewarded[index] = member

    await together(map(add, groups.values()))
    return rewarded


def pairwise_reward(compare: Comparison, *, both_orders: bool = True) -> GroupReward:
    """Return a group's reward: the share of the others that each answer beats, a draw counting half, from 0 to 1.

    An answer is the last message of the policy, without its thinking. A single trajectory gets 0.5.

    Args:
        compare: says which of two answers is better; `LLMJudge.compare` does. Async comparisons run at the same time.
        both_orders: ask for each pair in both orders and take the mean, since language models prefer a place (Zheng et
            al., arXiv 2306.05685); else once, the earlier answer first.
    """
    if not callable(compare):
        raise ConfigError(f"compare must be a function of a question and two answers, got {compare!r}")

    async def asked(question: str, first: str, second: str) -> float:
        value = await call_function(compare, question, first, second)
        number = None if isinstance(value, bool) else finite_number(value)
        if number is None or not 0 <= number <= 1:
            raise ConfigError(f"a comparison gives a number from 0 to 1, got {value!r} from {function_name(compare)!r}")
        return number

    async def reward(group: Sequence[Trajectory]) -> list[float]:
        count = len(group)
        if count == 1:
            return [0.5]
        question, answers = _question(group[0]), [answer_of(member) for member in group]
        pairs = [
            (first, second)
            for first in range(count)
            for second in range(count)
            if first < second or (both_orders and first > second)
        ]
        shares = await together(asked(question, answers[a], answers[b]) for a, b in pairs)
        wins = [0.0] * count
        for (first, second), share in zip(pairs, shares, strict=True):
            wins[first] += share
            wins[second] += 1 - share
        rounds = (count - 1) * (2 if both_orders else 1)
        return [won / rounds for won in wins]

    return reward


def diversity_reward(*, words: int = 3, text: Callable[[Trajectory], str] | None = None) -> GroupReward:
    """Return a group's reward: the distance of each response from the others, from 0 (the same) to 1 (nothing in
    common): the mean of one minus the Jaccard similarity of the sets of runs of so many words in `text`, by default in
    all that the policy wrote. A single trajectory gets 0."""
    require_whole_number("words", words, at_least=1)
    if text is not None and not callable(text):
        raise ConfigError(f"text must be a function of a trajectory, got {text!r}")

    def read(trajectory: Trajectory) -> str:
        return "\n".join(turn.text for turn in trajectory.turns) if text is None else text(trajectory)

    def reward(group: Sequence[Trajectory]) -> list[float]:
        runs = [_runs(read(member).split(), words) for member in group]
        return [
            math.fsum(1 - len(mine & other) / len(mine | other) for at, other in enumerate(runs) if at != place)
            / max(1, len(runs) - 1)
            for place, mine in enumerate(runs)
        ]

    return reward


def answer_of(trajectory: Trajectory) -> str:
    texts = (message["content"] for message in reversed(trajectory.messages) if message["role"] == "assistant")
    return without_thinking(next(texts, "")).strip()


def _question(trajectory: Trajectory) -> str:
    """Return the last user's message before the policy's first turn."""
    places = trajectory.turn_places
    return question_of(trajectory.messages[: places[0]] if places else trajectory.messages)


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + length]) for at in range(max(1, len(words) - length + 1))}


async def _rewards(reward: GroupReward, members: Sequence[Trajectory]) -> list[float]:
    answer: Any = await call_function(reward, members)
    wanted = f"the group reward {function_name(reward)!r} must return a finite number for each of {len(members)}"
    try:
        values = [] if isinstance(answer, str | Mapping) else [*answer]
    except TypeError:
        raise ConfigError(f"{wanted} trajectories, got {answer!r}") from None
    rewards = [number for number in map(finite_number, values) if number is not None]
    if len(values) != len(members) or len(rewards) != len(members):
        raise ConfigError(f"{wanted} trajectories, got {answer!r}")
    return rewards


def _rewarded(trajectory: Trajectory, reward: float, weight: float, name: str) -> Trajectory:
    metrics = {**trajectory.metrics, f"score/{name}": reward}
    return replace(trajectory, reward=trajectory.reward + weight * reward, metrics=metrics)


def _failures(members: Sequence[Trajectory], error: Exception) -> list[Trajectory]:
    reason = StopReason.SCORE_TIMEOUT if isinstance(error, DeadlineError) else StopReason.SCORE_FAILED
    if isinstance(error, EpisodeFailedError):
        reason = error.stop_reason
    log.warning("the reward of group %s failed: %s", members[0].group_id, error_text(error))
    message = f"the reward of the group: {error_text(error)}"
    return [
        replace(member, stop_reason=reason, error=Failure(message, max(0, len(member.turns) - 1))) for member in members
    ]
