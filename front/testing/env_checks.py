"""The checks of an env's contract that `check_env` is made of. Each takes an env and the actions of one episode.

Plain coroutines without pytest; `EnvSuite` is the same as tests.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.testing.errors import ConformanceError, expect
from toolgym.tools.errors import EpisodeError, ForkNotSupportedError
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn, get_parser
from toolgym.tools.schema import ToolSchema

SEEDS = (0, 1, 12345)


@dataclass(frozen=True)
class EnvSubject:
    """An env to test, and how to play it.

    Attributes:
        env: the env, freshly made.
        actions: of one episode, in order; the last is repeated until the episode is over. Texts are also given as
            parsed turns and as messages.
        repeatable: whether the same actions lead to the same observations and rewards.
        max_steps: steps after which an episode that is not over is an error.
        full_reward: what the known solution earns.
        silent_reward: the most that an empty answer earns.
        hidden: further texts that the policy must not read, besides those of the task's ground truth.
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

    async def play(self, env: BaseEnv | None = None, form: Callable[[Action], Action] = lambda one: one) -> list[Any]:
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
    """Check that a call raises `EpisodeError`."""
    try:
        result = await call()
    except EpisodeError:
        return
    except Exception as error:
        raise ConformanceError(f"{when} raises EpisodeError; got {type(error).__name__}: {error}") from error
    raise ConformanceError(f"{when} raises EpisodeError; got {result!r}")


def check_messages(messages: Any, whose: str) -> None:
    """The value is a list of chat messages."""
    expect(isinstance(messages, list), f"{whose} are a list of messages", messages)
    for message in messages:
        expect(isinstance(message, dict), f"each message of {whose} is a dict", message)
        expect(
            message.get("role") in ("system", "user", "assistant", "tool"),
            f"each message of {whose} has the role system, user, assistant or tool",
            message,
        )
        expect(isinstance(message.get("content"), str), f"each message of {whose} has content that is text", message)
        if message["role"] == "tool":
            expect(isinstance(message.get("tool_call_id"), str), "a tool's message has the tool_call_id", message)


def check_result(result: Any) -> None:
    """The value is a `StepResult` whose parts are what they should be."""
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
    """Reset, check what comes, and return a copy of the messages."""
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
    for form in (lambda one: one, parsed, message):
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
    """Return whether the env can be forked."""
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
