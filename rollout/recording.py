"""`RecordingRunner`: a run that is written down whole, so that `toolgym.rollout.replay` can play it again."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.registry import make
from toolgym.envs.task import Task
from toolgym.rollout.cassette import CassetteWriter, redacted
from toolgym.rollout.context import ContextPolicy, CutToolResults, KeepToolResults
from toolgym.rollout.engines.base import Engine, SamplingParams
from toolgym.rollout.engines.cassette import RecordingEngine
from toolgym.rollout.recorded_tools import record_tools
from toolgym.rollout.rules import Limits
from toolgym.rollout.runner import RunConfig, Runner
from toolgym.rollout.trajectory import Trajectory
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REBUILT = ("tools", "tool_config", "tasks")
"""Arguments of an env that a replay makes itself from the recording, and that are not written."""

POLICIES: dict[str, type[ContextPolicy]] = {made.__name__: made for made in (CutToolResults, KeepToolResults)}
"""Context policies that JSON can hold. Others, which call functions of the user's, are left out."""


class RecordingRunner:
    """Plays as `Runner` does, and records the run: requests to the engine, tool calls, trajectories.

    Args:
        path: the file; an existing one is replaced.
        env: an env id, or a function that makes an env. Only of an id does a replay know how to make the env.
        engine: started; it stays the caller's to close.
        tokenizer: of the model that the engine serves.
        config: how to run.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        tokenizer_source: where a replay finds the tokenizer, unless it is told: a folder, a name, or `tiny`.

    Raises:
        ConfigError: the file cannot be written, or an argument of the env cannot be.
    """

    def __init__(
        self,
        path: str | Path,
        env: str | Callable[[], BaseEnv],
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        config: RunConfig | None = None,
        *,
        env_kwargs: dict[str, Any] | None = None,
        tokenizer_source: str | None = None,
    ) -> None:
        if not isinstance(env, str) and env_kwargs:
            raise ConfigError("env_kwargs go with an env id; a function that makes envs knows its own")
        self.config = config or RunConfig()
        self._env, self._env_kwargs = env, dict(env_kwargs or {})
        self._written_kwargs = _writable(self._env_kwargs)
        self._tokenizer, self._tokenizer_source = tokenizer, tokenizer_source
        self._tools_written = self._used = False
        self._tape = CassetteWriter(path)
        self._engine = RecordingEngine(engine, self._tape, deadline=self.config.limits.engine_timeout)

        def make_env() -> BaseEnv:
            return self._make_env()

        name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        make_env.__name__ = self._env_id = name
        self._runner = Runner(make_env, self._engine, tokenizer, self.config)

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Play every task `group_size` times; return all trajectories, ordered by task and sample."""
        async with aclosing(self.stream(tasks)) as stream:
            done = [trajectory async for trajectory in stream]
        return sorted(done, key=lambda one: (one.group_id, one.sample))

    async def stream(self, tasks: Sequence[Task]) -> AsyncGenerator[Trajectory, None]:
        """Play every task `group_size` times, and yield each trajectory as it finishes, recorded.

        The recording is closed with the stream.

        Raises:
            ConfigError: it was called before; a file holds one run.
        """
        if self._used:
            raise ConfigError("a recording holds one run: make another RecordingRunner, with another file")
        self._used = True
        ended = False
        try:
            self._engine.describe()
            self._describe(tasks)
            async with aclosing(self._runner.stream(tasks)) as stream:
                async for trajectory in stream:
                    self._tape.trajectory(trajectory)
                    yield trajectory
            ended = True
        finally:
            self._tape.close(ended=ended)

    def close(self) -> None:
        """Close the file, where `stream` has not. Closing twice is fine."""
        self._tape.close(ended=False)

    def _make_env(self) -> BaseEnv:
        env = make(self._env, **self._env_kwargs) if isinstance(self._env, str) else self._env()
        schemas = record_tools(env, self._tape)
        if schemas is not None and not self._tools_written:
            self._tools_written = True
            self._tape.write("tools", tools=schemas)
        return env

    def _describe(self, tasks: Sequence[Task]) -> None:
        config, left_out = config_to_json(self.config)
        rows = [task.to_row() for task in tasks]
        for row in rows:
            row["extra_info"]["tools_kwargs"] = redacted(row["extra_info"]["tools_kwargs"])
        self._tape.write(
            "run",
            env=self._env_id,
            env_is_id=isinstance(self._env, str),
            env_kwargs=self._written_kwargs,
            config=config,
            config_left_out=left_out,
            tokenizer={**tokenizer_fingerprint(self._tokenizer), "source": self._tokenizer_source},
            tasks=rows,
        )


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
    """Hashes of what decides about token ids: the tokenizer itself, and its chat template.

    Returns:
        `tokenizer` and `chat_template`, as hexadecimal SHA-256.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = json.loads(backend.to_str())
        # These two are left there by the last call, and are no part of it.
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
    """Read what `config_to_json` made.

    Raises:
        ConfigError: a field is not known, or its value is out of range.
    """
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
    """The field's value from its JSON; what it should be is told by the field's default."""
    if name == "sampling":
        return SamplingParams(**{**value, "stop_token_ids": tuple(value["stop_token_ids"])})
    if name == "limits":
        return Limits(**value)
    if name == "context":
        return tuple(_policy(**one) for one in value)
    default: Any = getattr(RunConfig(), name)
    rebuild: Callable[..., Any] = type(default)
    if isinstance(default, enum.Enum):
        return rebuild(value)
    if dataclasses.is_dataclass(default) and isinstance(value, dict):
        return rebuild(**value)
    return tuple(value) if isinstance(default, tuple) else value


def _policy(policy: str, **fields: Any) -> ContextPolicy:
    return POLICIES[policy](**fields)
