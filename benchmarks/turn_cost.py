"""What a turn of a rollout costs in CPU time, with one tool and with ten.

    python benchmarks/turn_cost.py [--episodes 256] [--turns 4] [--repeats 5] [--profile]

The engine answers at once with ids that were made before, and the tool does nothing, so all of the time is the
library's own: prompt, runner, parsing, checks, env, tokens, record. Each episode calls the tool in every turn but the
last, which answers; eight episodes share a task. The lines take turns in one run, and the least CPU time of the
repeats is printed, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trl

from toolgym.envs import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, GenerationRequest, SamplingParams
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.local import rollout
from toolgym.rollout.tiny import tiny_policy_path
from toolgym.rollout.tokenizer import load_tokenizer
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.message import user
from toolgym.tools.schema import ToolSchema

GROUP = 8
TURN_TOKENS = 64
TOOLS = (1, 10)
TARGET = 1.15
"""Most times of one tool's CPU time that a turn with ten tools may take."""


class Silent(BaseTool):
    """A tool that does nothing."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return ToolResult("result: 12 value of the number\n" * 4)


def tools(count: int) -> list[BaseTool]:
    """Tools of five arguments each, about 280 tokens."""
    properties = {
        f"argument_{at}": {"type": "string", "description": "the value of the parameter " * 3} for at in range(5)
    }
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    return [
        Silent({}, ToolSchema(f"tool_{at}", "calculate the sum of a number " * 4, parameters)) for at in range(count)
    ]


class Ready(Engine):
    """Answers at once: a call of the first tool in every turn but the last."""

    def __init__(self, tokenizer: Any, turns: int) -> None:
        self.tokenizer = tokenizer
        self._turns, self._end = turns, tokenizer.convert_tokens_to_ids("<|im_end|>")
        call = json.dumps({"name": "tool_0", "arguments": {"argument_0": "12", "argument_1": "number"}})
        self._call = self._generation(f"<tool_call>\n{call}\n</tool_call>")
        self._answer = self._generation("#### 12")

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def context_length(self) -> int:
        return 32_768

    def _generation(self, text: str) -> Generation:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        filler = self.tokenizer.encode(" the number is 12", add_special_tokens=False)
        while len(ids) < TURN_TOKENS - 1:
            ids = [*filler, *ids]
        ids = [*ids[-(TURN_TOKENS - 1) :], self._end] if len(ids) > TURN_TOKENS else [*ids, self._end]
        size = len(ids)
        return Generation(tuple(ids), (-0.5,) * size, FinishReason.STOP, ("0",) * size)

    async def _generate(self, request: GenerationRequest) -> Generation:
        turn = int(request.request_id.rpartition("-")[2])
        return self._call if turn < self._turns - 1 else self._answer


async def play(engine: Engine, offered: list[BaseTool], episodes: int, turns: int) -> float:
    """CPU seconds of a rollout, which begins with nothing to collect: what another line left is not its own."""
    tasks = [Task(messages=[user(f"What is the sum of {at} and 7?")]) for at in range(max(1, episodes // GROUP))]
    config = RunConfig(sampling=SamplingParams(max_new_tokens=128), group_size=GROUP, max_concurrent=episodes, seed=0)
    gc.collect()
    began = time.process_time()
    made = await rollout(lambda: ToolEnv(offered, tasks, max_turns=turns), engine, tasks, config=config)
    spent = time.process_time() - began
    assert len(made) == len(tasks) * GROUP
    assert all(len(one.turns) == turns and len(one.tool_calls) == turns - 1 and not one.problems for one in made)
    return spent


def main() -> None:
    """Print CPU time a turn for each number of tools, and whether the target holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("episodes", 256), ("turns", 4), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="print where the time of the last line goes")
    options = parser.parse_args()
    tokenizer = load_tokenizer(tiny_policy_path())
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    engine = Ready(tokenizer, options.turns)
    offered: Mapping[int, list[BaseTool]] = {count: tools(count) for count in TOOLS}

    def once(count: int) -> float:
        return asyncio.run(play(engine, offered[count], options.episodes, options.turns))

    for count in TOOLS:
        once(count)  # what is made once a process is made
    best = dict.fromkeys(TOOLS, float("inf"))
    for _ in range(options.repeats):
        for count in TOOLS:
            best[count] = min(best[count], once(count))
    for count, seconds in best.items():
        milliseconds = seconds / (options.episodes * options.turns) * 1e3
        print(f"{count:3d} tools  {milliseconds:7.3f} ms of CPU a turn")
    ratio = best[TOOLS[1]] / best[TOOLS[0]]
    print(f"ratio      {ratio:7.2f}  target at most {TARGET}: {'holds' if ratio <= TARGET else 'does not hold'}")
    if options.profile:
        for count in TOOLS:
            profile = cProfile.Profile()
            profile.runcall(once, count)
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(70)


if __name__ == "__main__":
    main()
