"""Make the run that `toolgym view --demo` shows: two training steps, groups, a tree, broken calls and episodes.

    python scripts/demo_run.py

The tiny policy plays it. An engine between writes a new version of the weights down from the second step on, and breaks
a few requests, so that the run has failures to look at.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from toolgym.rollout import RunConfig, open_engine, rollout
from toolgym.rollout.engines.base import Engine, Generation, GenerationRequest
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.orchestrator import RunOutput
from toolgym.rollout.recording.run_folder import RUN
from toolgym.rollout.runner import Branching, at_turns
from toolgym.tools.errors import EngineError

FOLDER = Path(__file__).parents[1] / "front/viewer/demo"
BROKEN = {9, 30}
"""Numbers of the requests that the engine refuses."""


class DemoEngine(EngineWrapper):
    """Passes requests on, breaks some, names the version of the weights, and adds the entropy of each token."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.version, self._requests = "step-0", 0
        self._model = AutoModelForCausalLM.from_pretrained(tiny_policy_path())

    async def _generate(self, request: GenerationRequest) -> Generation:
        self._requests += 1
        if self._requests in BROKEN:
            raise EngineError("the server closed the connection (on purpose, so that the demo has a failure)")
        answer = await self.engine._generate(request)
        ids = torch.tensor([[*request.prompt_ids, *answer.token_ids]])
        with torch.no_grad():
            logits = self._model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
        entropy = torch.distributions.Categorical(logits=logits).entropy().half().numpy()
        versions = (self.version,) * len(answer.token_ids)
        logprobs = tuple(round(logprob, 4) for logprob in answer.logprobs)
        return dataclasses.replace(answer, weight_versions=versions, logprobs=logprobs, aligned={"entropy": entropy})


async def main() -> None:
    """Play both steps into the folder of the demo."""
    for path in FOLDER.glob("*.json*"):
        path.unlink()
    async with DemoEngine(await open_engine("tiny")) as engine:
        for step in range(2):
            engine.version = f"step-{step}"
            tree = Branching(at_turns(1, continuations=2), max_branches=3) if step else None
            config = RunConfig(seed=3, training_step=step, group_size=4, max_concurrent=1, branching=tree)
            out = RunOutput(trajectories=FOLDER / f"{step}.jsonl", run_id=f"demo{step}")
            await rollout("CodeInterpreter-v0", engine, num_tasks=4, config=config, out=out)
    options = {"env": "CodeInterpreter-v0", "engine": "tiny"}
    (FOLDER / RUN).write_text(json.dumps({"options": options}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
