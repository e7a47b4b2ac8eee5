"""`open_engine`: an engine by one word, with its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toolgym.rollout.engines.base import Engine
from toolgym.tools.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class EngineOpening:
    """An engine that is about to be opened: `engine = await opening`, or `async with opening as engine`."""

    def __init__(self, start: Callable[[], Awaitable[Engine]]) -> None:
        self._start = start
        self._engine: Engine | None = None

    def __await__(self) -> Generator[Any, Any, Engine]:
        return self._start().__await__()

    async def __aenter__(self) -> Engine:
        self._engine = await self._start()
        return self._engine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine is not None:
            await self._engine.close()


def open_engine(
    name: str | Path, *, tokenizer: PreTrainedTokenizerBase | str | Path | None = None, api_key: str | None = None
) -> EngineOpening:
    """Start an engine, and load its tokenizer into `engine.tokenizer`.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with open_engine("tiny") as engine:  # or, for example, "http://a:30000"
        ...         return engine.tokenizer.decode(engine.tokenizer.encode("6 * 7"))
        >>> asyncio.run(main())
        '6 * 7'

    Args:
        name: `tiny` (the small policy that ships with the library), a model folder, the URL of an SGLang server
            (several with commas between, or a router's), or the URL of another server with its `/v1`.
        tokenizer: a tokenizer, or its folder or hub name; None: the one that the engine names.
        api_key: for servers that want one.

    Returns:
        What to await, or to enter with `async with`. An engine that was awaited is the caller's to close.

    Raises:
        UnknownNameError: the name is none of these.
        ConfigError: the model or the tokenizer cannot be loaded.
        EngineUnavailableError: no server answers.
        EngineError: the server does not do what an engine needs.
        MissingExtraError: torch or transformers is not installed.
    """
    return EngineOpening(lambda: _open(str(name), tokenizer, api_key))


async def _open(name: str, tokenizer: PreTrainedTokenizerBase | str | Path | None, api_key: str | None) -> Engine:
    if isinstance(tokenizer, str | Path):
        from toolgym.rollout.tokenizer import load_tokenizer

        tokenizer = await asyncio.to_thread(load_tokenizer, tokenizer)
    if not name.startswith(("http://", "https://")):
        engine = _of_folder(name)
    elif name.rstrip("/").endswith("/v1"):
        engine = _of_completions(name, tokenizer, api_key)
    else:
        engine = _of_sglang(name, api_key)
    try:
        await engine.start()
        if tokenizer is not None:
            engine.tokenizer = tokenizer
        else:
            await asyncio.to_thread(lambda: engine.tokenizer)  # loads it
    except BaseException:
        await engine.close()
        raise
    return engine


def _of_folder(name: str) -> Engine:
    from transformers.utils import logging as transformers_logging

    from toolgym.rollout.engines.embedded.transformers import TransformersEngine
    from toolgym.rollout.tiny import tiny_policy_path

    transformers_logging.disable_progress_bar()  # it would break into ours
    transformers_logging.set_verbosity_error()  # what matters is raised
    folder = tiny_policy_path() if name == "tiny" else Path(name)
    if not name or not folder.is_dir():
        siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
        near = nearest(name, ["tiny", *(str(folder.with_name(one.name)) for one in siblings if one.is_dir() and name)])
        raise UnknownNameError(
            f"an engine is named by 'tiny', an http:// URL or a model folder; {name!r} is none of these{near}"
        )
    return TransformersEngine(folder)


def _of_sglang(urls: str, api_key: str | None) -> Engine:
    from toolgym.rollout.engines.sglang.server import SGLangServer

    return SGLangServer(*(url.strip() for url in urls.split(",")), api_key=api_key)


def _of_completions(url: str, tokenizer: PreTrainedTokenizerBase | None, api_key: str | None) -> Engine:
    from toolgym.rollout.engines.openai.engine import OpenAICompatible

    return OpenAICompatible(url, api_key=api_key, vocab_size=len(tokenizer) if tokenizer is not None else None)
