"""The engine that a command names in one word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolgym.tools.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.rollout.engines.base import Engine


async def open_engine(
    name: str, tokenizer_name: str | None = None, api_key: str | None = None
) -> tuple[Engine, PreTrainedTokenizerBase]:
    """Start the engine of that name, and load its tokenizer.

    Args:
        name: `tiny`, the URL of an SGLang server (several with commas between, or a router's), the URL of another
            server with its `/v1`, or a model folder.
        tokenizer_name: folder or name of the tokenizer; None: the engine's own.
        api_key: for servers that want one.

    Returns:
        The engine, which is the caller's to close, and the tokenizer.

    Raises:
        UnknownNameError: it is none of these.
        EngineUnavailableError: no server answers.
    """
    if not name.startswith(("http://", "https://")):
        return await _open_folder(name, tokenizer_name)
    if name.rstrip("/").endswith("/v1"):
        return await _open_completions(name, tokenizer_name, api_key)
    return await _open_sglang(name, tokenizer_name, api_key)


async def _open_folder(name: str, tokenizer_name: str | None) -> tuple[Engine, PreTrainedTokenizerBase]:
    from transformers.utils import logging as transformers_logging

    from toolgym.rollout.engines.transformers import TransformersEngine
    from toolgym.rollout.tiny import tiny_policy_path

    transformers_logging.disable_progress_bar()  # it would break into ours
    transformers_logging.set_verbosity_error()  # what matters is raised
    folder = tiny_policy_path() if name == "tiny" else Path(name)
    if not name or not folder.is_dir():
        siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
        near = nearest(name, ["tiny", *(str(folder.with_name(one.name)) for one in siblings if one.is_dir() and name)])
        raise UnknownNameError(
            f"--engine takes 'tiny', an http:// URL or a model folder; {name!r} is none of these{near}"
        )
    return await _started(TransformersEngine(folder), tokenizer_name or str(folder))


async def _open_sglang(
    urls: str, tokenizer_name: str | None, api_key: str | None
) -> tuple[Engine, PreTrainedTokenizerBase]:
    from toolgym.rollout.engines.sglang import SGLangServer

    server = SGLangServer(*(url.strip() for url in urls.split(",")), api_key=api_key)
    return await _started(server, tokenizer_name or (lambda: server.info.tokenizer_path))


async def _open_completions(
    url: str, tokenizer_name: str | None, api_key: str | None
) -> tuple[Engine, PreTrainedTokenizerBase]:
    from toolgym.rollout.engines.openai_compatible import OpenAICompatible
    from toolgym.rollout.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_name) if tokenizer_name is not None else None
    engine = OpenAICompatible(url, api_key=api_key, vocab_size=len(tokenizer) if tokenizer is not None else None)
    if tokenizer is None:
        return await _started(engine, lambda: engine.model.root or engine.model.name)
    try:
        await engine.start()
    except BaseException:
        await engine.close()
        raise
    return engine, tokenizer


async def _started(engine: Engine, tokenizer: str | Callable[[], str]) -> tuple[Engine, PreTrainedTokenizerBase]:
    """Start an engine and load its tokenizer, whose name the engine may know only once it has started."""
    from toolgym.rollout.tokenizer import load_tokenizer

    try:
        await engine.start()
        return engine, load_tokenizer(tokenizer if isinstance(tokenizer, str) else tokenizer())
    except BaseException:
        await engine.close()
        raise
