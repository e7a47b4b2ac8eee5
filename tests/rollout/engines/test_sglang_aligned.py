"""Payloads beside the tokens: routed experts, their weights, and the ids that sampling kept."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from tests.rollout.engines.sglang_client import GOOD, SHORT, answering, client, wrong
from toolgym.rollout.engines import GenerationRequest, SamplingParams, SGLangServer
from toolgym.rollout.engines.sglang.aligned import NAMES, read_payloads
from toolgym.rollout.engines.sglang.messages import ServerInfo
from toolgym.tools.errors import ConfigError, EngineError

MOE = ServerInfo("m", "m", 320, 100, "1", False, "0.5.23", True, (3, 2))


def encoded(rows: int) -> tuple[str, np.ndarray[Any, Any]]:
    """Routing of so many positions, as SGLang sends it."""
    values = np.arange(rows * 6, dtype="<i4").reshape(rows, 3, 2)
    return base64.b64encode(values.tobytes()).decode(), values


def payloads(meta: dict[str, Any], ids: tuple[int, ...] = (5, 6), params: SamplingParams = SHORT) -> dict[str, Any]:
    names = tuple(
        name
        for name in NAMES
        if name == "routed_experts"
        or (name == "sampling_mask" and params.top_k != -1)
        or (name == "routing_weights" and "routed_expert_weights" in meta)
    )
    return read_payloads(names, meta, ids, GenerationRequest((1, 2, 3, 4), params, "a"), MOE)


def test_routed_experts_are_those_of_the_passes_that_gave_the_tokens() -> None:
    text, values = encoded(2)
    (array,) = payloads({"routed_experts": text}).values()
    assert array.dtype == np.int32
    assert np.array_equal(array, values)
    text, values = encoded(3 + 2)  # from a server that sends the prompt's rows too: four positions, less the last
    (array,) = payloads({"routed_experts": text}).values()
    assert np.array_equal(array, values[3:])
    (array,) = payloads({}, ids=()).values()  # aborted in the queue
    assert array.shape == (0, 3, 2)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "no routed_experts for 2 tokens"),
        ({"routed_experts": "%%%"}, "3 layers and 2 experts"),
        ({"routed_experts": encoded(2)[0][:-8]}, "3 layers and 2 experts"),
        ({"routed_experts": encoded(3)[0]}, "3 rows where 2 tokens were sampled behind 4"),
    ],
)
def test_routed_experts_that_do_not_fit_are_told(meta: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        payloads(meta)


def floats(values: Any, dtype: str = "<f4") -> str:
    return base64.b64encode(np.asarray(values, dtype).tobytes()).decode()


@pytest.mark.parametrize("rows", [2, 5], ids=["the sampled tokens'", "the prompt's, too"])
def test_routing_weights_are_those_of_the_experts_to_the_bit(rows: int) -> None:
    weights = np.random.default_rng(0).random((rows, 3, 2), np.float32)
    read = payloads({"routed_experts": encoded(rows)[0], "routed_expert_weights": floats(weights)})
    assert read["routing_weights"].dtype == np.float32
    assert read["routing_weights"].shape == read["routed_experts"].shape == (2, 3, 2)
    assert np.array_equal(read["routing_weights"], weights[-2:])
    assert payloads({"routed_expert_weights": None}, ids=())["routing_weights"].shape == (0, 3, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "sent no routed_expert_weights: it must run with --enable-return-routed-expert-weights"),
        ("%%%", r"must be float32 \[2, 3, 2\]"),
        (floats(np.ones((3, 3, 2))), r"must be float32 \[2, 3, 2\]"),
        (floats(np.ones((2, 3, 2)), "<f2"), r"must be float32 \[2, 3, 2\]"),
        (floats(np.full((2, 3, 2), np.nan)), "finite and 0 or more"),
        (floats(np.full((2, 3, 2), -0.5)), "finite and 0 or more"),
    ],
)
def test_routing_weights_that_do_not_fit_are_told(text: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        payloads({"routed_experts": encoded(2)[0], "routed_expert_weights": text})


def test_a_sampling_mask_is_as_wide_as_top_k_or_its_ties() -> None:
    routed = {"routed_experts": encoded(2)[0]}
    params = SamplingParams(max_new_tokens=2, top_k=3)
    array = payloads(routed | {"output_token_sampling_mask": [[5, 9], [7]]}, (5, 7), params)["sampling_mask"]
    assert array.tolist() == [[5, 9, -1], [7, -1, -1]]
    assert array.dtype == np.int32
    array = payloads(routed | {"output_token_sampling_mask": [[5, 9, 1, 2], [7]]}, (5, 7), params)["sampling_mask"]
    assert array.shape == (2, 4)
    assert payloads({}, (), params)["sampling_mask"].shape == (0, 3)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (None, "one sampling mask per token"),
        ([[5]], "one sampling mask per token"),
        ([[5], [6]], "not in SGLang's sampling mask"),
        ([[5], [7, 320]], "outside the vocabulary"),
    ],
)
def test_a_sampling_mask_that_does_not_fit_is_told(kept: Any, message: str) -> None:
    meta = {"routed_experts": encoded(2)[0], "output_token_sampling_mask": kept}
    with pytest.raises(EngineError, match=message):
        payloads(meta, (5, 7), SamplingParams(max_new_tokens=2, top_k=3))


async def test_payloads_are_asked_for_with_every_request() -> None:
    seen: list[dict[str, Any]] = []
    text, values = encoded(2)

    async def generate(request: web.Request) -> web.Response:
        seen.append(await request.json())
        weights = floats(values / 16)
        return web.json_response(
            wrong(routed_experts=text, routed_expert_weights=weights, output_token_sampling_mask=[[5], [6, 7]])
        )

    async with client(generate, aligned=NAMES, routing_shape=(3, 2)) as engine:
        params = SamplingParams(max_new_tokens=2, top_k=2)
        generation = await engine.generate([1, 2, 3], params, request_id="a")
        with pytest.raises(ConfigError, match="top_k is finite"):
            await engine.generate([1], SHORT, request_id="a")
        await engine.generate([1], SamplingParams(max_new_tokens=2, top_k=1), request_id="a")
    assert np.array_equal(generation.aligned["routed_experts"], values)
    assert np.array_equal(generation.aligned["routing_weights"], values / 16)
    assert generation.aligned["sampling_mask"].tolist() == [[5, -1], [6, 7]]
    assert seen[0]["return_routed_expert_weights"] is True
    assert (seen[0]["return_routed_experts"], seen[0]["routed_experts_start_len"]) == (True, 2)
    assert seen[0]["return_sampling_mask"] is True
    assert (seen[1]["sampling_params"]["top_k"], seen[1]["sampling_params"]["top_p"] < 1e-6) == (2, True)


async def test_without_payloads_nothing_is_asked_for() -> None:
    seen: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response(GOOD)

    async with client(generate) as engine:
        assert (await engine.generate([1], SHORT, request_id="a")).aligned == {}
    assert not {"return_routed_experts", "return_sampling_mask"} & set(seen[0])


async def test_payloads_that_cannot_come_are_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="did you mean 'routed_experts'"):
        SGLangServer("http://localhost:1", aligned=("routed_expert",))
    with pytest.raises(ConfigError, match="sequence of names"):
        SGLangServer("http://localhost:1", aligned="routed_experts")
    with pytest.raises(ConfigError, match="routing_shape"):
        SGLangServer("http://localhost:1", routing_shape=(0, 2))
    with pytest.raises(ConfigError, match="--enable-return-routed-experts"):
        async with client(
            answering(GOOD),
            aligned=("routed_experts",),
            routing_shape=(3, 2),
            server_info={"enable_return_routed_experts": False},
        ):
            pass
    both = ("routed_experts", "routing_weights")
    with pytest.raises(ConfigError, match="add 'routed_experts' to aligned"):
        SGLangServer("http://localhost:1", aligned=both[1:])
    for info in ({"enable_return_routed_experts": True}, {"enable_return_routed_expert_weights": False}):
        with pytest.raises(ConfigError, match="--enable-return-routed-expert-weights"):
            async with client(answering(GOOD), aligned=both, routing_shape=(3, 2), server_info=info):
                pass
    with pytest.raises(ConfigError, match="routing_shape="):
        async with client(answering(GOOD), aligned=("routed_experts",)):
            pass
