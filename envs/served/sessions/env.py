"""Sessions of a session server as an env, `RemoteSessionEnv`, and as a tool, `RemoteSessionTool`.

```yaml
- class_name: toolgym.envs.served.sessions.RemoteSessionTool
  config: {base_url: ["http://10.0.0.7:5000", "http://10.0.0.8:5000"]}
```
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolgym.envs.actions import read_action
from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.families.swe.env import gold_turns
from toolgym.envs.families.swe.task import ROW_KEY, RepositoryTask, load_repository_tasks
from toolgym.envs.result_text import cut
from toolgym.envs.served.sessions.backends.actions import HOW_TO_ACT, TOOLS
from toolgym.envs.served.sessions.client import OpenSession, SessionClient
from toolgym.envs.served.sessions.protocol import read_sid
from toolgym.envs.tasks.sources import TaskList, TaskSource, require_task, task_of_reset
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import MAX_RESULT_CHARS
from toolgym.envs.tool_instances import encodable
from toolgym.envs.types import EpisodeFailedError, ResetOptions, ResetResult, StepInfo, StopReason
from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.deadline import own_deadline, shielded
from toolgym.tools.errors import ConfigError, EpisodeError, RemoteSessionError, require_whole_number
from toolgym.tools.keywords import check_keywords, named_keywords
from toolgym.tools.message import Message, tool, user
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.schema import ToolCall, ToolCallError, ToolSchema
from toolgym.tools.stateful import StatefulTool, ToolSession


class RemoteSessionEnv(BaseEnv):
    """An env whose turns a session server carries out. `docs/sessions.md` has its rules.

    A failing infrastructure is no reward of 0: the episode ends with `SANDBOX_FAILED`, or with `SCORE_FAILED` if only
    the reward is missing. A task's `instance_hash` is its row's `extra_info.instance_hash` or `extra_info.instance_id`,
    else its id.

    Args:
        base_url: addresses of session servers, or a `SessionClient`, which stays the caller's to close.
        tasks: where tasks come from.
        tools: tools of the servers; the policy's own format of calls does not matter. None: a turn is sent as text.
        token: bearer token for the servers.
        client_kwargs: the other arguments of `SessionClient`, such as `patience`.
        max_turns: turns of the policy until the episode is truncated.
        max_result_chars: characters of an answer that the policy reads; a longer text loses its middle.

    The metrics of a step hold `turn` and `sids`, the session's id as a number, which fits into an int64; those of the
    last one also `score` and the numbers of the server's answer, such as `f2p_count`.

    Raises:
        ConfigError: an argument cannot be used.
    """

    @named_keywords
    def __init__(
        self,
        base_url: str | Sequence[str] | SessionClient,
        tasks: TaskSource | Sequence[Task],
        *,
        tools: Sequence[ToolSchema] = (),
        token: str | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        max_turns: int = 32,
        max_result_chars: int = MAX_RESULT_CHARS,
    ) -> None:
        require_whole_number("max_turns", max_turns, at_least=1)
        require_whole_number("max_result_chars", max_result_chars, at_least=1)
        self._owns_client = not isinstance(base_url, SessionClient)
        self.client = (
            base_url
            if isinstance(base_url, SessionClient)
            else SessionClient(base_url, token=token, **(client_kwargs or {}))
        )
        self.tasks = tasks if isinstance(tasks, TaskSource) else TaskList(tasks)
        self.max_turns, self.max_result_chars = max_turns, max_result_chars
        self._tools = list(tools)
        self.messages: list[Message] = []
        self._calls = 0
        self._rng = random.Random()
        self._session: OpenSession | None = None
        self._turn = 0
        self._begun = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {', '.join(self.client.urls)}; turn {self._turn} of {self.max_turns}>"

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        task = task_of_reset(seed, options)
        await self._abandon()
        if seed is not None:
            self._rng = random.Random(seed)
        self.task = task = task if task is not None else require_task(self.tasks.sample(self._rng))
        self._turn = self._calls = 0
        try:
            self._session = await self.client.start(instance_hash(task))
        except RemoteSessionError as error:
            raise EpisodeFailedError(StopReason.SANDBOX_FAILED, str(error)) from error
        self._begun = True
        self.messages = [message.copy() for message in task.messages]
        return [message.copy() for message in task.messages], {
            "task": task,
            "tools": [schema.to_openai() for schema in self._tools],
        }

    async def step(self, action: Action) -> StepResult:
        if not self._begun:
            raise EpisodeError("step was called before reset; call `await env.reset()` first")
        session = self._session
        if session is None:
            raise EpisodeError("step was called after the episode ended; call `await env.reset()` to begin another")
        turn = read_action(action, self._parse, calls_seen=self._calls)
        self._turn += 1
        self._calls += len(turn.requests)
        self.messages.append(turn.message)
        if self._tools and not turn.requests:
            return await self._end(StopReason.ANSWERED, turn)
        try:
            if self._tools:
                obs = [await self._answer(session, request) for request in turn.requests]
            else:
                reply = await session.act(turn.text)
                obs = [user(self._cut(reply.content))]
        except RemoteSessionError as error:
            await self._abandon()
            raise EpisodeFailedError(StopReason.SANDBOX_FAILED, str(error)) from error
        if not self._tools and reply.done:
            return await self._end(StopReason.ANSWERED, turn)
        if self._turn >= self.max_turns:
            return await self._end(StopReason.MAX_TURNS, turn)
        metrics = self._metrics(session)
        self.messages += [message.copy() for message in obs]
        info: StepInfo = {"stop_reason": None, "message": turn.message, "tool_calls": [], "metrics": metrics}
        return StepResult(obs, 0.0, False, info)

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return [*self._tools]

    def _parse(self, text: str) -> ParsedTurn:
        return parse_hermes(text, first_id=self._calls) if self._tools else ParsedTurn(text, text, [], [])

    async def _answer(self, session: OpenSession, request: ToolCall | ToolCallError) -> Message:
        if isinstance(request, ToolCallError):
            text = request.message
        else:
            call = json.dumps({"name": request.name, "arguments": request.arguments}).replace("<", "\\u003c")
            text = (await session.act(f"<tool_call>\n{call}\n</tool_call>")).content
        return tool(self._cut(text), tool_call_id=request.id, name=encodable(request.name))

    def _cut(self, text: str) -> str:
        return encodable(cut(text, self.max_result_chars, "middle"))

    def gold_actions(self) -> list[Action] | None:
        """The gold patch, by calls of tools or in a block, and a last turn; None: the task's row holds no patch."""
        if self.task is None or ROW_KEY not in self.task.extra_info:
            return None
        if self._tools:
            return gold_turns(RepositoryTask.from_task(self.task))
        patch = RepositoryTask.from_task(self.task).gold_patch
        return [f"```diff\n{patch.rstrip()}\n```", "I am done."] if patch else None

    async def close(self) -> None:
        try:
            await self._abandon()
        finally:
            if self._owns_client:
                await self.client.close()

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        """Ask the server for the reward of what the episode has done: it is not sent a turn that was cut.

        After a failure it is not asked.
        """
        if self._session is None:
            raise EpisodeError("truncate needs an episode under way; call `await env.reset()` first")
        self._turn += turn is not None
        if not reason.failed:
            return await self._scored(reason)
        await self._abandon()
        return StepResult([], 0.0, True, {"stop_reason": reason})

    async def _end(self, reason: StopReason, turn: ParsedTurn) -> StepResult:
        result = await self._scored(reason)
        info: StepInfo = {**result.info, "message": turn.message, "tool_calls": []}
        return result._replace(info=info)

    async def _scored(self, reason: StopReason) -> StepResult:
        """End the episode, with the server's reward."""
        session, self._session = self._session, None
        assert session is not None
        metrics = self._metrics(session)
        try:
            with own_deadline():  # those of the client
                await shielded(session.postprocess())
                reward = await session.reward()
        except RemoteSessionError as error:
            raise EpisodeFailedError(StopReason.SCORE_FAILED, str(error)) from error
        numbers = {name: value for name, value in reward.answer.items() if type(value) in (int, float)}
        metrics |= {"score": reward.value} | {name: value for name, value in numbers.items() if name != "reward"}
        return StepResult([], reward.value, True, {"stop_reason": reason, "metrics": metrics})

    def _metrics(self, session: OpenSession) -> dict[str, Any]:
        return {"turn": self._turn, "sids": int(read_sid(session.sid))}

    async def _abandon(self) -> None:
        """End an episode that was left, so that its session is freed now. A server that is away frees it later."""
        session, self._session = self._session, None
        if session is not None:
            await shielded(session.abandon())


