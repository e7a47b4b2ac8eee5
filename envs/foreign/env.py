"""`wrap` and `ForeignEnv`: an env of another project behind `reset`, `step` and `close`."""

from __future__ import annotations

import inspect
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from toolgym.envs.actions import read_action
from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.failure import failing
from toolgym.envs.foreign.base import Adapter, InvalidActionError, Stepped, WrapOptions
from toolgym.envs.foreign.projects import adapter_for, checked_project, project_of
from toolgym.envs.foreign.seeds import SeedTasks, seed_task, start_of
from toolgym.envs.foreign.threads import EnvThreads
from toolgym.envs.foreign.values import flag_of, led_by, metrics_of, number_of
from toolgym.envs.result_text import cut
from toolgym.envs.tasks.sources import TaskList, TaskSource, require_task, task_of_reset
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_instances import encodable
from toolgym.envs.types import EpisodeFailedError, ResetInfo, StepInfo, StopReason, ToolCallRecord
from toolgym.tools.concurrency.deadline import shielded, with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError, error_text
from toolgym.tools.message import Content, Message, assistant, described, mapped, tool, user
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema, check_call

T = TypeVar("T")

_log = logging.getLogger("toolgym.envs")

NO_OBSERVATION = "[no observation]"
"""Read by the policy if an env goes on and says nothing: a chat needs a message between two turns."""

CLOSE_TIMEOUT = 20.0


