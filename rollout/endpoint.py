"""`run`: one episode against any OpenAI-compatible chat address, for trainers whose gateway captures the tokens.
Nothing is tokenized here, and only the reward goes back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from toolgym.envs.base import BaseEnv
from toolgym.envs.driven_episode import DrivenEpisode
from toolgym.envs.failure import failing
from toolgym.envs.tasks.row_fields import ENV_COLUMN
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.engines.openai.chat import ChatClient, ChatTurn, ContextFullError
from toolgym.rollout.episode.env_lifecycle import episode_deadline, too_late
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPool
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, error_text, shorten
from toolgym.tools.keywords import named_keywords

ENV_VARIABLE = "TOOLGYM_ENV"

RUN_VARIABLE = "TOOLGYM_RUN"
"""Environment variable with further arguments of `run` as JSON, for trainers that only name a function."""

MARGIN = 5.0
"""Seconds that the HTTP client waits longer than the engine's deadline, so that the error names that one."""


@named_keywords
async def run(
    data: Task | Mapping[str, Any],
    *,
    base_url: str,
    api_key: str | None = None,
    http_client: Any = None,
    env: str | Callable[[], BaseEnv] | EnvFactory | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    model: str = "default",
    request: Mapping[str, Any] | None = None,
    limits: EpisodeLimits | None = None,
    seed: int | None = None,
    ended: Callable[[], bool] | None = None,
    on_turn: Callable[[float], None] | None = None,
) -> float:
    """Play one episode with the model behind a chat address, and return its reward.

    A turn that was cut (`LENGTH`), and a conversation that has become too long for the model (`BUDGET`), end the
    episode; the env scores it then (`BaseEnv.truncate`).

    Args:
        data: the task, or a row in verl's shape (see `Task.from_row`).
        base_url: the address that an OpenAI client would be given, for example "http://gateway:8000/v1".
        api_key: sent as a bearer token.
        http_client: an `httpx.AsyncClient`, or one like it, to send with.
        env: an env id, or a function that makes an env; None: the row's column `env_id`, or the environment's
            `TOOLGYM_ENV`.
        env_kwargs: for `toolgym.make`, when the env is an id.
        model: the model's name for the server; most gateways take any.
        request: further fields of each request, for example `{"temperature": 1.0, "max_tokens": 512}`.
        limits: its deadlines hold; tokens are the server's to bound.
        seed: of the env.
        ended: asked after a failed request: whether the trainer ended the episode itself. Then it ends with `BUDGET`.
        on_turn: called with the reward of each turn that the model gave.

    Raises:
        EpisodeFailedError: the engine, the env or a deadline broke the episode off. It has no reward: 0 would blame the
            model.
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument or the row is not usable, or the server refused the request's content.
    """
    task = data if isinstance(data, Task) else Task.from_row(data)
    if not isinstance(limits, EpisodeLimits | None):
        raise ConfigError(f"limits must be EpisodeLimits, got {limits!r}")
    if not isinstance(request, Mapping | None):
        raise ConfigError(f"request must map the fields of a request to values, got {request!r}")
    if env is None:
        env = task.row.get(ENV_COLUMN) or os.environ.get(ENV_VARIABLE)
        if not isinstance(env, str):
            raise ConfigError(
                f"which env? Give run(env='CodeInterpreter-v0'), or use make_run('CodeInterpreter-v0'), or give each "
                f"row a column {ENV_COLUMN!r}, or set {ENV_VARIABLE}"
            )
    factory = EnvFactory.of(env, env_kwargs).member(task)
    limits = limits or EpisodeLimits()
    client = ChatClient(base_url, api_key, http_client)
    envs = EnvPool(factory, limits.env_timeout)
    try:
        try:
            env_timeout = limits.env_timeout
            driven = DrivenEpisode(await _take(envs), reset_timeout=env_timeout, step_timeout=env_timeout)
            episode = _Episode(
                driven,
                client,
                {"model": model, **(request or {})},
                limits.engine_timeout,
                ended or (lambda: False),
                on_turn or (lambda reward: None),
            )
            async with episode_deadline(limits):
                return await episode.play(task, seed)
        except TimeoutError as error:
            raise too_late(limits) from error
        finally:
            await envs.close()
    finally:
        await client.close()


