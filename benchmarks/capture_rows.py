"""The rows of captured episodes, beside those of a trainer that takes each request of an agent for a row: the ablation
of Polar (arXiv 2605.24220).

    python benchmarks/capture_rows.py [--turns 24]

Agents play over the three wires against a written policy, and send back what agents do: arguments parsed or written
anew, thinking dropped, texts trimmed. They ask for titles, have sub-agents, compact their context and throw an answer
away. The engine's own log says which tokens were sampled behind which context; each of them must be trained on once,
behind that context, or be left out by name. `positions` are the tokens that a trainer computes.

Predicted: 24 requests in two rows where an agent throws an answer away, 12 times fewer, and in three with sub-agents or
a compaction, 8 times. Measured: 12.0 and 8.2, and 7 times fewer positions; no token lost. Required are 5 times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.capture.wires import WIRES
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.rollout.engines.base import FinishReason, Generation, GenerationRequest
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.trajectory.trajectory import Trajectory

WIRE = {wire.name: wire for wire in WIRES}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
Sampled = Counter[tuple[tuple[int, ...], tuple[int, ...]]]
"""How often the engine sampled these tokens behind this context."""


class Policy:
    """An engine that says what it was given to say, and its log."""

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer(tiny_policy_path())
        self.engine = CallableEngine(self._generate, tokenizer=self.tokenizer, context_length=1 << 20)
        self.renderers = Renderers(self.tokenizer)
        self.says = ""
        self.log: Sampled = Counter()

    async def _generate(self, request: GenerationRequest) -> Generation:
        ids = (*self.tokenizer.encode(self.says, add_special_tokens=False), self.tokenizer.eos_token_id)
        self.log[tuple(request.prompt_ids), ids] += 1
        return Generation(ids, (-0.5,) * len(ids), FinishReason.STOP, ("0",) * len(ids))


class Conversation:
    """One conversation of an agent over a wire. `change` is what the agent does to an answer that it sends back."""

    def __init__(self, session: CaptureSession, policy: Policy, wire: str, system: str, **options: Any) -> None:
        self._session, self._policy, self._wire = session, policy, WIRE[wire]
        self._memory, self._system = RequestMemory(), system
        self.agent: str = options.get("agent", "")
        self.change: Callable[[Any], Any] = options.get("change", lambda part: part)
        self.history: list[Any] = [{"role": "user", "content": options.get("task", "Repair the program.")}]

    async def ask(self, says: str, *, has_tools: bool = True, compacts: bool = False) -> Any:
        """Send the history, and return the answer's parts as the wire has them."""
        name, tools = self._wire.name, []
        function = {"name": "bash", "description": "Run it.", "parameters": SCHEMA}
        if has_tools:
            shapes = {"chat": {"type": "function", "function": function}, "responses": {"type": "function", **function}}
            anthropic = {"name": "bash", "description": "Run it.", "input_schema": SCHEMA}
            tools = [shapes.get(name, anthropic)]
        bodies: dict[str, dict[str, Any]] = {
            "chat": {"messages": [{"role": "system", "content": self._system}, *self.history]},
            "responses": {"instructions": self._system, "input": self.history},
            "messages": {"system": self._system, "messages": self.history, "thinking": {"type": "enabled"}},
        }
        body = {"model": "policy", "max_tokens": 4096, "tools": tools, **bodies[name]}
        self._policy.says = says
        call = replace(self._wire.read(body, self._memory), agent=self.agent, compacts=compacts)
        answer = json.loads(json.dumps(self._wire.answer(call, await self._session.answer(call))))
        return {"chat": lambda: [answer["choices"][0]["message"]], "responses": lambda: answer["output"]}.get(
            name, lambda: answer["content"]
        )()

    async def work(self, turns: int) -> None:
        """Call the tool in each turn, and go on with its result."""
        for turn in range(turns):
            call = json.dumps({"name": "bash", "arguments": {"command": f"sed -n  {turn}p main.py"}})
            says = f"<think>\nStep {turn}: see more.\n</think>\n\n Let me look. \n<tool_call>\n{call}\n</tool_call>"
            self.take(await self.ask(says), f"line {turn} of the program")

    def take(self, parts: list[Any], result: str) -> None:
        """Put an answer as the agent sends it back, and the results of its calls, behind the history."""
        sent = [self.change(part) for part in parts]
        sent = [part for part in sent if part is not None]
        if self._wire.name == "messages":
            called = [part["id"] for part in parts if part["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": id, "content": result} for id in called]
            self.history += [{"role": "assistant", "content": sent}, {"role": "user", "content": results}]
        elif self._wire.name == "responses":
            called = [part["call_id"] for part in parts if part["type"] == "function_call"]
            self.history += sent
            self.history += [{"type": "function_call_output", "call_id": id, "output": result} for id in called]
        else:
            called = [call["id"] for call in parts[0]["tool_calls"]]
            self.history += sent
            self.history += [{"role": "tool", "tool_call_id": id, "content": result} for id in called]


