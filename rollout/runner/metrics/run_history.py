"""Warnings about several runs of one engine or runner: a seed that is used again, and steps without a signal."""

from __future__ import annotations

import logging
from collections import Counter
from weakref import WeakKeyDictionary

from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import on_one_line, shorten
from toolgym.tools.schema import CallProblem

STEPS = 2
"""Steps without a signal after which the log says why."""

REPEATED = 3
"""Runs with the same seed and training step after which the log says so; fewer if the weights changed in between."""

MOST_SEEDS = 1024
"""Seeds with their training steps that are remembered."""

_log = logging.getLogger("toolgym.rollout")


class RunHistory:
    """The seeds and rewards of the training runs of an engine or a runner, until a warning is not needed any more."""

    def __init__(self) -> None:
        self._seeds: dict[tuple[int, int], tuple[int, str | None]] = {}  # runs, and the weights of the first
        self._warned_of_seed = False
        self._over = False  # a group had a signal, or the warning was given
        self._steps = 0
        self._rewards: dict[tuple[str, str], list[float]] = {}
        self._episodes = self._calls = 0
        self._ends: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()

    def began(self, config: RunConfig, weight_version: str | None) -> None:
        """Note that a run begins. Warn if runs of other weights, or several runs, had its seed and training step."""
        if config.validate or config.seed is None or self._warned_of_seed:
            return
        key = config.seed, config.training_step
        runs, version = self._seeds.get(key, (0, weight_version))
        self._seeds[key] = runs + 1, version
        if len(self._seeds) > MOST_SEEDS:
            del self._seeds[next(iter(self._seeds))]
        if runs + 1 >= REPEATED or version != weight_version:
            self._warned_of_seed = True
            _log.warning(
                "%d runs of this engine or runner had seed %d and training step %d, so they have the same tasks of a "
                "source, the same seeds of envs and the same sampling seeds. To train, count up "
                "RunConfig(training_step=...) or leave the seed out",
                runs + 1,
                *key,
            )

    def add(self, trajectory: Trajectory) -> None:
        """Note a trajectory of a training run."""
        if self._over:
            return
        self._episodes += 1
        self._ends[trajectory.stop_reason.value] += 1
        if trajectory.failed:
            self._failures[trajectory.stop_reason.value] += 1
        for turn in trajectory.turns:
            self._calls += len(turn.tool_calls)
            for call in turn.tool_calls:
                if call.status == CallProblem.UNKNOWN_TOOL.value:
                    self._unknown[call.name] += 1
        if trajectory.in_group_statistics:
            rewards = self._rewards.setdefault((trajectory.group_id, trajectory.role), [])
            rewards.append(trajectory.reward)
            if trajectory.reward != rewards[0]:
                self._forget()

    def end_step(self) -> None:
        """Note that a training step ends. Warn after some steps if no group had a signal."""
        if self._over or not self._episodes:
            return
        self._steps += 1
        compared = any(len(rewards) > 1 for rewards in self._rewards.values())
        if self._steps < STEPS or not (compared or self._failures.total() == self._episodes):
            return
        _log.warning("%s", " ".join(self._reasons()))
        self._forget()

    def _reasons(self) -> list[str]:
        sentences = [
            f"Nothing can be learnt from {self._steps} steps with {self._episodes} episodes: no group has two members "
            "that count and differ in reward, so all advantages are 0."
        ]
        if self._failures:
            [(reason, count)] = self._failures.most_common(1)
            sentences.append(f"{self._failures.total()} episodes failed, {count} of them with {reason}.")
        values = {reward for rewards in self._rewards.values() for reward in rewards}
        if len(values) == 1:
            sentences.append(f"Every reward is {values.pop():g}.")
        elif values:
            sentences.append(f"Rewards differ between tasks ({min(values):g} to {max(values):g}), not within a group.")
        if self._unknown:
            [(name, count)] = self._unknown.most_common(1)
            tool = on_one_line(shorten(repr(name), 60))
            sentences.append(f"{count} of {self._calls} tool calls are of {tool}, a tool that the env does not have.")
        elif self._rewards and not self._calls:
            sentences.append("No episode called a tool.")
        [(end, count)] = self._ends.most_common(1)
        sentences.append(f"{count} episodes ended with {end}.")
        sentences.append("Look at some of them (`toolgym view`), and at docs/debug_run.md.")
        return sentences

    def _forget(self) -> None:
        self._over = True
        self._rewards.clear()
        self._unknown.clear()


_histories: WeakKeyDictionary[object, RunHistory] = WeakKeyDictionary()


def history_of(owner: object) -> RunHistory:
    """Return the history of the runs of an engine, or of a runner whose workers have the engines, in this process."""
    try:
        history = _histories.get(owner)
        if history is None:
            history = _histories[owner] = RunHistory()
    except TypeError:  # an engine of a user's that has no hash, or no weak references
        return RunHistory()
    return history
