"""`UserSimEnv`: a simulated user replies between the policy's turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from toolgym.envs.base import Action
from toolgym.envs.library.orders import OrderTasks, gold_turns, order_user, place_order, score_order
from toolgym.envs.rewards.base import Scorer
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import Continue, End, ResetOptions, ResetResult, StepInfo, StopReason
from toolgym.envs.users.base import FunctionUser, User, UserReply, UserSession, heard_message
from toolgym.tools.base import BaseTool
from toolgym.tools.closeable import closed_on_error
from toolgym.tools.errors import ConfigError, UnknownNameError, check_seconds, nearest
from toolgym.tools.function import ToolFunction
from toolgym.tools.message import Message, user
from toolgym.tools.parsers.base import ParsedTurn


class UserSimEnv(ToolEnv):
    """An env with a user. A turn without tool calls goes to the user, whose reply the policy reads next.

    The user does not read the policy's thinking.

    The episode ends when the user is done. If a task's last message is not a user's, the user begins: its first text is
    the last message of `reset`. The user's own conversation, which the policy does not read, is the attribute
    `user_trace`, and `user_trace` in the metrics of the last step.

    Args:
        tasks: where tasks come from; they need a `user`. None: orders at a shop, whose details the user gives when
            asked.
        user: a `User`; a function from the conversation and the task to a text, or None for the end; or a mapping of
            names to these, of which a row's `extra_info.interaction_kwargs.name` chooses one, as in verl. None: the
            user of the embedded tasks. Users stay the caller's to close.
        tools: the tools that the policy has. None: those of the embedded tasks, or none if `tasks` are given.
        scorer: as for `ToolEnv`. None: that of the embedded tasks, or only the user's rewards if `tasks` are given.
        user_timeout: wall seconds for one reply.
        env_kwargs: the other arguments of `ToolEnv`.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        user: User | Callable[..., Any] | Mapping[str, User | Callable[..., Any]] | None = None,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] | None = None,
        scorer: Scorer | None = None,
        user_timeout: float = 120.0,
        **env_kwargs: Any,
    ) -> None:
        if tasks is not None and user is None:
            raise ConfigError("give the user of your tasks: user=function, or toolgym.envs.users.LLMUser(...)")
        if tasks is None:
            tasks = OrderTasks()
            tools = [place_order] if tools is None else tools
            scorer = score_order if scorer is None else scorer
        check_seconds(user_timeout=user_timeout)
        super().__init__(tools or [], tasks, scorer=scorer, **env_kwargs)
        self.user_timeout = user_timeout
        users = order_user if user is None else user
        named = users if isinstance(users, Mapping) else {"": users}
        self._users = {name: _as_user(value) for name, value in named.items()}
        self._user_metrics: dict[str, Any] = {}
        self.user_trace: list[Message] = []

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        messages, info = await super().reset(seed=seed, options=options)
        self._user_metrics, self.user_trace = {}, []
        async with closed_on_error(self._abandon):
            task = info["task"]
            kwargs = dict(task.extra_info.get("interaction_kwargs") or {})
            opening = self._chosen(task, kwargs.pop("name", None)).open(task, **kwargs)
            self._held = await self._deadline(opening, self.user_timeout)
            if messages[-1]["role"] != "user":
                first = await self._ask()
                if first.text is None:
                    raise ConfigError(f"task {task.id!r}: the user begins, and says nothing")
                self._messages.append(user(first.text))
                messages = [*messages, user(first.text)]
        return messages, info

    async def respond(self, turn: ParsedTurn) -> Continue | End:
        reply = await self._ask()
        if reply.done:
            return End(reward=reply.reward)
        assert reply.text is not None
        return Continue([user(reply.text)], reply.reward)

    def gold_actions(self) -> list[Action] | None:
        return gold_turns(self.task) if self.task is not None and isinstance(self.tasks, OrderTasks) else None

    async def fork(self) -> Self:
        twin = await super().fork()
        async with closed_on_error(twin.close):
            twin._held = await self._deadline(self._session.fork(), self.user_timeout)
        twin._user_metrics = {**self._user_metrics}
        return twin

    @property
    def _session(self) -> UserSession:
        assert isinstance(self._held, UserSession)
        return self._held

    async def _ask(self) -> UserReply:
        messages = [heard_message(message) for message in self._messages]
        reply = await self._deadline(self._session.reply(messages), self.user_timeout)
        self.user_trace = self._session.trace
        self._user_metrics |= {f"user/{name}": value for name, value in reply.metrics.items()}
        return reply

    def _chosen(self, task: Task, name: Any) -> User:
        if "" in self._users:
            return self._users[""]
        if name not in self._users:
            raise UnknownNameError(
                f"task {task.id!r} has the interaction_kwargs.name {name!r}{nearest(str(name), self._users) or ';'} "
                f"the env's users are {', '.join(self._users)}"
            )
        return self._users[name]

    def _info(self, reason: StopReason | None, *details: Any) -> StepInfo:
        info = super()._info(reason, *details)
        trace = {"user_trace": self.user_trace} if reason is not None and self.user_trace else {}
        info["metrics"] |= {**self._user_metrics, **trace}
        return info

    async def _abandon(self) -> None:
        self._over = True
        await self._release()


def _as_user(value: Any) -> User:
    if isinstance(value, User):
        return value
    if callable(value):
        return FunctionUser(value)
    raise ConfigError(f"a user is a toolgym.envs.users.User or a function, got {value!r}")
