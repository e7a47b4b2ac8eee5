"""`Spec`: an env as the arguments of TRL's `GRPOTrainer`, which trains the model that it holds, on one of two roads.

On `rollout_func` our runner plays the episodes: exact tokens, many tool calls at once, limits, failures that are
masked. On `environment_factory` TRL's own loop generates and calls the tools one by one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from toolgym.envs.as_tools.tool_class import ToolEnvironment, finish_all, tool_class
from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.row_fields import TASK_COLUMN
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.episode_settings import sampling_from
from toolgym.rollout.adapters.trl.rows import REWARD, STOP_REASON, check_output, to_output
from toolgym.rollout.adapters.trl.trainer_checks import require_known_ends, require_usable
from toolgym.rollout.adapters.trl.vllm import Colocated, server_engine
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.engines.base import Engine, SamplingParams
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.engines.embedded.transformers import TransformersEngine
from toolgym.rollout.engines.openai.engine import OpenAICompatible
from toolgym.rollout.episode.config import require_one_sequence
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner.base import Sink
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.runner.scheduling.scheduler import Scheduler
from toolgym.rollout.seeds import derive_seed
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.failures import require_one_that_played
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import BatchError, ConfigError, require_whole_number, shorten
from toolgym.tools.keywords import named_keywords
from toolgym.tools.parsers import parser_for_template

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer

_SamplingEngine: TypeAlias = TransformersEngine | OpenAICompatible | CallableEngine


class Spec:
    """The arguments of a `GRPOTrainer` that trains a policy in an env.

        spec = Spec("CodeInterpreter-v0", num_tasks=512, policy="Qwen/Qwen3-1.7B")
        trainer = GRPOTrainer(
            model=spec.policy,
            args=GRPOConfig(num_generations=8, max_completion_length=2048),
            train_dataset=spec.train_dataset,
            processing_class=spec.tokenizer,
            reward_funcs=spec.reward_funcs,
            rollout_func=spec.rollout_func,  # or: environment_factory=spec.environment_factory
        )

    On `rollout_func` an episode that the infrastructure broke off is masked, has no reward, and is left out of its
    group's statistics. The sampling is that of the trainer's `args`.

    Args:
        env: an env id, with its `env_kwargs`, or a function that makes an env.
        num_tasks: how many tasks the training set has.
        policy: the policy's folder or hub name, or `tiny`.
        tasks: the tasks, or a source of tasks; None: the source that the env itself draws from.
        config: how episodes are played on `rollout_func`; see `RunConfig`. `group_size`, `training_step`, `validate`
            and the sampling are the trainer's, but for `max_new_tokens`, the most tokens of one turn.
        seed: tasks and episodes depend on it. With several processes all must have the same.
        sinks: get each trajectory of `rollout_func`.

    Raises ConfigError for what TRL has no row for, and MissingExtraError if TRL is not installed, or too old.
    """

    @named_keywords
    def __init__(
        self,
        env: str | Callable[[], BaseEnv] | EnvFactory,
        *,
        num_tasks: int,
        policy: str | Path,
        tasks: Sequence[Task] | TaskSource | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        config: RunConfig | None = None,
        seed: int = 0,
        sinks: Sequence[Sink] = (),
    ) -> None:
        with needs("trl", "The adapter for TRL"):
            import trl  # noqa: F401
        if not isinstance(config, RunConfig | None):
            raise ConfigError(f"config must be a RunConfig, got {config!r}")
        require_whole_number("num_tasks", num_tasks, at_least=1)
        require_whole_number("seed", seed, at_least=0)
        if not isinstance(policy, str | Path):
            raise ConfigError(f"policy must be a folder or a name on the hub, got {policy!r}")
        self.policy = str(tiny_policy_path()) if policy == "tiny" else str(policy)
        self.config = config or RunConfig()
        require_one_sequence(self.config, "TRL")
        self._seed, self._sinks = seed, tuple(sinks)
        self._factory = EnvFactory.of(env, env_kwargs)
        self._engines: list[tuple[Any, _SamplingEngine]] = []
        self._bridge = EventLoopThread(name="toolgym-trl", on_close=partial(_close_all, self._engines))
        source = self._bridge.run(self._factory.tasks()) if tasks is None else tasks
        source = source if isinstance(source, TaskSource) else TaskList(source)
        self._train_tasks = source.take(num_tasks, seed=seed)
        self._tasks: list[Task] = []
        self._calls: dict[bool, tuple[int, int]] = {}
        self._playing = threading.Lock()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer as TRL wants it: padded on the left, with a padding token."""
        tokenizer = load_tokenizer(self.policy)
        tokenizer.padding_side = "left"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    @cached_property
    def train_dataset(self) -> Dataset:
        return self.dataset(self._train_tasks)

    def dataset(self, tasks: Sequence[Task]) -> Dataset:
        """Return tasks, for example of an evaluation, as a `datasets.Dataset` for this spec's functions.

        The column `prompt` has the messages, the last of which says which task it is (`rollout_func` gets nothing
        else); `toolgym_task` has the whole task as JSON; `task_id` and `data_source` are for people.
        """
        from datasets import Dataset

        rows = []
        for task in TaskList(tasks).tasks:
            prompt: list[dict[str, Any]] = [
                {"role": message["role"], "content": message["content"]} for message in task.messages
            ]
            prompt[-1]["toolgym_index"] = len(self._tasks)
            self._tasks.append(task)
            rows.append(
                {
                    "prompt": [{"toolgym_index": None, **message} for message in prompt],
                    TASK_COLUMN: json.dumps(task.to_json_row()),
                    "task_id": task.id,
                    "data_source": task.source,
                }
            )
        return Dataset.from_list(rows)

    @cached_property
    def environment_factory(self) -> type[ToolEnvironment]:
        """The env as a class of tools (see `toolgym.envs.tool_class`), for TRL's own loop.

        TRL's loop reads calls by the tokenizer's `response_template`, which is set here if TRL does not know the chat
        template and calls are written between `<tool_call>` tags. Raises ConfigError if a tool cannot be a method, or a
        task's messages hold tool calls, which a column cannot hold as they are.
        """
        return self._tool_class(own_reward=False)

    @cached_property
    def scored_environment_factory(self) -> type[ToolEnvironment]:
        """The same with a tool `submit_answer` and a method `get_reward`, which `AsyncGRPOTrainer` asks for the reward.

        Its reward functions do not see the environments, so `reward_funcs` does not go with it. What the policy says
        without handing it in is not scored.
        """
        return self._tool_class(answer_tool="submit_answer")

    def _tool_class(self, **options: Any) -> type[ToolEnvironment]:
        _let_trl_parse(self.tokenizer)
        for task in self._train_tasks:
            if any("tool_calls" in message for message in task.messages):
                raise ConfigError(
                    f"task {task.id!r} has messages with tool calls, which a table does not hold as they are: train "
                    "with rollout_func, which takes the task itself"
                )
        if isinstance(self._factory.kwargs, Mapping):
            return tool_class(self._factory.env_id, **options, **self._factory.kwargs)
        return tool_class(self._factory.make, **options)

    @cached_property
    def reward_funcs(self) -> EnvReward:
        """The reward function: the env's own rewards, on either road; None if the infrastructure failed."""
        return EnvReward(self.tokenizer)

    def rollout_func(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """Play one episode for each prompt with the trainer's model, or its vLLM. TRL calls it.

        Returns `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and for the reward function `toolgym_reward` and
        `toolgym_stop_reason`; see `check_output`. Raises ConfigError if the prompts are not this spec's, or the trainer
        has what cannot go with it, BatchError if nothing can be trained on, and RunFailedError if every episode failed
        alike.
        """
        require_usable(trainer, self.tokenizer)
        jobs = self._jobs(prompts_of(prompts, self._tasks), trainer)
        with self._playing:
            if not trainer.use_vllm:
                with _unwrapped(trainer) as model:
                    trajectories = self._bridge.run(self._play(jobs, model, trainer))
            elif trainer.vllm_generation.mode == "server":
                trajectories = self._bridge.run(self._play(jobs, trainer.vllm_generation, trainer))
            else:
                colocated = Colocated(trainer)
                trajectories = colocated.step_until(self._bridge.submit(self._play(jobs, colocated, trainer)))
        require_one_that_played(trajectories)
        output = to_output(trajectories, filler_id=self.tokenizer.eos_token_id, temperature=trainer.args.temperature)
        check_output(output, prompts=len(prompts), max_completion_length=trainer.max_completion_length)
        if not any(map(any, output["env_mask"])):
            reasons = ", ".join(sorted(set(output[STOP_REASON])))
            raise BatchError(
                f"the policy sampled no token that it could be trained on in any of the {len(prompts)} episodes, which "
                f"ended with {reasons}: a step without a token would make its weights NaN"
            )
        return output

    def close(self) -> None:
        """End the threads of the engine and of the event loop. What is forgotten is closed too."""
        self._bridge.close()

    # ------------------------------------------------------------------ one step

    def _jobs(self, indices: Sequence[int], trainer: GRPOTrainer) -> list[Job]:
        """The seeds differ by step, by call within a step, and by process."""
        training, step = bool(trainer.model.training), int(trainer.state.global_step)
        before, count = self._calls.get(training, (-1, 0))
        call = count + 1 if before == step else 0
        self._calls[training] = (step, call)
        run = derive_seed(self._seed, "trl", training, step, call)  # a group may be shared out to processes
        seed = derive_seed(run, int(trainer.accelerator.process_index))
        samples: dict[int, int] = {}
        jobs = []
        for index in indices:
            samples[index] = samples.get(index, -1) + 1
            key = EpisodeKey(index, samples[index])
            group_seed = derive_seed(run, "env", index)
            jobs.append(Job(self._tasks[index], key, f"{run:x}-{index}", seed, group_seed=group_seed))
        return jobs

    async def _play(self, jobs: Sequence[Job], sampler: Any, trainer: GRPOTrainer) -> list[Trajectory]:
        engine = await self._engine_of(sampler, trainer)
        version = str(int(trainer.state.global_step))  # TRL has brought the weights to vLLM before
        if isinstance(engine, TransformersEngine):
            await engine.notify_weights_changed(version)
        else:
            engine.weight_version = version
        limits = self.config.limits
        bounds = [most for most in (trainer.max_completion_length, limits.max_response_tokens) if most is not None]
        config = replace(
            self.config,
            template_kwargs={**trainer.chat_template_kwargs, **self.config.template_kwargs},
            sampling=sampling_of(trainer, self.config.sampling),
            limits=replace(limits, max_response_tokens=min(bounds, default=None)),
            training_step=int(trainer.state.global_step),
            validate=not trainer.model.training,
        )
        runner = Runner(self._factory, engine, tokenizer=self.tokenizer, sinks=self._sinks, config=config)
        done = await runner.run(_Given(jobs))
        by_key = {(trajectory.task_index, trajectory.sample_index): trajectory for trajectory in done}
        return [by_key[job.key] for job in jobs]

    async def _engine_of(self, sampler: Any, trainer: GRPOTrainer) -> _SamplingEngine:
        """Return an engine over a module, TRL's `VLLMGeneration` or a `Colocated`; the same one as long as that is."""
        if self._engines and self._engines[0][0] is not sampler:
            await self._engines.pop()[1].close()
        if not self._engines:
            engine: _SamplingEngine
            if isinstance(sampler, Colocated):
                engine = sampler.engine(self.tokenizer)
            else:
                engine = server_engine(trainer) if trainer.use_vllm else TransformersEngine(sampler)
            await engine.start()
            self._engines.append((sampler, engine))
        return self._engines[0][1]


async def _close_all(engines: Sequence[tuple[Any, Engine]]) -> None:
    for _, engine in engines:
        await engine.close()


class _Given(Scheduler):
    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = iter(jobs)

    async def next(self) -> Job | None:
        return next(self._jobs, None)

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        return (trajectory,)


@dataclass(frozen=True, eq=False)
class EnvReward:
    """The env's own rewards as TRL asks for them; None if the infrastructure failed.

    With `environment_factory`, it raises ConfigError at the first call if the trainer does not know the tokens that end
    a turn. TRL gives a reward function nothing of the trainer but its method `log_metric`.
    """

    tokenizer: PreTrainedTokenizerBase

    __name__ = "toolgym_reward"  # TRL's name for it in its logs

    @cached_property
    def _end_ids(self) -> frozenset[int]:
        """Ids that end a turn. A completion without one at its end was cut."""
        return frozenset(ChatRenderer(self.tokenizer).stop_token_ids)

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        environments: Sequence[ToolEnvironment] | None = None,
        log_metric: Callable[[str, float], object] = lambda name, value: None,
        **columns: Any,
    ) -> list[float | None]:
        if REWARD in columns:
            rewards: list[float | None] = list(columns[REWARD])
            for reason in sorted(set(columns[STOP_REASON])):
                log_metric(f"toolgym/{reason}", columns[STOP_REASON].count(reason) / len(rewards))
        elif environments is not None and all(isinstance(environment, ToolEnvironment) for environment in environments):
            trainer = getattr(log_metric, "__self__", None)
            if trainer is not None:
                require_known_ends(trainer, self.tokenizer, samples_by_itself=True)
            whole = [ids[-1] in self._end_ids for ids in completion_ids]
            rewards = finish_all(environments, list(map(_answer, completions)), whole)
        else:
            raise ConfigError(
                "this reward function belongs to a Spec: give the trainer rollout_func=spec.rollout_func or "
                "environment_factory=spec.environment_factory too"
            )
        log_metric("toolgym/without_reward", rewards.count(None) / len(rewards))
        return rewards


