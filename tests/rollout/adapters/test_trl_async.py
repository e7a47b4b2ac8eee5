"""An env as a class of tools in the rollout loop of TRL's `AsyncGRPOTrainer`. Only its vLLM is a fake."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import types

import pytest

from tests.actors import call
from toolgym.envs import Task, ToolEnv
from toolgym.rollout.adapters.trl import Spec
from toolgym.tools.errors import SandboxError
from toolgym.tools.function import tool
from toolgym.tools.library.final_answer import score_final_answer

pytestmark = pytest.mark.filterwarnings("ignore:.*trl.experimental")

TASK = Task(({"role": "user", "content": "What is 2*3?"},), ground_truth="6")
ANSWERS = ("6", "7", "break")
"""What each episode of the group hands in."""


@tool
async def multiply(a: int, b: int) -> str:
    """Multiply two numbers.

    Args:
        a: One number.
        b: Another one.
    """
    return str(a * b)


def score(text, task):
    if "break" in text:
        raise SandboxError("no disk")
    return score_final_answer(text, task.ground_truth)


def sums():
    return ToolEnv([multiply], [TASK], scorer=score)


def answer_of(sample):
    calls = [one["function"] for message in sample.completion for one in message.get("tool_calls") or ()]
    return calls[-1]["arguments"]["answer"]


class Scripted:
    """A part of TRL's loop: calls the tool, hands in the episode's answer, and ends."""

    answers = itertools.cycle(ANSWERS)

    async def _generate_one_turn(self, prompt_ids):
        seen = self.tokenizer.decode(prompt_ids)
        if "was taken" in seen or "not available" in seen:
            said = "Done."
        elif "<tool_response>\n6" in seen:
            said = call("submit_answer", answer=f"#### {next(self.answers)}")
        else:
            said = call("multiply", a=2, b=3)
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        return ids, [-0.5] * len(ids)


@pytest.fixture(scope="module", autouse=True)
def loops():
    """Imports TRL's loop, which takes seconds, only where these tests run."""
    global worker, ScriptedLoop
    worker = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker")
    ScriptedLoop = type("ScriptedLoop", (Scripted, worker._AsyncRolloutLoop), {})


@pytest.fixture
def spec():
    made = Spec(sums, num_tasks=1, tasks=[TASK], policy="tiny")
    yield made
    made.close()


def rollout_loop(spec, buffer):
    return ScriptedLoop(
        model_name=spec.policy, dataset=spec.train_dataset, reward_funcs=[], processing_class=spec.tokenizer,
        environment_factory=spec.scored_environment_factory, eos_token_ids=[spec.tokenizer.eos_token_id],
        rollout_buffer=buffer, model_version_value=types.SimpleNamespace(value=4), failed_event=None,
        heartbeat_value=types.SimpleNamespace(value=0.0), exception_info_queue=queue.Queue(), num_generations=3,
        metrics_queue=queue.Queue(), max_inflight_tasks=3,
    )  # fmt: skip


async def play_a_group(loop, buffer):
    running = asyncio.ensure_future(loop._run_loops(loop._stop_event))
    async with asyncio.timeout(120):
        while buffer.qsize() < len(ANSWERS) and not running.done():
            await asyncio.sleep(0.01)
        loop._stop_event.set()
        await running


def test_the_class_says_its_reward_and_none_where_something_broke(spec, monkeypatch):
    monkeypatch.setattr(worker, "logger", logging.getLogger("trl"))  # its own wants to know of a process group
    buffer = queue.Queue()
    loop = rollout_loop(spec, buffer)
    try:
        loop._loop.run_until_complete(play_a_group(loop, buffer))
    finally:
        loop._tool_pool.shutdown()
        loop._loop.close()
    samples = {answer_of(one): one for one in (buffer.get_nowait() for _ in ANSWERS)}
    assert {answer: one.advantage for answer, one in samples.items()} == pytest.approx(
        {"#### 6": 1.0, "#### 7": -1.0, "#### break": 0.0}
    )
    for one in samples.values():
        said = [message for message in one.completion if message["role"] == "assistant"]
        told = [message["content"] for message in one.completion if message["role"] == "tool"]
        assert (len(said), told[0]) == (3, "6")
        assert int(one.completion_mask.sum()) == int((one.old_log_probs == -0.5).sum()) > 0
