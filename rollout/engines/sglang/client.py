"""`SGLangClient`: the engine that asks SGLang over any transport.

Control calls go to all replicas at once, but for those that are known to be unreachable; these come back only with the
right weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.rollout.engines.base import (
    Engine,
    EngineLoad,
    FinishReason,
    Generation,
    GenerationRequest,
    PauseMode,
    SamplingParams,
    WeightSource,
    checked_version,
)
from toolgym.rollout.engines.http import forbidding, seed_of
from toolgym.rollout.engines.scoring import ScoringRequest, TokenScores
from toolgym.rollout.engines.sglang import messages
from toolgym.rollout.engines.sglang.aligned import (
    SAMPLING_MASK,
    check_names,
    check_params,
    check_server,
    payload_fields,
    read_payloads,
)
from toolgym.rollout.engines.sglang.messages import ServerInfo, label_of, read_load, version_of
from toolgym.rollout.engines.sglang.requests import InFlightRequests
from toolgym.rollout.engines.sglang.transport import ClientState, ReplicaError, SGLangTransport
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import EngineError, EngineUnsupportedError, check_seconds

if TYPE_CHECKING:
    import torch

WEIGHT_UPDATE_GROUP = "weight_update_group"
"""SGLang's own default name of the process group that carries new weights."""
LOAD_TIMEOUT = 5.0