def _let_trl_parse(tokenizer: PreTrainedTokenizerBase) -> None:
    """Tell TRL how calls are written, if neither it nor the tokenizer knows."""
    if getattr(tokenizer, "response_template", None) is not None:
        return
    from trl.chat_template_utils import add_response_schema, qwen3_template

    try:
        add_response_schema(tokenizer)
    except ValueError as error:
        if parser_for_template(str(tokenizer.chat_template)) != "hermes":
            raise ConfigError(
                "TRL does not know how this chat template writes calls: set tokenizer.response_template, or train with "
                "rollout_func, which reads calls as the template shows them"
            ) from error
        tokenizer.response_template = qwen3_template


def _answer(completion: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the text of the last turn; None if it was a call, or there was room for no more than a tool's result."""
    last = completion[-1] if completion else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    content = last.get("content")
    return content if isinstance(content, str) else None


def _unwrapped(trainer: GRPOTrainer) -> AbstractContextManager[Any]:
    """Return the trainer's model as TRL itself generates with it: gathered, and without gradient checkpointing."""
    from trl.models import unwrap_model_for_generation

    unwrapped: AbstractContextManager[Any] = unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    )
    return unwrapped


def sampling_of(trainer: GRPOTrainer, sampling: SamplingParams) -> SamplingParams:
    """Return the trainer's sampling, with the spec's `max_new_tokens` for one turn and its stop tokens."""
    most = min(sampling.max_new_tokens, trainer.max_completion_length or sampling.max_new_tokens)
    return replace(sampling_from(trainer.args, most), stop_token_ids=sampling.stop_token_ids)


def prompts_of(prompts: Sequence[Any], tasks: Sequence[Task]) -> list[int]:
    """Return the numbers of the tasks that prompts belong to; raises ConfigError if one is of another data set."""
    indices: list[int] = []
    for row, prompt in enumerate(prompts):
        last: Any = prompt[-1] if isinstance(prompt, list) and prompt else None
        index: Any = last.get("toolgym_index") if isinstance(last, Mapping) else None
        known = isinstance(index, int) and 0 <= index < len(tasks)
        if not known or tasks[index].messages[-1]["content"] != last["content"]:
            raise ConfigError(
                f"prompt {row} is not of this spec: train on spec.train_dataset, or on spec.dataset(tasks); got "
                f"{shorten(repr(prompt))}"
            )
        indices.append(index)
    return indices
