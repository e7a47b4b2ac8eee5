"""`SGLangEngine`: `sglang.Engine` in this process, with the contract of every other engine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolgym.rollout.engines.base import Generation, SamplingParams
from toolgym.rollout.engines.sglang_control import ControlError, SGLangControl
from toolgym.rollout.engines.sglang_host import Host
from toolgym.rollout.engines.sglang_requests import Flight
from toolgym.rollout.engines.sglang_wire import read_generation, read_info
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

NAME = "sglang.Engine"
"""What the one replica of this engine is called."""

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


class SGLangEngine(SGLangControl):
    """Generates with `sglang.Engine`: SGLang's scheduler as a child of this process, without HTTP.

    Example:
        >>> engine = SGLangEngine("path/to/model", tp_size=1)  # doctest: +SKIP

    It has the same methods as `SGLangServer`, and the same notes on logprobs, seeds and stopping hold. It lives on an
    event loop and a thread of its own, and speaks to SGLang's tokenizer manager: `sglang.Engine` itself has no abort
    and no pause. Where a process of SGLang dies, what is in flight fails with EngineUnavailableError, and this process
    goes on; SGLang's own watchdog would end it. (Start it from the main thread: only there can the signal be caught
    that a dying scheduler sends.) `close` ends SGLang's processes and no other children of this one.

    A process can start it with `enable_metrics=True` once only: SGLang registers its counters for good.

    SGLang starts its processes by `spawn`: a script that uses this engine needs `if __name__ == "__main__":`.

    Args:
        model: a folder with a model and its tokenizer, or a hub name.
        request_timeout: seconds for one generation, waiting and pauses included.
        control_timeout: seconds for every other call.
        weights_timeout: seconds for an update of the weights.
        start_timeout: seconds until SGLang is ready.
        server_args: SGLang's own arguments (`ServerArgs`), for example `tp_size=2`.

    Raises:
        ConfigError: an argument is not usable.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        request_timeout: float = 1800.0,
        control_timeout: float = 30.0,
        weights_timeout: float = 600.0,
        start_timeout: float = 600.0,
        **server_args: Any,
    ) -> None:
        timeouts = {
            "request_timeout": request_timeout,
            "control_timeout": control_timeout,
            "weights_timeout": weights_timeout,
            "start_timeout": start_timeout,
        }
        for name, value in timeouts.items():
            if not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
        if "model_path" in server_args:
            raise ConfigError("the model is the first argument: leave model_path out")
        super().__init__(
            request_timeout=request_timeout, control_timeout=control_timeout, weights_timeout=weights_timeout
        )
        self._start_timeout = start_timeout
        self._server_args = {"model_path": str(model), **server_args}
        self._host: Host | None = None
        self._ranks = 1

    @property
    def _named(self) -> str:
        return NAME

    async def start(self) -> None:
        """Start SGLang and wait until it is ready. Starting twice is fine.

        Raises:
            MissingExtraError: sglang is not installed.
            ConfigError: SGLang refuses the arguments or the model.
            EngineUnavailableError: it was not ready in time.
        """
        if self._closed:
            raise EngineError("the engine was closed; make a new one")
        if self._info is not None:
            return
        self._loop = asyncio.get_running_loop()
        host = await asyncio.to_thread(Host, self._server_args)  # importing SGLang takes seconds
        try:
            about = await host.start(self._start_timeout)
            info = read_info(NAME, about.model, about.server, about.vocab_size)
        except BaseException:
            await host.close()
            raise
        self._host = host
        self._ranks = int(about.server.get("tp_size") or 1)
        self._weight_version = info.weight_version
        self._info = info

    async def _free(self) -> None:
        if self._host is not None:
            await self._host.close()

    # ---- requests

    async def _deliver(
        self, flight: Flight, body: dict[str, Any], params: SamplingParams, affinity: str | None
    ) -> Generation:
        await self._gate(flight, body)
        host = self._started
        rid = flight.next_rid()

        async def generate() -> Any:
            request = host.message("GenerateReqInput", **body, rid=rid)
            async with contextlib.aclosing(host.manager.generate_request(request, None)) as answers:
                return await anext(answers)

        try:
            answer = await host.run(generate)
        except ValueError as error:
            raise ConfigError(f"SGLang refused the request: {error}") from error
        return read_generation(answer, params)

    async def _abort_rid(self, flight: Flight) -> None:
        await self._command("/abort_request", {"rid": flight.rid})

    # ---- control

    @property
    def _started(self) -> Host:
        if self._host is None:
            raise EngineError("the engine was not started: await engine.start() first")
        return self._host

    async def _command(
        self,
        path: str,
        body: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None,
        *,
        timeout: float | None = None,
        everyone: bool = False,
        method: str = "POST",
    ) -> dict[str, Any]:
        fields = dict(body(0) if callable(body) else body or {})
        seconds = timeout or self._control_timeout
        try:
            async with asyncio.timeout(seconds):
                answer = await self._started.run(self._call(path, fields))
        except TimeoutError as error:
            raise EngineError(f"{NAME}{path} gave no answer within {seconds:g} seconds") from error
        except EngineUnavailableError:
            raise
        except Exception as error:
            raise EngineError(f"{NAME}{path} failed: {type(error).__name__}: {error}") from error
        success, message = _outcome(answer)
        if not success:
            raise ControlError.of(path, {NAME: EngineError(f"{NAME}{path} failed: {message}")}, [])
        return {NAME: answer}

    def _call(self, path: str, fields: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
        host = self._started
        method = path.removeprefix("/")

        async def call() -> Any:
            if path == "/flush_cache":
                return await host.manager.flush_cache()
            if path == "/abort_request":
                return host.manager.abort_request(**fields)
            if path == "/update_weights_from_tensor":
                fields["serialized_named_tensors"] = [
                    base64.b64decode(one) for one in fields["serialized_named_tensors"]
                ]
            message = host.message(_INPUTS[path], **fields)
            return await getattr(host.manager, method)(message)

        return call

    async def _inquire(self, path: str) -> dict[str, Any]:
        self._require_open()
        host = self._started
        questions: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "/server_info": host.server_info,
            "/v1/loads": host.loads,
            "/metrics": host.metrics,
        }
        async with asyncio.timeout(self._control_timeout):
            return {NAME: await host.run(questions[path])}

    def _tensor_ranks(self) -> dict[str, int]:
        return {NAME: self._ranks}

    def _diverged(self, names: Sequence[str]) -> None:
        """There is only one replica."""


def _outcome(answer: Any) -> tuple[bool, str]:
    """Whether a call of the tokenizer manager succeeded: it answers with a tuple, an object, or nothing."""
    if isinstance(answer, tuple) and answer and isinstance(answer[0], bool):
        return answer[0], str(answer[1] if len(answer) > 1 else "")
    success = getattr(answer, "success", True)
    return bool(success), str(getattr(answer, "message", ""))
