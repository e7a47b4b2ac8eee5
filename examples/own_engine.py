"""An engine of your own, which generates one text again and again.

Six things of toolgym: `Engine`, what it is asked (`GenerationRequest`), what it answers (`Generation`, with a
`FinishReason`), how to sample (`SamplingParams`), and `load_tokenizer`. Run it:

    python examples/own_engine.py

`Engine.generate` has checked the request before `_generate` sees it, and checks the answer before a caller does: a
token outside the vocabulary or a NaN among the log-probabilities is an `EngineError`, not a broken batch.
"""

from __future__ import annotations

import asyncio
import math

from toolgym.rollout import SamplingParams, load_tokenizer, tiny_policy_path
from toolgym.rollout.engines import Engine, FinishReason, Generation, GenerationRequest


class Parrot(Engine):
    """Generates one text again and again.

    A real engine would send `request.prompt_ids` to a model in `_generate`. `pause`, `resume`, `abort` and
    `update_weights` have defaults, which raise an `EngineError` that says what this engine cannot do.

    Args:
        text: what to say.
    """

    context_length = 4096

    def __init__(self, text: str) -> None:
        self.tokenizer = load_tokenizer(tiny_policy_path())
        self.text_ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    async def _generate(self, request: GenerationRequest) -> Generation:
        ids = tuple(self.text_ids[: request.params.max_new_tokens])
        whole = len(ids) == len(self.text_ids)
        return Generation(
            token_ids=ids,
            logprobs=(math.log(1.0),) * len(ids),  # no other token was possible
            finish_reason=FinishReason.STOP if whole else FinishReason.LENGTH,
            weight_versions=(self.weight_version,) * len(ids),
        )


async def main() -> None:
    """Ask the parrot once."""
    async with Parrot("#### 42") as engine:
        prompt_ids = engine.tokenizer.encode("What is six times seven?")
        turn = await engine.generate(prompt_ids, SamplingParams(max_new_tokens=64), request_id="first")
        print(engine.tokenizer.decode(turn.token_ids), turn.finish_reason)


if __name__ == "__main__":
    asyncio.run(main())
