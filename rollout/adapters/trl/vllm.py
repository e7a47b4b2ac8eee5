"""The vLLM of a `GRPOTrainer` as an engine: ids in, ids out, while TRL keeps the weights in step.

In the mode `server` the requests go to the server itself. In the mode `colocate` vLLM belongs to the thread that
trains: `Colocated` makes its steps there, while the episodes are played on their own event loop. Sources:
`trl/generation/vllm_generation.py` of TRL 1.16, `vllm/v1/engine/llm_engine.py` of vLLM 0.33.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from toolgym.rollout.engines.base import GenerationRequest
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.engines.openai.engine import OpenAICompatible
from toolgym.rollout.engines.openai.messages import LogprobsMode
from toolgym.tools.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer

T = TypeVar("T")


def require_usable_vllm(trainer: GRPOTrainer) -> None:
    generation = trainer.vllm_generation
    if generation.structured_outputs_regex is not None:
        raise ConfigError("rollout_func lets the policy write freely: leave vllm_structured_outputs_regex out")
    if generation.mode == "colocate" and generation.tensor_parallel_size != 1:
        raise ConfigError(
            "with rollout_func each process plays its own episodes, so no two can share a vLLM: set "
            f"vllm_tensor_parallel_size=1 (got {generation.tensor_parallel_size}), or vllm_mode='server'"
        )
    if generation.mode == "colocate" and generation.enable_sleep_mode:
        raise ConfigError(
            "with rollout_func vLLM must be awake for all of an episode's turns: set vllm_enable_sleep_mode=False, or "
            "vllm_mode='server'"
        )


def server_engine(trainer: GRPOTrainer) -> OpenAICompatible:
    """Return the engine of the mode `server`; `start` finds out what the server's log-probabilities are of."""
    generation = trainer.vllm_generation
    url = generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}"
    return OpenAICompatible(url, vocab_size=trainer.model.config.get_text_config().vocab_size)


class Colocated:
    """The vLLM in the trainer's process, for one call of `rollout_func`."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._engine = trainer.vllm_generation.llm.llm_engine
        self._vocab_size: int = trainer.model.config.get_text_config().vocab_size
        self._inbox: queue.SimpleQueue[tuple[GenerationRequest, concurrent.futures.Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._running: dict[str, concurrent.futures.Future[Any]] = {}

    def engine(self, tokenizer: PreTrainedTokenizerBase) -> CallableEngine:
        """Return the engine that asks for generations; `step_until` must run at the same time."""
        return CallableEngine(
            self._generate,
            tokenizer=tokenizer,
            context_length=self._engine.model_config.max_model_len,
            vocab_size=self._vocab_size,
        )

    async def _generate(self, request: GenerationRequest) -> Mapping[str, Any]:
        LogprobsMode.PROCESSED.check(request.params)  # TRL sets that mode
        answer: concurrent.futures.Future[Mapping[str, Any]] = concurrent.futures.Future()
        self._inbox.put((request, answer))
        return await asyncio.wrap_future(answer)  # cancelling it cancels `answer`, which ends the request

    def step_until(self, played: concurrent.futures.Future[T]) -> T:
        """Make vLLM's steps in this thread until `played` is done. Returns its result, or raises what it raised."""
        played.add_done_callback(lambda _: self._inbox.put(None))
        try:
            while not played.done():
                self._take(wait=not self._running)
                self._drop_cancelled()
                if self._running:
                    for output in self._engine.step():
                        self._answer(output)
        except BaseException as error:
            played.cancel()
            for answer in self._running.values():
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(EngineError(f"vLLM failed: {error}"))
            raise
        finally:
            self._engine.abort_request(list(self._running))
            self._running.clear()
        return played.result()

    def _take(self, *, wait: bool) -> None:
        """Hand vLLM the requests that have come; wait for the first one if nothing else is to be done."""
        while wait or not self._inbox.empty():
            item = self._inbox.get()
            wait = False
            if item is None:
                continue
            request, answer = item
            try:
                self._engine.add_request(
                    request.request_id, {"prompt_token_ids": list(request.prompt_ids)}, _sampling(request)
                )
            except ValueError as error:  # what vLLM says of a request that it does not take
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(EngineError(f"vLLM did not take the request: {error}"))
            else:
                self._running[request.request_id] = answer

    def _drop_cancelled(self) -> None:
        cancelled = [request_id for request_id, answer in self._running.items() if answer.cancelled()]
        if cancelled:
            self._engine.abort_request(cancelled)
            for request_id in cancelled:
                del self._running[request_id]

    def _answer(self, output: Any) -> None:
        if not output.finished or output.request_id not in self._running:
            return
        answer = self._running.pop(output.request_id)
        if not answer.set_running_or_notify_cancel():
            return
        [sampled] = output.outputs
        answer.set_result(
            {
                "token_ids": list(sampled.token_ids),
                "logprobs": [at[token].logprob for token, at in zip(sampled.token_ids, sampled.logprobs, strict=True)],
                "finish_reason": sampled.finish_reason,
                "cached_tokens": output.num_cached_tokens,
            }
        )


def _sampling(request: GenerationRequest) -> Any:
    """vLLM's parameters: the episode's and nothing of the model's `generation_config.json`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = request.params
    return SamplingParams(
        max_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        stop_token_ids=[int(token_id) for token_id in params.stop_token_ids],
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
