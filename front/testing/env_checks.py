"""The checks of an env's contract that `check_env` is made of, and that it frees what it takes.

Each takes an env and the actions of one episode. Plain coroutines without pytest; `EnvSuite` is the same as tests.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.testing.env_attacks import SLEEP, program_call, program_tools
from toolgym.testing.errors import ConformanceError, expect
from toolgym.tools.errors import ConfigError, EpisodeError, ForkNotSupportedError, shorten
from toolgym.tools.message import Message, require_content
from toolgym.tools.parsers import ParsedTurn, get_parser
from toolgym.tools.schema import ToolSchema

SEEDS = (0, 1, 12345)

CANCEL_SECONDS = 20.0
"""Seconds within which a cancelled step must end."""

CANCEL_AFTER = (0.0, 0.02, 0.2)
"""Seconds after which a step is cancelled: at its first wait, at the start of a call, in the middle of a long one."""

WARM_UP, EPISODES = 2, 4
"""Envs that are played before what they leave is counted, since the first ones start what all share, and after."""

SETTLE_SECONDS = 30.0
"""Seconds that processes and threads get to end after their env was closed."""


@dataclass(frozen=True)
class EnvSubject:
    """An env to test, and how to play it.

    Attributes:
        actions: of one episode, in order; the last is repeated until the episode is over. Texts are also given as
            parsed turns and as messages, with tool calls read as Hermes writes them.
        repeatable: whether the same seed and actions lead to the same observations and rewards. The tasks that a seed
            draws must be the same in any case.
        max_steps: steps after which an episode that is not over is an error.
        full_reward: what the known solution (`gold_actions`) earns, and no attack.
        silent_reward: the most that an empty answer earns.
        hidden: further texts that the policy must not be able to read, such as those of hidden tests.
        make: makes another such env; None where there is only this one.
    """

    env: BaseEnv
    actions: Sequence[Action] = ("I do not know.",)
    repeatable: bool = True
    max_steps: int = 64
    full_reward: float = 1.0
    silent_reward: float = 0.0
    hidden: Sequence[str] = ()
    make: Callable[[], BaseEnv] | None = None

    async def play(
        self, env: BaseEnv | None = None, form: Callable[[Action], Action] = lambda action: action
    ) -> list[Any]:
        """Play an episode that has begun to its end; return what each step gave, as plain data."""
        env = env or self.env
        story: list[Any] = []
        for at in range(self.max_steps):
            result = await env.step(form(self.actions[min(at, len(self.actions) - 1)]))
            check_result(result)
            story.append((copy.deepcopy(result.obs), result.reward, result.done, result.stop_reason))
            if result.done:
                return story
        raise ConformanceError(
            f"an episode ends within max_steps={self.max_steps}; got {self.max_steps} steps that are not done. "
            "Give `actions` that end an episode"
        )


async def refused(call: Callable[[], Any], when: str) -> None:
    try:
        result = await call()
    except EpisodeError:
        return
    except Exception as error:
        raise ConformanceError(f"{when} raises EpisodeError; got {type(error).__name__}: {error}") from error
    raise ConformanceError(f"{when} raises EpisodeError; got {result!r}")


def check_messages(messages: Any, whose: str) -> None:
    expect(isinstance(messages, list), f"{whose} are a list of messages", messages)
    for message in messages:
        expect(isinstance(message, dict), f"each message of {whose} is a dict", message)
        expect(
            message.get("role") in ("system", "user", "assistant", "tool"),
            f"each message of {whose} has the role system, user, assistant or tool",
            message,
        )
        try:
            require_content(message.get("content"))
        except ConfigError as error:
            expect(False, f"each message of {whose} has content that is text, or texts and images: {error}", message)
        if message["role"] == "tool":
            expect(isinstance(message.get("tool_call_id"), str), "a tool's message has the tool_call_id", message)


def check_result(result: Any) -> None:
    expect(isinstance(result, StepResult), "step returns StepResult(obs, reward, done, info)", result)
    check_messages(result.obs, "the observations of a step")
    reward: Any = result.reward
    expect(
        isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward),
        "a reward is a finite number",
        reward,
    )
    expect(type(result.done) is bool, "done is a bool", result.done)
    info: Any = result.info
    expect(isinstance(info, Mapping), "info is a mapping", info)
    reason = info.get("stop_reason")
    if result.done:
        known = reason is None or reason in set(StopReason)
        expect(known, f"stop_reason is one of {', '.join(map(str, StopReason))}", reason)
    else:
        expect(reason is None, "stop_reason is None while the episode goes on", reason)
    if "message" in info:
        check_messages([info["message"]], "info['message']")
        expect(info["message"]["role"] == "assistant", "info['message'] is the assistant's", info["message"])
    for record in info.get("tool_calls", ()):
        expect(isinstance(record, ToolCallRecord), "info['tool_calls'] are ToolCallRecords", record)
    metrics = info.get("metrics", {})
    expect(
        isinstance(metrics, Mapping) and all(isinstance(name, str) for name in metrics),
        "info['metrics'] is a mapping by names",
        metrics,
    )


async def check_order(subject: EnvSubject) -> None:
    """A step before the first reset, after the end and after the close of an episode is an `EpisodeError`."""
    env, action = subject.env, subject.actions[0]
    await refused(lambda: env.step(action), "step before reset")
    await env.reset(seed=0)
    await subject.play()
    await refused(lambda: env.step(action), "step after the end of the episode")
    await env.reset(seed=0)


async def check_tools(subject: EnvSubject) -> None:
    """The tools are schemas with names of their own."""
    schemas = subject.env.tool_schemas
    expect(isinstance(schemas, list), "tool_schemas is a list", schemas)
    for schema in schemas:
        expect(isinstance(schema, ToolSchema), "tool_schemas are ToolSchemas", schema)
    names = [schema.name for schema in schemas]
    expect(len(set(names)) == len(names), "tools have names of their own", names)


async def begin(env: BaseEnv, **arguments: Any) -> list[Message]:
    came: Any = await env.reset(**arguments)
    expect(isinstance(came, tuple) and len(came) == 2, "reset returns (messages, info)", came)
    messages, info = came
    check_messages(messages, "the messages of a reset")
    expect(bool(messages), "reset returns all messages so far, at least one", messages)
    expect(isinstance(info, Mapping), "the info of a reset is a mapping", info)
    if "task" in info:
        expect(isinstance(info["task"], Task), "info['task'] is a Task", info["task"])
    if "tools" in info:
        tools = [schema.to_openai() for schema in env.tool_schemas]
        expect(info["tools"] == tools, "info['tools'] are the tool_schemas in the OpenAI shape", info["tools"])
    return copy.deepcopy(messages)


async def check_reset(subject: EnvSubject) -> None:
    """`reset` gives messages and an info, and ends the episode before."""
    await begin(subject.env, seed=0)
    await begin(subject.env)
    await subject.env.step(subject.actions[0])
    await begin(subject.env)
    await subject.play()
    await begin(subject.env, seed=1, options={})


async def check_step(subject: EnvSubject) -> None:
    """`step` gives a `StepResult` with the new messages alone, and the episode comes to an end."""
    first = await begin(subject.env, seed=0)
    for obs, *_ in await subject.play():
        expect(obs[: len(first)] != first, "a step returns only the new messages; got all of the conversation", obs)


async def check_forms(subject: EnvSubject) -> None:
    """An action is a parsed turn, an assistant message, or text."""
    parser = get_parser("hermes")

    def parsed(action: Action) -> Action:
        return parser(action) if isinstance(action, str) else action

    def message(action: Action) -> Action:
        turn = parsed(action)
        return turn.message if isinstance(turn, ParsedTurn) else turn

    stories = []
    for form in (lambda action: action, parsed, message):
        await subject.env.reset(seed=0)
        stories.append([(reward, done, reason) for _, reward, done, reason in await subject.play(form=form)])
    if subject.repeatable:
        text, *others = stories
        for other in others:
            expect(other == text, f"an action means the same as text, parsed turn and message: {text!r}", other)


async def check_seeds(subject: EnvSubject) -> None:
    """A seed makes its episode and the ones after it reproducible."""
    env = subject.env
    for seed in SEEDS:
        stories: list[tuple[Any, ...]] = []
        for _ in range(2):
            first = await begin(env, seed=seed)
            story = await subject.play()
            stories.append((first, await begin(env), story if subject.repeatable else None))
        (first, after, story), (again, after_again, story_again) = stories
        expect(again == first, f"reset(seed={seed}) twice begins the same: {first!r}", again)
        expect(after_again == after, f"the episode after that of seed={seed} begins the same: {after!r}", after_again)
        expect(story_again == story, f"the same actions after seed={seed} lead to the same: {story!r}", story_again)


async def check_group(subject: EnvSubject) -> None:
    """Members of a group, which are reset with the same task and seed, begin in the same state."""
    env = subject.env
    _, info = await env.reset(seed=SEEDS[0])
    options: Any = {"task": info["task"]} if "task" in info else None
    first = await _member(subject, env, options)
    await begin(env, seed=SEEDS[1])
    other = env if subject.make is None else subject.make()
    try:
        part, before, now = _difference(first, await _member(subject, other, options))
        if part:
            cause = await _why_members_differ(subject, env, options)
            raise ConformanceError(
                f"the members of a group begin in the same state: {part} of one are {shorten(repr(before), 200)} and "
                f"of another {shorten(repr(now), 200)}, with the same task and seed. {cause}"
            )
    finally:
        if other is not env:
            await other.close()


async def _member(subject: EnvSubject, env: BaseEnv, options: Any) -> dict[str, Any]:
    """Play one member of a group; return what the policy sees, by what it is."""
    messages, _ = await env.reset(seed=SEEDS[2], options=options)
    messages, tools = copy.deepcopy(messages), list(env.tool_schemas)
    story = await subject.play(env) if subject.repeatable else None
    return {"the first messages": messages, "the tools": tools, "the answers to the same actions": story}


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Return the name of the first part that differs, with both values; an empty name if none does."""
    return next(((name, first[name], second[name]) for name in first if first[name] != second[name]), ("", None, None))


