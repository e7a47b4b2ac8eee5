from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolgym.rollout.runner.scheduling.scheduler import Stragglers
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.blocking import function_name
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.concurrency.execution_pool import call_function, is_async, is_inline, runs_inline
from toolgym.tools.errors import ConfigError, check_seconds, require_whole_number
from toolgym.tools.keywords import named_fields

Keep = Callable[[Sequence[Trajectory]], bool | Awaitable[bool]]


@runs_inline
def has_signal(group: Sequence[Trajectory]) -> bool:
    """Whether two usable trajectories of a role differ in reward: the rule of dynamic sampling (DAPO, arXiv
    2503.14476)."""
    rewards = {(trajectory.role, trajectory.reward) for trajectory in group if trajectory.usable}
    return len(rewards) > len({role for role, _ in rewards})


@named_fields
@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """Selects the groups of a run that its consumer gets. All come whole, ordered by sample.

    A run without any of this plays each task `RunConfig.group_size` times and gives out every group.

    Attributes:
        groups: the run ends with so many groups; None: with the last task. If tasks or `max_groups` run out before, a
            warning says so.
        spare_groups: how many groups beyond those that are still wanted may be under way; the run then ends with the
            first that are whole, and the others are stragglers.
        spare_members: how many episodes beyond `group_size` begin for each task; a group is whole with the first
            `group_size` that did not fail, and the others are stragglers.
        stragglers: what becomes of them, a `Stragglers` or its name: `drop`, `keep` or `carry`.
        keep: which whole groups are given out, `has_signal` or a function of your own; in place of each other one a
            further task is played. None: all. The function may be async; a plain function is called in a thread, unless
            `toolgym.tools.runs_inline` marks it.
        keep_timeout: wall seconds that `keep` may take for one group. If `keep` takes longer, the run ends with an
            error.
        max_groups: most tasks that one run begins; None: as many as there are.
        in_order: choose groups in the order of the tasks and members in that of the samples, whatever ends first. The
            result then depends on no clock; but a slow group holds up those behind it.

    Raises:
        ConfigError: an argument is of the wrong kind or out of range, or two contradict each other.
    """

    groups: int | None = None
    spare_groups: int = 0
    spare_members: int = 0
    stragglers: Stragglers | Literal["drop", "keep", "carry"] = Stragglers.DROP
    keep: Keep | None = None
    keep_timeout: float = 600.0
    max_groups: int | None = None
    in_order: bool = False

    def __post_init__(self) -> None:
        for name in ("groups", "max_groups"):
            if getattr(self, name) is not None:
                require_whole_number(name, getattr(self, name), at_least=1)
        require_whole_number("spare_groups", self.spare_groups, at_least=0)
        require_whole_number("spare_members", self.spare_members, at_least=0)
        if self.stragglers not in list(Stragglers):
            known = ", ".join(repr(how.value) for how in Stragglers)
            raise ConfigError(f"stragglers must be one of {known}, got {self.stragglers!r}")
        if self.keep is not None and not callable(self.keep):
            raise ConfigError(f"keep must be a function of a group's trajectories, got {self.keep!r}")
        check_seconds(keep_timeout=self.keep_timeout)
        if not isinstance(self.in_order, bool):
            raise ConfigError(f"in_order must be True or False, got {self.in_order!r}")
        if self.spare_groups and self.groups is None:
            raise ConfigError("spare_groups are beyond the groups that are wanted: say how many with groups=")
        if self.groups is not None and self.max_groups is not None and self.max_groups < self.groups:
            raise ConfigError(f"max_groups={self.max_groups} are fewer than the {self.groups} groups that are wanted")
        if self.in_order and self.stragglers != Stragglers.DROP:
            raise ConfigError(
                "how far a straggler got depends on time, so in_order goes with stragglers='drop' alone, got "
                f"{str(self.stragglers)!r}"
            )

    @property
    def keeps_inline(self) -> bool:
        """Whether `keep` returns at once, on the event loop: there is none, or a plain function that is marked."""
        return self.keep is None or (is_inline(self.keep) and not is_async(self.keep))

    def keeps(self, group: Sequence[Trajectory]) -> bool:
        """Call a `keep` that returns at once."""
        return self.keep is None or self._verdict(self.keep(group))

    async def keeps_apart(self, group: Sequence[Trajectory]) -> bool:
        """Call a `keep` that is async or runs in a thread."""
        assert self.keep is not None
        try:
            return self._verdict(await with_deadline(call_function(self.keep, group), self.keep_timeout))
        except DeadlineError as error:
            raise ConfigError(f"GroupPlan.keep, {function_name(self.keep)!r}, {error}") from error

    def _verdict(self, value: Any) -> bool:
        assert self.keep is not None
        if isinstance(value, str | None) or inspect.isawaitable(value):
            hint = " (a function without `return` returns None)" if value is None else ""
            raise ConfigError(
                f"GroupPlan.keep, {function_name(self.keep)!r}, must return True or False, got {value!r}{hint}"
            )
        return bool(value)

    def check(self, group_size: int, tasks: int | None) -> None:
        """Check the plan against a run of so many tasks. Raises `ConfigError` if it would never end, or never keep a
        group."""
        if self.keep is has_signal and group_size < 2:
            raise ConfigError("a group of one has nothing to compare: keep=has_signal needs group_size=2 or more")
        if self.keep is not None and self.groups is not None and self.max_groups is None and tasks is None:
            raise ConfigError(
                "if every group is dropped, tasks without a known end would be drawn for ever: say with max_groups= "
                "how many may be tried"
            )