class ForeignEnv(BaseEnv):
    """An env of another project, which `make` makes if it is None. `wrap` makes it."""

    def __init__(
        self, env: object | None, make: Callable[..., Any] | None, takes_task: bool, options: WrapOptions
    ) -> None:
        tasks = options.tasks
        self.tasks: TaskSource = (
            SeedTasks() if tasks is None else tasks if isinstance(tasks, TaskSource) else TaskList(tasks)
        )
        self._seeds = tasks is None
        self._make, self._takes_task, self._options = make, takes_task, options
        self._adapter: Adapter | None = None
        self._threads: EnvThreads | None = None
        self._broken = False
        self._closed = False
        self._over = True
        self._begun = False
        self._rng = random.Random()
        self._tools: dict[str, ToolSchema] = {}
        self.messages: list[Message] = []
        self._turn = self._calls_seen = self._bad_calls = 0
        if env is not None:
            self._adapter = self._adapt(env)

    def __repr__(self) -> str:
        inside = self._adapter.name if self._adapter is not None else "an env that is yet to be made"
        return f"<{type(self).__name__} around {inside}>"

    @property
    def foreign(self) -> Any:
        """The object of the other project; None before it was made."""
        return self._adapter.env if self._adapter is not None else None

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return list(self._tools.values())

    # ------------------------------------------------------------------ the contract

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], ResetInfo]:
        chosen = task_of_reset(seed, options)
        if self._closed:
            raise EpisodeError(f"reset was called after close: {self!r} plays no further episode")
        self._over = True  # until the new one is known to have begun
        if seed is not None:
            self._rng = random.Random(seed)
        self.task = task = chosen if chosen is not None else self._drawn(seed)
        rest = {name: value for name, value in (options or {}).items() if name != "task"}
        start = start_of(task, seed, self._rng, rest)
        adapter = await self._adapter_of(task)
        begun = await self._deadline(adapter.reset(start), StopReason.RESET_FAILED, f"reset of {adapter.name}")
        messages = led_by(self._options.system_prompt, self._cut(begun.messages))
        if not messages:
            raise ConfigError(
                f"{adapter.name} begins with an empty observation, and the task has no messages: give tasks=, with a "
                "prompt in each"
            )
        self._tools = {schema.name: schema for schema in begun.tools}
        self._turn = self._calls_seen = self._bad_calls = 0
        self._over, self._begun = False, True
        self.messages = [message.copy() for message in messages]
        tools = [schema.to_openai() for schema in self.tool_schemas]
        info = {"task": task, "tools": tools, "env_info": begun.info}
        return messages, cast(ResetInfo, info)  # with a key of its own

    async def step(self, action: Action) -> StepResult:
        if self._over or self._adapter is None:
            state = "after the episode ended" if self._begun else "before reset"
            raise EpisodeError(f"step was called {state}; call `await env.reset()` first")
        turn = read_action(action, self._parse, calls_seen=self._calls_seen)
        requests = self._checked(turn) if self._tools else []
        calls = [request for request in requests if isinstance(request, ToolCall)]
        errors = [request for request in requests if isinstance(request, ToolCallError)]
        self._turn += 1
        self._calls_seen += len(requests)
        self._bad_calls += len(errors)
        started = time.monotonic()
        if errors and not calls:
            stepped = Stepped([], 0.0)
        else:
            stepped = await self._take(self._adapter, turn._replace(calls=calls, errors=[]))
        result = self._result(turn, requests, stepped, time.monotonic() - started)
        self.messages += [turn.message, *(message.copy() for message in result.obs)]
        return result

    async def close(self) -> None:
        self._over = self._closed = True
        await self._drop()

    # ------------------------------------------------------------------ how an episode begins

    def _drawn(self, seed: int | None) -> Task:
        if self._seeds and seed is not None:
            return seed_task(seed)
        return require_task(self.tasks.sample(self._rng))

    async def _adapter_of(self, task: Task) -> Adapter:
        adapter = self._adapter
        fresh = self._make is not None and (
            self._takes_task or self._broken or (adapter is not None and adapter.one_episode and self._begun)
        )
        if adapter is not None and not fresh:
            return adapter
        try:
            await self._drop()
        except Exception as error:  # noqa: BLE001  the next episode needs nothing of the object before
            _log.warning("closing a foreign env failed: %s", error_text(error))
        assert self._make is not None
        what = f"making the env with {self._make!r}"
        inside = await self._deadline(self._made(task), StopReason.ENV_CREATE_FAILED, what)
        try:
            self._adapter, self._broken = self._adapt(inside), False
        except ConfigError:  # it is of no known project, or cannot be wrapped
            await EnvThreads("the env").run(_close_blocking, inside)
            raise
        return self._adapter

    async def _made(self, task: Task) -> Any:
        assert self._make is not None
        arguments = (task,) if self._takes_task else ()
        if inspect.iscoroutinefunction(self._make):
            return await self._make(*arguments)
        self._threads = EnvThreads("the foreign env", own_thread=self._options.own_thread)
        env = await self._threads.run(self._make, *arguments, undo=_close_blocking)
        return await env if inspect.isawaitable(env) else env

    def _adapt(self, env: object) -> Adapter:
        threads, self._threads = self._threads, None
        own_thread = self._options.own_thread or bool(getattr(env, "REQUIRES_SINGLE_THREAD_EXECUTOR", False))
        if threads is None or own_thread is not threads.own:
            threads = EnvThreads("", own_thread=own_thread)
        adapter = adapter_for(env, self._options.project)(env, self._options, threads)
        threads.name = adapter.name
        return adapter

    # ------------------------------------------------------------------ one turn

    def _parse(self, text: str) -> ParsedTurn:
        if not self._tools:  # calls mean nothing to this env, so none are looked for
            return ParsedTurn(text, text, [], [])
        return self._options.parse(text, first_id=self._calls_seen, schemas=self._tools)

    def _checked(self, turn: ParsedTurn) -> list[ToolCall | ToolCallError]:
        assert self._adapter is not None
        requests = [check_call(call, self._tools) if isinstance(call, ToolCall) else call for call in turn.requests]
        calls = [request for request in requests if isinstance(request, ToolCall)]
        most = len(calls) if self._adapter.max_calls is None else self._adapter.max_calls
        text = "The call was not run: this env takes one call in a turn. Send it again in your next turn."
        for call in calls[most:]:
            refusal = ToolCallError(CallProblem.TOO_MANY_CALLS, text, "", call.id, call.index, call.name)
            requests[requests.index(call)] = refusal
        return requests

    async def _take(self, adapter: Adapter, turn: ParsedTurn) -> Stepped:
        try:
            step = adapter.step(turn)
            return await self._deadline(step, StopReason.ENV_FAILED, f"step of {adapter.name}")
        except InvalidActionError as error:
            answers = [tool(str(error), tool_call_id=call.id, name=encodable(call.name)) for call in turn.calls]
            return Stepped(answers or [user(str(error))], 0.0, failed_calls=frozenset(call.id for call in turn.calls))

    def _result(
        self, turn: ParsedTurn, requests: Sequence[ToolCall | ToolCallError], stepped: Stepped, seconds: float
    ) -> StepResult:
        assert self._adapter is not None
        what = self._adapter.name
        try:
            reward = number_of(stepped.reward, what)
            terminated, truncated = flag_of(stepped.terminated, what), flag_of(stepped.truncated, what)
        except EpisodeFailedError:
            self._break()
            raise
        reason = stepped.stop_reason
        if reason is None and (terminated or truncated):
            reason = StopReason.ANSWERED if terminated else StopReason.MAX_TURNS
        if reason is None and self._turn == self._options.max_turns:
            reason, truncated = StopReason.MAX_TURNS, True
        if reason is not None:
            self._over = True
        messages = self._cut(stepped.messages)
        answers, others = _answers(requests, messages)
        records = [
            _record(request, described(answer["content"]), stepped, seconds)
            for request, answer in zip(requests, answers, strict=True)
        ]
        obs = [*answers, *others] or [user(NO_OBSERVATION)]
        info: dict[str, Any] = {
            "stop_reason": reason,
            "message": turn.message if self._tools or not turn.requests else assistant(turn.text),
            "tool_calls": records,
            "metrics": {"turn": self._turn, "bad_calls": self._bad_calls, **metrics_of(stepped.info)},
            "terminated": terminated,
            "truncated": truncated,
            "env_info": stepped.info,
        }
        if reason is not None:
            info["final_obs"] = messages
        return StepResult([] if reason is not None else obs, reward, reason is not None, cast(StepInfo, info))

    def _cut(self, messages: Sequence[Message]) -> list[Message]:
        most = self._options.max_obs_chars
        if most is None:
            return list(messages)
        shorter = partial(cut, max_chars=most, side="middle")
        return [{**message, "content": mapped(message["content"], shorter)} for message in messages]

    # ------------------------------------------------------------------ failures and the end

    async def _deadline(self, coroutine: Coroutine[Any, Any, T], failed: StopReason, what: str) -> T:
        """Await a call of the env. Any exception ends the episode, with the env to blame."""
        options, passing = self._options, (InvalidActionError, ConfigError)
        try:
            with failing(failed, StopReason.ENV_TIMEOUT, unless=passing, what=f"{what} raised"):
                return await with_deadline(coroutine, options.timeout, queue=options.queue_timeout)
        except InvalidActionError:
            raise
        except BaseException:  # cancelled too: the env may be in the middle of something
            self._break()
            raise

    def _break(self) -> None:
        """The state of the object is unknown: the episode is over, and the next one gets another if it can."""
        self._over = self._broken = True

    async def _drop(self) -> None:
        adapter, self._adapter = self._adapter, None
        if adapter is None:
            return
        try:
            await shielded(with_deadline(adapter.close(), CLOSE_TIMEOUT))
        finally:
            adapter.threads.end()


