"""`recorded`: a run that is recorded whole, so that `toolgym.rollout.replay` can play it again."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.roles.base import RolesEnv, require_roles
from toolgym.envs.tasks.task import Task
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.job import EpisodeKey
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.recording.cassette import CassetteWriter, lines_of_finished
from toolgym.rollout.recording.engine import RecordingEngine
from toolgym.rollout.recording.secrets import redacted
from toolgym.rollout.recording.tools import RecordedTool, tool_env
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.tokens.context_policies import ContextPolicy, CutToolResults, KeepToolResults
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REBUILT = ("tools", "own_tools", "tool_config", "tasks")
"""Arguments of an env that are not written: a replay makes them from the recording."""

POLICIES: dict[str, type[ContextPolicy]] = {kind.__name__: kind for kind in (CutToolResults, KeepToolResults)}
"""Context policies that JSON can hold. The others call functions of the user's, and are left out."""


_log = logging.getLogger("toolgym.rollout")


@contextlib.contextmanager
def recorded(
    runner: Runner,
    tasks: Sequence[Task],
    path: str | Path,
    *,
    tokenizer_source: str | None = None,
    finished: Collection[EpisodeKey] | None = None,
) -> Iterator[Runner]:
    """Record a run to a file: requests to the engine, calls of tools, trajectories.

    The context manager gives a runner that plays as `runner` does, with a `RecordingEngine` around the engine and a
    `RecordedTool` around each tool of an env. Play the tasks with it once:

        with recorded(runner, tasks, "run.jsonl") as recording:
            trajectories = await recording.run(tasks)

    The file is complete with the last trajectory. A run that stops before that leaves what it had.

    Args:
        runner: its engine has started. Only where its envs have an id does a replay know how to make them.
        tasks: what the run will play; written at the beginning.
        path: the file; an existing one is replaced.
        tokenizer_source: where a replay finds the tokenizer by itself: a folder, a name, or `tiny`.
        finished: go on with the recording of a run that is resumed; the episodes that will not be played again. What
            the file holds of others is removed. None: begin anew.

    Raises:
        ConfigError: the file cannot be written, or is no recording to go on with; an argument of the env is not plain
            JSON; a second run is played; roles have plans or tools of their own, or play in a mixture; or the run's
            episodes branch (`RunConfig.branching`).
        EngineError: the engine has not started.
    """
    if runner.config.branching is not None:
        raise ConfigError(
            "a run whose episodes branch cannot be recorded: which branch of a group is which depends on time, so a "
            "replay could not tell them apart; leave out RunConfig.branching"
        )
    if any(factory.roles for factory in runner.env.each):
        raise ConfigError("a recording is of one engine, which plays all roles alike: leave out the RolePlans")
    kwargs, members = runner.env.kwargs or {}, list(runner.env.members)
    env_kwargs = {name: _writable(kwargs.get(name) or {}) for name in members} if members else _writable(kwargs)
    run_config = runner.config.seeded()
    config, left_out = config_to_json(run_config)
    kept = None if finished is None else lines_of_finished(Path(path), finished)
    cassette = CassetteWriter(path, kept=kept)
    expected = len(tasks) * runner.config.group_size - len(finished or ())
    trajectories = _TrajectorySink(cassette, expected)
    try:
        engine = RecordingEngine(runner.engine, cassette, deadline=runner.config.limits.engine_timeout)
        engine.describe()
        cassette.write(
            "run",
            env=runner.env.env_id,
            env_is_id=runner.env.kwargs is not None,
            env_kwargs=env_kwargs,
            members=members,
            config=config,
            config_left_out=left_out,
            tokenizer={**tokenizer_fingerprint(runner.tokenizer), "source": tokenizer_source},
            tasks=[_row(task) for task in tasks],
        )
        yield runner.replaced(
            env=runner.env.changed(_ToolRecorder(cassette, trajectories, mixture=bool(members))),
            engine=engine,
            sinks=[trajectories, *runner.sinks],
            config=run_config,
        )
    finally:
        cassette.close(ended=trajectories.complete)


class _TrajectorySink:
    """Writes the trajectories of so many episodes: of each one, or one for each of several `roles`."""

    def __init__(self, cassette: CassetteWriter, episodes: int) -> None:
        self._cassette, self._episodes, self._written = cassette, episodes, 0
        self.roles = 1

    @property
    def _missing(self) -> int:
        return self._episodes * self.roles - self._written

    @property
    def complete(self) -> bool:
        return not self._missing

    def write(self, trajectory: Trajectory) -> None:
        if self.complete:
            raise ConfigError("a recording holds one run of its tasks: record another run to another file")
        self._cassette.trajectory(trajectory)
        self._written += 1
        if not self._missing:
            self._cassette.close()


