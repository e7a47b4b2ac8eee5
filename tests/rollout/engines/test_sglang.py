"""What only the SGLang client does: servers that are absent, foreign, overloaded, slow or wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web

from tests.rollout.engines.http_server import serving
from tests.rollout.engines.sglang_client import GOOD, MODEL_INFO, SERVER_INFO, SHORT, answering, client, wrong
from toolgym.rollout.engines import (
    FinishReason,
    Generation,
    HttpOptions,
    SamplingParams,
    SGLangEngine,
    SGLangServer,
)
from toolgym.rollout.engines.http import error_text
from toolgym.rollout.engines.sglang.messages import parse_metrics, read_generation, request_body
from toolgym.rollout.engines.sglang.weights import payload, tensor_buckets
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, MissingExtraError

# ---- starting


async def test_a_dead_url_is_told_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgym.rollout.engines.sglang.http_transport.FIRST_ANSWER", 600)
    options = HttpOptions(connect_timeout=600, unavailable_timeout=600)
    long = {"request_timeout": 600, "control_timeout": 600, "options": options}
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # no other program gets the port, and nothing listens there
        async with asyncio.timeout(60):
            with pytest.raises(EngineUnavailableError, match=r"nothing answers.*launch_server"):
                await SGLangServer(f"http://127.0.0.1:{silent.getsockname()[1]}", **long).start()


async def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineError, match=r"no answer within 0\.3 seconds"):
            await SGLangServer(url, control_timeout=0.3).start()


async def test_the_first_answer_is_not_waited_for_as_long_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgym.rollout.engines.sglang.http_transport.FIRST_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineError, match=r"no answer within 0\.2 seconds"):
            await SGLangServer(url, control_timeout=30).start()


@pytest.mark.parametrize("body", ["<html>hello</html>", {"hello": "world"}, [1]])
async def test_what_is_not_sglang_is_told(body: Any) -> None:
    page = answering(body)
    routes = {f"GET {path}": page for path in ("/model_info", "/get_model_info", "/server_info")}
    async with serving(routes) as url:
        with pytest.raises(EngineError, match="not as an SGLang server"):
            await SGLangServer(url, vocab_size=8).start()
    async with serving({}) as url:
        with pytest.raises(EngineError, match="not as an SGLang server"):
            await SGLangServer(url, vocab_size=8).start()


async def test_older_names_of_the_endpoints_work() -> None:
    routes = {
        "GET /get_model_info": answering(MODEL_INFO),
        "GET /get_server_info": answering(SERVER_INFO | {"context_length": 90}),
    }
    async with serving(routes) as url, SGLangServer(url, vocab_size=8) as engine:
        assert engine.context_length == 90
        assert engine.info.model_path == "org/model"


async def test_an_unknown_vocabulary_is_never_guessed(tmp_path: Path) -> None:
    routes = {"GET /model_info": answering(MODEL_INFO), "GET /server_info": answering(SERVER_INFO)}
    async with serving(routes) as url:
        with pytest.raises(ConfigError, match="vocab_size="):
            await SGLangServer(url).start()
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 77}}')
    routes["GET /model_info"] = answering(MODEL_INFO | {"model_path": str(tmp_path)})
    async with serving(routes) as url, SGLangServer(url) as engine:
        assert engine.vocab_size == 77
    routes["GET /model_info"] = answering({"model_path": "org/model", "tokenizer_path": "org/model"})
    async with serving(routes) as url:
        with pytest.raises(EngineError, match="weight_version"):
            await SGLangServer(url, vocab_size=8).start()


async def test_the_key_is_sent_and_missed() -> None:
    async def guarded(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response(MODEL_INFO | SERVER_INFO)

    async with serving({"GET /model_info": guarded, "GET /server_info": guarded}) as url:
        async with SGLangServer(url, api_key="secret", vocab_size=8):
            pass
        with pytest.raises(EngineError, match="api_key"):
            await SGLangServer(url, vocab_size=8).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "localhost:1"}, "http://"),
        ({"url": "http://"}, "must look like"),
        ({"url": "http://localhost:99999"}, "must look like"),
        ({"url": "http://[::1"}, "must look like"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"control_timeout": 0}, "control_timeout"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SGLangServer(arguments.pop("url", "http://localhost:1"), **arguments)


# ---- answers


async def test_a_good_answer_is_read() -> None:
    async with client(answering(GOOD)) as engine:
        assert engine.weight_version == "default"
        generation = await engine.generate([1], SHORT, request_id="a")
        assert generation == Generation((5, 6), (-0.5, -1.5), FinishReason.LENGTH, ("1", "2"), 3)
        assert engine.weight_version == "2"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("this is no JSON", "JSON"),
        ([GOOD], "meta_info"),
        ({"output_ids": [1]}, "meta_info"),
        (wrong(output_ids=None), "output_ids"),
        (wrong(output_ids=["5", "6"]), "output_ids"),
        (wrong(output_token_logprobs=None), "output_token_logprobs"),
        (wrong(output_token_logprobs=[[-0.5, 5, None]]), "output_token_logprobs"),
        (wrong(output_token_logprobs=[[-0.5, 5], 6]), r"\[logprob, id, text\]"),
        (wrong(output_token_logprobs=[[-0.5, 5, None], [-1.5, 7, None]]), "is of id 7, but output id 1 is 6"),
        (wrong(output_token_logprobs=[["x", 5, None], [-1.5, 6, None]]), "finite"),
        (wrong(finish_reason=None), "stop, length or abort"),
        (wrong(finish_reason={"type": "stop", "matched": "NaN happened"}), "NaN happened"),
        (wrong(finish_reason={"type": "stop", "matched": 5}), "not the last"),
        (wrong(output_ids=[5], output_token_logprobs=[[-0.5, 5, None]], weight_versions=None), "caps"),
        (wrong(weight_versions=[{"version": "1", "start": 0, "end": 1}]), "weight_versions"),
        (wrong(weight_versions=[{"version": "1", "start": 1, "end": 2}]), "weight_versions"),
        (wrong(weight_versions=[{"version": "1"}]), "weight_versions"),
        (wrong(weight_versions=None, weight_version=None), "weight_version"),
    ],
)
async def test_a_wrong_answer_is_told(answer: Any, message: str) -> None:
    async with client(answering(answer)) as engine:
        with pytest.raises(EngineError, match=message):
            await engine.generate([1], SHORT, request_id="a")


def test_a_null_logprob_is_told() -> None:
    answer = wrong(output_token_logprobs=[[None, 5, None], [-1.5, 6, None]])
    with pytest.raises(EngineError, match="NaN in the model"):
        read_generation(answer, SHORT)


def test_one_version_is_taken_for_all_tokens_where_there_are_no_spans() -> None:
    assert read_generation(wrong(weight_versions=None), SHORT).weight_versions == ("2", "2")


def test_an_abort_in_the_queue_is_read() -> None:
    meta = {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}, "weight_version": "1"}
    generation = read_generation({"output_ids": [], "meta_info": meta}, SHORT)
    assert generation == Generation((), (), FinishReason.ABORT, ())


# ---- requests


def test_every_parameter_is_explicit() -> None:
    params = SamplingParams(max_new_tokens=4, temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, stop_token_ids=(7,))
    body = request_body((1, 2), params, 3)
    sampling = body["sampling_params"]
    assert body["input_ids"] == [1, 2]
    assert body["return_logprob"] is True
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"], sampling["min_p"]) == (0.6, 0.9, 20, 0.1)
    assert (sampling["max_new_tokens"], sampling["stop_token_ids"], sampling["sampling_seed"]) == (4, [7], 3)
    assert sampling["ignore_eos"] is False
    assert request_body((1,), SHORT, None)["sampling_params"]["ignore_eos"] is True
    assert "sampling_seed" not in request_body((1,), SHORT, None)["sampling_params"]


def test_top_k_1_keeps_scaled_logprobs() -> None:
    hot = request_body((1,), SamplingParams(max_new_tokens=1, temperature=0.5, top_k=1), None)["sampling_params"]
    assert hot["top_k"] == -1
    assert 0 < hot["top_p"] < 1e-6


@pytest.mark.parametrize("seed", [-1, 2**63])
async def test_a_seed_that_sglang_does_not_take_is_refused(seed: int) -> None:
    async with client(answering(GOOD)) as engine:
        with pytest.raises(ConfigError, match="seeds from 0"):
            await engine.generate([1], SamplingParams(max_new_tokens=2, seed=seed), request_id="a")


async def test_a_deterministic_server_gets_a_seed_each_time() -> None:
    seen: list[Any] = []

    async def generate(request: web.Request) -> web.Response:
        seen.append((await request.json())["sampling_params"].get("sampling_seed"))
        return web.json_response(GOOD)

    async with client(generate, server_info={"enable_deterministic_inference": True}) as engine:
        for _ in range(2):
            await engine.generate([1], SHORT, request_id="a")
        await engine.generate([1], SamplingParams(max_new_tokens=2, seed=5), request_id="a")
        with pytest.raises(ConfigError, match="min_p"):
            await engine.generate([1], SamplingParams(max_new_tokens=2, min_p=0.1), request_id="a")
    assert len(set(seen)) == 3
    assert seen[2] == 5


# ---- errors and repetitions


@pytest.mark.parametrize("body", [{"error": {"message": "too hot"}}, {"error": "too hot"}, {"detail": "too hot"}])
async def test_what_the_request_did_wrong_is_a_config_error(body: Any) -> None:
    async with client(answering(body, 400)) as engine:
        with pytest.raises(ConfigError, match="too hot"):
            await engine.generate([1], SHORT, request_id="a")


@pytest.mark.parametrize("status", [401, 404, 500, 503])
async def test_what_the_server_did_wrong_is_an_engine_error(status: int) -> None:
    calls = 0

    async def generate(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.json_response({"error": {"message": "it broke"}}, status=status)

    async with client(generate) as engine:
        with pytest.raises(EngineError, match="it broke"):
            await engine.generate([1], SHORT, request_id="a")
    assert calls == 1


@pytest.mark.parametrize(
    ("body", "status", "headers"),
    [
        ({"error": "busy"}, 503, {"Retry-After": "0"}),
        ({"error": "busy"}, 429, {"Retry-After": "0.05"}),
        ({"message": "The request queue is full."}, 503, {}),
    ],
)
async def test_an_overloaded_server_is_asked_again(body: Any, status: int, headers: dict[str, str]) -> None:
    rids: list[str] = []

    async def generate(request: web.Request) -> web.Response:
        rids.append((await request.json())["rid"])
        if len(rids) < 3:
            return web.json_response(body, status=status, headers=headers)
        return web.json_response(GOOD)

    async with client(generate) as engine:
        assert (await engine.generate([1], SHORT, request_id="a")).token_ids == (5, 6)
    assert len(set(rids)) == 3
    assert {len(rid) for rid in rids} == {32}


async def test_repetitions_are_bounded_and_can_be_aborted() -> None:
    overloaded = answering({"error": "busy"}, 503, {"Retry-After": "0"})
    async with client(overloaded) as engine:
        with pytest.raises(EngineError, match="busy"):
            await engine.generate([1], SHORT, request_id="a")
    asked = asyncio.Event()

    async def busy(request: web.Request) -> web.Response:
        asked.set()
        return web.json_response({"error": "busy"}, status=503, headers={"Retry-After": "60"})

    async with client(busy) as engine:
        task = asyncio.create_task(engine.generate([1], SHORT, request_id="a"))
        await asyncio.wait_for(asked.wait(), 60)
        await asyncio.sleep(0.05)  # most often the pause has begun; an abort before it must do as well
        await engine.abort("a")
        assert (await asyncio.wait_for(task, 30)).finish_reason is FinishReason.ABORT


async def test_a_server_that_goes_away_is_unavailable() -> None:
    routes = {"GET /model_info": answering(MODEL_INFO), "GET /server_info": answering(SERVER_INFO)}
    async with contextlib.AsyncExitStack() as stack:
        async with serving(routes) as url:
            engine = await stack.enter_async_context(
                SGLangServer(url, vocab_size=320, options=HttpOptions(unavailable_timeout=0.5))
            )
        with pytest.raises(EngineUnavailableError):
            await engine.generate([1], SHORT, request_id="a")


async def test_a_slow_server_is_given_up_and_told() -> None:
    aborted: list[str] = []

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(600)
        return web.json_response(GOOD)

    async def abort(request: web.Request) -> web.Response:
        aborted.append((await request.json())["rid"])
        return web.Response()

    async with client(slow, abort=abort, request_timeout=0.2) as engine:
        async with asyncio.timeout(60):
            with pytest.raises(EngineError, match=r"0\.2 seconds"):
                await engine.generate([1], SHORT, request_id="a")
    assert len(aborted) == 1


async def test_a_connection_that_breaks_is_an_engine_error() -> None:
    async def vanish(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with client(vanish) as engine:
        with pytest.raises(EngineError, match="broke off"):
            await engine.generate([1], SHORT, request_id="a")


async def test_another_event_loop_is_refused() -> None:
    async with client(answering(GOOD)) as engine:

        def elsewhere() -> None:
            asyncio.run(engine.generate([1], SHORT, request_id="a"))  # type: ignore[arg-type]

        with pytest.raises(EngineError, match="event loop"):
            await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "a"}}, "a"),
        ({"error": "a"}, "a"),
        ({"object": "error", "message": "a"}, "a"),
        ({"detail": "a"}, "a"),
        ("plain", "plain"),
        (None, "None"),
    ],
)
def test_messages_are_found_in_every_shape_of_error(body: Any, text: str) -> None:
    assert error_text(body) == text


async def test_sglang_in_process_says_what_to_install() -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("sglang is installed here")
    engine = SGLangEngine("model")
    with pytest.raises(MissingExtraError, match=r"'sglang'.*pip install .*\[sglang\]'"):
        await engine.start()
    await engine.close()


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("# HELP x y\n# TYPE x gauge\nx 1.5\n", {"x": 1.5}),
        ('sglang:n{model="a b",le="+Inf"} 3 1700000000\n', {'sglang:n{model="a b",le="+Inf"}': 3.0}),
        ("x +Inf\n\n", {"x": float("inf")}),
        ("", {}),
    ],
)
def test_metrics_are_read(text: str, samples: dict[str, float]) -> None:
    assert parse_metrics(text) == samples


@pytest.mark.parametrize("text", ["<html>", {"a": 1}, "x"])
def test_what_are_no_metrics_is_told(text: Any) -> None:
    with pytest.raises(EngineError, match="Prometheus"):
        parse_metrics(text)


# ---- weights


async def test_one_call_updates_weights_from_a_folder_or_from_tensors() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    async def control(request: web.Request) -> web.Response:
        seen.append((request.path, await request.json()))
        return web.json_response({"success": True})

    names = ("update_weights_from_disk", "begin_weight_update", "update_weights_from_tensor", "end_weight_update")
    routes = {
        "GET /model_info": answering(MODEL_INFO),
        "GET /server_info": answering(SERVER_INFO),
        **{f"POST /{name}": control for name in names},
    }
    async with serving(routes) as url, SGLangServer(url, vocab_size=320) as engine:
        await engine.update_weights(Path("folder"), version="1")
        assert engine.weight_version == "1"
        await engine.update_weights({"a": torch.ones(2)}, version="2")
        assert engine.weight_version == "2"
        with pytest.raises(ConfigError, match="version"):
            await engine.update_weights("folder", version="")
    assert [path.removeprefix("/") for path, _ in seen] == list(names)
    assert seen[0][1]["model_path"] == "folder"
    assert (seen[0][1]["weight_version"], seen[2][1]["weight_version"]) == ("1", "2")


def test_weights_are_sent_in_buckets() -> None:
    weights = {"a": torch.ones(10), "b": torch.ones(10), "c": torch.arange(20.0)[10:]}
    buckets = tensor_buckets(weights, 80)
    assert [[name for name, _ in bucket] for bucket in buckets] == [["a", "b"], ["c"]]
    data = base64.b64decode(payload(buckets[1]))
    ((name, tensor),) = pickle.loads(data)
    assert name == "c"
    assert torch.equal(tensor, weights["c"])
    assert tensor.untyped_storage().nbytes() == 40  # not the whole storage behind the view
    with pytest.raises(ConfigError, match="at least one"):
        tensor_buckets({}, 80)
