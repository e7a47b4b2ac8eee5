"""`BFCLEnv`: a user makes several requests, each of which needs calls of functions that keep state."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

from toolgym.envs.actions import read_action
from toolgym.envs.base import Action
from toolgym.envs.families.bfcl import package
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.tool_instances import AnsweredCall, ToolInstances
from toolgym.envs.types import End, StopReason
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.closeable import closed_on_error
from toolgym.tools.concurrency.execution_pool import runs_inline
from toolgym.tools.confined import OverrunError, ProcessPool
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, require_whole_number
from toolgym.tools.message import Message, MessageToolCall, assistant, tool_call, user
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolCall, ToolCallError, ToolSchema, check_call

CALL_SECONDS = 5.0
"""CPU seconds for one call of a function."""

CHECK_SECONDS = 20.0
"""CPU seconds for the checker, which replays an episode's calls."""

REFUSED = "refused"
"""The status of a call that is not carried out, because it would take too much time or memory."""

_pool = ProcessPool(Path(__file__).with_name("work.py"), name="the process that carries out BFCL's functions")


class Apis:
    """The functions of one episode of an entry, and the state of their objects, which other processes read."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = {name: entry[name] for name in ("id", "involved_classes", "initial_config")}
        self._state: str | None = None
        self.schemas: dict[str, ToolSchema] = {}
        self._classes: dict[str, str] = {}
        for name in entry["involved_classes"]:
            for schema in package.schemas(name):
                self.schemas[schema.name] = schema
                self._classes[schema.name] = name

    def signature(self, name: str) -> inspect.Signature:
        return package.signature(self._classes[name], name)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Carry out a call in another process, on the state that the last call left."""
        try:
            answer = await _pool.call("call", self._entry, self._state, name, dict(arguments), cpu_seconds=CALL_SECONDS)
        except OverrunError as error:
            return ToolResult(f"Error during execution: {error}", 0.0, {"status": REFUSED})
        self._state = answer["state"]
        return ToolResult(answer["text"], 0.0, {} if answer["status"] == "ok" else {"status": answer["status"]})


class ApiFunction(BaseTool):
    stays_on_loop = True
    task_kwargs: Mapping[str, Collection[str]] = {"execute_kwargs": ()}

    def __init__(self, apis: Apis, schema: ToolSchema) -> None:
        super().__init__(None, schema)
        self._apis = apis

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return await self._apis.call(self.name, parameters)

    async def fork(self, instance_id: str) -> str:
        return await self.create()  # `BFCLEnv.fork` copies the objects


_any_arguments = functools.cache(ToolSchema)

Category = Literal["multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context"]

STEPS_PER_TURN = 20
"""Turns with calls for each turn of the user (BFCL's `MAXIMUM_STEP_LIMIT`)."""