class _ToolRecorder:
    def __init__(self, cassette: CassetteWriter, trajectories: _TrajectorySink, *, mixture: bool) -> None:
        self._cassette, self._trajectories, self._mixture = cassette, trajectories, mixture
        self._described: set[str] = set()

    def __call__(self, env: BaseEnv, env_id: str) -> None:
        if isinstance(env, RolesEnv):
            if self._mixture:
                raise ConfigError(f"{type(env).__name__} has several roles: record it in a run of its own")
            if env.tools:
                raise ConfigError(
                    f"a run of {type(env).__name__} cannot be recorded, for its roles have tools: whose call of an "
                    "episode is whose depends on time, so a replay could not tell them apart"
                )
            self._trajectories.roles = len(require_roles(env))
        inner = tool_env(env)
        if inner is None:
            kind = type(env).__name__
            _log.warning("%s is no ToolEnv: what it does is not recorded, and done again by a replay", kind)
            return
        inner.decorate_tools(lambda tool: RecordedTool(tool, self._cassette, inner.tool_timeout, inner.score_timeout))
        if env_id not in self._described:
            self._described.add(env_id)
            schemas = [tool.get_openai_tool_schema() for tool in inner.tools.values()]
            self._cassette.write("tools", env=env_id, tools=schemas)


def _row(task: Task) -> dict[str, Any]:
    row = task.to_json_row()
    row |= {name: redacted(value) for name, value in row.items() if name not in ("prompt", "reward_model")}
    row["extra_info"] = {**(row.get("extra_info") or {}), "index": task.id}  # not every row says it
    return row


def _writable(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    written = {name: value for name, value in kwargs.items() if name not in REBUILT}
    try:
        json.dumps(written)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a recording can hold arguments of an env that are plain JSON, got {written!r} ({error}); give a function "
            "that makes the env instead of its id"
        ) from error
    return dict(redacted(written))


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """SHA-256 of the tokenizer itself and of its chat template, which decide about token ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = json.loads(backend.to_str())
        # The last call of the tokenizer left these two there; they do not belong to it.
        parts = {name: value for name, value in parts.items() if name not in ("truncation", "padding")}
    else:
        parts = {"vocabulary": tokenizer.get_vocab()}
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    text = json.dumps([parts, special], sort_keys=True)
    template = json.dumps(tokenizer.chat_template, sort_keys=True)
    return {
        "tokenizer": hashlib.sha256(text.encode()).hexdigest(),
        "chat_template": hashlib.sha256(template.encode()).hexdigest(),
    }


def config_to_json(config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """A run's config as JSON, and the names of the fields that JSON cannot hold (functions, for example)."""
    written, left_out = {}, []
    for item in dataclasses.fields(config):
        value = config.context_policies if item.name == "context" else getattr(config, item.name)
        try:
            plain = json.loads(json.dumps(value, default=_parts))
            if _restored(item.name, plain) != value:
                raise TypeError("it is read back otherwise")
        except (TypeError, ValueError):
            left_out.append(item.name)
        else:
            written[item.name] = plain
    return written, left_out


def config_from_json(written: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig(**{name: _restored(name, value) for name, value in written.items()})
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the recording's run config is not one of this library: {error}") from error


def _parts(value: Any) -> Any:
    if isinstance(value, ContextPolicy):
        if type(value) not in POLICIES.values():
            raise TypeError(f"{value.name} may hold anything")
        return {"policy": value.name, **vars(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is not plain")


def _restored(name: str, value: Any) -> Any:
    """The value of a field of `RunConfig`, from its JSON; the field's default says of which type it should be."""
    if name in ("sampling", "validation_sampling") and value is not None:
        return SamplingParams.from_json(value)
    if name == "limits":
        return EpisodeLimits(**value)
    if name == "context":
        return tuple(POLICIES[fields.pop("policy")](**fields) for fields in map(dict, value))
    default: Any = getattr(RunConfig(), name)
    rebuild: Callable[..., Any] = type(default)
    if isinstance(default, enum.Enum):
        return rebuild(value)
    if dataclasses.is_dataclass(default) and isinstance(value, dict):
        return rebuild(**value)
    return tuple(value) if isinstance(default, tuple) else value