def _answers(
    requests: Sequence[ToolCall | ToolCallError], messages: Sequence[Message]
) -> tuple[list[Message], list[Message]]:
    """Return one answer for each request, in order, and the other messages."""
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    answers = []
    for request in requests:
        content: Content = encodable(request.message) if isinstance(request, ToolCallError) else NO_OBSERVATION
        result = results.pop(request.id, None)
        content = result["content"] if result else content
        answers.append(tool(content, tool_call_id=request.id, name=encodable(request.name)))
    others = [m for m in messages if m["role"] != "tool" or m.get("tool_call_id") in results]
    return answers, others


def _record(request: ToolCall | ToolCallError, text: str, stepped: Stepped, seconds: float) -> ToolCallRecord:
    if isinstance(request, ToolCallError):
        return ToolCallRecord(request.id, request.name, None, request.problem.value, text)
    status = "error" if request.id in stepped.failed_calls else "ok"
    return ToolCallRecord(request.id, request.name, request.arguments, status, text, seconds=seconds)


def _close_blocking(env: Any) -> None:
    """Close an env that came too late, if that needs no event loop."""
    close = getattr(env, "close", None)
    if close is not None and not inspect.iscoroutinefunction(close):
        close()


def wrap(env: object, **options: Any) -> ForeignEnv:
    """Return an env of aviary, GEM, Gymnasium, OpenEnv, skyrl-gym, tau2-bench or TextArena as an env of toolgym.

    `docs/foreign_envs.md` says for each project what is passed on. An exception of an env, a deadline that passes and a
    reward that is no finite number end the episode as a failure of the env, never as a reward of 0.

    Example:
        >>> import asyncio, gymnasium, toolgym
        >>> class Echo(gymnasium.Env):
        ...     action_space = observation_space = gymnasium.spaces.Text(max_length=100)
        ...     def reset(self, *, seed=None, options=None):
        ...         return f"Say {seed}.", {}
        ...     def step(self, action):
        ...         return "", float(action == "7"), True, False, {}
        >>> async def main():
        ...     async with toolgym.envs.wrap(Echo) as env:
        ...         obs, info = await env.reset(seed=7)
        ...         return obs[0]["content"], (await env.step("7")).reward
        >>> asyncio.run(main())
        ('Say 7.', 1.0)

    Args:
        env: the object, or a function or class that makes one when the first episode begins. A function that takes an
            argument gets the task, and makes an object for each episode. It may be async. The object is closed with
            the env. A runner wants an object for each env: `rollout(lambda: wrap(...), ...)`.
        options: see `WrapOptions`.

    Raises:
        ConfigError: the object is of no known project, cannot be wrapped, or an option is of the wrong kind or means
            nothing to its project.
        UnknownNameError: there is no such project, parser or option; names the nearest one.
    """
    settings = WrapOptions(**options)
    if settings.project is not None:
        checked_project(settings.project)
    is_object = not isinstance(env, type) and (project_of(env) is not None or not callable(env))
    if not is_object:
        assert callable(env)
        return ForeignEnv(None, env, _takes_task(env), settings)
    if adapter_for(env, settings.project).one_episode:
        raise ConfigError(
            f"an object of {type(env).__name__} plays one episode, so wrap needs a function that makes one, such as "
            f"`lambda task: {type(env).__name__}(...)`, got {env!r}"
        )
    return ForeignEnv(env, None, False, settings)


def _takes_task(make: Callable[..., Any]) -> bool:
    """Whether a function that makes envs takes the task. Raises ConfigError: it takes more than that."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # it does not say what it takes
        return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [arg for arg in parameters if arg.default is arg.empty and arg.kind not in variadic]
    if len(required) > 1 or any(arg.kind is arg.KEYWORD_ONLY for arg in required):
        names = ", ".join(arg.name for arg in required)
        raise ConfigError(f"a function that makes an env takes nothing, or the task; {make!r} takes: {names}")
    return bool(required)
