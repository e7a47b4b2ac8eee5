"""Models that judge or play a user, and fail at one word of the policy as real ones do at other texts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

import toolgym
from tests.rollout.engines.http_server import serving
from toolgym.envs import Task, ToolEnv
from toolgym.envs.rewards import LLMJudge
from toolgym.envs.users import LLMUser
from toolgym.tools.http.chat_endpoint import ChatEndpoint
from toolgym.tools.message import user

WORD = "abracadabra"

TIMES = {"timeout": 1.0, "patience": 2.5}


def _says(text, finish_reason="stop", **fields):
    message = {"role": "assistant", "content": text, **fields}
    return web.json_response({"choices": [{"message": message, "finish_reason": finish_reason}]})


def _refuses(status, **error):
    return web.json_response({"error": error}, status=status)


async def _hangs(request):
    await asyncio.sleep(3)
    return _says("late")


async def _breaks_off(request):
    request.transport.close()
    return _says("")


def _answers(make):
    async def answer(request):
        return make()

    return answer


FAILURES = {
    "a filter of contents": _answers(lambda: _refuses(400, code="content_filter", message="The prompt was filtered.")),
    "a text that is refused": _answers(lambda: _refuses(422, message="invalid unicode in messages[0].content")),
    "a prompt that is forbidden": _answers(lambda: _refuses(403, message="flagged by the usage policy")),
    "a prompt that is too long": _answers(lambda: _refuses(400, message="maximum context length is 64 tokens")),
    "a server that raises": _answers(lambda: _refuses(500, message="UnicodeEncodeError")),
    "a server that is killed": _answers(lambda: _refuses(502, message="bad gateway")),
    "a connection that breaks": _breaks_off,
    "a reply that does not come": _hangs,
    "a reply that is cut": _answers(lambda: _says("and so on" * 99, "length")),
    "a reply of thinking": _answers(lambda: _says("<think>" + "Hm. " * 99)),
    "a reply of thinking in a field": _answers(lambda: _says("", reasoning_content="Hm.")),
    "an empty reply": _answers(lambda: _says("")),
    "a reply of null": _answers(lambda: _says(None, refusal="No.")),
    "a reply of blanks": _answers(lambda: _says(" \n ")),
    "a reply without end": _answers(lambda: _says("x" * (5 << 20))),
    "a reply that is no JSON": _answers(lambda: web.Response(text="<html>")),
    "no choices": _answers(lambda: web.json_response({"choices": []})),
}
"""What happens to a request with the word in it."""

VERDICTS = {
    "no verdict": _answers(lambda: _says("I must not grade this.")),
    "a verdict above 1": _answers(lambda: _says("Verdict: 7")),
    "a verdict that is no number": _answers(lambda: _says("Verdict: high")),
    "a verdict in the middle": _answers(lambda: _says("Verdict: 0\nBut then again.")),
}
"""What happens to a judge's request with the word in it."""


def _server(failure, reply):
    async def chat(request):
        messages = (await request.json())["messages"]
        return await failure(request) if any(WORD in message["content"] for message in messages) else _says(reply)

    return serving({"POST /v1/chat/completions": chat})


@asynccontextmanager
async def _judged(failure):
    task = Task((user("What is 6 times 7?"),), ground_truth="42")
    async with (
        _server(failure, "Verdict: 0") as url,
        LLMJudge(f"{url}/v1", "m", **TIMES) as judge,
        ToolEnv([], [task], scorer=judge) as env,
    ):
        yield env


@asynccontextmanager
async def _played(failure):
    row = {"prompt": [{"role": "system", "content": "You help."}]}
    task = Task.from_row({**row, "extra_info": {"interaction_kwargs": {"instruction": "Buy a tent."}}})
    async with (
        _server(failure, "A tent, please.") as url,
        LLMUser(ChatEndpoint(f"{url}/v1", "m", **TIMES)) as player,
        toolgym.make("UserSim-v0", tasks=[task], user=player) as env,
    ):
        yield env


ENVS = {
    **{f"judge: {name}": partial(_judged, failure) for name, failure in {**FAILURES, **VERDICTS}.items()},
    **{f"user: {name}": partial(_played, failure) for name, failure in FAILURES.items()},
}
"""Envs that ask another model, by the name of the model and its failure."""
