"""Turns from verl's LLM servers: its client as a generate function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.rollout.engines.base import FinishReason, GenerationRequest
from toolgym.rollout.engines.http import forbidding
from toolgym.rollout.engines.sglang.messages import one_id_each
from toolgym.rollout.models.images import picture
from toolgym.tools.errors import EngineError

_REASONS = {
    "stop": FinishReason.STOP,
    "completed": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "aborted": FinishReason.ABORT,
}
"""From the `stop_reason` of verl's SGLang and vLLM servers (`TokenOutput`). vLLM's `completed` may be either end."""


class VerlGenerate:
    """Generates the turns of one episode with verl's `LLMServerClient`; one `request_id` keeps them on one server.

    `first_step` and `last_step` are the versions of the weights of the first and the last token, and `routed_experts`
    are those of the last turn, which are of all tokens up to it; None if the server does not say.
    """

    takes_images = True

    def __init__(
        self, client: Any, sampling: Mapping[str, Any], request_id: str, further: Mapping[str, Any] | None = None
    ) -> None:
        self._client, self._sampling, self._request_id = client, dict(sampling), request_id
        self._further = dict(further or {})
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.num_preempted = -1
        self.routed_experts: Any = None

    async def __call__(self, request: GenerationRequest) -> Mapping[str, Any]:
        """Generate one turn. Without verl's `calculate_log_probs` no log-probs come back, and each stands as 0.

        Of an image's ids one is sent: verl's vLLM server leaves the others out itself, and SGLang waits for ever if it
        gets all.
        """
        params = request.params
        images = {"image_data": [picture(image.url) for image in request.images]} if request.images else {}
        sampling = {
            **self._sampling,
            "max_tokens": params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            **forbidding(request.forbidden_ids),
        }
        output = await self._client.generate(
            self._request_id,
            prompt_ids=one_id_each(request),
            sampling_params=sampling,
            **images,
            **self._further,
        )
        ids, logprobs = list(output.token_ids), output.log_probs
        reason = _REASONS.get(output.stop_reason or "")
        if output.stop_reason == "completed" and len(ids) >= params.max_new_tokens:
            reason = FinishReason.LENGTH
        if not ids and reason is not FinishReason.ABORT:
            raise EngineError(f"verl's server returned no tokens, with stop_reason={output.stop_reason!r}")
        if not self._sampling.get("logprobs"):
            logprobs = [0.0] * len(ids)
        elif len(logprobs or ()) != len(ids):
            raise EngineError(f"verl's server returned {len(ids)} ids and {len(logprobs or ())} log-probs")
        answer: dict[str, Any] = {"token_ids": ids, "logprobs": list(logprobs or ())}
        if reason is not None:
            answer["finish_reason"] = reason
        self._note(output)
        if self.last_step is not None:
            answer["weight_versions"] = str(self.last_step)
        return answer

    def steps(self, otherwise: int | None) -> tuple[int | None, int | None]:
        """Return the weights' versions at the first and the last token; `otherwise` if the server does not say."""
        first, last = self.first_step, self.last_step
        return otherwise if first is None else first, otherwise if last is None else last

    def _note(self, output: Any) -> None:
        fields = output.extra_fields
        step = fields.get("global_steps")
        first, last = fields.get("min_global_steps", step), fields.get("max_global_steps", step)
        if self.first_step is None:
            self.first_step = first
        self.last_step = self.last_step if last is None else last
        if output.num_preempted is not None:
            self.num_preempted = max(self.num_preempted, 0) + output.num_preempted
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts
