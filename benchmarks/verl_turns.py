"""verl's side of `turn_cost.py` and `ray_turns.py`: its own agent loop worker, with an engine that answers at once.

Needs verl, see `scripts/trainers`. Nothing of verl is replaced but its LLM client, or, through Ray, the server that its
client asks; its configuration is the one that it ships, with its tool agent loop and the Hermes format.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PROMPT_LENGTH, RESPONSE_LENGTH = 4096, 4096

_TOOL = '''
from verl.tools.function_tool import function_tool

@function_tool
async def tool_{number}(argument_0: str, argument_1: str = "", argument_2: str = "", argument_3: str = "") -> str:
    """{description}

    Args:
        argument_0: {argument}
        argument_1: {argument}
        argument_2: {argument}
        argument_3: {argument}
    """
    return {result!r}
'''


def installed() -> bool:
    """Whether verl can be imported here."""
    return importlib.util.find_spec("verl") is not None


class _Ready:
    """In the place of verl's LLM client: gives the ids of each turn at once."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self._turns = turns
        self._asked: dict[str, int] = {}

    async def generate(self, request_id: str, **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        number = self._asked.get(request_id, 0)
        self._asked[request_id] = number + 1
        await asyncio.sleep(0)
        ids = list(self._turns[number])
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={"global_steps": 1}
        )


class _Server:
    """The server of verl's LLM client, as a Ray actor. verl names each turn anew, so the prompt says which one it is:
    each turn and each result ends with the same id, and the first prompt has it twice."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self._turns = turns

    async def generate(self, request_id: str, prompt_ids: Sequence[int], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        ids = list(self._turns[(list(prompt_ids).count(self._turns[0][-1]) - 2) // 2])
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={"global_steps": 1}
        )


class VerlWorker:
    """A worker of verl's for one set of tools.

    Args:
        tokenizer: of the model that the engine would serve.
        config: folder with the model's configuration.
        tools: how many tools are offered.
        description: what each tool is said to do.
        argument: what each of a tool's arguments is said to be.
        result: what each tool returns.
        turns: ids of each turn of an episode.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: Path,
        *,
        tools: int,
        description: str,
        argument: str,
        result: str,
        turns: Sequence[Sequence[int]],
    ) -> None:
        from hydra import compose, initialize_config_module
        from verl.experimental.agent_loop import AgentLoopWorker
        from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY

        FUNCTION_TOOL_REGISTRY.clear()  # a name can be registered once a process
        self._turns = turns
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "config.json").write_text((config / "config.json").read_text())
        tokenizer.save_pretrained(folder)
        code = [
            _TOOL.format(number=at, description=description, argument=argument, result=result) for at in range(tools)
        ]
        (folder / "tools.py").write_text("\n".join(code))
        with initialize_config_module("verl.trainer.config", version_base=None):
            overrides = [
                f"actor_rollout_ref.model.path={folder}",
                "actor_rollout_ref.rollout.name=sglang",
                f"data.max_prompt_length={PROMPT_LENGTH}",
                f"data.max_response_length={RESPONSE_LENGTH}",
                "actor_rollout_ref.rollout.multi_turn.enable=True",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
                f"actor_rollout_ref.rollout.multi_turn.function_tool_path={folder / 'tools.py'}",
                "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
            ]
            self._config = compose("ppo_trainer", overrides)
        self._worker = AgentLoopWorker(self._config, None)
        self._balancer: Any = None

    def ask_through_ray(self) -> None:
        """Let the engine be a Ray actor from now on, behind verl's own client and load balancer."""
        import ray
        from verl.workers.rollout.router import GlobalRequestLoadBalancer

        server = ray.remote(_Server).options(num_cpus=0, max_concurrency=1000).remote(self._turns)
        self._balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote({"server": server})

    def _client(self) -> Any:
        if self._balancer is None:
            return _Ready(self._turns)
        from verl.workers.rollout.llm_server import LLMServerClient

        return LLMServerClient(self._config, self._balancer)

    def cpu_seconds(self, prompts: Sequence[str]) -> float:
        """CPU seconds of one batch of episodes, from messages to tensors."""
        from verl.protocol import DataProto

        count = len(prompts)
        messages = np.empty(count, dtype=object)
        messages[:] = [[{"role": "user", "content": prompt}] for prompt in prompts]
        empty = np.empty(count, dtype=object)
        empty[:] = [{} for _ in prompts]
        batch = DataProto.from_dict(
            tensors={"number": _numbers(count)},
            non_tensors={
                "raw_prompt": messages,
                "agent_name": np.array(["tool_agent"] * count, dtype=object),
                "index": np.arange(count),
                "tools_kwargs": empty,
                "extra_info": empty.copy(),
            },
            meta_info={"global_steps": 1, "validate": False},
        )
        self._worker.llm_client = self._client()
        began = time.process_time()
        made = asyncio.run(self._worker.generate_sequences(batch))
        spent = time.process_time() - began
        sampled = int(made.batch["response_mask"].sum())
        assert sampled == count * sum(map(len, self._turns)), "an episode of verl's did not play all of its turns"
        return spent


def _numbers(count: int) -> Any:
    import torch

    return torch.arange(count).unsqueeze(1)
