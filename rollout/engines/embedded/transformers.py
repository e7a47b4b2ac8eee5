"""`TransformersEngine`: the embedded engine, any causal LM of transformers in this process.

One thread owns the model and decodes all running requests together, one token per step; requests join and leave between
steps. It does not reuse the keys and values of an earlier turn (`cached_tokens` is always 0), and knows one device
only.
"""

from __future__ import annotations

import asyncio
import atexit
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from toolgym.rollout.engines.base import (
    Engine,
    FinishReason,
    Generation,
    GenerationRequest,
    PauseMode,
    WeightSource,
    checked_version,
)
from toolgym.rollout.engines.embedded.decoding import DecodingBatch, DecodingRow, check_model, score_tokens
from toolgym.rollout.engines.embedded.loading import inspect_model, load_model, read_device, read_dtype
from toolgym.rollout.engines.scoring import ScoringRequest, TokenScores
from toolgym.rollout.engines.stop_texts import decoder
from toolgym.rollout.engines.weights import check_weights, collect_weights, load_weights
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.models.processor import processor_at
from toolgym.tools.concurrency.blocking import contained, in_thread
from toolgym.tools.errors import ConfigError, EngineError, require_whole_number
from toolgym.tools.keywords import named_keywords
from toolgym.tools.lazy import missing_extra

try:
    import torch
    from torch import nn
except ImportError as error:
    raise missing_extra("rollout", "The embedded engine", error) from error

T = TypeVar("T")

MAX_PREFILL_TOKENS = 16384
"""Most tokens, padding included, of the prompts that are prefilled in one forward pass (one prompt always fits)."""


class _Request:
    def __init__(self, request_id: str, row: DecodingRow) -> None:
        self.request_id = request_id
        self.row = row
        self.aborted = False
        self.future: Future[Generation] = Future()
        # Now cancelling cannot settle the future: only the engine's thread does.
        self.future.set_running_or_notify_cancel()

    def deliver(self) -> None:
        row = self.row
        if row.stopped:
            reason = FinishReason.STOP
        elif row.done:
            reason = FinishReason.LENGTH
        else:
            reason = FinishReason.ABORT
        self.future.set_result(
            Generation(tuple(row.token_ids), tuple(row.logprobs), reason, tuple(row.weight_versions))
        )