def instance_hash(task: Task) -> str:
    """Return the task's name for `/start_instance`. Raises ConfigError: the task has no id at all."""
    extra = task.extra_info
    name = extra.get("instance_hash") or extra.get("instance_id") or task.id
    if not name:
        raise ConfigError("a task for a session server needs extra_info.instance_hash or extra_info.instance_id")
    return str(name)


def remote_swe_dev_env(base_url: str | Sequence[str] | SessionClient, **kwargs: Any) -> RemoteSessionEnv:
    """Return the env of `SWEDev-v0` on session servers; the embedded tasks say how to act if `tools` is empty."""
    kwargs.setdefault("tools", TOOLS)
    if kwargs.get("tasks") is None:
        rows = [row.to_task() for row in load_repository_tasks()]
        kwargs["tasks"] = rows if kwargs["tools"] else [_with_manual(row) for row in rows]
    return RemoteSessionEnv(base_url, **kwargs)


def _with_manual(task: Task) -> Task:
    *before, last = task.messages
    return replace(task, messages=(*before, user(f"{last['content']}\n\n{HOW_TO_ACT}")))


SERVER_FAILED = "[The session server failed; your call is not to blame]"


class RemoteSessionTool(StatefulTool):
    """Sends `content` to a session of a session server, and returns its answer.

    A task's `create_kwargs` must have `instance_hash`. The tool's reward is that of `/compute_reward`, asked when the
    episode ends. The metrics of a call are `status` (`ok` or `session_failed`), `sids` (the session's id as a number)
    and, if the server failed, `infra_failure` and `error`.

    Args:
        config: arguments of `SessionClient`; `type` is ignored.
        tool_schema: another name or description for the model; it must keep the argument `content`.

    Raises:
        ConfigError: an option is unknown or out of range.
    """

    stays_on_loop = True
    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": ("instance_hash",),
        "execute_kwargs": (),
        "calc_reward_kwargs": (),
    }
    default_schema = ToolSchema(
        name="process_action",
        description="Carry out an action in the environment, and read what comes of it.",
        parameters={
            "type": "object",
            "properties": {
                "content": {
                    "type": "string",
                    "description": "The action, such as commands in a ```bash block, or a unified diff.",
                }
            },
            "required": ["content"],
        },
    )

    def __init__(
        self, config: Mapping[str, Any] | None = None, tool_schema: ToolSchema | Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(config, tool_schema)
        options = {name: value for name, value in self.config.items() if name != "type"}  # of verl's tool files
        check_keywords(SessionClient, options)
        if "content" not in self.tool_schema.parameters.get("properties", {}):
            raise ConfigError(f"the schema of {type(self).__name__} must have the argument 'content'")
        self.client = SessionClient(options.pop("base_url", ()), **options)

    async def open(self, **create_kwargs: Any) -> ToolSession:
        if create_kwargs.keys() != {"instance_hash"}:
            raise ConfigError(
                f"the tool {self.name!r} needs create_kwargs with only 'instance_hash', got {sorted(create_kwargs)}"
            )
        return _Session(await self.client.start(create_kwargs["instance_hash"]))

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self.client.close()


class _Session(ToolSession):
    def __init__(self, remote: OpenSession) -> None:
        self._remote = remote
        self._ended = False

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        metrics: dict[str, Any] = {"status": "ok", "sids": int(self._remote.sid)}
        try:
            reply = await self._remote.act(parameters["content"])
        except RemoteSessionError as error:
            metrics |= {"status": "session_failed", "infra_failure": True, "error": str(error)}
            return ToolResult(SERVER_FAILED, 0.0, metrics)
        return ToolResult(reply.content, 0.0, metrics)

    async def reward(self, **calc_reward_kwargs: Any) -> float:
        await self._remote.postprocess()
        self._ended = True
        return (await self._remote.reward()).value

    async def close(self) -> None:
        if not self._ended:
            await self._remote.abandon()