async def _why_members_differ(subject: EnvSubject, env: BaseEnv, options: Any) -> str:
    """Try what makes two members alike, and return what the author of the env has to change."""
    plays = [await _member(subject, env, options) for _ in range(2)]
    if plays[0] == plays[1]:
        return (
            "The state depends on the object or on the episodes before: make everything in `reset` from the task and "
            "the seed, not in the constructor"
        )
    state, plays = random.getstate(), []
    try:
        for _ in range(2):
            random.seed(0)
            plays.append(await _member(subject, env, options))
    finally:
        random.setstate(state)
    if plays[0] == plays[1]:
        return "The env draws from the global `random`: draw from `random.Random(seed)` with the seed of `reset`"
    return (
        "The state depends on something else than the task and the seed of `reset`, such as the clock, `uuid`, or a "
        "generator without a seed"
    )


async def check_task(subject: EnvSubject) -> None:
    """A task that is asked for is the task of the episode, where the env tells its tasks."""
    first, info = await subject.env.reset(seed=0)
    if "task" not in info:
        return
    first, task = copy.deepcopy(first), info["task"]
    await subject.env.reset(seed=1)
    again, chosen = await subject.env.reset(options={"task": task})
    expect(again == first, f"reset(options={{'task': task}}) begins with that task: {first!r}", again)
    expect(chosen["task"] == task, "info['task'] is the task that was asked for", chosen["task"])


