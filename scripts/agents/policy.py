"""A policy whose turns are a script, for agents of any make: it calls the shell that it is offered, delegates if it
can, and ends."""

from __future__ import annotations

import json
import re
from typing import Any

from transformers import PreTrainedTokenizerBase

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, GenerationRequest
from toolgym.tools.errors import EngineError

MAIN = "MAIN-WORK"
"""Stands in the task, so the prompt of a sub-agent is known by its lack."""

LONG = "much output"
"""Stands in the task of an agent that is to compact its context."""

NO_ENGINE, NO_TOOL = "no_engine", "no_such_tool"

TROUBLE = "some trouble"
"""Stands in the task of an agent whose policy has each of `TROUBLES` once, behind its first step."""

TROUBLES = (NO_ENGINE, "lacks_arguments", NO_TOOL)

STEP = "I take step"
SHELLS = ("bash", "Bash", "exec_command", "run_shell_command")
DELEGATES = ("Agent", "task", "agent", "multi_agent_v1__spawn_agent")
MINI = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class ScriptedPolicy(Engine):
    """Answers with what `turn_of` says for the prompt, in tokens of a tokenizer. `seen` has each request's prompt and
    its generation, by request id; `troubles` are those to come."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.seen: dict[str, tuple[tuple[int, ...], Generation]] = {}
        self.troubles = [*TROUBLES]

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def context_length(self) -> int:
        return 1 << 20

    @property
    def weight_version(self) -> str:
        return "0"

    async def _generate(self, request: GenerationRequest) -> Generation:
        prompt = tuple(request.prompt_ids)
        text = self._turn(self.tokenizer.decode(prompt))
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        logprobs = tuple(-0.001 * (len(self.seen) + 1) - 1e-6 * place for place in range(len(ids)))
        generation = Generation(ids, logprobs, FinishReason.STOP, ("0",) * len(ids))
        self.seen[request.request_id] = (prompt, generation)
        return generation

    def _turn(self, prompt: str) -> str:
        tools = {tool["name"]: tool["parameters"] for tool in _tools(prompt)}
        is_main = TROUBLE in prompt and MAIN in prompt and f"{STEP} 1." in prompt and bool(tools)
        if not is_main or not self.troubles:
            text = turn_of(prompt, tools)
            return f'{text} <tool_call>\n{{"name": ' if is_main and "<tool_call>" not in text else text
        trouble = self.troubles.pop(0)
        if trouble == NO_ENGINE:
            raise EngineError("it is out of memory, for once")
        name = NO_TOOL if trouble == NO_TOOL else next((name for name in SHELLS if name in tools), next(iter(tools)))
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
        return f"<think>\n Hm. \n</think>\n\n Now {trouble}. \n{call}"


def turn_of(prompt: str, tools: dict[str, Any]) -> str:
    shell = next((name for name in SHELLS if name in tools), next(iter(tools), None))
    done = re.findall(rf"{STEP} \d\.", prompt)
    steps = len(set(done))
    if shell is None:  # a title, or a summary to go on from
        return f"<think>\nNo tools.\n</think>\n\n Say hello. {' '.join(dict.fromkeys(done))}\n"
    delegate = next((name for name in DELEGATES if name in tools), None) if MAIN in prompt else None
    plan = [[(shell, 1)], [(shell, 2), (shell, 3)]]
    plan += [[(name, 4)] for name in (delegate, "multi_agent_v1__wait_agent") if name in tools and delegate]
    if MAIN not in prompt and any(name in prompt for name in ("SUB-WORK", "You are a sub")):
        plan = [[(shell, 5)]]
    if MINI in prompt:
        plan.append([(shell, 0)])
    thinking = f"<think>\n I weigh\n step {steps}. \n</think>\n\n"
    if steps >= len(plan):
        return f"{thinking}The work is done:  hello. \n"
    calls = "\n".join(_call(name, tools[name], number, prompt) for name, number in plan[steps])
    return f"{thinking}{STEP} {steps + 1}. \n{calls}"


def _tools(prompt: str) -> list[dict[str, Any]]:
    """The tools that the chat template lists, each as a line of JSON."""
    lines = prompt.partition("</tools>")[0].split("\n")
    return [json.loads(line)["function"] for line in lines if line.startswith('{"type": "function"')]


def _call(name: str, parameters: dict[str, Any], number: int, prompt: str) -> str:
    properties = parameters.get("properties", {})
    wanted = [*parameters.get("required", ())] or [*properties][:1]
    wanted += [key for key in ("description", "message", "subagent_type") if key in properties and key not in wanted]
    arguments = {key: _argument(key, properties.get(key, {}), number) for key in wanted}
    if "subagent_type" in arguments:
        arguments["subagent_type"] = "general" if name == "task" else "general-purpose"
    if "targets" in arguments:
        arguments["targets"] = re.findall(r'"agent_id":"([^"]+)"', prompt)
    if LONG in prompt and number == 3:
        arguments.update({key: "seq 1 2500" for key in ("command", "cmd") if key in arguments})
    # With blanks that few agents send back.
    written = " , ".join(f"{json.dumps(key)}:  {json.dumps(value)}" for key, value in arguments.items())
    return f'<tool_call>\n{{"name": {json.dumps(name)},  "arguments": {{ {written} }}}}\n</tool_call>'


def _argument(key: str, schema: dict[str, Any], number: int) -> Any:
    if key in ("command", "cmd"):
        return f"echo {MINI if number == 0 else f'hello-{number}'}"
    if key in ("prompt", "message"):
        return "SUB-WORK: say hello"
    by_type = {"integer": 1000, "number": 1000, "boolean": False, "array": [], "object": {}}
    return by_type.get(schema.get("type", ""), f"Say hello {number}")
