"""What a turn of a rollout costs in CPU time, with one tool and with ten.

    python benchmarks/turn_cost.py [--episodes 256] [--turns 4] [--repeats 5] [--profile]
    .trainers/verl/bin/python benchmarks/turn_cost.py       beside verl; see `scripts/trainers`

The engine answers at once with ids that were made before, 200 a turn, and the tool does nothing, so all of the time is
the library's own: prompt, runner, parsing, checks, env, tokens, record, and the tensors that `make_batch` makes and
checks. Each episode calls the tool in every turn but the last, which answers; eight episodes share a task. The lines
take turns in one run, and the least CPU time of the repeats is printed, so that other work on the machine counts
little.

verl's worker does the same work with the same messages, turns and tools, where verl is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
import verl_turns

from toolgym.envs import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, GenerationRequest, SamplingParams
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.orchestrator import rollout
from toolgym.rollout.runner.config import RunConfig
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.message import user
from toolgym.tools.schema import ToolSchema

GROUP = 8
TURN_TOKENS = 200
TARGETS = {1: 0.35, 10: 0.40}
"""Most milliseconds of CPU time a turn, by the number of tools offered."""

DESCRIPTION, ARGUMENT = "calculate the sum of a number " * 4, "the value of the parameter " * 3
RESULT = "result: 12 value of the number\n" * 3


def real_tokenizer() -> Any:
    """The tiny policy's, with a chat template that is in use."""
    loaded = load_tokenizer(tiny_policy_path())
    loaded.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    return loaded


class Silent(BaseTool):
    """A tool that does nothing."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return ToolResult(RESULT)


def tools(count: int) -> list[BaseTool]:
    """Tools of four arguments each."""
    properties = {f"argument_{at}": {"type": "string", "description": ARGUMENT} for at in range(4)}
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    return [Silent({}, ToolSchema(f"tool_{at}", DESCRIPTION, parameters)) for at in range(count)]


class Ready(Engine):
    """Answers at once: a call of the first tool in every turn but the last."""

    def __init__(self, tokenizer: Any, turns: int) -> None:
        self.tokenizer = tokenizer
        self._vocab_size = len(tokenizer)  # some versions count anew each time
        self._turns, self._end = turns, tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._call = self.call({"argument_0": "12", "argument_1": "number"})
        self._answer = self._generation("#### 12")

    def call(self, arguments: Mapping[str, str]) -> Generation:
        """A turn that calls the first tool."""
        call = json.dumps({"name": "tool_0", "arguments": arguments})
        return self._generation(f"<tool_call>\n{call}\n</tool_call>")

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def context_length(self) -> int:
        return 32_768

    def _generation(self, text: str) -> Generation:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        filler = self.tokenizer.encode(" the number is 12", add_special_tokens=False)
        while len(ids) < TURN_TOKENS - 1:
            ids = [*filler, *ids]
        ids = [*ids[-(TURN_TOKENS - 1) :], self._end] if len(ids) >= TURN_TOKENS else [*ids, self._end]
        size = len(ids)
        return Generation(tuple(ids), (-0.5,) * size, FinishReason.STOP, ("0",) * size)

    def turn(self, number: int) -> Generation:
        """What it answers in the turn of that number."""
        return self._call if number < self._turns - 1 else self._answer

    async def _generate(self, request: GenerationRequest) -> Generation:
        return fresh(self.turn(int(request.request_id.rpartition("-")[2])))


def fresh(made: Generation) -> Generation:
    """The same answer anew: what the library makes of one answer must not serve the next."""
    return Generation(made.token_ids, made.logprobs, made.finish_reason, made.weight_versions)


def questions(episodes: int) -> list[str]:
    """What the tasks ask."""
    return [f"What is the sum of {at} and 7?" for at in range(max(1, episodes // GROUP))]


async def play(engine: Engine, offered: list[BaseTool], episodes: int, turns: int) -> float:
    """CPU seconds of a rollout, which begins with nothing to collect: what another line left is not its own."""
    tasks = [Task(messages=[user(question)]) for question in questions(episodes)]
    config = RunConfig(
        sampling=SamplingParams(max_new_tokens=TURN_TOKENS), group_size=GROUP, max_concurrent=episodes, seed=0
    )
    gc.collect()
    began = time.process_time()
    made = await rollout(lambda: ToolEnv(offered, tasks, max_turns=turns), engine, tasks, config=config)
    make_batch(made, pad_token_id=0)
    spent = time.process_time() - began
    assert len(made) == len(tasks) * GROUP
    assert all(len(one.turns) == turns and len(one.tool_calls) == turns - 1 and not one.problems for one in made)
    return spent


def main() -> None:
    """Print CPU time a turn for each number of tools, verl's where it is installed, and whether the targets hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("episodes", 256), ("turns", 4), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="print where the time of each line goes")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads of torch that wait for each other would count as well
    tokenizer = real_tokenizer()
    engine = Ready(tokenizer, options.turns)
    lines: dict[tuple[str, int], Callable[[], float]] = {
        ("toolgym", count): partial(_ours, engine, tools(count), options.episodes, options.turns) for count in TARGETS
    }
    if verl_turns.installed():
        for count in TARGETS:
            worker = verl_turns.VerlWorker(
                tokenizer,
                Path(tiny_policy_path()),
                tools=count,
                description=DESCRIPTION,
                argument=ARGUMENT,
                result=RESULT,
                turns=[engine.turn(number).token_ids for number in range(options.turns)],
            )
            asked = [question for question in questions(options.episodes) for _ in range(GROUP)]
            lines["verl", count] = partial(worker.cpu_seconds, asked)
    else:
        print("verl is not installed (make test-trainer-verl): toolgym alone is measured")
    best = {line: min(once() for _ in range(2)) for line, once in lines.items()}  # what is made once a process is made
    for _ in range(options.repeats):
        for line, once in lines.items():
            best[line] = min(best[line], once())
    turns = options.episodes * options.turns
    for (name, count), seconds in best.items():
        milliseconds = seconds / turns * 1e3
        if name == "toolgym":
            verdict = "holds" if milliseconds <= TARGETS[count] else "does not hold"
            said = f"target at most {TARGETS[count]:.2f}: {verdict}"
        else:
            said = f"{seconds / best['toolgym', count]:.1f} times as much"
        print(f"{name:8s} {count:3d} tools  {milliseconds:7.3f} ms of CPU a turn  {said}")
    if options.profile:
        for count in TARGETS:
            profile = cProfile.Profile()
            profile.runcall(lines["toolgym", count])
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(70)


def _ours(engine: Engine, offered: list[BaseTool], episodes: int, turns: int) -> float:
    return asyncio.run(play(engine, offered, episodes, turns))


if __name__ == "__main__":
    main()
