"""A tokenizer that is not the server's is refused before the first episode, and one that agrees with it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.rollout.engines.http_server import serving
from toolgym.envs import ArithmeticTasks
from toolgym.rollout import Runner, run_episode
from toolgym.rollout.engines import Engine, OpenAICompatible, SGLangServer
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The ids of the bytes are those of the tiny policy; the end of a text is another one."""
    words = sorted(load_tokenizer(tiny_policy_path()).get_vocab().items(), key=lambda item: item[1])[:256]
    backend = Tokenizer(models.BPE({word: number for number, (word, _) in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    tokenizer.chat_template = load_tokenizer(tiny_policy_path()).chat_template
    return tokenizer


class Server:
    """Knows the meaning of ids, as SGLang and vLLM do."""

    def __init__(self, field: str = "text", status: int = 200) -> None:
        self.tokenizer = load_tokenizer(tiny_policy_path())
        self.field, self.status = field, status
        self.asked = 0

    async def detokenize(self, request: web.Request) -> web.Response:
        self.asked += 1
        ids = (await request.json())["tokens"]
        return web.json_response({self.field: self.tokenizer.decode(ids)}, status=self.status)

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": "m", "tokenizer_path": "m", "weight_version": "0", "max_req_input_len": 100}
        )

    async def models(self, request: web.Request) -> web.Response:
        card = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 100}
        return web.json_response({"object": "list", "data": [card]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        choice = {
            "index": 0,
            "text": "a",
            "token_ids": [5],
            "prompt_token_ids": (await request.json())["prompt"],
            "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}]},
            "finish_reason": "length",
        }
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + web.json_response({"choices": [choice]}).body + b"\n\ndata: [DONE]\n\n")  # type: ignore[operator]
        return response

    @asynccontextmanager
    async def engine(self, kind: str) -> AsyncIterator[Engine]:
        routes = {
            "GET /model_info": self.info,
            "GET /server_info": self.info,
            "GET /v1/models": self.models,
            "POST /v1/completions": self.completions,
        }
        if self.status != 404:
            routes["POST /detokenize"] = self.detokenize
        async with serving(routes) as url:
            engines: dict[str, Any] = {
                "sglang": lambda: SGLangServer(url, vocab_size=512),
                "openai": lambda: OpenAICompatible(url, vocab_size=512, logprobs_mode="scaled"),
            }
            async with engines[kind]() as engine:
                yield engine


KINDS = [("sglang", "text"), ("openai", "text"), ("openai", "prompt")]


@pytest.mark.parametrize(("kind", "field"), KINDS)
async def test_another_tokenizer_is_refused_before_the_first_episode(kind: str, field: str) -> None:
    async with Server(field).engine(kind) as engine:
        wrong = byte_tokenizer()
        with pytest.raises(ConfigError, match=r"is not that of the model at http.*<end>.*Leave tokenizer= out"):
            await Runner("CodeInterpreter-v0", engine, tokenizer=wrong).run(ArithmeticTasks().take(1))
        with pytest.raises(ConfigError, match="is not that of the model"):
            await run_episode("CodeInterpreter-v0", ArithmeticTasks().take(1)[0], engine, tokenizer=wrong)


@pytest.mark.parametrize(("kind", "field"), KINDS)
async def test_one_that_agrees_is_asked_about_once(kind: str, field: str) -> None:
    server = Server(field)
    longer = load_tokenizer(tiny_policy_path())
    longer.add_tokens(["<image>"])  # the model may have more ids than the tokenizer, and the other way round
    async with server.engine(kind) as engine:
        for _ in range(3):
            await engine.check_tokenizer(longer)
        assert server.asked == 1
        await engine.check_tokenizer(load_tokenizer(tiny_policy_path()))
        assert server.asked == 2


@pytest.mark.parametrize(("field", "status"), [("text", 404), ("text", 500), ("text", 400), ("success", 200)])
@pytest.mark.parametrize("kind", ["sglang", "openai"])
async def test_a_server_that_does_not_tell_refuses_none(kind: str, field: str, status: int) -> None:
    async with Server(field, status).engine(kind) as engine:
        await engine.check_tokenizer(byte_tokenizer())
