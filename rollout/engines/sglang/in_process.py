"""SGLang in this process: `sglang.Engine`, with the contract of every other engine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolgym.rollout.engines.sglang.client import SGLangClient
from toolgym.rollout.engines.sglang.engine_thread import EngineThread
from toolgym.rollout.engines.sglang.messages import ServerInfo, read_info
from toolgym.rollout.engines.sglang.transport import Body, ClientState, InFlightRequest, ReplicaError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, check_seconds

NAME = "sglang.Engine"
ABORT_TIMEOUT = 30.0

_INPUTS = {
    "/abort_request": "AbortReq",
    "/begin_weight_update": "BeginWeightUpdateReqInput",
    "/continue_generation": "ContinueGenerationReqInput",
    "/destroy_weights_update_group": "DestroyWeightsUpdateGroupReqInput",
    "/end_weight_update": "EndWeightUpdateReqInput",
    "/init_weights_update_group": "InitWeightsUpdateGroupReqInput",
    "/pause_generation": "PauseGenerationReqInput",
    "/release_memory_occupation": "ReleaseMemoryOccupationReqInput",
    "/resume_memory_occupation": "ResumeMemoryOccupationReqInput",
    "/update_weight_version": "UpdateWeightVersionReqInput",
    "/update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "/update_weights_from_distributed": "UpdateWeightsFromDistributedReqInput",
    "/update_weights_from_tensor": "UpdateWeightsFromTensorReqInput",
}
"""The message of `srt/managers/io_struct.py` behind each endpoint; the tokenizer manager's method has its name."""


class InProcessTransport:
    def __init__(self, server_args: Mapping[str, Any], start_timeout: float) -> None:
        self._server_args = dict(server_args)
        self._start_timeout = start_timeout
        self._state = ClientState()
        self._thread: EngineThread | None = None
        self._ranks = 1

    @property
    def name(self) -> str:
        return NAME

    @property
    def ranks(self) -> Mapping[str, int]:
        return {NAME: self._ranks}

    async def start(self, state: ClientState) -> ServerInfo:
        self._state = state
        thread = await in_thread(EngineThread, self._server_args)  # importing SGLang takes seconds
        try:
            about = await thread.start(self._start_timeout)
            info = read_info(NAME, about.model, about.server, about.vocab_size)
        except BaseException:
            await thread.close()
            raise
        self._thread = thread
        self._ranks = int(about.server.get("tp_size") or 1)
        return info

    async def close(self) -> None:
        if self._thread is not None:
            await self._thread.close()

    async def dispatch(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        await self._state.admit(request, body)
        thread = self._started
        rid = request.next_rid()

        async def generate() -> Any:
            message = thread.message("GenerateReqInput", **body, rid=rid)
            async with contextlib.aclosing(thread.manager.generate_request(message, None)) as answers:
                return await anext(answers)

        try:
            return await thread.run(generate)
        except ValueError as error:
            raise ConfigError(f"SGLang refused the request: {error}") from error

    async def abort(self, request: InFlightRequest) -> None:
        await self.command("/abort_request", {"rid": request.rid}, timeout=ABORT_TIMEOUT)

    async def command(self, path: str, body: Body, *, timeout: float, all_required: bool = False) -> dict[str, Any]:
        fields = dict(body(0) if callable(body) else body or {})
        try:
            async with asyncio.timeout(timeout):
                answer = await self._started.run(self._call(path, fields))
        except TimeoutError as error:
            raise EngineError(f"{NAME}{path} gave no answer within {timeout:g} seconds") from error
        except EngineUnavailableError:
            raise
        except Exception as error:
            raise EngineError(f"{NAME}{path} failed: {type(error).__name__}: {error}") from error
        success, message = _outcome(answer)
        if not success:
            raise ReplicaError(path, {NAME: EngineError(f"{NAME}{path} failed: {message}")})
        return {NAME: answer}

    async def query(self, path: str, *, timeout: float) -> dict[str, Any]:
        thread = self._started
        questions: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "/server_info": thread.server_info,
            "/v1/loads": thread.loads,
            "/metrics": thread.metrics,
        }
        try:
            async with asyncio.timeout(timeout):
                return {NAME: await thread.run(questions[path])}
        except TimeoutError as error:
            raise EngineError(f"{NAME}{path} gave no answer within {timeout:g} seconds") from error

    def mark_outdated(self, names: Sequence[str]) -> None:
        """There is only one replica."""

    @property
    def _started(self) -> EngineThread:
        if self._thread is None:
            raise EngineError("the engine was not started: await engine.start() first")
        return self._thread

    def _call(self, path: str, fields: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
        thread = self._started
        method = path.removeprefix("/")

        async def call() -> Any:
            if path == "/flush_cache":
                return await thread.manager.flush_cache()
            if path == "/detokenize":
                return {"text": thread.manager.tokenizer.decode(fields["tokens"], skip_special_tokens=False)}
            if path == "/abort_request":
                return thread.manager.abort_request(**fields)
            if path == "/update_weights_from_tensor":
                fields["serialized_named_tensors"] = [
                    base64.b64decode(bucket) for bucket in fields["serialized_named_tensors"]
                ]
            message = thread.message(_INPUTS[path], **fields)
            return await getattr(thread.manager, method)(message)

        return call


def _outcome(answer: Any) -> tuple[bool, str]:
    """Whether a call of the tokenizer manager succeeded: it answers with a tuple, an object, or nothing."""
    if isinstance(answer, tuple) and answer and isinstance(answer[0], bool):
        return answer[0], str(answer[1] if len(answer) > 1 else "")
    success = getattr(answer, "success", True)
    return bool(success), str(getattr(answer, "message", ""))


class SGLangEngine(SGLangClient):
    """Generates with `sglang.Engine`: SGLang's scheduler as a child of this process, without HTTP. See docs/engines.md.
    Raises ConfigError if an argument is not usable.

    Example:
        >>> engine = SGLangEngine("path/to/model", tp_size=1)  # starts when it is entered with `async with`

    Args:
        model: a folder with a model and its tokenizer, or a hub name.
        aligned: as in `SGLangServer`. The flag that `routed_experts` needs is set.
        request_timeout: seconds for one generation, waiting and pauses included.
        control_timeout: seconds for every other call.
        weights_timeout: seconds for an update of the weights.
        start_timeout: seconds until SGLang is ready.
        server_args: SGLang's own arguments (`ServerArgs`), for example `tp_size=2`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        aligned: Sequence[str] = (),
        request_timeout: float = 1800.0,
        control_timeout: float = 30.0,
        weights_timeout: float = 600.0,
        start_timeout: float = 600.0,
        **server_args: Any,
    ) -> None:
        check_seconds(start_timeout=start_timeout)
        if "model_path" in server_args:
            raise ConfigError("the model is the first argument: leave model_path out")
        if "routed_experts" in aligned:
            server_args.setdefault("enable_return_routed_experts", True)
        super().__init__(
            InProcessTransport({"model_path": str(model), **server_args}, start_timeout),
            aligned=aligned,
            request_timeout=request_timeout,
            control_timeout=control_timeout,
            weights_timeout=weights_timeout,
        )
