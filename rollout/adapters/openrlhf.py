"""OpenRLHF: `agent_executor` makes the class that a file for `--train.agent_func_path` must hold.

The contract is that of OpenRLHF 0.11.2: `execute` in `openrlhf/utils/agent.py`, and `samples_generator.py` of
`openrlhf/trainer/ppo_utils`, which shifts masks and log-probabilities by one itself.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import Blame, EpisodeFailedError
from toolgym.rollout.adapters.episode_settings import EpisodeSettings
from toolgym.rollout.adapters.task_rows import labelled_task
from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.engines.base import GenerationRequest
from toolgym.rollout.episode.config import require_one_sequence
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.rollout.trajectory.failures import not_trainable_error
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import BatchError, ConfigError, require_whole_number, shorten
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from openrlhf.utils.agent import AgentExecutorBase
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("toolgym.rollout.adapters.openrlhf")


def agent_executor(
    env: str | Callable[[], BaseEnv] | EnvFactory,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    attempts: int = 3,
    **settings: Any,
) -> type[AgentExecutorBase]:
    """Return the class `AgentExecutor` of an agent file: it plays one episode for each sample.

    OpenRLHF has no place for a sample that does not count, so an episode that something broke off is played again, in
    all `attempts` times. One turn may have `max_new_tokens`, or all that is left of `--rollout.max_new_tokens`, which
    bounds the whole response, the env's tokens included, and of `--data.max_len`, which bounds prompt and response.

    `env` is an env id, with its `env_kwargs`, or a function that makes an env; further settings are those of
    `EpisodeSettings`. Raises ConfigError for what OpenRLHF has no row for, and MissingExtraError without OpenRLHF.
    """
    with needs("openrlhf", "An agent for OpenRLHF"):
        from openrlhf.utils.agent import AgentExecutorBase
    episode = EpisodeSettings(**settings)
    require_one_sequence(episode.run_config(), "OpenRLHF")
    require_whole_number("attempts", attempts, at_least=1)
    factory = EnvFactory.of(env, env_kwargs)

    class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]  # OpenRLHF has no types
        async def execute(
            self,
            prompt: Any,
            label: Any,
            sampling_params: Any,
            max_length: int,
            hf_tokenizer: Any,
            llm_engine: Any,
            images: Any = None,
        ) -> dict[str, Any]:
            if images:
                raise ConfigError(f"the sample has images, which the episode would not see: {shorten(repr(images))}")
            response = max_length if sampling_params.max_tokens is None else sampling_params.max_tokens
            task = task_of(prompt, label, hf_tokenizer)
            play = partial(
                run_episode,
                factory,
                task,
                partial(_generate, llm_engine, sampling_params),
                tokenizer=hf_tokenizer,
                context_length=max_length,
                config=episode.run_config(sampling_params, response_tokens=response),
            )
            trajectory = await _played(play, task, attempts)
            options = {"logprobs": sampling_params.logprobs is not None, "temperature": sampling_params.temperature}
            return await in_thread(to_response, trajectory, prompt=prompt, label=label, **options)

    return AgentExecutor


def task_of(prompt: Any, label: Any, tokenizer: PreTrainedTokenizerBase) -> Task:
    """Return the task of a prompt that was not rendered yet and its label (see `labelled_task`); both may be JSON."""
    about = _json(label) if isinstance(label, str) else label
    if isinstance(about, Mapping) and "prompt" in about:
        return Task.from_row(about)
    messages = _json(prompt) if isinstance(prompt, str) else prompt
    if isinstance(prompt, str) and not (messages and all(isinstance(message, Mapping) for message in messages)):
        rendered = next((token for token in tokenizer.all_special_tokens if token in prompt), None)
        if rendered is not None:
            raise ConfigError(
                f"the prompt has the special token {rendered!r}: leave --data.apply_chat_template out, since the "
                f"prompt is rendered here, with the env's tools; got {shorten(prompt)}"
            )
        messages = prompt
    scored = isinstance(about, Mapping) and "ground_truth" in about
    return labelled_task(messages, about if scored else label)


def _json(text: str) -> Any:
    """Parse a JSON object or list; None for any other text, such as a number that is a ground truth."""
    try:
        return json.loads(text) if text[:1] in ("{", "[") else None
    except ValueError:
        return None


@named_keywords
def to_response(
    trajectory: Trajectory,
    *,
    prompt: Any = "",
    label: Any = "",
    logprobs: bool = True,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> dict[str, Any]:
    """Return what `execute` returns for a trajectory, with `prompt` and `label` handed back.

    `observation_tokens` are the ids of prompt and response; `action_ranges` beginning and end in them of each span that
    the policy sampled; `rollout_log_probs` has one for each id, 0 for the env's, None without `logprobs`;
    `mm_train_inputs` the tensors that the rollout's `processor` makes of the images. `temperature` is OpenRLHF's
    `--rollout.temperature`, by which it divides logits; None does not check it. Raises BatchError if the trajectory is
    not usable, has several token sequences, or has images and there is no processor, and ConfigError if it was sampled
    at another temperature.
    """
    rows = TrainerRow.all_of(trajectory, "OpenRLHF", several=False, temperature=temperature, processor=processor)
    if not rows:
        raise BatchError(
            f"trajectory {trajectory.id} ({trajectory.stop_reason.value}) cannot be trained on, and OpenRLHF takes "
            "only an episode that nothing broke off: play it again"
        )
    [row] = rows
    sequence = row.sequence
    ranges, end = [], len(sequence.prompt_ids)
    for segment in sequence.segments:
        start, end = end, end + len(segment)
        if segment.is_policy and len(segment):
            ranges.append((start, end))
    return {
        "prompt": prompt,
        "label": label,
        "images": None,
        "mm_train_inputs": row.pixel_inputs(processor) or None,
        "observation_tokens": row.token_ids.tolist(),
        "action_ranges": ranges,
        "rollout_log_probs": row.behind_prompt(sequence.logprobs).tolist() if logprobs else None,
        "reward": float(trajectory.reward),
        "scores": float(trajectory.reward),
        "truncated": trajectory.stop_reason.truncated,
        "extra_logs": {"turns": float(len(trajectory.turns)), "tool_calls": float(len(trajectory.tool_calls))},
    }


async def _played(play: Callable[[], Awaitable[Trajectory]], task: Task, attempts: int) -> Trajectory:
    for attempt in range(1, attempts + 1):
        trajectory = await play()
        reason = trajectory.stop_reason
        if trajectory.usable:
            return trajectory
        why = shorten(str(not_trainable_error(trajectory)))
        log.warning("attempt %s of %s: %s: %s", attempt, attempts, reason.value, why)
        if reason.blame is Blame.USER:
            break
    raise EpisodeFailedError(
        reason, f"the task {task.id or shorten(repr(task.messages))} cannot be played ({reason.value}): {why}"
    )


async def _generate(llm_engine: Any, sampling_params: Any, request: GenerationRequest) -> dict[str, Any]:
    params = copy.deepcopy(sampling_params)
    params.max_tokens = request.params.max_new_tokens
    params.stop_token_ids = list(request.params.stop_token_ids)
    params.logprobs = 1  # of what was sampled; an episode records them whether OpenRLHF wants them or not
    answer = (await llm_engine.generate(list(request.prompt_ids), params)).outputs[0]
    token_ids = list(answer.token_ids)
    logprobs = [at[token].logprob for token, at in zip(token_ids, answer.logprobs, strict=True)]
    return {"token_ids": token_ids, "logprobs": logprobs, "finish_reason": answer.finish_reason}