class BFCLEnv(ToolEnv):
    """An env of BFCL's executable multi-turn tasks. `docs/envs/bfcl.md` has its rules and its reward.

    Args:
        category: one of the four sets; `BFCL/CATEGORY-v0` gives it.
        wheel: the wheel of `bfcl-eval`, or the folder that it was unpacked in. None: the installed package.
        tasks: some of the tasks of the category: the id of each is that of its entry. None: all 200.
        steps_per_turn: turns with calls that the policy may take for each turn of the user; then the episode is cut.
        max_turns: turns of the policy in all.
        env_kwargs: the other arguments of `ToolEnv`.

    Raises MissingExtraError if `bfcl-eval` is not installed and no wheel was given, and ConfigError if there is no such
    category or wheel, or another argument is of the wrong kind.
    """

    def __init__(
        self,
        category: Category,
        *,
        wheel: str | Path | None = None,
        tasks: TaskSource | Sequence[Task] | None = None,
        steps_per_turn: int = STEPS_PER_TURN,
        max_turns: int = 1000,
        **env_kwargs: Any,
    ) -> None:
        if category not in (known := get_args(Category)):
            raise UnknownNameError(
                f"BFCL's executable sets are {', '.join(known)}, got {category!r}{nearest(str(category), known)}"
            )
        require_whole_number("steps_per_turn", steps_per_turn, at_least=1)
        package.require_package(wheel)
        self._entries = package.entries(category)
        env_kwargs.setdefault("scorer", _score)
        env_kwargs.setdefault("max_parallel_calls", 64)
        source = [*map(_task, self._entries.values())] if tasks is None else tasks
        super().__init__([], source, max_turns=max_turns, **env_kwargs)
        self._most_turns, self._steps_per_turn = self.max_turns, steps_per_turn
        self._decorations: tuple[Callable[[BaseTool], BaseTool], ...] = ()
        self._entry: Mapping[str, Any] = {}
        self._apis: Apis | None = None
        self._prompt_schemas: list[ToolSchema] = []
        self._user_turn = 0

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return [*self._prompt_schemas]

    def decorate_tools(self, decorate: Callable[[BaseTool], BaseTool]) -> None:
        super().decorate_tools(decorate)
        self._decorations = (*self._decorations, decorate)  # each episode has tools of its own

    def prepare(self, task: Task) -> Task:
        entry = self._entries.get(task.id)
        if entry is None:
            raise ConfigError(
                f"task {task.id!r} is none of this set: the id of a task (`extra_info.index` of its row) must be "
                f"one of BFCL's, such as {next(iter(self._entries))!r}"
            )
        self._entry, self._user_turn = entry, 0
        apis = self._bind(Apis(entry))
        held_back = {name for names in entry.get("missed_function", {}).values() for name in names}
        self._schemas = {name: schema for name, schema in apis.schemas.items() if name not in held_back}
        self._prompt_schemas = list(self._schemas.values())
        self._limit_steps(0)
        return task

    @runs_inline
    def respond(self, turn: ParsedTurn) -> list[Message] | End:
        self._user_turn += 1
        messages = self._entry["question"]
        if self._user_turn == len(messages):
            return End()
        self._limit_steps(self.turns)
        added = self._entry.get("missed_function", {}).get(str(self._user_turn), [])
        if not added:
            return [user(message["content"]) for message in messages[self._user_turn]]
        assert self._apis is not None
        self._schemas = {**self._schemas, **{name: self._apis.schemas[name] for name in added}}
        docs = json.dumps([self._schemas[name].openai for name in added])
        return [user(package.added_functions_prompt().format(functions=docs))]

    async def fork(self) -> Self:
        twin = await super().fork()
        assert self.task is not None
        assert self._apis is not None
        async with closed_on_error(twin.close):
            twin._bind(copy.deepcopy(self._apis))
            timeouts = self.tool_timeout, self.queue_timeout, self.score_timeout
            twin._instances = ToolInstances(twin.tools, self.task, twin._cut, *timeouts)
            await twin._instances.open()
        return twin

    def gold_actions(self) -> list[Action] | None:
        if self._apis is None:
            return None
        actions: list[Action] = []
        for place, calls in enumerate(self._entry["ground_truth"]):
            turn = [self._gold_call(call, f"gold_{place}_{number}") for number, call in enumerate(calls)]
            if turn:
                actions.append(assistant("", turn))
            actions.append(assistant("Done."))
        return actions

    def _bind(self, apis: Apis) -> Apis:
        self._apis = apis
        self.tools = {}
        for schema in apis.schemas.values():
            tool: BaseTool = ApiFunction(apis, schema)
            for decorate in self._decorations:
                tool = decorate(tool)
            self.tools[tool.name] = tool
        return apis

    def _limit_steps(self, turns: int) -> None:
        self.max_turns = min(self._most_turns, turns + self._steps_per_turn + 1)

    def _read(self, action: Action) -> tuple[ParsedTurn, list[ToolCall | ToolCallError]]:
        """Return the turn and its calls.

        As in BFCL, a call is carried out whatever its arguments are, also of a function that is yet to be added: the
        known solutions have such calls, and their errors are results that are compared.
        """
        turn = read_action(action, self._parse, calls_seen=self._calls_seen)
        known = {name: _any_arguments(name) for name in self.tools}
        checked = [check_call(call, known) if isinstance(call, ToolCall) else call for call in turn.requests]
        return turn, [self._limit(call) for call in checked]

    async def _answers(
        self, instances: ToolInstances, requests: Sequence[ToolCall | ToolCallError]
    ) -> list[AnsweredCall]:
        """AnsweredCall the requests one after another: each works on the state that the one before left."""
        return [await instances.answer(request) for request in requests]

    def _gold_call(self, text: str, id: str) -> MessageToolCall:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        assert self._apis is not None
        values = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        arguments = self._apis.signature(call.func.id).bind(*values, **named).arguments
        return tool_call(call.func.id, dict(arguments), id=id)


def _task(entry: Mapping[str, Any]) -> Task:
    source = f"bfcl/{entry['id'].rpartition('_')[0]}"
    return Task.from_row(verl_row(source, entry["question"][0], entry["ground_truth"], {"index": entry["id"]}))


async def _score(outcome: Outcome) -> Score:
    if outcome.stop_reason is not StopReason.ANSWERED:
        return Score(0.0)
    entry = package.entries(outcome.task.id.rpartition("_")[0])[outcome.task.id]
    try:
        wrong = await _pool.call("check", entry, package.calls_by_turn(outcome), cpu_seconds=CHECK_SECONDS)
    except OverrunError as error:
        return Score(0.0, {error.component: 1.0})
    return Score(0.0, {wrong: 1.0}) if wrong else Score(1.0)