def without_thinking(message: Any) -> Any:
    """As OpenHands and langchain: thinking dropped, arguments in the form of `json.dumps`."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(json.loads(call["function"]["arguments"]))}}
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message["content"], "tool_calls": calls}


def trimmed(message: Any) -> Any:
    """As Qwen Code after `--continue`: blanks around texts dropped."""
    thought = message["reasoning_content"].strip()
    return {**message, "content": message["content"].strip(), "reasoning_content": thought}


async def mini(session: CaptureSession, policy: Policy, turns: int) -> None:
    """An agent that drops an answer that it could not read, and tells the policy so."""
    main = Conversation(session, policy, "chat", "Repair it.", change=without_thinking)
    await main.work(turns // 2)
    await main.ask("I forgot the call.")
    main.history.append({"role": "user", "content": "Tool call error: no call was found."})
    await main.work(turns - turns // 2 - 1)


async def qwen(session: CaptureSession, policy: Policy, turns: int) -> None:
    """An agent whose answers come back trimmed, and which asks once more for one that it took for cut."""
    main = Conversation(session, policy, "chat", "Repair it.", change=trimmed)
    await main.work(turns // 2)
    await main.ask("<tool_call>\n{broken\n</tool_call>")
    await main.work(turns - turns // 2 - 1)


async def claude(session: CaptureSession, policy: Policy, turns: int) -> None:
    """A title, the main work, and two sub-agents by turns."""
    await Conversation(session, policy, "messages", "Write a title.").ask("Repairs", has_tools=False)
    main = Conversation(session, policy, "messages", "Repair it.")
    await main.work(turns // 2)
    subs = [Conversation(session, policy, "messages", "Explore.", agent=name, task=name) for name in ("one", "two")]
    for _ in range(turns // 8):
        for sub in subs:
            await sub.work(1)
    await main.work(turns // 4)


async def codex(session: CaptureSession, policy: Policy, turns: int) -> None:
    """An agent that compacts its context at the half, without tools, and goes on from the summary."""
    main = Conversation(session, policy, "responses", "Repair it.")
    await main.work(turns // 2)
    first = main.history[0]
    main.history.append({"role": "user", "content": "CONTEXT CHECKPOINT COMPACTION: sum up."})
    summary = "The program reads lines, and the first half of them is right."
    await main.ask(summary, has_tools=False, compacts=True)
    main.history = [first, {"role": "user", "content": f"Another model said: {summary}"}]
    await main.work(turns - turns // 2 - 1)


AGENTS = (mini, qwen, claude, codex)


class Row(NamedTuple):
    """The figures of one episode; `lost` are sampled tokens that are neither trained on nor counted by name."""

    agent: str
    requests: int
    rows: int
    positions_by_request: int
    positions: int
    trained: int
    left_out: int
    lost: int


def check(trajectory: Trajectory, log: Sampled) -> int:
    """Return the number of trained tokens. Raises AssertionError if one was not sampled behind that context, or is
    trained on twice."""
    left, trained = Counter(log), 0
    for sequence in trajectory.sequences:
        context = sequence.prompt_ids.tolist()
        for segment in sequence.segments:
            ids = segment.token_ids.tolist()
            if segment.is_policy:
                entry = tuple(context), tuple(ids)
                assert left[entry] > 0, f"{sequence.start_reason}: trained twice, or behind another context"
                left[entry] -= 1
                trained += len(ids)
            context += ids
    return trained


def begin(policy: Policy) -> CaptureSession:
    job = Job(Task(({"role": "user", "content": ""},)), EpisodeKey(0, 0), "group")
    return CaptureSession(policy.engine, policy.renderers, job, EpisodeConfig())


async def measure(agent: Callable[[CaptureSession, Policy, int], Any], turns: int) -> Row:
    """Play one episode of an agent."""
    policy = Policy()
    await policy.engine.start()
    session = begin(policy)
    await agent(session, policy, turns)
    trajectory = session.finish(1.0)
    await policy.engine.close()
    sampled = sum(len(ids) * count for (_, ids), count in policy.log.items())
    by_request = sum((len(prompt) + len(ids)) * count for (prompt, ids), count in policy.log.items())
    sizes = ((len(row.prompt_ids), *(len(each.token_ids) for each in row.segments)) for row in trajectory.sequences)
    trained = check(trajectory, policy.log)
    named = {name: count for name, count in trajectory.metrics.items() if name.startswith("left_out_")}
    left_out = sum(count for name, count in named.items() if name.endswith("_tokens"))
    requests, rows = policy.log.total(), len(trajectory.sequences)
    lost = sampled - trained - left_out
    return Row(agent.__name__, requests, rows, by_request, sum(map(sum, sizes)), trained, left_out, lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=24)
    turns = parser.parse_args().turns
    measured = [asyncio.run(measure(agent, turns)) for agent in AGENTS]
    measured.append(Row("all", *(sum(column) for column in list(zip(*measured, strict=True))[1:])))
    print(f"{'agent':8}{'requests':>10}{'rows':>6}{'times fewer':>13}{'positions':>20}{'trained':>9}{'left out':>10}")
    for row in measured:
        positions = f"{row.positions_by_request:,} -> {row.positions:,}"
        fewer = f"{row.requests / row.rows:.1f}"
        print(
            f"{row.agent:8}{row.requests:>10}{row.rows:>6}{fewer:>13}{positions:>20}{row.trained:>9}{row.left_out:>10}"
        )
    if any(row.lost for row in measured):
        raise SystemExit("sampled tokens are neither trained on nor left out by name")


if __name__ == "__main__":
    main()
