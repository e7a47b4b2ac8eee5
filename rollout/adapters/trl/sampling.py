"""Sampling of a `GRPOTrainer`, and checks of what cannot go with `rollout_func`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.episode_settings import sampling_from
from toolgym.rollout.adapters.trl.vllm import require_usable_vllm
from toolgym.rollout.engines.base import SamplingParams
from toolgym.tools.errors import ConfigError, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer

_PROBE = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> 12345 \u00e9 #### 6.5'


def sampling_of(trainer: GRPOTrainer, sampling: SamplingParams) -> SamplingParams:
    """Return the trainer's sampling, with the spec's `max_new_tokens` for one turn and its stop tokens."""
    most = min(sampling.max_new_tokens, trainer.max_completion_length or sampling.max_new_tokens)
    return replace(sampling_from(trainer.args, most), stop_token_ids=sampling.stop_token_ids)


def require_usable(trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check what TRL would take silently; raises ConfigError."""
    if trainer.tools:
        raise ConfigError(
            "a trainer with rollout_func takes neither tools nor environment_factory: TRL would run its own tool loop "
            "over the episodes, and train on the env's tokens"
        )
    if trainer.use_vllm:
        require_usable_vllm(trainer)
    args = trainer.args
    if args.repetition_penalty != 1.0 or args.generation_kwargs:
        raise ConfigError(
            "rollout_func samples by temperature, top_p, top_k and min_p alone, got "
            f"repetition_penalty={args.repetition_penalty!r} and generation_kwargs={args.generation_kwargs!r}"
        )
    theirs = trainer.processing_class
    if theirs is not tokenizer:
        same = theirs.get_vocab() == tokenizer.get_vocab() and theirs.encode(_PROBE) == tokenizer.encode(_PROBE)
        same = same and theirs.chat_template == tokenizer.chat_template
        if not same:
            raise ConfigError(
                "the trainer has another tokenizer, or another chat template, than the spec: give it "
                "GRPOTrainer(processing_class=spec.tokenizer)"
            )


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
