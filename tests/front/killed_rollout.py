"""Commands that play episodes as processes, with an engine whose every answer depends on the request alone.

For each line of standard input, `{"arguments": [COMMAND, ...], "asked": FILE, "output": FILE}`, this program forks one
that runs the command, with its output in a file: importing what it needs would take longer than all that it does. It
prints the id of that process, and, when it has ended, its exit status. What the engine is asked goes to the file
`asked`, a line each, before it answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from typing import Any

from toolgym.cli import rollout
from toolgym.cli.app import main
from toolgym.rollout.batch import io, make
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, GenerationRequest
from toolgym.rollout.job import current_episode
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(tiny_policy_path())
IMPORTED = (io, make)
CODE = ("x = {n}\nprint('n is', x)", "x = x * 2 + {n}\nprint('n is', x)", "print('n is', x)")


class Answering(Engine):
    """Calls the code interpreter three times, each time with the variable of the call before, and answers."""

    def __init__(self, asked: str) -> None:
        self.tokenizer = TOKENIZER
        self._asked = os.open(asked, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def context_length(self) -> int:
        return 4096

    async def _generate(self, request: GenerationRequest) -> Generation:
        seed = request.params.seed
        assert seed is not None
        prompt = self.tokenizer.decode(request.prompt_ids)
        turn = prompt.count("n is ")
        os.write(self._asked, f"{json.dumps([*(current_episode() or ()), turn])}\n".encode())
        await asyncio.sleep(0.01 + seed % 50 / 1000)
        text = f"#### {seed % 1000}"
        if turn < len(CODE):
            call = {"name": "code_interpreter", "arguments": {"code": CODE[turn].format(n=seed % 1000)}}
            text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        digest = hashlib.sha256(repr((request.prompt_ids, seed)).encode()).digest()
        logprobs = tuple(-digest[place % 32] / 100 for place in range(len(ids)))
        return Generation(ids, logprobs, FinishReason.STOP, (self.weight_version,) * len(ids))


def command(arguments: list[str], asked: str, output: str) -> None:
    """Run the command in this process, and end it."""

    async def open_engine(name: str, **options: Any) -> Engine:
        return Answering(asked)

    rollout.open_engine = open_engine  # type: ignore[assignment]
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["toolgym", *arguments]
    status = 70
    try:
        main()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            command(**json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
