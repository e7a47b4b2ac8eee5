"""`replay`: play a recorded run again with no engine, no network and no sandbox, and compare every byte."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.registry import spec
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout.job import EpisodeKey
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.recording.engine import CassetteEngine
from toolgym.rollout.recording.recorder import REBUILT, config_from_json, tokenizer_fingerprint
from toolgym.rollout.recording.secrets import scrubbed
from toolgym.rollout.recording.tools import ReplayedTool, replay_tools
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory, mixture
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXEMPT = {
    ("id",),
    ("group_id",),
    ("started_at",),
    ("seconds",),
    ("settings",),
    ("turns", "engine_seconds"),
    ("turns", "env_seconds"),
    ("turns", "tool_calls", "seconds"),
}
"""Fields of a trajectory that a replay does not repeat: random ids, wall times, and of which classes env and tools are,
which the recording stands for. What a tool reported in its metrics, times among it, is repeated."""

FIRST = ("messages", "sequences", "turns")
"""Fields that are compared before the others, which follow from them."""
AROUND = 120
"""Characters of a text that are shown on either side of its first difference."""


@dataclass(frozen=True)
class Difference:
    """The first difference of a replayed trajectory: its field, such as `turns[1].text`, and both values, cut."""

    episode: EpisodeKey
    role: str
    where: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        role = "" if self.role == "policy" else f", role {self.role}"
        return f"{self.episode}{role}: {self.where}\n  recorded {self.recorded}\n  replayed {self.replayed}"


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    Attributes:
        trajectories: as they were played now, ordered by task and sample.
        compared: how many were compared with recorded ones.
        differences: the first one of each trajectory that differs, in order.
        unfinished: episodes that were not finished when the recording ended; they were played as far as it goes.
        not_made: episodes whose env could not be made; a replay can make it, so they are not compared.
        misses: one line for each request that was not recorded, in their order.
    """

    trajectories: list[Trajectory]
    compared: int
    differences: list[Difference]
    unfinished: list[EpisodeKey]
    not_made: list[EpisodeKey]
    misses: list[str]

    @property
    def equal(self) -> bool:
        """Whether every finished episode came out the same, byte for byte (see `EXEMPT`)."""
        return not self.differences


async def replay(
    recording: Cassette | str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    env: Callable[[], BaseEnv] | None = None,
    config: RunConfig | None = None,
) -> Replay:
    """Play a recorded run again, and compare each trajectory with the recorded one.

    Envs are made again, with tools that answer from the recording. An env that is no `ToolEnv` does its own work again,
    and so do context policies of yours. Nothing waits for recorded times, but for an episode that its own deadline
    ended: it waits for the deadline again.

    Args:
        recording: the recording, or its path.
        tokenizer: the one of the recorded run.
        env: makes an env, where the recorded run had no env id; for that of a mixture, a `mixture` with the same names.
        config: the run's config, where the recording could not hold it; its seed may be left out.

    Raises:
        ConfigError: the recording holds no run; the tokenizer or its chat template is another one; `env` or `config`
            is needed and missing; `env` has other members than the recorded mixture.
    """
    cassette = recording if isinstance(recording, Cassette) else Cassette.load(recording)
    run = cassette.run
    if run is None:
        raise ConfigError(f"{cassette.path} holds no run (an engine by itself): use CassetteEngine with it")
    _check_tokenizer(cassette, run, tokenizer)
    if config is None:
        if run["config_left_out"]:
            raise ConfigError(
                f"{cassette.path} could not hold all of the run's config ({', '.join(run['config_left_out'])}): replay "
                "it from Python, with toolgym.rollout.replay(..., config=...) and the config of the recorded run"
            )
        config = config_from_json(run["config"])
    if config.seed is None:
        config = replace(config, seed=run["config"].get("seed"))
    tasks = [Task.from_row(row) for row in run["tasks"]]
    factory = _factory(cassette, run, tasks, env).changed(partial(replay_tools, cassette=cassette))
    async with CassetteEngine(cassette) as engine:
        runner = Runner(factory, engine, tokenizer=tokenizer, config=config)
        scheduler = GroupScheduler(tasks, config)  # given tasks, the runner would draw a seed where there was none
        played = await runner.run(scheduler)
    differences, unfinished, not_made, compared = [], [], [], 0
    for trajectory in played:
        name = EpisodeKey(trajectory.task_index, trajectory.sample_index)
        recorded = cassette.trajectories.get(name, {}).get(trajectory.role)
        if recorded is None:
            unfinished.append(name)
        elif Trajectory.from_json(recorded).stop_reason is StopReason.ENV_CREATE_FAILED:
            not_made.append(name)
        else:
            compared += 1
            replayed = scrubbed(trajectory.to_json())
            difference = first_difference(recorded, replayed)
            if difference is not None:
                differences.append(Difference(name, trajectory.role, *difference))
    unfinished, not_made = list(dict.fromkeys(unfinished)), list(dict.fromkeys(not_made))  # once, with several roles
    return Replay(played, compared, differences, unfinished, not_made, list(cassette.misses))


