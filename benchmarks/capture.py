"""The processor time that a call through the capture gateway costs, above its engine, and many sessions at once.

    python benchmarks/capture.py [--sessions 1000] [--calls 8]
    python benchmarks/capture.py --tool-sets 48 80 500

The engine's answers are ready beforehand, so the server does nothing but its own work: HTTP, the wire, finding the
place of the request, rendering what is new, keeping tokens. Agents are another process. Each sends its whole history
with each call, as agents do: a system prompt of 3 kB, tools, and per call an answer that calls a tool and a result. The
target is at most 0.5 ms a call. Beside it: how many sessions were open at once.

It is not met: 0.80 ms on 2 shared virtual processors, where it was 0.89 to 1.03. Of them 0.28 are HTTP and the wire (a
request whose turn is given at once), 0.1 the tokenizer's for the 188 ids of a result, and 0.4 the forest, the template,
the sampler and the reading of the turn. Remembering what a request had before was predicted to make long histories
cheap: to read 2,001 messages again takes a fortieth of the time, the comparison alone.

With `--tool-sets`, each session has a set of tools of its own, as with agents that write their folder into the
descriptions, and the sessions call by turns. A first call makes a renderer; the figure is of the later calls, which
should cost the same for any number of sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

import aiohttp

from toolgym.envs import Task
from toolgym.rollout.capture import CaptureConfig, CaptureServer
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage
from toolgym.rollout.capture.canonical import written
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.engines.base import FinishReason, Generation, GenerationRequest, SamplingParams
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

SYSTEM = "You are an agent that repairs programs in a folder. Say what you do, then do it. " * 36
RESULT = "total 12\n" + "-rw-r--r-- 1 user user 1824 main.py\n" * 6
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Run {name} in the folder and return what it prints. " * 4,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "what to run"}},
                "required": ["command"],
            },
        },
    }
    for name in ("bash", "editor", "search", "plan")
]
TURN = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>'


async def agents(url: str, sessions: int, calls: int, at_once: int) -> None:
    """Play the agents of all sessions: they open all, call, and finish; print the seconds of the calls as JSON."""
    places, token = asyncio.Semaphore(at_once), os.environ["TOOLGYM_CAPTURE_TOKEN"]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as http:

        async def post(path: str, body: Any, key: str = token) -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            async with places, http.post(path, json=body, headers=headers) as response:
                answered = await response.json()
                assert response.status == 200, answered
                return answered

        async def play(session: dict[str, Any]) -> None:
            messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Repair it."}]
            for _ in range(calls):
                body = {"model": "policy", "messages": messages, "tools": TOOLS, "temperature": 1.0}
                answered = await post(f"{session['openai_url']}/chat/completions", body, session["key"])
                message = answered["choices"][0]["message"]
                results = [
                    {"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in message["tool_calls"]
                ]
                assert results, message
                messages += [message, *results]

        opened = await asyncio.gather(*(post(f"{url}/sessions", {"group": "g"}) for _ in range(sessions)))
        await play(await post(f"{url}/sessions", {}))  # it makes the renderer
        print("opened", flush=True)
        sys.stdin.readline()
        started = time.monotonic()
        await asyncio.gather(*map(play, opened))
        print(json.dumps(time.monotonic() - started), flush=True)
        sys.stdin.readline()
        ends = (post(f"{url}/sessions/{each['id']}/finish", {"reward": 1.0}) for each in opened)
        finished = await asyncio.gather(*ends)
        assert {each["turns"] for each in finished} == {calls}, "each call is a turn of its session"
        assert {len(each["sequences"]) for each in finished} == {1}


async def measure(sessions: int, calls: int, at_once: int) -> tuple[float, float]:
    """Milliseconds of processor time a call, and calls a second."""
    tokenizer = load_tokenizer(tiny_policy_path())
    ids = (*tokenizer.encode(TURN, add_special_tokens=False), tokenizer.eos_token_id)
    turn = Generation(ids, (-0.5,) * len(ids), FinishReason.STOP, ("0",) * len(ids))

    async def generate(request: GenerationRequest) -> Generation:
        return turn

    engine = CallableEngine(generate, tokenizer=tokenizer, context_length=1 << 20)
    settings = CaptureConfig(port=0, max_sessions=sessions + 1)
    async with CaptureServer(engine, config=settings) as server:
        command = [__file__, "--agents", server.url, "--sessions", str(sessions), "--calls", str(calls)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            "--at-once",
            str(at_once),
            stdin=pipe,
            stdout=pipe,
            env={**os.environ, "TOOLGYM_CAPTURE_TOKEN": str(server.config.secret)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdout.readline()
        before = time.process_time()
        process.stdin.write(b"\n")
        seconds = float(await process.stdout.readline())
        spent = time.process_time() - before
        process.stdin.write(b"\n")
        if await process.wait() != 0:
            raise SystemExit("the agents did not get what they should")
    return 1000 * spent / (sessions * calls), sessions * calls / seconds


async def measure_tool_sets(count: int, rounds: int = 3) -> tuple[float, int]:
    """Milliseconds of processor time of a call after the first one, and the renderers that were made."""
    tokenizer = load_tokenizer(tiny_policy_path())
    ids = (*tokenizer.encode("Go on.", add_special_tokens=False), tokenizer.eos_token_id)
    turn = Generation(ids, (-0.5,) * len(ids), FinishReason.STOP, ("0",) * len(ids))

    async def generate(request: GenerationRequest) -> Generation:
        return turn

    engine = CallableEngine(generate, tokenizer=tokenizer, context_length=1 << 20)
    renderers = Renderers(tokenizer)
    job = Job(Task(({"role": "user", "content": "q"},)), EpisodeKey(0, 0), "group")
    config = EpisodeConfig(sampling=SamplingParams(max_new_tokens=16))
    sessions = [CaptureSession(engine, renderers, job, config) for _ in range(count)]
    histories = [(AgentMessage("user", "q"),) for _ in sessions]
    spent = 0.0
    for number in range(rounds):
        before = time.process_time()
        for at, session in enumerate(sessions):
            tools = json.loads(json.dumps(TOOLS).replace("the folder", f"/tmp/session-{at}"))
            reply = await session.answer(AgentCall("chat", histories[at], tuple(tools)))
            histories[at] += (written(reply), AgentMessage("user", "And now?"))
        spent += (time.process_time() - before) if number else 0.0
    return 1000 * spent / (count * (rounds - 1)), renderers.made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--agents", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--tool-sets", type=int, nargs="+", metavar="N", help="sessions with tools of their own")
    options = parser.parse_args()
    for count in options.tool_sets or ():
        cost, made = asyncio.run(measure_tool_sets(count))
        print(f"{count} sets of tools: {cost:.2f} ms of processor time a later call, {made} renderers made", flush=True)
    if options.tool_sets:
        return
    if options.agents:
        asyncio.run(agents(options.agents, options.sessions, options.calls, options.at_once))
        return
    cost, rate = asyncio.run(measure(options.sessions, options.calls, options.at_once))
    print(f"{options.sessions} sessions at once, {options.calls} calls each")
    print(f"{cost:.2f} ms of processor time a call, {rate:.0f} calls a second")


if __name__ == "__main__":
    main()