class TransformersEngine(Engine):
    """Generates with a causal LM of transformers, in this process. Raises ConfigError if an argument is not usable.

    A request with a seed gets the same tokens whatever else runs (up to rounding of the logits, which depends on the
    batch's shape). Global random states are never touched. Its methods may be called from any event loop and thread.

    Args:
        model: a folder or hub name, or a module. A module is used as it is, without a copy: a learner that changes its
            weights in place calls `pause`, changes them, `notify_weights_changed`, `resume`. It samples in evaluation
            mode whatever mode the module is in.
        device: for a model that is loaded by name ("cpu" when None); a module stays where it is.
        max_batch: most requests decoded together; the others wait in order.
        dtype: for a model loaded by name, for example "float32"; None takes the checkpoint's.
        weight_version: version of the weights that it starts with.
        num_threads: threads of torch's operators in the engine's thread, and in threads created later; None leaves
            torch's setting.
        context_length: most tokens of prompt and generation together; None takes `max_position_embeddings`.
        processor: of images, for a vision-language model; None takes that beside a model that is loaded by name.
    """

    @named_keywords
    def __init__(
        self,
        model: str | Path | nn.Module,
        *,
        device: str | torch.device | None = None,
        max_batch: int = 64,
        dtype: torch.dtype | str | None = None,
        weight_version: str = "0",
        num_threads: int | None = None,
        context_length: int | None = None,
        processor: ImageProcessor | None = None,
    ) -> None:
        if not isinstance(model, str | Path | nn.Module):
            raise ConfigError(f"a model is a folder, a name on the hub or a module, got {model!r}")
        require_whole_number("max_batch", max_batch, at_least=1)
        if num_threads is not None:
            require_whole_number("num_threads", num_threads, at_least=1)
        if context_length is not None:
            require_whole_number("context_length", context_length, at_least=2)
        if isinstance(model, nn.Module) and dtype is not None:
            raise ConfigError("dtype is for a model loaded by name; convert the module before passing it")
        self._source = model
        self._wanted_device = read_device(device)
        self._wanted_dtype = read_dtype(dtype)
        self._wanted_context = context_length
        self._processor = processor
        self._max_batch = max_batch
        self._num_threads = num_threads
        self._weight_version = weight_version

        self._model: nn.Module | None = None
        self._vocab_size = 0
        self._context_length = 0
        self._random = random.Random()
        if isinstance(model, nn.Module):
            self._adopt(model)

        # The thread and its callers share these, under the condition's lock.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requests: dict[str, _Request] = {}
        self._queue: deque[_Request] = deque()
        self._commands: deque[tuple[Callable[[], object], Future[Any]]] = deque()
        self._scorings: deque[tuple[Callable[[], object], Future[Any]]] = deque()  # commands that wait for `resume`
        self._paused = False
        self._closing = False
        self._failure: BaseException | None = None
        self._starting = threading.Lock()

        # Only the thread touches these.
        self._running: list[_Request] = []
        self._batch: DecodingBatch | None = None

    # ---- what callers see

    @property
    def model(self) -> nn.Module:
        """The module. A model loaded by name is there from `start` to `close`; EngineError otherwise."""
        if self._model is None:
            if self._closing:
                raise EngineError("the engine was closed, and with it the model that it had loaded")
            raise EngineError("the model is loaded by start(): await engine.start() first")
        return self._model

    @property
    def vocab_size(self) -> int:
        self.model  # noqa: B018 - raises before start
        return self._vocab_size

    @property
    def context_length(self) -> int:
        self.model  # noqa: B018 - raises before start
        return self._context_length

    @property
    def weight_version(self) -> str:
        return self._weight_version

    @property
    def takes_images(self) -> bool:
        return self._processor is not None

    async def start(self) -> None:
        """Load the model if it is named, try it, and start the thread. Starting twice is fine.

        Cancelling the first start closes the engine: its caller has no started engine to close. Raises ConfigError if
        the model cannot be loaded or decoded.
        """
        first = self._thread is None
        try:
            await in_thread(self._start)
        except asyncio.CancelledError:
            if first:
                with self._changed:
                    self._closing = True
                    self._changed.notify()
            raise

    def _tokenizer_source(self) -> str | Path | None:
        return None if isinstance(self._source, nn.Module) else self._source

    async def _generate(self, request: GenerationRequest) -> Generation:
        seed = request.params.seed
        # A string is hashed: as a number, -1 would be the same seed as 1.
        source = self._random if seed is None else random.Random(str(seed))
        images = await in_thread(self._images, request) if request.images else None
        tokenizer = self.tokenizer if request.params.stop else None
        row = DecodingRow(
            request.prompt_ids,
            request.params,
            source,
            forbidden_ids=request.forbidden_ids,
            images=images,
            decode=None if tokenizer is None else decoder(tokenizer),
        )
        entry = _Request(request.request_id, row)
        with self._changed:
            self._require_open()
            if entry.request_id in self._requests:
                raise ConfigError(f"request id {entry.request_id!r} is already running")
            self._requests[entry.request_id] = entry
            self._queue.append(entry)
            self._changed.notify()
        try:
            return await asyncio.wrap_future(entry.future)
        except asyncio.CancelledError:
            self._abort(entry)
            raise

    async def _score(self, request: ScoringRequest) -> TokenScores:
        """Score tokens between two decoding steps. While the engine is paused, it waits: a learner may be changing the
        weights."""

        def score() -> TokenScores:
            values = score_tokens(self.model, self._device, request.token_ids, request.start, request.temperature)
            return TokenScores(tuple(values), self._weight_version)

        return await self._command(score, while_paused=False)

    def _images(self, request: GenerationRequest) -> tuple[dict[str, torch.Tensor], int]:
        """Make the model's inputs of a request's images. Raises EngineError if they do not fit the ids: the model would
        fail, and with it the requests beside this one."""
        assert self._processor is not None
        ids, part = request.prompt_ids, self._processor.image_token_id
        inputs = self._processor.pixel_inputs([image.url for image in request.images])
        wanted = [self._processor.expansion(image.url) for image in request.images]
        spans = [ids[image.start : image.start + image.tokens] for image in request.images]
        if spans != wanted or ids.count(part) != sum(span.count(part) for span in spans):
            raise EngineError(
                f"the context has {ids.count(part)} ids {part} of images, and the engine's processor gives its images "
                f"{sum(span.count(part) for span in wanted)}, or others around: it must be the rollout's"
            )
        return inputs, part

    async def abort(self, request_id: str) -> None:
        with self._changed:
            request = self._requests.get(request_id)
        if request is not None:
            self._abort(request)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        """Stop sampling until `resume`. On return no forward pass is under way, so the weights may be changed.

        A paused engine can be paused again with another mode, which then holds for what is in flight.
        """
        mode = PauseMode(mode)

        def pause() -> None:
            self._paused = True
            if mode is PauseMode.RETRACT:
                self._retract()
            elif mode is PauseMode.ABORT:
                self._abort_all()

        await self._command(pause)

    async def resume(self) -> None:
        def resume() -> None:
            self._paused = False

        await self._command(resume)

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        """Change the weights between two decoding steps.

        Requests in flight go on with the new weights and the keys and values of the old ones, so their later logprobs
        are those of a mixture. Pause with `PauseMode.RETRACT` or `PauseMode.ABORT` first if that matters.

        `source` is a folder with a checkpoint; or all parameters and persistent buffers by the names of `state_dict`
        (of tied ones one name is enough), cast to the model's dtype. Raises ConfigError, with the weights as before, if
        the folder holds no such model, a name is unknown, missing or twice there, or a shape differs.
        """
        checked_version(version)
        weights = await in_thread(self._read_weights, source)

        def load() -> None:
            load_weights(self.model, weights)
            self._weight_version = version

        await self._command(load)

    def _read_weights(self, source: WeightSource) -> dict[str, torch.Tensor]:
        tensors = load_model(source, None, None).state_dict() if isinstance(source, str | Path) else source
        weights = collect_weights(tensors)
        check_weights(self.model, weights)
        return weights

    async def notify_weights_changed(self, version: str) -> None:
        """Set the version, after a learner changed the shared module in place (which it does while paused)."""

        def bump() -> None:
            self._weight_version = version

        await self._command(bump)

    async def close(self) -> None:
        await in_thread(self._close)

    # ---- callers' side of the thread

    def _adopt(self, model: nn.Module) -> None:
        facts = inspect_model(model, self._wanted_device, self._wanted_context)
        self._vocab_size, self._context_length, self._device = facts
        self._model = model

    def _start(self) -> None:
        with self._starting:  # two concurrent starts must not load twice
            self._refuse_closed()
            if self._thread is not None:
                return
            if not isinstance(self._source, nn.Module):
                self._adopt(load_model(self._source, self._wanted_dtype, self._wanted_device))
                self._processor = self._processor or processor_at(str(self._source))
            check_model(self.model, self._device)
            self._refuse_closed()  # `start` may have been cancelled in between
            self._thread = threading.Thread(target=self._run, name="toolgym-engine", daemon=True)
            self._thread.start()
            # A program that forgets `close` must still be able to exit cleanly.
            atexit.register(self._close)

    def _refuse_closed(self) -> None:
        if self._closing:
            raise EngineError("the engine was closed; make a new one")

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._failed()
        if self._closing:
            raise EngineError("the engine was closed")
        if self._thread is None:
            raise EngineError("the engine was not started: await engine.start() first")

    def _failed(self) -> EngineError:
        cause = self._failure
        error = EngineError(f"the engine's model failed: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error

    def _abort(self, request: _Request) -> None:
        with self._changed:
            request.aborted = True
            self._changed.notify()

    async def _command(self, run: Callable[[], T], *, while_paused: bool = True) -> T:
        future: Future[T] = Future()
        with self._changed:
            self._require_open()
            (self._commands if while_paused else self._scorings).append((run, future))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()
            atexit.unregister(self._close)
        if not isinstance(self._source, nn.Module):
            self._model = None

    # ---- the thread

    def _run(self) -> None:
        try:
            if self._num_threads is not None:
                torch.set_num_threads(self._num_threads)
            self._batch = DecodingBatch(self.model, self._device)
            while self._wait_for_work():
                self._work(self._batch)
        except BaseException as error:  # noqa: BLE001 - every waiting request gets it
            self._end(error)
        else:
            self._end(None)

    def _wait_for_work(self) -> bool:
        def ready() -> bool:
            if self._closing or self._commands:
                return True
            if not self._paused and (self._queue or self._running or self._scorings):
                return True
            return any(request.aborted for request in self._requests.values())

        with self._changed:
            self._changed.wait_for(ready)
            return not self._closing

    def _work(self, batch: DecodingBatch) -> None:
        with self._changed:
            commands = list(self._commands)
            self._commands.clear()
        self._run_all(commands)
        self._let_go(batch)
        if self._paused:
            return
        with self._changed:
            scorings = list(self._scorings)
            self._scorings.clear()
        self._run_all(scorings)
        newcomers = self._admit()
        if newcomers:
            # They run from here on, so that a failing prefill fails them too.
            before = len(self._running)
            self._running.extend(newcomers)
            batch.add([request.row for request in newcomers], self._weight_version)
            if any(request.row.done for request in self._running[before:]):
                self._let_go(batch)
        if self._running:
            batch.step(self._weight_version)
            self._let_go(batch)

    def _run_all(self, commands: Sequence[tuple[Callable[[], object], Future[Any]]]) -> None:
        for run, future in commands:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(contained(run, (), {}))
                except Exception as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)

    def _admit(self) -> list[_Request]:
        newcomers: list[_Request] = []
        width = 0
        with self._changed:
            while self._queue and len(self._running) + len(newcomers) < self._max_batch:
                width = max(width, self._queue[0].row.length)
                seen = newcomers and (newcomers[-1].row.images or self._queue[0].row.images)
                if newcomers and (seen or width * (len(newcomers) + 1) > MAX_PREFILL_TOKENS):
                    break
                newcomers.append(self._queue.popleft())
        return newcomers

    def _retract(self) -> None:
        """Give up the keys and values of what runs, and queue it in front of those that have not begun."""
        if self._batch is not None:
            self._batch.clear()
        with self._changed:
            self._queue.extendleft(reversed(self._running))
        self._running = []

    def _abort_all(self) -> None:
        with self._changed:
            for request in self._requests.values():
                request.aborted = True
        if self._batch is not None:
            self._let_go(self._batch)

    def _let_go(self, batch: DecodingBatch) -> None:
        with self._changed:
            gone = [r for r in self._requests.values() if r.aborted or r.row.done]
            if not gone:
                return
            for request in gone:
                del self._requests[request.request_id]
            leaving = set(gone)
            if any(request.aborted for request in gone):
                self._queue = deque(request for request in self._queue if request not in leaving)
        kept = [index for index, request in enumerate(self._running) if request not in leaving]
        self._running = [self._running[index] for index in kept]
        batch.keep(kept)
        for request in gone:
            request.deliver()

    def _end(self, failure: BaseException | None) -> None:
        """Settle every future: the thread ends, and callers would wait without end."""
        with self._changed:
            self._closing = True
            self._failure = failure
            requests = list(self._requests.values())
            commands = [*self._commands, *self._scorings]
            self._requests.clear()
            self._queue.clear()
            self._commands.clear()
            self._scorings.clear()
        self._running.clear()
        self._batch = None
        for request in requests:
            if failure is None:
                request.deliver()
            else:
                request.future.set_exception(self._failed())
        for _, future in commands:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError("the engine was closed") if failure is None else self._failed())