async def can_fork(subject: EnvSubject) -> bool:
    await subject.env.reset(seed=0)
    try:
        twin = await subject.env.fork()
    except ForkNotSupportedError:
        return False
    await twin.close()
    return True


async def check_fork(subject: EnvSubject) -> None:
    """A fork is an env of its own that goes on from the same state, and lives on without its origin."""
    env = subject.env
    await begin(env, seed=0)
    twin = await env.fork()
    try:
        expect(isinstance(twin, BaseEnv) and twin is not env, "fork returns another env", twin)
        expect(twin.tool_schemas == env.tool_schemas, "a fork has the same tools", twin.tool_schemas)
        story = await subject.play()
        await env.reset(seed=1)
        again = await subject.play(twin)
        if subject.repeatable:
            expect(again == story, f"a fork goes on from the same state, by itself: {story!r}", again)
        await refused(twin.fork, "fork after the end of the episode")
    finally:
        await twin.close()
    await subject.play()  # the origin lives on


async def check_no_fork(subject: EnvSubject) -> None:
    """An env that cannot be forked says so, and goes on."""
    await begin(subject.env, seed=0)
    try:
        twin = await subject.env.fork()
    except ForkNotSupportedError:
        await subject.play()
        return
    await twin.close()
    raise ConformanceError(f"fork raises ForkNotSupportedError; got {twin!r}")


