"""Engines to test.

The embedded one; SGLang's client against one and two stand-in servers; and, with the marker `sglang`, against real
servers: one, two replicas, and two behind a router. `test_real_sglang_engine.py` adds SGLang in process.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.rollout.engines.sglang_farm import Farm
from tests.rollout.engines.stand_in import StandIn, stand_in
from tests.rollout.engines.words import WORDS
from toolgym.rollout.engines import (
    Engine,
    SGLangEngine,
    SGLangServer,
    TransformersEngine,
)
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.testing import EngineSubject

EOS = 256
IN_PROCESS = os.environ.get("TOOLGYM_SGLANG_IN_PROCESS") == "1"
"""Whether this run is the one inside of SGLang's environment, for `SGLangEngine` alone."""
CPU_ENGINE: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "context_length": 2048,
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "max_total_tokens": 65536,
    "max_running_requests": 128,
    "sleep_on_idle": True,
    "skip_server_warmup": True,
    "enable_metrics": True,
}


@pytest.fixture(scope="session")
def farm() -> Iterator[Any]:
    """Real servers, each started when it is first asked for; see `sglang_farm.py`."""
    real = Farm()
    try:
        yield real
    finally:
        real.end()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_model(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    """Make a random Qwen3 whose next-token distributions are far from uniform."""
    settings = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
        "pad_token_id": 257,
        "bos_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model


@pytest.fixture
def tiny_model() -> Qwen3ForCausalLM:
    return make_model()


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny_model")
    make_model().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def stand_in_of() -> Callable[[Path], contextlib.AbstractAsyncContextManager[StandIn]]:
    """Serves a model folder as SGLang would, for tests that need a server and no model of their own."""
    return stand_in


def forward(model: Any) -> Callable[[Sequence[int]], Any]:
    """Return the plain forward pass of a model, from ids to logits of shape [len(ids), vocab]."""

    def logits(ids: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([[*ids]])).logits[0].float().numpy()

    return logits


@dataclass(frozen=True)
class Subject(EngineSubject):
    """One of our engines.

    Attributes:
        model: what `logits` runs.
        server: what stands in for a server, where there is one.
    """

    model: Any = None
    server: StandIn | None = None

    @classmethod
    def of(cls, engine: Any, make: Callable[[], Engine], model: Any, **facts: Any) -> Subject:
        return cls(engine, make, forward(model), model=model, **facts)


def sglang_subject(engine: Any, make: Callable[[], Engine], model: Any, **facts: Any) -> Subject:
    """Return a subject that gives back nothing of what waits, as SGLang does; what was retracted waits."""
    facts = {"eos": EOS, "seeds": engine.info.deterministic, "min_p": not engine.info.deterministic} | facts
    return Subject.of(engine, make, model, new_version=engine.update_weight_version, keeps_retracted=False, **facts)


REAL = pytest.mark.sglang
SUBJECTS = [
    "transformers",
    "stand_in",
    pytest.param("two_stand_ins", marks=pytest.mark.matrix),
    pytest.param("sglang", marks=REAL),
    pytest.param("sglang_replicas", marks=REAL),
    pytest.param("sglang_router", marks=REAL),
]
if IN_PROCESS:
    SUBJECTS = [pytest.param("sglang_engine", marks=REAL)]


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, tiny_model_path: Path) -> AsyncIterator[Subject]:
    if request.param == "transformers":
        model = AutoModelForCausalLM.from_pretrained(tiny_model_path).eval()

        def embedded() -> Engine:
            return TransformersEngine(model)

        async with TransformersEngine(model) as engine:
            engine.tokenizer = WORDS
            yield Subject.of(engine, embedded, model, new_version=engine.notify_weights_changed, eos=EOS)
    elif request.param == "stand_in":
        async with stand_in(tiny_model_path) as server, SGLangServer(server.url) as client:
            client.tokenizer = server.engine.tokenizer = WORDS
            yield sglang_subject(
                client,
                lambda: SGLangServer(server.url),
                server.engine.model,
                server=server,
                idle=lambda: not server.running,
            )
    elif request.param == "two_stand_ins":
        async with stand_in(tiny_model_path) as one, stand_in(tiny_model_path) as two:
            urls = (one.url, two.url)
            async with SGLangServer(*urls) as client:
                client.tokenizer = one.engine.tokenizer = two.engine.tokenizer = WORDS
                yield sglang_subject(client, lambda: SGLangServer(*urls), one.engine.model)
    elif request.param == "sglang_engine":
        engine = await _in_process()
        yield sglang_subject(
            engine,
            lambda: SGLangEngine(tiny_policy_path(), **(CPU_ENGINE | {"enable_metrics": False})),
            _float_model(engine.info.model_path),
            eos=505,
        )
    else:
        farm = request.getfixturevalue("farm")
        counts = {"sglang": 1, "sglang_replicas": 2}
        real = [farm.router()] if request.param == "sglang_router" else farm.urls(counts[request.param])
        async with SGLangServer(*real) as client:
            exact = all(info["dtype"] == "float32" for info in (await client.server_info()).values())
            model = _float_model(client.info.model_path)
            yield sglang_subject(
                client,
                lambda: SGLangServer(*real),
                model,
                tolerance=1e-4 if exact else 0.05,
                eos=int(model.config.eos_token_id),
            )


@functools.cache
def _float_model(path: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


_ENGINE: list[SGLangEngine] = []


async def _in_process() -> SGLangEngine:
    """One engine for all tests of this run, which share one event loop."""
    if not _ENGINE:
        engine = SGLangEngine(tiny_policy_path(), **CPU_ENGINE)
        await engine.start()
        _ENGINE.append(engine)
    return _ENGINE[0]


if IN_PROCESS:

    @pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
    async def _end_of_engine() -> AsyncIterator[None]:
        yield
        for engine in _ENGINE:
            await engine.close()