class SGLangClient(Engine):
    """Generates with SGLang over a transport. `SGLangServer` and `SGLangEngine` make one with theirs.

    An update needs no pause: SGLang finishes what runs, and what is new waits. An update in several buckets would let
    requests in between them, so it pauses SGLang by itself, with `RETRACT`.

    The prefix cache is flushed with each update, except under `PauseMode.IN_PLACE`, where SGLang cannot. There a label
    that no other update has keeps it apart, and tokens come with that label. So the first token tells of a request that
    began on older keys and values; it is sent again, once, with nothing of the cache.
    """

    def __init__(
        self,
        transport: SGLangTransport,
        *,
        aligned: Sequence[str] = (),
        request_timeout: float = 1800.0,
        control_timeout: float = 30.0,
        weights_timeout: float = 600.0,
    ) -> None:
        check_seconds(request_timeout=request_timeout, control_timeout=control_timeout, weights_timeout=weights_timeout)
        self._transport = transport
        self._aligned = check_names(aligned)
        self._control_timeout = control_timeout
        self._weights_timeout = weights_timeout
        self._state = ClientState()
        self._in_flight = InFlightRequests(self._state, transport, request_timeout)
        self._info: ServerInfo | None = None
        self._random = random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def info(self) -> ServerInfo:
        if self._info is None:
            raise EngineError("the server is asked by start(): await engine.start() first")
        return self._info

    @property
    def vocab_size(self) -> int:
        return self.info.vocab_size

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and generation together that are served whole; a few below the model's."""
        return self.info.context_length

    @property
    def takes_grammars(self) -> bool:
        return True

    @property
    def stops_at_texts(self) -> bool:
        return True

    @property
    def weight_version(self) -> str:
        """The newest version known: SGLang's own at `start`, that of an update, or that of a generation."""
        self.info  # noqa: B018 - raises before start
        return version_of(self._state.label)

    @property
    def takes_images(self) -> bool:
        return True

    @property
    def paused(self) -> PauseMode | None:
        return self._state.pause_mode

    def _tokenizer_source(self) -> str:
        return self.info.tokenizer_path

    async def _detokenize(self, token_ids: list[int]) -> dict[str, str]:
        body = {"tokens": token_ids, "skip_special_tokens": False}
        answers = await self._transport.command("/detokenize", body, timeout=self._control_timeout)
        texts = {name: answer.get("text") for name, answer in answers.items() if isinstance(answer, dict)}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    async def start(self) -> None:
        """Get SGLang ready, and ask it what it serves. Starting twice is fine.

        Raises:
            EngineUnavailableError: it does not answer, or was not ready in time.
            EngineError: what answers is not an SGLang server, refuses the key, or the engine was closed.
            ConfigError: the vocabulary's size is not known, the replicas differ, SGLang refuses its arguments, or it
                was started without a flag that a payload in `aligned` needs.
        """
        if self._closed:
            raise EngineError("the engine was closed; make a new one")
        if self._info is not None:
            return
        self._loop = asyncio.get_running_loop()
        info = await self._transport.start(self._state)
        try:
            check_server(self._aligned, info)
        except BaseException:
            await self._transport.close()
            raise
        self._state.label = info.weight_version
        self._info = info

    async def _generate(self, request: GenerationRequest) -> Generation:
        self._require_open()
        params = request.params
        check_params(self._aligned, params)
        seed = seed_of(params, self._random, deterministic=self.info.deterministic)
        body = messages.request_body(request.prompt_ids, params, seed, mask=SAMPLING_MASK in self._aligned)
        body["sampling_params"] |= forbidding(request.forbidden_ids)
        body |= payload_fields(self._aligned, len(request.prompt_ids)) | messages.image_fields(request)
        answer = await self._in_flight.run(request, body)
        if answer is None:
            return Generation((), (), FinishReason.ABORT, ())
        generation = messages.read_generation(answer, params)
        if request.images and generation.token_ids:
            messages.check_prompt(answer, request)
        if not self._aligned:
            return generation
        payloads = read_payloads(self._aligned, answer["meta_info"], generation.token_ids, request, self.info)
        return replace(generation, aligned=payloads)

    async def _score(self, request: ScoringRequest) -> TokenScores:
        """Score tokens as a prompt. SGLang does not scale the log-probabilities of prompts, so only a temperature of 1
        is possible."""
        self._require_open()
        if request.temperature != 1.0:
            raise EngineUnsupportedError(
                f"SGLang scores given tokens at temperature 1 only, got {request.temperature:g}: compute them with the "
                "trainer's model, or with TransformersEngine"
            )
        wanted = GenerationRequest(request.token_ids, SamplingParams(max_new_tokens=1), request.request_id)
        answer = await self._in_flight.run(wanted, messages.scoring_body(request))
        if answer is None:
            raise EngineError("the scoring of given tokens was aborted")
        return messages.read_scores(answer, request)

    async def abort(self, request_id: str) -> None:
        if request_id in self._in_flight:
            self._require_open()
            await self._in_flight.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        """Stop sampling until `resume`; new requests wait here, not in SGLang.

        `PauseMode.ABORT` ends every request that SGLang has, other clients' too. A paused engine can be paused again
        with another mode; after `PauseMode.RETRACT`, and if SGLang had retracted a request for lack of memory, an abort
        gives back nothing of it. Raises EngineError, and leaves the engine as before, if a replica does not pause.
        """
        mode = PauseMode(mode)
        self._require_open()
        before, self._state.pause_mode = self._state.pause_mode, mode
        self._state.running.clear()
        try:
            if mode is PauseMode.ABORT:
                await self._in_flight.end_all(self._command, before)
            else:
                await self._command("/pause_generation", {"mode": mode.value})
        except BaseException:
            self._state.pause_mode = before
            if before is None:
                with contextlib.suppress(EngineError):  # some may have paused
                    await self._command("/continue_generation", {})
                self._state.running.set()
            raise

    async def resume(self) -> None:
        self._require_open()
        # Before the call: a replica that comes back at this moment must go on as well.
        before, self._state.pause_mode = self._state.pause_mode, None
        try:
            await self._command("/continue_generation", {})
        except BaseException:
            self._state.pause_mode = before
            raise
        self._state.running.set()

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        if isinstance(source, str | Path):
            await self.update_weights_from_disk(str(source), version=version)
        else:
            await self.update_weights_from_tensors(source, version=version)

    async def load(self) -> EngineLoad | None:
        """Return SGLang's load; None while this engine pauses it: it then tells nothing of what SGLang can take."""
        answers = await self._query("/v1/loads", min(LOAD_TIMEOUT, self._control_timeout))
        loads = {name: answer["loads"] for name, answer in answers.items()}
        return read_load(loads) if self.paused is None else None

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._in_flight.close()
        await self._transport.close()

    async def flush_cache(self) -> None:
        """Empty the prefix cache. Raises EngineError if requests are running or waiting."""
        await self._command("/flush_cache", {})

    async def release_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Give the accelerator's memory back, for a learner on the same device. The engine must be idle.

        `tags` are of "weights" and "kv_cache"; None is all. Servers need `--enable-memory-saver`.
        """
        await self._command("/release_memory_occupation", {"tags": None if tags is None else list(tags)})

    async def resume_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again. What was in it is gone: update the weights before the next request."""
        await self._command("/resume_memory_occupation", {"tags": None if tags is None else list(tags)})

    async def update_weights_from_disk(self, model_path: str, *, version: str, load_format: str | None = None) -> None:
        """Load a checkpoint of the same architecture, from a folder that every server sees under this name, or from the
        hub.

        `load_format` is SGLang's `--load-format`; None takes the server's. Raises EngineError with the servers that
        refused; the others have the new weights.
        """
        async with self._new_weights(version) as label:
            body = {"model_path": str(model_path), "weight_version": label, "flush_cache": self._flushes}
            await self._weights_command("/update_weights_from_disk", body, load_format)

    async def update_weights_from_tensors(
        self,
        named_tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        *,
        version: str,
        load_format: str | None = None,
        bucket_bytes: int = 256 * 2**20,
    ) -> None:
        """Send weights from this process, in requests of at most `bucket_bytes` bytes of tensors.

        Tensors on a CPU travel whole; of tensors on CUDA only an IPC handle, so the servers must be on this machine.
        The tensors are any subset of the Hugging Face checkpoint by its names; with `load_format="direct"`, the names
        are those of SGLang's own module.

        Raises:
            ConfigError: these are no named tensors.
            EngineError: a server refused; the message names it. If it has some buckets, tokens say "... in part".
        """
        from toolgym.rollout.engines.sglang.weights import payload, tensor_buckets  # needs torch

        self._require_open()
        buckets = tensor_buckets(named_tensors, bucket_bytes)
        ranks = list(self._transport.ranks.values())
        async with self._held(len(buckets) > 1), self._new_weights(version) as label, self._updating():
            for number, bucket in enumerate(buckets):
                serialized = await in_thread(payload, bucket)
                last = number == len(buckets) - 1
                shared: dict[str, Any] = {"flush_cache": last and self._flushes, "load_format": load_format}
                # An update that fails in the middle leaves weights of neither version.
                shared["weight_version"] = label if last else label_of(f"{version} in part", flushed=False)

                def body(replica: int, serialized: str = serialized, shared: dict[str, Any] = shared) -> dict[str, Any]:
                    return shared | {"serialized_named_tensors": [serialized] * ranks[replica]}

                await self._transport.command("/update_weights_from_tensor", body, timeout=self._weights_timeout)

    async def init_weights_update_group(
        self,
        master_address: str,
        master_port: int,
        *,
        group_name: str = WEIGHT_UPDATE_GROUP,
        backend: str = "nccl",
        timeout: float | None = None,
    ) -> None:
        """Let the servers join a torch process group whose rank 0 is the learner.

        The learner must join at the same time (`join_weights_update_group`), with the world size of
        `weights_world_size`. All servers must be healthy: a group waits for each of its ranks.
        """
        self._require_open()
        ranks = list(self._transport.ranks.values())

        def body(replica: int) -> dict[str, Any]:
            return {
                "master_address": master_address,
                "master_port": master_port,
                "rank_offset": 1 + sum(ranks[:replica]),
                "world_size": self.weights_world_size,
                "group_name": group_name,
                "backend": backend,
            }

        await self._transport.command(
            "/init_weights_update_group", body, timeout=timeout or self._weights_timeout, all_required=True
        )

    @property
    def weights_world_size(self) -> int:
        """Ranks of the group that carries weights: the learner's one, and those of all servers."""
        return 1 + sum(self._transport.ranks.values())

    async def update_weights_from_distributed(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        *,
        version: str,
        group_name: str = WEIGHT_UPDATE_GROUP,
        load_format: str | None = None,
    ) -> None:
        """Receive weights that the learner broadcasts in the group: name, dtype ("float32") and shape of each, in this
        order.

        The learner must not broadcast before this call has begun, and not wait for it to end: run both together. A
        broadcast has no end if the servers refuse this call, so give the learner's a deadline too.
        """
        async with self._new_weights(version) as label, self._updating(all_required=True):
            body = {
                "names": [name for name, _, _ in tensors],
                "dtypes": [str(dtype).removeprefix("torch.") for _, dtype, _ in tensors],
                "shapes": [list(shape) for _, _, shape in tensors],
                "group_name": group_name,
                "flush_cache": self._flushes,
                "weight_version": label,
            }
            await self._weights_command("/update_weights_from_distributed", body, load_format, all_required=True)

    async def destroy_weights_update_group(self, group_name: str = WEIGHT_UPDATE_GROUP) -> None:
        await self._command("/destroy_weights_update_group", {"group_name": group_name})

    async def update_weight_version(self, version: str) -> None:
        """Name the version of weights that were changed in another way. Aborts nothing.

        Unless SGLang is paused in place, the prefix cache must have been flushed with them, as SGLang does itself.
        """
        async with self._new_weights(version) as label:
            await self._command("/update_weight_version", {"new_version": label, "abort_all_requests": False})

    async def server_info(self) -> dict[str, dict[str, Any]]:
        return await self._query("/server_info")

    async def loads(self) -> dict[str, list[dict[str, Any]]]:
        """Running and waiting requests, tokens in use and throughput of each replica's schedulers (`/v1/loads`)."""
        return {name: answer["loads"] for name, answer in (await self._query("/v1/loads")).items()}

    async def metrics(self) -> dict[str, dict[str, float]]:
        """The Prometheus samples of each replica, such as "sglang:num_running_reqs{...}". Servers need
        `--enable-metrics`."""
        return {name: messages.parse_metrics(text) for name, text in (await self._query("/metrics")).items()}

    async def _command(self, path: str, body: Mapping[str, Any]) -> None:
        self._require_open()
        await self._transport.command(path, body, timeout=self._control_timeout)

    async def _weights_command(
        self, path: str, body: Mapping[str, Any], load_format: str | None = None, *, all_required: bool = False
    ) -> None:
        fields = body if load_format is None else {**body, "load_format": load_format}
        await self._transport.command(path, fields, timeout=self._weights_timeout, all_required=all_required)

    async def _query(self, path: str, timeout: float | None = None) -> dict[str, Any]:
        self._require_open()
        return await self._transport.query(path, timeout=timeout or self._control_timeout)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        self.info  # noqa: B018 - raises before start
        if asyncio.get_running_loop() is not self._loop:
            raise EngineError("the engine belongs to the event loop that started it; make one per event loop")

    @property
    def _flushes(self) -> bool:
        return self.paused is not PauseMode.IN_PLACE

    @contextlib.asynccontextmanager
    async def _held(self, needed: bool) -> AsyncIterator[None]:
        if not needed or self.paused is not None:
            yield
            return
        await self.pause(PauseMode.RETRACT)
        try:
            yield
        finally:
            await shielded(self.resume())

    @contextlib.asynccontextmanager
    async def _new_weights(self, version: str) -> AsyncIterator[str]:
        """Count an update, and give its label. No replica comes back in between; those that miss it are suspended."""
        self._require_open()
        label = label_of(checked_version(version), flushed=self._flushes)
        state = self._state
        state.updates_begun += 1
        try:
            yield label
        except ReplicaError as error:
            if error.succeeded:
                state.label = label
                self._transport.mark_outdated(error.failed)
            raise
        else:
            state.label = label
        finally:
            state.updates_ended += 1

    @contextlib.asynccontextmanager
    async def _updating(self, *, all_required: bool = False) -> AsyncIterator[None]:
        """SGLang insists on a begin and an end around weights that arrive as tensors."""
        end = functools.partial(self._weights_command, "/end_weight_update", {}, all_required=all_required)
        try:
            await self._weights_command("/begin_weight_update", {"selector": "all"}, all_required=all_required)
            yield
        except BaseException:
            with contextlib.suppress(EngineError):  # the first error is the one to raise
                await end()
            raise
        await end()