async def check_close(subject: EnvSubject) -> None:
    """`close` ends an episode; closing twice is fine."""
    await subject.env.reset(seed=0)
    await subject.env.close()
    await refused(lambda: subject.env.step(subject.actions[0]), "step after close")
    await subject.env.close()


async def check_cancellation(subject: EnvSubject) -> None:
    """A step may be cancelled at any time: it ends at once, and the env begins another episode and closes."""
    env = subject.env
    for seconds in CANCEL_AFTER:
        for at, action in enumerate(subject.actions):
            await env.reset(seed=0)
            if not await _play_until(subject, at):
                break
            await _cancel(env, action, seconds)
        for schema, argument, language in program_tools(env):
            await env.reset(seed=0)
            await _cancel(env, program_call(schema, argument, SLEEP[language]), seconds)
    await begin(env, seed=0)
    await subject.play()


async def _cancel(env: BaseEnv, action: Action, seconds: float) -> None:
    step = asyncio.create_task(env.step(action), name="toolgym-check-cancellation")
    await asyncio.wait([step], timeout=seconds)
    if step.done():
        step.result()
        return
    step.cancel()
    done, _ = await asyncio.wait([step], timeout=CANCEL_SECONDS)
    expect(bool(done), f"a cancelled step ends within {CANCEL_SECONDS:g} seconds", "a step that goes on")
    if not step.cancelled():
        got = step.exception() or step.result()
        expect(False, f"a step that is cancelled after {seconds:g} seconds raises CancelledError", got)


async def _play_until(subject: EnvSubject, at: int) -> bool:
    """Take the actions before `at`; return whether the episode goes on."""
    for action in subject.actions[:at]:
        if (await subject.env.step(action)).done:
            return False
    return True


async def check_leaks(subject: EnvSubject) -> str | None:
    """Envs that were made, played and closed leave no task, thread, process, open file or temporary file behind."""
    make = subject.make
    if make is None:
        return "it needs a function that makes the env: give its id, or a factory"
    for _ in range(WARM_UP):
        await _play_one(subject, make)
    with own_temporary_folder() as folder:
        before = await _settled(folder, None)
        for _ in range(EPISODES):
            await _play_one(subject, make)
        after = await _settled(folder, before)
    for name, count in after.items():
        left = count - before[name]
        expect(left < EPISODES, f"a closed env leaves no {name} behind", f"{left} more after {EPISODES} episodes")
    return None


async def _play_one(subject: EnvSubject, make: Callable[[], BaseEnv]) -> None:
    env = make()
    try:
        await env.reset(seed=0)
        await subject.play(env)
        await env.reset(seed=1)  # closed in the middle of an episode
        await env.step(subject.actions[0])
    finally:
        await env.close()
        await env.close()


async def _settled(folder: Path, before: dict[str, int] | None) -> dict[str, int]:
    """Count what there is, once it is no more than before or the time is up."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        await asyncio.sleep(0.05)
        gc.collect()
        now = _counts(folder)
        if before is None or time.monotonic() > end or all(now[name] - before[name] < EPISODES for name in now):
            return now


def _counts(folder: Path) -> dict[str, int]:
    counts = {"task": len(asyncio.all_tasks()), "thread": threading.active_count()}
    counts["temporary file"] = sum(1 for _ in folder.iterdir())
    if Path("/proc/self/fd").is_dir():
        counts["open file"] = len(os.listdir("/proc/self/fd"))
        counts["process"] = sum(1 for _ in _descendants(os.getpid()))
    return counts


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended since
        return
    for child in children:
        yield int(child)
        yield from _descendants(int(child))


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Make `tempfile` and programs that are started now use a folder of their own, which is removed at the end."""
    default = tempfile.tempdir
    variable = {name: value for name, value in os.environ.items() if name == "TMPDIR"}
    with tempfile.TemporaryDirectory(prefix="toolgym-check-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = default
            del os.environ["TMPDIR"]
            os.environ.update(variable)
