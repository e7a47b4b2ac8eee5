"""What OpenRLHF runs on and a CPU has not: DeepSpeed, Ray, which here calls at once, and vLLM, which a test writes."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock


@dataclasses.dataclass
class SamplingParams:
    """Those that OpenRLHF gives vLLM, with vLLM's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Any = None
    stop_token_ids: list | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None


class LLM:
    """vLLM's `AsyncLLMEngine.generate` with a policy that a test writes: a text, or an error."""

    def __init__(self, tokenizer, policy):
        self.tokenizer, self.policy, self.requests = tokenizer, policy, []

    async def generate(self, prompt, params, request_id):
        self.requests.append((prompt["prompt_token_ids"], params))
        said = self.policy(self.tokenizer.decode(prompt["prompt_token_ids"]))
        if isinstance(said, BaseException):
            raise said
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        ids, whole = ids[: params.max_tokens], len(ids)
        output = types.SimpleNamespace(
            token_ids=ids,
            text=said,
            logprobs=params.logprobs
            and [{one: types.SimpleNamespace(logprob=-0.5 - n / 64)} for n, one in enumerate(ids)],
            finish_reason="stop" if len(ids) == whole else "length",
        )
        yield types.SimpleNamespace(outputs=[output])


class Actor:
    """An actor of Ray whose methods run when `.remote` is called, the async ones in a loop of their own."""

    def __init__(self, held):
        self.held = held

    def __getattr__(self, name):
        def remote(*args, **kwargs):
            answer = getattr(self.held, name)(*args, **kwargs)
            return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer

        return types.SimpleNamespace(remote=remote)


def install(monkeypatch):
    """Make `import ray` and `import vllm` find what OpenRLHF's rollout uses of them."""
    import openrlhf

    for name in list(sys.modules):
        if name.startswith(("openrlhf.trainer", "openrlhf.models")):
            monkeypatch.delitem(sys.modules, name)
    models = types.ModuleType("openrlhf.models")  # without what it loads, which needs flash-attn
    models.__path__ = [str(Path(openrlhf.__file__).parent / "models")]
    made = {
        "ray": MagicMock(remote=lambda made: made, get=lambda one: one, wait=lambda refs, **_: (refs[:1], refs[1:])),
        "openrlhf.models": models,
        "deepspeed": MagicMock(),
        "ray.util": MagicMock(),
        "ray.util.placement_group": MagicMock(),
        "ray.util.scheduling_strategies": MagicMock(),
        "vllm": types.SimpleNamespace(SamplingParams=SamplingParams, __version__="0.29.0"),
        "vllm.inputs": types.SimpleNamespace(TokensPrompt=dict),
        "vllm.utils": types.SimpleNamespace(random_uuid=lambda: "0"),
    }
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
