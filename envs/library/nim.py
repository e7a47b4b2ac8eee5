"""`NimEnv`: a game for two, as an example of an env with roles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolgym.envs.roles.base import RolesEnv, RolesStep
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.tools.errors import require_whole_number
from toolgym.tools.message import system, user
from toolgym.tools.parsers.base import ParsedTurn

RULES = "Nim: take 1, 2 or 3 stones. The last stone wins."


class NimEnv(RolesEnv):
    """Two players take 1 to 3 stones of a pile in turn; the last stone wins: 1 for the winner, -1 for the loser.

    A turn is a number. Any other turn, one that is cut included, loses, and the other role, which did nothing for it,
    gets 0. The first player can win unless the pile is a multiple of 4.

    Args:
        tasks: tasks whose ground truth is the size of the pile; None: one for each of `piles`.
        piles: the sizes, each at least 1.
        rules: what each role reads first, as a system message; empty: nothing, for a small model in training.

    Raises:
        ConfigError: a size is no whole number of at least 1.
    """

    roles = ("first", "second")

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        piles: Sequence[int] = range(5, 13),
        rules: str = RULES,
    ) -> None:
        tasks = [nim_task(pile) for pile in piles] if tasks is None else tasks
        self.tasks = tasks if isinstance(tasks, TaskSource) else TaskList(tasks)
        self.rules, self._left = rules, 0
        self._greeted: set[str] = set()

    async def begin(self, task: Task, *, seed: int | None) -> RolesStep:
        require_whole_number("the ground truth of a task of NimEnv", task.ground_truth, at_least=1)
        self._left, self._greeted = task.ground_truth, set()
        return self._asks("first")

    async def act(self, turns: Mapping[str, ParsedTurn]) -> RolesStep:
        [(role, turn)] = turns.items()
        other = next(name for name in self.roles if name != role)
        number = re.fullmatch(r"\s*([123])\s*", turn.content)
        if number is None or int(number[1]) > self._left:
            return self._loses(role)
        self._left -= int(number[1])
        if self._left:
            return self._asks(other)
        return RolesStep((), rewards={role: 1.0, other: -1.0}, info={"metrics": {"legal": 1}})

    async def forfeit(self, role: str, reason: StopReason) -> RolesStep:
        return self._loses(role)

    def _asks(self, role: str) -> RolesStep:
        rules = [system(self.rules)] if self.rules and role not in self._greeted else []
        self._greeted.add(role)
        return RolesStep(role, {role: [*rules, user(f"{self._left} left")]})

    def _loses(self, role: str) -> RolesStep:
        return RolesStep((), rewards={role: -1.0}, info={"metrics": {"legal": 0}})


def nim_task(pile: int) -> Task:
    """The task of a game with so many stones. Raises `ConfigError` for less than one."""
    require_whole_number("a pile", pile, at_least=1)
    return Task((user(f"{pile} stones"),), ground_truth=pile, id=str(pile), source="nim")
