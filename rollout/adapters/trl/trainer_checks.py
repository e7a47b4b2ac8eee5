"""Checks of a TRL trainer's settings that would train on nothing, or on something else than the policy's turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolgym.rollout.adapters.trl.vllm import require_usable_vllm
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer

_PROBE = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> 12345 \u00e9 #### 6.5'


def require_usable(trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError if a trainer with `rollout_func` has settings that do not go with it.

    Args:
        trainer: the trainer.
        tokenizer: the tokenizer of the spec, which the trainer must have too.
    """
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
    require_known_ends(trainer, tokenizer)
    theirs = trainer.processing_class
    if theirs is not tokenizer:
        same = theirs.get_vocab() == tokenizer.get_vocab() and theirs.encode(_PROBE) == tokenizer.encode(_PROBE)
        same = same and theirs.chat_template == tokenizer.chat_template
        if not same:
            raise ConfigError(
                "the trainer has another tokenizer, or another chat template, than the spec: give it "
                "GRPOTrainer(processing_class=spec.tokenizer)"
            )


def require_known_ends(
    trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerBase, *, samples_by_itself: bool = False
) -> None:
    """Raise ConfigError if TRL does not know the tokens that end a turn.

    TRL knows the tokenizer's eos token and the eos tokens of the model's `generation_config`. With
    `mask_truncated_completions` it takes a completion that ends with another token for a truncated one, and masks it. A
    loop of TRL's own samples past the end of a turn whose end it does not know.

    Args:
        trainer: the trainer.
        tokenizer: the policy's tokenizer, whose chat template says how a turn ends.
        samples_by_itself: whether TRL samples the turns, as with `environment_factory`.
    """
    masks = trainer.args.mask_truncated_completions
    if not masks and not samples_by_itself:
        return
    known = _known_ends(trainer, tokenizer)
    unknown = sorted(set(ChatRenderer(tokenizer).stop_token_ids) - known - {tokenizer.pad_token_id})
    shown = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(unknown)))
    remedy = "give the policy's tokenizer or its generation_config the eos token that ends its turns"
    if unknown and masks:
        raise ConfigError(
            "mask_truncated_completions=True masks every completion whose last token is not an eos token of the "
            f"tokenizer ({tokenizer.eos_token!r}) or of the model's generation_config, and turns of this chat template "
            f"end with {shown}: TRL would train on nothing. Leave it out, or {remedy}"
        )
    if unknown:
        raise ConfigError(
            f"TRL's own loop ends a turn at an eos token of the tokenizer ({tokenizer.eos_token!r}) or of the model's "
            f"generation_config, and turns of this chat template end with {shown}: the policy would sample past the "
            f"end of its turn. Train with rollout_func, or {remedy}"
        )


def _known_ends(trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    known: set[Any] = {tokenizer.eos_token_id, *trainer.eos_token_ids}
    if not trainer.args.mask_truncated_completions:  # that one looks at the trainer's tokens only
        further = (trainer.args.generation_kwargs or {}).get("eos_token_id", ())
        known.update(further if isinstance(further, list | tuple) else (further,))
    return known
