"""`ToolEnv`: the loop that all tool environments share.

One step: parse the turn, check each call, run the good ones at the same time, answer all in the order of the turn. A
turn without calls goes to `ToolEnv.respond`. Mistakes of the model and failures of tools are messages that it reads.
"""

from __future__ import annotations

import copy
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from toolgym.envs.actions import read_action
from toolgym.envs.bad_calls import BadCallPolicy
from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.failure import BROKEN_BY_POLICY, failing, is_policy_fault
from toolgym.envs.result_text import ImageLimits, check_cut, cut
from toolgym.envs.rewards.base import Outcome, Score, Scorer, begin_score, outcome_scorer
from toolgym.envs.tasks.sources import TaskList, TaskSource, require_task, task_of_reset
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_instances import AnsweredCall, OwnTools, ToolInstances, encodable, tools_by_name
from toolgym.envs.types import (
    Continue,
    End,
    PolicyFaultError,
    ResetInfo,
    ResetOptions,
    ResetResult,
    StepInfo,
    StopReason,
    ToolCallRecord,
)
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.concurrency.deadline import own_deadline, run_clock, shielded, together, with_deadline
from toolgym.tools.concurrency.eager_task import awaited
from toolgym.tools.concurrency.execution_pool import call_function, is_inline, runs_inline
from toolgym.tools.errors import ConfigError, EpisodeError, check_seconds, error_text, require_whole_number
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.keywords import named_keywords
from toolgym.tools.message import Message, assistant, tool
from toolgym.tools.parsers import ParsedTurn, Parser, get_parser
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema, check_call
from toolgym.tools.sessions.tool_scope import tool_scope

MAX_RESULT_CHARS = 50_000

_log = logging.getLogger("toolgym.envs")

T = TypeVar("T")


