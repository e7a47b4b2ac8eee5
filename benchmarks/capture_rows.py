"""Rows of a batch from the calls of agents: one for each request against merged ones, as the gateway gives.

    python benchmarks/capture_rows.py [--calls 40]

The ablation of Polar (arXiv 2605.24220): a trainer that takes each request as a row of its own computes the whole
history again for each turn. Agents of three shapes are played with a scripted policy, each with a title, a main work,
two sub-agents of a quarter of its calls, and one compaction. The bound is the number of conversations, here five: no
fewer rows can hold them. All sampled tokens must be trained on, once.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolgym.envs.tasks.task import Task
from toolgym.rollout import EpisodeLimits, RunConfig, SamplingParams
from toolgym.rollout.capture import CaptureRules
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, Reply, WrittenCall
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.engines.base import FinishReason, Generation, GenerationRequest
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

TURN = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>'
RESULT = "total 12\n" + "-rw-r--r-- 1 user user 1824 main.py\n" * 4
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}


def tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "description": "Run it.", "parameters": PARAMETERS}}


@dataclass
class Agent:
    """One conversation of an agent that sends its whole history with each call."""

    session: CaptureSession
    system: str
    tools: Sequence[dict[str, object]]
    keeps_thinking: bool = True
    messages: list[AgentMessage] = field(default_factory=list)
    calls: int = 0

    async def ask(self, text: str = "", **options: object) -> Reply:
        history = [AgentMessage("system", self.system), *self.messages]
        if text:
            self.messages.append(AgentMessage("user", text))
            history.append(self.messages[-1])
        reply = await self.session.answer(AgentCall("chat", tuple(history), tuple(self.tools), **options))
        self.calls += 1
        written = tuple(WrittenCall(call.id, call.name, call.arguments) for call in reply.calls)
        thinking = reply.reasoning if self.keeps_thinking else None
        ids = frozenset(call.id for call in reply.calls)
        self.messages.append(AgentMessage("assistant", reply.content, thinking, written, ids=ids))
        self.messages += [AgentMessage("tool", RESULT, call_id=call.id) for call in reply.calls]
        return reply

    async def work(self, calls: int) -> None:
        for number in range(calls):
            await self.ask("Repair it." if number == 0 and not self.messages else "")


async def play(session: CaptureSession, calls: int, *, keeps_thinking: bool) -> int:
    """Play an episode of that many calls of the main work; return the number of all calls."""
    tools = [tool("bash"), tool("task")]
    title = Agent(session, "Find a title.", ())
    await title.ask("Repair it.")
    main = Agent(session, "You are an agent.", tools, keeps_thinking)
    await main.work(calls // 2)
    subs = [Agent(session, f"You are sub-agent {number}.", tools[:1], keeps_thinking) for number in range(2)]
    await asyncio.gather(*(sub.work(calls // 4) for sub in subs))
    summary = await main.ask("Write a summary of the work so far.", compacts=True)
    rest = Agent(session, main.system, tools, keeps_thinking)
    rest.messages = [AgentMessage("user", f"Repair it. The summary: {summary.content}")]
    await rest.work(calls // 2)
    return sum(agent.calls for agent in (title, main, *subs, rest))


async def measure(name: str, calls: int, *, thinks: bool, keeps_thinking: bool) -> str:
    tokenizer = load_tokenizer(tiny_policy_path())
    text = f"<think>\nWhere is it?\n</think>\n\n{TURN}" if thinks else TURN
    ids = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
    requests: list[int] = []

    async def generate(request: GenerationRequest) -> Generation:
        requests.append(len(request.prompt_ids) + len(ids))
        return Generation(ids, (-0.5,) * len(ids), FinishReason.STOP, ("0",) * len(ids))

    engine = CallableEngine(generate, tokenizer=tokenizer, context_length=1 << 20)
    job = Job(Task(({"role": "user", "content": "q"},)), EpisodeKey(0, 0), "g", seed=1)
    config = EpisodeConfig(sampling=SamplingParams(max_new_tokens=4096), limits=EpisodeLimits())
    rules = CaptureRules(untrained=())
    session = CaptureSession(engine, Renderers(tokenizer, RunConfig()), job, config, rules=rules)
    asked = await play(session, calls, keeps_thinking=keeps_thinking)
    trajectory = session.finish(1.0)
    rows = len(trajectory.sequences)
    tokens = sum(len(each.prompt_ids) + len(each.response_ids) for each in trajectory.sequences)
    assert trajectory.policy_tokens == asked * len(ids), "each sampled token is trained on, once"
    cells = (name, asked, rows, f"{asked / rows:.1f}x", f"{sum(requests):,}", f"{tokens:,}")
    return f"| {' | '.join(map(str, cells))} | {sum(requests) / tokens:.1f}x |"


async def table(calls: int) -> None:
    print("| agent | rows, one a request | merged | fewer | tokens, one a request | merged | fewer |")
    print(f"|{' --- |' * 7}")
    print(await measure("without thinking", calls, thinks=False, keeps_thinking=True))
    print(await measure("sends its thinking back", calls, thinks=True, keeps_thinking=True))
    print(await measure("drops its thinking", calls, thinks=True, keeps_thinking=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=40, help="of the main work")
    asyncio.run(table(parser.parse_args().calls))


if __name__ == "__main__":
    main()
