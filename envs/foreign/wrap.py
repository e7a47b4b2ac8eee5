"""`wrap`: an env of another project as an env of toolgym."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgym.envs.foreign.env import ForeignEnv, Settings
from toolgym.envs.foreign.options import Player, WrapOptions
from toolgym.envs.foreign.projects import adapter_for, checked_project, project_of
from toolgym.envs.result_text import check_cut
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import MAX_RESULT_CHARS
from toolgym.tools.errors import ConfigError, check_seconds, named_keywords, require_whole_number
from toolgym.tools.message import Message
from toolgym.tools.parsers import ParsedTurn, Parser, get_parser
from toolgym.tools.schema import ToolCall, ToolSchema


@named_keywords
def wrap(
    env: object,
    *,
    tasks: TaskSource | Sequence[Task] | None = None,
    system_prompt: str | None = None,
    max_turns: int | None = None,
    max_obs_chars: int | None = MAX_RESULT_CHARS,
    timeout: float = 120.0,
    queue_timeout: float = 600.0,
    own_thread: bool = False,
    parser: str | Parser = "hermes",
    project: str | None = None,
    to_text: Callable[[Any], str | Sequence[Message]] | None = None,
    to_action: Callable[[ParsedTurn], Any] | None = None,
    drop_thinking: bool = False,
    players: int = 1,
    player: int = 0,
    opponents: Player | Mapping[int, Player] | None = None,
    write_call: Callable[[ToolCall], str] | None = None,
    action_type: type | ToolSchema | Sequence[type | ToolSchema] | None = None,
) -> ForeignEnv:
    """Return an env of aviary, GEM, Gymnasium, OpenEnv, skyrl-gym, tau2-bench or TextArena as an env of toolgym.

    `docs/foreign_envs.md` says for each project what is passed on. What an env raises, a deadline that passes and a
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
        tasks: where tasks come from; None: each is a seed (`SeedTasks`). Of a task, the env's `reset` gets
            `extra_info["seed"]` and `extra_info["reset"]`, further arguments by name. The task's messages come before
            the env's first observation.
        system_prompt: comes before everything else.
        max_turns: turns until the episode is cut; None: as many as the env and the budgets of the runner allow.
        max_obs_chars: characters that may remain of one message of the env, the middle being left out. None: all.
        timeout: wall seconds for one `reset` or `step`, or for making the env. A thread that overran is left behind.
        queue_timeout: wall seconds that one of them may wait for a free thread (`TOOLGYM_BLOCKING_THREADS`).
        own_thread: run all functions of the env in one thread of its own, for libraries that are bound to one.
        parser: for actions that are text: how tool calls are written, as in `ToolEnv`.
        project: the project whose contract the object keeps, by its import name; None: that of its classes.
        to_text: from an observation to a text or messages, where it is neither.
        to_action: from a turn to an action, where it is no text. The policy reads the text of a `ValueError`.
        drop_thinking: leave the thinking that a turn begins with out of the text that the env gets.
        players: TextArena: how many play.
        player: TextArena: which of them is the policy, counted from 0.
        opponents: TextArena: from what a player reads to its move; or one for each other player, by number. May be
            async.
        write_call: skyrl-gym: from a tool call to the text by which the env reads it; with it, the policy sees the
            tools of the env's tool groups.
        action_type: OpenEnv: of which type actions are, where the env's class does not say: a class, a `ToolSchema`
            (actions are then dicts), or several.

    Raises:
        ConfigError: the object is of no known project, cannot be wrapped, or an argument is of the wrong kind or means
            nothing to its project.
        UnknownNameError: there is no such project, parser or argument; names the nearest one.
    """
    if project is not None:
        checked_project(project)
    if max_turns is not None:
        require_whole_number("max_turns", max_turns, at_least=1)
    check_cut("max_obs_chars", 1 if max_obs_chars is None else max_obs_chars, "middle")
    check_seconds(timeout=timeout, queue_timeout=queue_timeout)
    if not isinstance(system_prompt, str | None):
        raise ConfigError(f"system_prompt must be a text, got {system_prompt!r}")
    if not isinstance(parser, str) and not callable(parser):
        raise ConfigError(f"parser must be a parser's name or a function, got {parser!r}")
    options = WrapOptions(
        to_text=to_text,
        to_action=to_action,
        drop_thinking=drop_thinking,
        players=players,
        player=player,
        opponents=opponents,
        write_call=write_call,
        action_type=action_type,
    )
    settings = Settings(
        options=options,
        project=project,
        system_prompt=system_prompt,
        max_turns=max_turns,
        max_obs_chars=max_obs_chars,
        timeout=timeout,
        queue_timeout=queue_timeout,
        own_thread=own_thread,
        parser=get_parser(parser) if isinstance(parser, str) else parser,
    )
    is_object = not isinstance(env, type) and (project_of(env) is not None or not callable(env))
    if not is_object:
        assert callable(env)
        return ForeignEnv(None, env, _takes_task(env), tasks, settings)
    if adapter_for(env, project).one_episode:
        raise ConfigError(
            f"an object of {type(env).__name__} plays one episode, so wrap needs a function that makes one, such as "
            f"`lambda task: {type(env).__name__}(...)`, got {env!r}"
        )
    return ForeignEnv(env, None, False, tasks, settings)


def _takes_task(make: Callable[..., Any]) -> bool:
    """Whether a function that makes envs takes the task.

    Raises:
        ConfigError: it takes more than that.
    """
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # it does not say what it takes
        return False
    required = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(required) > 1 or any(one.kind is one.KEYWORD_ONLY for one in required):
        names = ", ".join(one.name for one in required)
        raise ConfigError(f"a function that makes an env takes nothing, or the task; {make!r} takes: {names}")
    return bool(required)