class ToolEnv(BaseEnv):
    """An env whose policy may call tools.

    Args:
        tools: the tools, and functions with `@tool` above them, each under a name of its own; other envs may share
            them.
        tasks: where tasks come from; a sequence is drawn from at random. It is shared and not copied: do not change it.
        parser: how calls are written in actions that are text: a name (see `toolgym.tools.parsers.get_parser`) or a
            function. A runner parses turns itself, by its `RunConfig.parser`. If the generation prompt ends with
            `<think>`, give `functools.partial(get_parser("hermes"), starts_open=True)`.
        scorer: what the episode is worth; see `toolgym.envs.Scorer`. A plain function is called in a thread. If None,
            only the tools' rewards count. A scorer that returns something else than a `Score` or a finite number fails
            the episode.
        max_turns: turns of the policy until the episode is truncated.
        max_parallel_calls: calls of one turn that are run; the model reads that those beyond were not.
        bad_calls: what a malformed call costs. The model reads what was wrong in any case.
        tool_timeout: wall seconds for any one call of a tool's methods. Waiting for permits does not count.
        queue_timeout: wall seconds that one call may wait for permits.
        score_timeout: wall seconds that the scorer may take, and each tool's `calc_reward`, beside other deadlines.
        max_result_chars: characters that may remain of one tool's result, besides a note; its middle is left out. The
            wrapper `TruncateResults` can cut its beginning or end. None: all remain.
        owns_tools: whether `close` closes the tools too; or those of them that it closes.

    The reward of an episode is the sum of the tools' step rewards, of each tool's `calc_reward`, and of the score, less
    what malformed calls cost. The metrics of a step hold `turn`, `bad_calls` (those that count, so far) and, if they
    cost something, `reward/bad_calls` (what they cost so far); at the end also `score`, `score/NAME` for each component
    of the score, and `reward/TOOL`.

    A subclass may override `respond` and `prepare`, and have `image_limits` of its own for the images of tools. `fork`
    copies its attributes as `copy.copy` does: one that changes some of them in place overrides `fork`, and gives the
    twin its own.

    Raises:
        ConfigError: an argument cannot be used, for example two tools that share a name.
        UnknownNameError: there is no such parser or argument (`UnknownArgumentError`); names the nearest one.
    """

    keeps_deadlines = True
    image_limits = ImageLimits()
    _held: AsyncCloseable | None = None  # what a subclass keeps for the episode, closed after the tools

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if {"reset", "step", "truncate"} & cls.__dict__.keys():  # unknown code may await anything
            cls.keeps_deadlines = cls.__dict__.get("keeps_deadlines", False)

    @named_keywords
    def __init__(
        self,
        tools: Sequence[BaseTool | ToolFunction[..., Any]],
        tasks: TaskSource | Sequence[Task],
        *,
        parser: str | Parser = "hermes",
        scorer: Scorer | None = None,
        max_turns: int = 8,
        max_parallel_calls: int = 8,
        bad_calls: BadCallPolicy = BadCallPolicy(),  # noqa: B008  it is frozen
        tool_timeout: float = 120.0,
        queue_timeout: float = 600.0,
        score_timeout: float = 120.0,
        max_result_chars: int | None = MAX_RESULT_CHARS,
        owns_tools: bool | Sequence[BaseTool | ToolFunction[..., Any]] = False,
    ) -> None:
        if not isinstance(tools, Sequence):
            raise ConfigError(f"tools must be a list of tools, got {tools!r}")
        self.tools = tools_by_name(tools)
        require_whole_number("max_turns", max_turns, at_least=1)
        require_whole_number("max_parallel_calls", max_parallel_calls, at_least=1)
        check_seconds(tool_timeout=tool_timeout, queue_timeout=queue_timeout, score_timeout=score_timeout)
        check_cut("max_result_chars", 1 if max_result_chars is None else max_result_chars, "middle")
        if not isinstance(bad_calls, BadCallPolicy):
            raise ConfigError(f"bad_calls must be a BadCallPolicy, got {bad_calls!r}")
        self.tasks = tasks if isinstance(tasks, TaskSource) else TaskList(tasks)
        self.max_turns = max_turns
        self.max_parallel_calls = max_parallel_calls
        self.bad_calls = bad_calls
        self.tool_timeout = tool_timeout
        self.queue_timeout = queue_timeout
        self.score_timeout = score_timeout
        self.max_result_chars = max_result_chars
        if not isinstance(parser, str) and not callable(parser):
            raise ConfigError(f"parser must be a parser's name or a function, got {parser!r}")
        self._parser = get_parser(parser) if isinstance(parser, str) else parser
        self._scorer = outcome_scorer(scorer) if scorer is not None else None
        owned = (tools if owns_tools else ()) if isinstance(owns_tools, bool) else owns_tools
        self._own_tools = OwnTools([as_tool(owned_tool) for owned_tool in owned]) if owned else None
        self._schemas = {name: member.tool_schema for name, member in self.tools.items()}
        self._seed: int | None = None
        self._random: random.Random | None = None  # made when a task is drawn: it takes 2.5 kB
        self._task: Task | None = None
        self._instances: ToolInstances | None = None  # None before the first `reset`
        self._messages: list[Message | ParsedTurn] = []  # a turn's message is made when it is read: it takes 0.6 kB
        self._records: list[ToolCallRecord] = []
        self._turn = 0
        self._calls_seen = 0
        self._bad_calls = 0
        self._program_seconds = 0.0  # of the calls that have ended
        self._running: Callable[[], float] | None = None  # the seconds of the calls under way
        self._over = True

    def __repr__(self) -> str:
        if not hasattr(self, "_over"):  # a subclass may be half made
            return super().__repr__()
        state = "not reset" if self._task is None else f"turn {self._turn} of {self.max_turns}"
        if self._task is not None and self._over:
            state = f"over after {state}"
        return f"<{type(self).__name__} with {', '.join(self.tools) or 'no tools'}; {state}>"

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return list(self._schemas.values())

    def decorate_tools(self, decorate: Callable[[BaseTool], BaseTool]) -> None:
        """Put `decorate` around each tool, which keeps its name; an `EpisodeError` while an episode is running."""
        if not self._over:
            raise EpisodeError("decorate_tools was called while an episode was running; call it before `reset`")
        decorated = {name: decorate(member) for name, member in self.tools.items()}
        for name, member in decorated.items():
            if member.name != name:
                raise ConfigError(f"a decorated tool keeps its name: {name!r} came back as {member.name!r}")
        self.tools = decorated

    @property
    def task(self) -> Task | None:  # type: ignore[override]  # read only here
        return self._task

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the episode so far; do not change it."""
        return tuple(each.message if isinstance(each, ParsedTurn) else each for each in self._messages)

    @property
    def turns(self) -> int:
        """Turns that the policy has taken in the episode, the present one included."""
        return self._turn

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        task = task_of_reset(seed, options)
        self._over = True  # until the new one is known to have begun
        await self._release()
        if seed is not None:
            self._seed, self._random = seed, None
        task = self.prepare(task if task is not None else require_task(self.tasks.sample(self._rng)))
        self._task = task
        unknown = sorted(set(task.tools_kwargs) - set(self.tools))
        if unknown:
            raise ConfigError(
                f"task {task.id!r} has tools_kwargs for {unknown[0]!r}, but the env's tools are: "
                f"{', '.join(self.tools) or 'none'}"
            )
        self._turn = self._calls_seen = self._bad_calls = 0
        self._program_seconds = 0.0
        self._messages, self._records = [*task.messages], []
        timeouts = self.tool_timeout, self.queue_timeout, self.score_timeout
        self._instances = ToolInstances(self.tools, task, self._cut, *timeouts)
        await self._instances.open()
        self._over = False
        info: ResetInfo = {"task": task, "tools": [schema.openai for schema in self.tool_schemas]}
        return [message.copy() for message in task.messages], info

    @property
    def _rng(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self._seed)
        return self._random

    @_rng.setter
    def _rng(self, rng: random.Random) -> None:
        self._random = rng

    def prepare(self, task: Task) -> Task:
        """Return the task as its episode is to begin. An env that cannot use it raises `ConfigError`."""
        return task

    async def step(self, action: Action) -> StepResult:
        if self._instances is None:
            raise EpisodeError("step was called before reset; call `await env.reset()` first")
        if self._over:
            raise EpisodeError("step was called after the episode ended; call `await env.reset()` to begin another")
        turn, requests = self._read(action)
        self._turn += 1
        self._calls_seen += len(requests)
        self._messages.append(turn)
        if not requests:
            return await self._respond(turn)
        cost = self._count(requests)
        if self._turn >= self.max_turns:
            return await self._end(StopReason.MAX_TURNS, turn.message, [], reward=cost)
        with self._programs(requests) as seconds:
            if len(requests) == 1:  # without a task
                answers = [await self._instances.answer(requests[0])]
            else:
                answers = await self._answers(self._instances, requests)
        records = [answer.record for answer in answers]
        self._records += records
        if not any(record.infra_failure for record in records):
            self._program_seconds += max(seconds(), *map(_run_seconds, records))
        reward = sum(record.reward for record in records) + cost
        if self.bad_calls.ends(self._bad_calls):
            return await self._end(StopReason.TOO_MANY_BAD_CALLS, turn.message, records, reward=reward)
        obs = [tool(content, tool_call_id=record.id, name=encodable(record.name)) for record, content in answers]
        self._messages += [message.copy() for message in obs]
        return StepResult(obs, reward, False, self._info(None, turn.message, records, {}))

    @property
    def program_seconds(self) -> float:  # type: ignore[override]  # only read
        return self._program_seconds + (0.0 if self._running is None else self._running())

    @contextmanager
    def _programs(self, requests: Sequence[ToolCall | ToolCallError]) -> Iterator[Callable[[], float]]:
        """Give a function that returns the seconds of the block so far, if one of the calls runs programs.

        They count as `program_seconds` while the block is under way, and afterwards if it raises.
        """
        runs = any(isinstance(call, ToolCall) and self.tools[call.name].runs_programs for call in requests)
        with run_clock() as seconds:
            self._running = seconds if runs else None
            try:
                yield seconds if runs else float
            except BaseException:  # also a deadline that cancels the calls
                self._program_seconds = self.program_seconds
                raise
            finally:
                self._running = None

    async def _answers(
        self, instances: ToolInstances, requests: Sequence[ToolCall | ToolCallError]
    ) -> list[AnsweredCall]:
        return await together(map(instances.answer, requests))

    @runs_inline
    def respond(self, turn: ParsedTurn) -> list[Message] | Continue | End | Awaitable[list[Message] | Continue | End]:
        """Decide what becomes of a turn without tool calls. An override may be async; a plain one is called in a
        thread, unless `toolgym.tools.runs_inline` marks it.

        Return the messages that the policy reads next, also as a `Continue` with a reward, or `End` (the default).
        """
        return End()

    async def fork(self) -> Self:
        """Fork as in `BaseEnv.fork`; tools and task source are shared. What a tool's fork raises passes through."""
        if self._over or self._instances is None:
            raise EpisodeError("fork needs an episode under way; call `await env.reset()` first")
        instances = await self._instances.fork()
        twin = copy.copy(self)
        if self._own_tools is not None:
            self._own_tools.owners += 1
        twin._instances, twin._held = instances, None
        twin._messages, twin._records = [*self._messages], [*self._records]
        twin._random = copy.copy(self._random)  # goes on as this one does, on its own
        return twin

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        """End the episode as if its turns were used up; see `BaseEnv.truncate`. After a failure nothing is scored."""
        if self._over:
            raise EpisodeError("truncate needs an episode under way; call `await env.reset()` first")
        if reason.failed:
            self._over = True
            await self._release()
            return StepResult([], 0.0, True, {"stop_reason": reason})
        if turn is not None:
            cut, _ = self._read(turn)
            self._turn += 1
            self._messages.append(cut)
            return await self._end(reason, cut.message, [])
        result = await self._end(reason, assistant(""), [], final_text=self._last_said())
        return result._replace(info={"stop_reason": reason, "metrics": result.info["metrics"]})

    def _last_said(self) -> str:
        """Return the answer of the policy's last turn, which was not cut; empty if it has calls."""
        last = next((turn for turn in reversed(self._messages) if isinstance(turn, ParsedTurn)), None)
        return "" if last is None or last.requests else answer_text(last)

    async def close(self) -> None:
        self._over = True
        await self._release()
        tools, self._own_tools = self._own_tools, None
        if tools is not None:
            await tools.drop()

    # ------------------------------------------------------------------ one turn

    def _read(self, action: Action) -> tuple[ParsedTurn, list[ToolCall | ToolCallError]]:
        """The turn, and what it asks for in order, each checked against the tools and the limit."""
        turn = read_action(action, self._parse, calls_seen=self._calls_seen)
        checks = (check_call(call, self._schemas) if isinstance(call, ToolCall) else call for call in turn.requests)
        return turn, [self._limit(request) for request in checks]

    def _parse(self, text: str) -> ParsedTurn:
        return self._parser(text, first_id=self._calls_seen, schemas=self._schemas)

    def _limit(self, request: ToolCall | ToolCallError) -> ToolCall | ToolCallError:
        if isinstance(request, ToolCallError) or request.index < self.max_parallel_calls:
            return request
        message = (
            f"The call was not run: at most {self.max_parallel_calls} tool calls are allowed in one turn. "
            "Send it again in your next turn."
        )
        return ToolCallError(CallProblem.TOO_MANY_CALLS, message, "", request.id, request.index, request.name)

    def _cut(self, result: ToolResult) -> ToolResult:
        text = result.text if self.max_result_chars is None else cut(result.text, self.max_result_chars, "middle")
        images, notes = self.image_limits.within(result.images)
        return ToolResult("\n".join([*([text] if text else []), *notes]), *result[1:], images=images)

    async def _respond(self, turn: ParsedTurn) -> StepResult:
        text, message = answer_text(turn), turn.message
        try:
            answer = await self._asked(turn)
            if isinstance(answer, list):
                answer = Continue(answer)
            if not isinstance(answer, End) and not (isinstance(answer, Continue) and answer.messages):
                raise ConfigError(f"respond must return End or a list of messages that is not empty, got {answer!r}")
        except PolicyFaultError as fault:
            return await self._end(StopReason.ANSWERED, message, [], final_text=text, fault=fault)
        except BaseException:
            self._over = True
            await self._release()
            raise
        if isinstance(answer, End):
            return await self._end(answer.stop_reason, message, [], reward=answer.reward, final_text=text)
        if self._turn >= self.max_turns:
            return await self._end(StopReason.MAX_TURNS, message, [], reward=answer.reward, final_text=text)
        self._messages += answer.messages
        obs = [message.copy() for message in answer.messages]
        return StepResult(obs, answer.reward, False, self._info(None, message, [], {}))

    async def _asked(self, turn: ParsedTurn) -> Any:
        """Return what `respond` returns; an override that is a plain function is called in a thread."""
        if is_inline(self.respond):
            answer = self.respond(turn)
            return await self._deadline(awaited(answer), self.tool_timeout) if inspect.isawaitable(answer) else answer
        return await self._deadline(call_function(self.respond, turn), self.tool_timeout)

    # ------------------------------------------------------------------ the end

    async def _end(
        self,
        reason: StopReason,
        message: Message,
        records: list[ToolCallRecord],
        *,
        reward: float = 0.0,
        final_text: str = "",
        fault: PolicyFaultError | None = None,
    ) -> StepResult:
        """Score and release the episode. After a `fault` of the policy, its score is 0 and no scorer is called."""
        self._over = True
        assert self._instances is not None
        metrics: dict[str, Any] = {}
        try:
            with own_deadline():
                score = await self._score(self._instances, reason, final_text, fault)
                if score is not None:
                    reward += score.value
                    metrics["score"] = score.value
                    metrics |= {f"score/{name}": value for name, value in score.components.items()}
                for name in self._instances.names:
                    with failing(StopReason.TOOL_FAILED, what=f"calc_reward of the tool {name!r} failed:"):
                        try:
                            metrics[f"reward/{name}"] = await self._instances.reward(name)
                        except Exception as error:  # noqa: BLE001  raised again unless the policy caused it
                            await self._raise_unless_policy_fault(error, self._instances)
                            metrics |= {f"reward/{name}": 0.0, f"score/{BROKEN_BY_POLICY}": 1.0}
                    reward += metrics[f"reward/{name}"]
        finally:
            await self._release()
        return StepResult([], reward, True, self._info(reason, message, records, metrics))

    async def _score(
        self, instances: ToolInstances, reason: StopReason, final_text: str, fault: PolicyFaultError | None
    ) -> Score | None:
        if fault is not None:
            await self._raise_unless_policy_fault(fault, instances)  # logs it
            return Score(0.0, {BROKEN_BY_POLICY: 1.0})
        if self._scorer is None or reason.failed:
            return None
        assert self._task is not None
        records = tuple(self._records)
        outcome = Outcome(self._task, self.messages, self._turn, records, final_text, reason, instances.sessions)
        with failing(StopReason.SCORE_FAILED, StopReason.SCORE_TIMEOUT, what="the scorer failed:"):
            try:
                with tool_scope(instances.scope):
                    score = begin_score(self._scorer, outcome)
                    if isinstance(score, Score | None):
                        return score
                    return await self._deadline(score, self.score_timeout)
            except Exception as error:  # noqa: BLE001  raised again unless the policy caused it
                await self._raise_unless_policy_fault(error, instances)
                return Score(0.0, {BROKEN_BY_POLICY: 1.0})

    async def _raise_unless_policy_fault(self, error: Exception, instances: ToolInstances) -> None:
        if not await is_policy_fault(error, instances.sessions.values()):
            raise error
        assert self._task is not None
        _log.warning("the policy broke the scoring of its episode (task %r): %s", self._task.id, error_text(error))

    def _info(
        self,
        reason: StopReason | None,
        message: Message,
        records: list[ToolCallRecord],
        metrics: dict[str, Any],
    ) -> StepInfo:
        costs = {"reward/bad_calls": self.bad_calls.reward(self._bad_calls)} if self.bad_calls.penalty else {}
        return {
            "stop_reason": reason,
            "message": message,
            "tool_calls": records,
            "metrics": {"turn": self._turn, "bad_calls": self._bad_calls, **costs, **metrics},
        }

    def _count(self, requests: Sequence[ToolCall | ToolCallError]) -> float:
        """Count the malformed calls of a turn; return their cost: 0 or less."""
        before = self.bad_calls.reward(self._bad_calls)
        self._bad_calls += sum(
            isinstance(request, ToolCallError) and request.problem in self.bad_calls.counts for request in requests
        )
        return self.bad_calls.reward(self._bad_calls) - before

    async def _deadline(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        return await with_deadline(coroutine, seconds, queue=self.queue_timeout)

    async def _release(self) -> None:
        held, self._held = self._held, None
        try:
            if self._instances is not None:
                await self._instances.release()
        finally:
            if held is not None:
                await shielded(held.close())


def _run_seconds(record: ToolCallRecord) -> float:
    seconds = record.metrics.get("run_seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def answer_text(turn: ParsedTurn) -> str:
    """Return what a turn without calls says to its reader: nothing if it ended inside of its thinking."""
    return "" if turn.open_thinking else turn.content