def _check_tokenizer(cassette: Cassette, run: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    fingerprint = tokenizer_fingerprint(tokenizer)
    for part, name in (("tokenizer", "tokenizer"), ("chat_template", "chat template")):
        if fingerprint[part] != run["tokenizer"][part]:
            source = run["tokenizer"].get("source")
            raise ConfigError(
                f"{cassette.path} was recorded with another {name} (sha256 {run['tokenizer'][part][:12]}, given "
                f"{fingerprint[part][:12]})" + (f"; it was that of {source!r}" if source else "")
            )


def _factory(
    cassette: Cassette, run: Mapping[str, Any], tasks: list[Task], env: Callable[[], BaseEnv] | None
) -> EnvFactory:
    """Makes the envs of the recorded run: its own, or those of `env`."""
    members: list[str] = run.get("members", [])
    if env is None and not run["env_is_id"]:
        how = f"a mixture of {', '.join(members)}" if members else f"the function {run['env']!r}"
        raise ConfigError(f"the recorded run made its envs with {how}: pass it as env=...")
    if env is not None:
        theirs = list(env.members) if isinstance(env, EnvFactory) else []
        if set(theirs) != set(members):
            there, now = (f"a mixture of {', '.join(names)}" if names else "one env" for names in (members, theirs))
            raise ConfigError(f"the recorded run played in {there}, and env=... is {now}: pass what the run had")
        return env if isinstance(env, EnvFactory) and members else EnvFactory(run["env"], env)
    if not members:
        return EnvFactory(run["env"], lambda: _make(run["env"], run["env_kwargs"], tasks, cassette))
    parts: dict[str, list[Task]] = {name: [] for name in members}
    makers = {name: partial(_make, name, run["env_kwargs"][name], parts[name], cassette) for name in members}
    factory = mixture([EnvFactory(name, make) for name, make in makers.items()])
    for task in tasks:
        parts[factory.member(task).env_id].append(task)
    return replace(factory, members={name: factory.members[name] for name in members if parts[name]})


def _make(env_id: str, env_kwargs: Mapping[str, Any], tasks: list[Task], cassette: Cassette) -> BaseEnv:
    env_spec, schemas = spec(env_id), cassette.tools.get(env_id)
    known = inspect.signature(env_spec.load()).parameters
    kwargs = {name: value for name, value in env_spec.kwargs.items() if name not in REBUILT} | dict(env_kwargs)
    if "tools" in known and schemas is not None:
        kwargs["tools"] = [ReplayedTool(schema, cassette) for schema in schemas]
        if "own_tools" in known:
            kwargs["own_tools"] = False
    if "tasks" in known:
        kwargs["tasks"] = TaskList(tasks)
    return env_spec.build(kwargs)


def first_difference(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The first field but those of `EXEMPT` that is not equal byte for byte, and its two values."""
    order = [*FIRST, *(name for name in [*recorded, *replayed] if name not in FIRST)]
    before, after = ({name: value[name] for name in order if name in value} for value in (recorded, replayed))
    return next(_differences(before, after, "", ()), None)


def _differences(before: Any, after: Any, where: str, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    if path in EXEMPT:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            if name not in before or name not in after:
                yield f"{where}.{name}".lstrip("."), _shown(before, name), _shown(after, name)
            else:
                yield from _differences(before[name], after[name], f"{where}.{name}".lstrip("."), (*path, name))
    elif isinstance(before, list) and isinstance(after, list):
        for place, (left, right) in enumerate(zip(before, after, strict=False)):
            yield from _differences(left, right, f"{where}[{place}]", path)
        if len(before) != len(after):
            yield f"{where} (length)", str(len(before)), str(len(after))
    elif json.dumps(before) != json.dumps(after):  # not ==: 1 is not 1.0 here, nor -0.0 0.0, and NaN is NaN
        yield where, *_pair(before, after)


def _pair(before: Any, after: Any) -> tuple[str, str]:
    if not isinstance(before, str) or not isinstance(after, str):
        return shorten(json.dumps(before)), shorten(json.dumps(after))
    place = next((n for n, (left, right) in enumerate(zip(before, after, strict=False)) if left != right), None)
    start = max(0, (min(len(before), len(after)) if place is None else place) - AROUND)
    cut = "..." if start else ""
    around = slice(start, start + 2 * AROUND)
    return shorten(json.dumps(cut + before[around])), shorten(json.dumps(cut + after[around]))


def _shown(value: Mapping[str, Any], name: str) -> str:
    return shorten(json.dumps(value[name])) if name in value else "(nothing)"
