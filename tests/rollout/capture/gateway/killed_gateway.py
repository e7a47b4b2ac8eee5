"""A gateway over a policy that counts, as a program to be killed: `killed_gateway.py FOLDER PORT TOKEN`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from toolgym.rollout.capture import CaptureConfig, CaptureServer
from toolgym.rollout.engines.base import Engine, FinishReason, Generation
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer


class Counting(Engine):
    """Answers with the number of tokens in its prompt."""

    def __init__(self):
        self.tokenizer = load_tokenizer(tiny_policy_path())

    vocab_size = property(lambda self: len(self.tokenizer))
    context_length = property(lambda self: 1 << 20)
    weight_version = property(lambda self: "0")

    async def _generate(self, request):
        ids = self.tokenizer.encode(str(len(request.prompt_ids)), add_special_tokens=False)
        ids = (*ids, self.tokenizer.eos_token_id)
        return Generation(ids, tuple(-0.01 * place for place in range(len(ids))), FinishReason.STOP, ("0",) * len(ids))


async def main(folder, port, token):
    config = CaptureConfig(port=int(port), token=token)
    async with CaptureServer(Counting(), out=Path(folder), config=config) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