def arguments_of(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `run` that `TOOLGYM_RUN`, a JSON object, and `TOOLGYM_ENV` have among some variables."""
    arguments = json_object(RUN_VARIABLE, variables.get(RUN_VARIABLE) or "{}")
    if variables.get(ENV_VARIABLE):
        arguments["env"] = variables[ENV_VARIABLE]
    if isinstance(arguments.get("limits"), Mapping):
        arguments["limits"] = EpisodeLimits(**arguments["limits"])
    return arguments


def json_object(name: str, text: str) -> dict[str, Any]:
    """Parse the JSON object of a variable; raises ConfigError, with its name, if it is none."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be JSON ({error}), got {shorten(text)!r}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a JSON object, got {shorten(text)!r}")
    return value


@dataclass(frozen=True)
class EndpointRun:
    """`run` with some of its arguments bound. It may be called, and has `run` as its method: trainers want either."""

    arguments: Mapping[str, Any] = field(default_factory=dict)

    shares_loop: ClassVar[bool] = True
    """It never blocks, so `agent_env` calls it on the run's event loop."""

    async def run(self, data: Task | Mapping[str, Any], **arguments: Any) -> float:
        return await run(data, **{**self.arguments, **arguments})

    __call__ = run


@named_keywords
def make_run(
    env: str | Callable[[], BaseEnv] | EnvFactory,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    model: str = "default",
    request: Mapping[str, Any] | None = None,
    limits: EpisodeLimits | None = None,
) -> EndpointRun:
    """Return `run` for one env, with its arguments bound: `await reward_of(row, base_url=..., api_key=...)`."""
    EnvFactory.of(env, env_kwargs)
    return EndpointRun({"env": env, "env_kwargs": env_kwargs, "model": model, "request": request, "limits": limits})


@dataclass
class _Episode:
    """An episode that a chat address plays; `ended` and `on_turn` as `run` has them."""

    driven: DrivenEpisode
    client: ChatClient
    body: Mapping[str, Any]
    engine_timeout: float
    ended: Callable[[], bool]
    on_turn: Callable[[float], None]

    async def play(self, task: Task, seed: int | None) -> float:
        episode = self.driven
        obs, _ = await episode.reset(seed=seed, options={"task": task})
        conversation: list[dict[str, Any]] = [_sent(message) for message in obs]
        tools = [schema.to_openai() for schema in episode.env.tool_schemas]
        while True:
            turn = await self._turn(conversation, tools)
            if turn is None:
                await episode.truncate(StopReason.BUDGET)
                return episode.reward
            if turn.finish_reason == "abort":  # SGLang's and vLLM's word, to a turn that their trainer gave up
                raise EpisodeFailedError(StopReason.ABORTED, "the server aborted the turn")
            if turn.finish_reason == "length":
                result = await episode.truncate(StopReason.LENGTH, turn.action)
            else:
                result = await episode.step(turn.action)
            self.on_turn(result.reward)
            if episode.over:
                return episode.reward
            if "context" in result.info:  # it begins anew
                conversation = [_sent(message) for message in result.info["context"]]
            else:
                conversation += [turn.message, *map(_sent, result.obs)]

    async def _turn(self, conversation: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ChatTurn | None:
        """The model's next turn; None if the conversation has become too long for it, or the trainer ended it."""
        body = {**self.body, "messages": conversation, **({"tools": tools} if tools else {})}
        call = self.client.turn(body, self.engine_timeout + MARGIN)
        try:
            with failing(StopReason.ENGINE_FAILED, StopReason.ENGINE_TIMEOUT, unless=(ContextFullError, ConfigError)):
                return await with_deadline(call, self.engine_timeout)
        except ContextFullError as error:
            if self.driven.steps or any(message["role"] == "assistant" for message in conversation):
                return None
            raise EpisodeFailedError(StopReason.PROMPT_REFUSED, str(error)) from error
        except (ConfigError, EpisodeFailedError):
            if self.ended():
                return None
            raise


async def _take(envs: EnvPool) -> BaseEnv:
    try:
        return await envs.take()
    except ConfigError:
        raise
    except Exception as error:
        raise EpisodeFailedError(StopReason.ENV_CREATE_FAILED, error_text(error), error) from error


def _sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of an env as servers take it: without the keys that are ours, arguments as JSON text."""
    sent = dict(message)
    if message["role"] == "tool":
        sent.pop("name", None)
    if "tool_calls" in message:
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return sent
