"""`open_engine`: an engine by one word, with its tokenizer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.rollout.engines.base import Engine
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    import torch
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

    async def __aexit__(self, *_: object) -> None:
        if self._engine is not None:
            await self._engine.close()


@named_keywords
def open_engine(
    name: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    api_key: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
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
        name: `tiny` (the small policy that ships with the library), a model folder, a model's name on the hub
            (`org/name`), the URL of an SGLang server (several with commas between, or a router's), or the URL of
            another server with its `/v1`.
        tokenizer: a tokenizer, or its folder or hub name; None: the one that the engine names.
        api_key: for servers that want one.
        device: for a model that is loaded here, for example "cuda"; None: the CPU.
        dtype: for a model that is loaded here, for example "bfloat16"; None: the checkpoint's.

    Returns:
        What to await, or to enter with `async with`. An engine that was awaited is the caller's to close.

    Raises:
        UnknownNameError: the name is none of these.
        ConfigError: the model or the tokenizer cannot be loaded; or `device` or `dtype` is unknown, or for a server.
        EngineUnavailableError: no server answers.
        EngineError: the server does not do what an engine needs.
        MissingExtraError: torch or transformers is not installed.
    """
    return EngineOpening(lambda: _open(str(name), tokenizer, api_key, device, dtype))


async def _open(
    name: str,
    tokenizer: PreTrainedTokenizerBase | str | Path | None,
    api_key: str | None,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
) -> Engine:
    is_url = name.startswith(("http://", "https://"))
    if is_url and (device is not None or dtype is not None):
        raise ConfigError(f"device and dtype are for a model that is loaded here; the server {name!r} has its own")
    if isinstance(tokenizer, str | Path):
        from toolgym.rollout.models.tokenizer import load_tokenizer

        tokenizer = await in_thread(load_tokenizer, tokenizer)
    assert not isinstance(tokenizer, str | Path)
    if not is_url:
        engine = _of_model(name, device, dtype)
    elif name.rstrip("/").endswith("/v1"):
        from toolgym.rollout.engines.openai.engine import OpenAICompatible

        vocab_size = len(tokenizer) if tokenizer is not None else None
        engine = OpenAICompatible(name, api_key=api_key, vocab_size=vocab_size)
    else:
        from toolgym.rollout.engines.sglang.server import SGLangServer

        engine = SGLangServer(*(url.strip() for url in name.split(",")), api_key=api_key)
    try:
        await engine.start()
        if tokenizer is not None:
            engine.tokenizer = tokenizer
        else:
            await in_thread(lambda: engine.tokenizer)  # loads it
    except BaseException:
        await engine.close()
        raise
    return engine


def _of_model(name: str, device: str | torch.device | None, dtype: str | torch.dtype | None) -> Engine:
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    from toolgym.rollout.engines.embedded.transformers import TransformersEngine
    from toolgym.rollout.models.hub import is_hub_name
    from toolgym.rollout.models.tiny import tiny_policy_path

    transformers_logging.disable_progress_bar()  # it would break into ours
    transformers_logging.set_verbosity_error()  # what matters is raised
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if is_hub_name(name):
        return TransformersEngine(name, device=device, dtype=dtype)
    folder = tiny_policy_path() if name == "tiny" else Path(name)
    if not name or not folder.is_dir():
        siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
        near = nearest(
            name, ["tiny", *(str(folder.with_name(sibling.name)) for sibling in siblings if sibling.is_dir() and name)]
        )
        raise UnknownNameError(
            "an engine is named by 'tiny', an http:// URL, a model folder or a model's name on the hub as 'org/name'; "
            f"{name!r} is none of these{near}"
        )
    return TransformersEngine(folder, device=device, dtype=dtype)
