from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.task import Task, task_seed
from toolgym.rollout.engines.base import Engine, require_tokenizer
from toolgym.rollout.engines.callable import CallableEngine, Generate
from toolgym.rollout.engines.model_config import read_model_config
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.episode.episode import Episode, RendererFactory
from toolgym.rollout.episode.record import never_played
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPool
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.tools.schema import ToolSchema


@named_keywords
async def run_episode(
    env: str | BaseEnv | Callable[[], BaseEnv] | EnvFactory,
    task: Task | Mapping[str, Any],
    generate: Generate | Engine,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    renderer: RendererFactory | None = None,
    config: EpisodeConfig | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    context_length: int | None = None,
    task_index: int = 0,
    sample_index: int = 0,
    group_id: str | None = None,
    seed: int | None = None,
) -> Trajectory:
    """Play one episode for a loop of the caller's, as a runner does, and return its trajectory, whatever breaks on the
    way; only cancellation passes through.

    For an example see docs/trainers.md.

    Args:
        env: an env id, a function that makes an env, or an env. An env stays the caller's to close; give the next
            episode another one after a failed episode.
        task: the task, or a row in verl's shape (see `Task.from_row`).
        generate: an async function from a `GenerationRequest` to `(token_ids, logprobs)`, or to what else `read_answer`
            in `toolgym.rollout.engines.callable` takes; one that computes on the request's images has an attribute
            `takes_images`. Or an engine that was started.
        tokenizer: of the model, a fast tokenizer with a chat template; None: the engine's.
        renderer: makes the renderer of an env's tools, to share one among episodes, or to have one of your own.
        config: how to play it; of a `RunConfig`, what concerns a whole run is not used.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        context_length: most tokens of prompt and generation together; None: the tokenizer's `model_max_length`, or the
            engine's.
        task_index: number of the task in its run, counted from 0. The seed of the env depends on it, and the seeds of
            sampling depend on it and on `sample_index`.
        sample_index: number of the episode among the episodes of its task, counted from 0.
        group_id: the same for all episodes of one task in one run, and for no others; None: a new one. Without a seed,
            the seed of the env depends on `group_id`, or on the task if `group_id` is None.
        seed: the run's; None: the config's.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, or the tokenizer is missing.
    """
    if not isinstance(config, EpisodeConfig | None):
        raise ConfigError(f"config must be an EpisodeConfig or a RunConfig, got {config!r}")
    config = EpisodeConfig() if config is None else config
    if isinstance(config, RunConfig) and seed is None:
        seed = config.seed
    engine = _engine(generate, tokenizer, context_length)
    settings = config if isinstance(config, RunConfig) else RunConfig()
    make_renderer = renderer or partial(policy_renderer, require_tokenizer(tokenizer, engine), settings)
    if tokenizer is not None and engine is generate:
        await engine.check_tokenizer(tokenizer)
    require_whole_number("task_index", task_index, at_least=0)
    require_whole_number("sample_index", sample_index, at_least=0)
    task = task if isinstance(task, Task) else Task.from_row(task)
    job = Job(
        task,
        EpisodeKey(task_index, sample_index),
        uuid.uuid4().hex if group_id is None else str(group_id),
        seed,
        group_seed=task_seed(task) if seed is None and group_id is None else None,
    )
    if isinstance(env, BaseEnv):
        return await _played(Episode(job, config, env, engine, make_renderer, env_id=type(env).__name__))
    factory = EnvFactory.of(env, env_kwargs).member(job.task)
    envs = EnvPool(factory, config.limits.env_timeout)
    try:
        try:
            inner = await envs.take()
        except Exception as error:  # noqa: BLE001  a trainer's step goes on without this episode
            return never_played(job, config, factory.env_id, error)
        return await _played(Episode(job, config, inner, engine, make_renderer, env_id=factory.env_id))
    finally:
        await envs.close()


async def _played(episode: Episode) -> Trajectory:
    trajectory = await episode.run()
    assert trajectory is not None  # nothing suspends it
    return trajectory


def _engine(
    generate: Generate | Engine, tokenizer: PreTrainedTokenizerBase | None, context_length: int | None
) -> Engine:
    if isinstance(generate, Engine):
        if context_length is not None:
            raise ConfigError("context_length goes with a function; an engine knows its own")
        return generate
    if tokenizer is None:
        raise ConfigError("a function that generates needs the model's tokenizer: tokenizer=load_tokenizer(...)")
    vocab_size = read_model_config(getattr(tokenizer, "name_or_path", None)).vocab_size  # with its padding rows
    return CallableEngine(
        generate,
        tokenizer=tokenizer,
        context_length=context_length,
        vocab_size=vocab_size,
        takes_images=getattr(generate, "takes_images", False),
    )


def policy_renderer(tokenizer: PreTrainedTokenizerBase, config: RunConfig, tools: Sequence[ToolSchema]) -> ChatRenderer:
    """A renderer that can read calls of the tools. Raises `TemplateError` if it cannot."""
    renderer = ChatRenderer(tokenizer, tools, config.template_kwargs, parser=config.parser, processor=config.processor)
    renderer.require_parser()
    return renderer
