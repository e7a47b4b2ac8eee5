"""`SingleTurnEnv`: one question, one answer, no tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolgym.envs.actions import read_action
from toolgym.envs.base import Action
from toolgym.envs.library.gsm8k import gsm8k_tasks
from toolgym.envs.rewards.answer import exact, score_as_number, truth_texts
from toolgym.envs.rewards.base import Outcome, OutcomeScorer
from toolgym.envs.rewards.math_answer import same_value
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.answers.marks import marked_answer
from toolgym.tools.answers.numbers import read_number
from toolgym.tools.concurrency.execution_pool import runs_inline
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import system
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.parsers.base import read_plain_turn
from toolgym.tools.schema import ToolCall, ToolCallError

MATHEMATICS = ("math", "aime", "amc", "olympiad", "minerva", "numina")
"""A task's source that has one of these in its name is compared as mathematics."""

SYSTEM_PROMPT = "Solve the problem step by step. Then end with `#### <answer>`."


class SingleTurnEnv(ToolEnv):
    """An env whose episodes are one turn: the policy's first turn is its answer, whatever it writes.

    Args:
        tasks: where tasks come from. None: word problems written for `GSM8K-v0`.
        scorer: what an answer is worth. None: `score_by_source`, which needs a ground truth that is no object.
        env_kwargs: the other arguments of `ToolEnv`.
    """

    def __init__(
        self, tasks: TaskSource | Sequence[Task] | None = None, *, scorer: Any = None, **env_kwargs: Any
    ) -> None:
        self._by_source = scorer is None
        if scorer is None:
            scorer = score_by_source()
        super().__init__([], tasks if tasks is not None else _embedded(), scorer=scorer, **env_kwargs)

    def _read(self, action: Action) -> tuple[ParsedTurn, list[ToolCall | ToolCallError]]:
        """Return the answer. What looks like a call of a tool is text: there are none."""
        turn = read_action(action, read_plain_turn)
        return (turn._replace(content=turn.text, calls=[], errors=[]) if turn.requests else turn), []

    def prepare(self, task: Task) -> Task:
        if self._by_source and not truth_texts(task.ground_truth):
            raise ConfigError(f"task {task.id!r} has no ground truth: give it one, or the env a scorer")
        return task

    def gold_actions(self) -> list[Action] | None:
        truths = [] if self.task is None else truth_texts(self.task.ground_truth)
        return [f"#### {marked_answer(truths[0]) or truths[0]}"] if truths else None


def score_by_source() -> OutcomeScorer:
    """Return a scorer that compares as the task's source and ground truth want it.

    As mathematics (`same_value`, which needs the extra `math`) if the source's name says so, see `MATHEMATICS`; as
    numbers (`numeric`) if the ground truth is one, or GSM8K's solution that ends with one; else as text (`exact`), in
    any case.
    """
    as_number, as_text = score_as_number(), exact(ignore_case=True)
    as_mathematics: list[OutcomeScorer] = []  # made when it is needed, since it needs an extra

    @runs_inline
    def score(outcome: Outcome) -> Any:
        source, truths = outcome.task.source.lower(), truth_texts(outcome.task.ground_truth)
        if any(name in source for name in MATHEMATICS):
            if not as_mathematics:
                as_mathematics.append(same_value())
            return as_mathematics[0](outcome)
        return (as_number if all(map(_is_number, truths)) else as_text)(outcome)

    return score


def _is_number(truth: str) -> bool:
    marked = marked_answer(truth)
    text = (truth if marked is None else marked).strip().lstrip("$").rstrip(".")
    return read_number(text) is not None and set(text) <= {*"0123456789.,+-/eE "}


def _embedded() -> list[Task]:
    return [
        Task((system(SYSTEM_PROMPT), task.messages[-1]), task.ground_truth, source=task.source, id=task.id)
        for task in gsm8k_tasks().tasks
    ]
