"""An env and a row for verl, and a fake of its LLM servers."""

from __future__ import annotations

import toolgym
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout.tokens import ContextPolicy
from toolgym.tools import StatefulTool, ToolSchema, ToolSession
from toolgym.tools.library.final_answer import score_final_answer

CODE = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(2*3)"}}\n</tool_call>'
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
SUMS = "tests.rollout.adapters.verl.fakes:VerlSums-v0"
"""An env of a user's own, in a module of the user's own, that needs no sandbox."""


class _Multiplier(ToolSession):
    def __init__(self, factor):
        self.factor = factor

    async def execute(self, parameters, **_):
        return str(parameters["a"] * parameters["b"] * self.factor)


class Multiply(StatefulTool):
    """Multiplies, and by a further factor where the row's `create_kwargs` name one."""

    default_schema = ToolSchema(
        name="multiply",
        description="Multiply two numbers.",
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    )

    async def open(self, factor=1):
        return _Multiplier(factor)


def make_sums(**kwargs):
    return ToolEnv([Multiply()], [Task(({"role": "user", "content": "2*3?"},))], scorer=_score, **kwargs)


def _score(text, task):
    return score_final_answer(text, task.ground_truth)


toolgym.register("VerlSums-v0", make_sums)


class Shorter(ContextPolicy):
    """A context policy of a user's own, without arguments."""


ROW = {
    "raw_prompt": [{"role": "user", "content": "What is 2*3?"}],
    "data_source": "sums",
    "reward_model": {"style": "rule", "ground_truth": "6"},
    "extra_info": {"index": 4},
    "index": 4,
    "tools_kwargs": {},
}


class ServerAnswer:
    """What verl's `TokenOutput` is."""

    def __init__(self, token_ids, log_probs, stop_reason, extra_fields=None):
        self.token_ids, self.log_probs, self.stop_reason = token_ids, log_probs, stop_reason
        self.extra_fields, self.num_preempted, self.routed_experts = extra_fields or {}, None, None


class FakeServers:
    """verl's `LLMServerClient`, which needs a GPU: calls the tool, then answers, or as `script(text, number)` says.

    The script returns a turn, or `(turn, stop_reason)` for one without an end, or an error to raise.
    """

    def __init__(self, tokenizer, script=None):
        self.tokenizer, self.script, self.requests = tokenizer, script or solve, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **further):
        self.requests.append((request_id, list(prompt_ids), dict(sampling_params), further))
        said = self.script(self.tokenizer.decode(prompt_ids), len(self.requests))
        if isinstance(said, BaseException):
            raise said
        text, reason = said if isinstance(said, tuple) else (said, "stop")
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        ids = ([*ids, self.tokenizer.eos_token_id] if reason == "stop" else ids)[: sampling_params["max_tokens"]]
        logprobs = [-0.5 - n / 100 for n in range(len(ids))] if sampling_params["logprobs"] else None
        return ServerAnswer(ids, logprobs, reason, {"global_steps": 2 + len(self.requests)})


def solve(text, number):
    """Calls the tool that there is, then answers."""
    if "<tool_response>" in text:
        return "#### 6"
    return CALL if '"multiply"' in text else CODE


def solve_or_break(text, number):
    return RuntimeError("the server is gone") if "break" in text else solve(text, number)


def solve_at_the_second_attempt(text, number):
    """As `solve_or_break`, but what asks for it breaks only at the server's first request."""
    return RuntimeError("the server starts") if number == 1 and "at first" in text else solve_or_break(text, number)


BREAK = {"raw_prompt": [{"role": "user", "content": "break"}]}
"""A row for which `solve_or_break` has no answer."""
