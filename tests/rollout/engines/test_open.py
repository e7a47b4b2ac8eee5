"""`open_engine`: an engine by one word, with its tokenizer."""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from toolgym.rollout import load_tokenizer, open_engine, tiny_policy_path
from toolgym.rollout.engines import SamplingParams, SGLangServer, TransformersEngine
from toolgym.rollout.recording import RecordingEngine
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, UnknownNameError

SHORT = SamplingParams(max_new_tokens=4)


async def test_one_word_opens_an_engine_with_its_tokenizer() -> None:
    engine = await open_engine("tiny")
    try:
        assert isinstance(engine, TransformersEngine)
        assert engine.tokenizer is not None
        assert engine.tokenizer.name_or_path == str(tiny_policy_path())
        ids = engine.tokenizer.encode("What is 2 + 2?")
        assert len((await engine.generate(ids, SHORT, request_id="a")).token_ids) <= 4
    finally:
        await engine.close()


async def test_it_is_a_context_manager_that_closes_the_engine() -> None:
    async with open_engine(tiny_policy_path()) as engine:
        assert engine.tokenizer is not None
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], SHORT, request_id="a")


async def test_a_tokenizer_given_by_hand_comes_first(tiny_model_path: Path) -> None:
    async with open_engine(tiny_model_path, tokenizer=tiny_policy_path()) as engine:
        assert engine.tokenizer is not None
        assert engine.tokenizer.name_or_path == str(tiny_policy_path())
    own = load_tokenizer(tiny_policy_path())
    async with open_engine(tiny_model_path, tokenizer=own) as engine:
        assert engine.tokenizer is own


async def test_a_folder_without_a_tokenizer_is_told_and_nothing_is_left_open(tiny_model_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
        await open_engine(tiny_model_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tyni", "'tyni' is none of these, did you mean 'tiny'"),
        ("", "'' is none of these"),
        ("{folder}/modl", "did you mean '{folder}/model'"),
    ],
)
async def test_a_name_that_is_none_is_told_without_words_of_the_command(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UnknownNameError) as error:
        await open_engine(name.format(folder=tmp_path))
    assert message.format(folder=tmp_path) in str(error.value)
    assert "--" not in str(error.value)


async def test_a_url_is_a_server() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for name in (url, f"{url}/v1"):
        with pytest.raises(EngineUnavailableError, match="nothing answers"):
            await open_engine(name)


async def test_a_server_names_its_tokenizer(tiny_model_path: Path, tmp_path: Path, stand_in_of: Any) -> None:
    folder = tmp_path / "with tokenizer"
    shutil.copytree(tiny_model_path, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_policy_path() / name, folder)
    async with stand_in_of(folder) as server, open_engine(server.url) as engine:
        assert isinstance(engine, SGLangServer)
        assert engine.tokenizer is not None
        assert engine.tokenizer.name_or_path == str(folder)


async def test_an_engine_loads_its_tokenizer_at_the_first_use(tmp_path: Path) -> None:
    engine = TransformersEngine(tiny_policy_path())
    assert engine.tokenizer is engine.tokenizer
    recorded = RecordingEngine(engine, tmp_path / "recording.jsonl")
    assert recorded.tokenizer is engine.tokenizer
    with contextlib.suppress(EngineError):
        await recorded.close()
    with pytest.raises(EngineError, match="start"):
        SGLangServer("http://127.0.0.1:1").tokenizer  # noqa: B018
