"""The control plane of SGLang: weights, versions, the cache, memory, metrics.

Every call goes to all replicas at once, each with a deadline. A replica that is known to be unreachable is left out:
it comes back only with the right weights. One that refuses, or takes too long, is an error that names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolgym.rollout.engines.base import PauseMode
from toolgym.rollout.engines.sglang_requests import SGLangRequests
from toolgym.tools.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import torch

WEIGHT_UPDATE_GROUP = "weight_update_group"
"""SGLang's own default name of the process group that carries new weights."""
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)(?:\s+\d+)?$")


class ControlError(EngineError):
    """Some replicas did not do what they were told; the message names each.

    Attributes:
        failed: the names of those.
        succeeded: the names of the others.
    """

    def __init__(self, message: str, failed: Sequence[str], succeeded: Sequence[str]) -> None:
        super().__init__(message)
        self.failed, self.succeeded = tuple(failed), tuple(succeeded)

    @classmethod
    def of(cls, path: str, failed: Mapping[str, Exception], succeeded: Sequence[str]) -> ControlError:
        """Say what happened to one fan-out."""
        whys = "; ".join(str(error) for error in failed.values())
        many = len(failed) + len(succeeded)
        message = whys if many == 1 else f"{path} failed on {len(failed)} of {many} servers: {whys}"
        return cls(message, list(failed), succeeded)


class SGLangControl(SGLangRequests):
    """The control calls of an SGLang engine, wherever SGLang runs.

    Versions: every update names the version of its weights, and each token says which version sampled it
    (`Generation.weight_versions`). An update needs no pause. Without one SGLang first finishes what runs, and what is
    new waits; under `PauseMode.IN_PLACE` or `RETRACT` what is in flight goes on under the new weights. The prefix
    cache is flushed with each update, except under `PauseMode.IN_PLACE`, where SGLang cannot; there it is kept apart
    by version, so that no request begins on the keys and values of other weights.

    Args:
        request_timeout: seconds for one generation, waiting and pauses included.
        control_timeout: seconds for a control call.
        weights_timeout: seconds for an update of the weights.
    """

    def __init__(self, *, request_timeout: float, control_timeout: float, weights_timeout: float) -> None:
        super().__init__(request_timeout=request_timeout, control_timeout=control_timeout)
        self._weights_timeout = weights_timeout

    # ---- what an engine adds

    @abstractmethod
    async def _inquire(self, path: str) -> dict[str, Any]:
        """Ask every replica something; returns their answers by name."""

    @abstractmethod
    def _tensor_ranks(self) -> dict[str, int]:
        """Tensor-parallel ranks of each replica, by name, in order."""

    @abstractmethod
    def _diverged(self, names: Sequence[str]) -> None:
        """Take out replicas that did not take an update which others took."""

    # ---- the cache and memory

    async def flush_cache(self) -> None:
        """Empty the prefix cache. Raises EngineError where requests are running or waiting."""
        self._require_open()
        await self._command("/flush_cache", {})

    async def release_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Give the accelerator's memory back, for a learner on the same device. The engine must be idle.

        Args:
            tags: "weights", "kv_cache"; None is all. Servers need `--enable-memory-saver`.
        """
        self._require_open()
        await self._command("/release_memory_occupation", {"tags": None if tags is None else list(tags)})

    async def resume_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again. What was in it is gone: update the weights before the next request."""
        self._require_open()
        await self._command("/resume_memory_occupation", {"tags": None if tags is None else list(tags)})

    # ---- weights

    async def update_weights_from_disk(self, model_path: str, *, version: str, load_format: str | None = None) -> None:
        """Load a checkpoint of the same architecture.

        Args:
            model_path: a folder that every server sees under this name, or a hub name.
            version: what the tokens sampled from here on say.
            load_format: SGLang's `--load-format`; None takes the server's.

        Raises:
            EngineError: a server refused; the message names it. The others have the new weights.
        """
        self._require_open()
        body: dict[str, Any] = {
            "model_path": str(model_path),
            "weight_version": _checked(version),
            "flush_cache": self._flushes,
        }
        if load_format is not None:
            body["load_format"] = load_format
        async with self._new_weights(version):
            await self._command("/update_weights_from_disk", body, timeout=self._weights_timeout)

    async def update_weights_from_tensors(
        self,
        named_tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        *,
        version: str,
        load_format: str | None = None,
        bucket_bytes: int = 256 * 2**20,
    ) -> None:
        """Send weights from this process.

        Tensors on a CPU travel whole, so the servers may be anywhere; of tensors on CUDA only an IPC handle travels,
        so the servers must be on the same machine.

        Args:
            named_tensors: weights by the names of the Hugging Face checkpoint, any subset of them.
            version: what the tokens sampled from here on say.
            load_format: None, or "direct" for names of SGLang's own module.
            bucket_bytes: most bytes of tensors in one request.

        Raises:
            ConfigError: these are no named tensors.
            MissingExtraError: torch is absent here.
            EngineError: a server refused; the message names it.
        """
        from toolgym.rollout.engines.sglang_weights import payload, tensor_buckets  # needs torch

        self._require_open()
        _checked(version)
        buckets = tensor_buckets(named_tensors, bucket_bytes)
        ranks = list(self._tensor_ranks().values())
        async with self._new_weights(version), self._updating():
            for number, bucket in enumerate(buckets):
                serialized = await asyncio.to_thread(payload, bucket)
                last = number == len(buckets) - 1
                shared: dict[str, Any] = {"flush_cache": last and self._flushes, "load_format": load_format}
                if last:
                    shared["weight_version"] = version

                def body(replica: int, serialized: str = serialized, shared: dict[str, Any] = shared) -> dict[str, Any]:
                    return shared | {"serialized_named_tensors": [serialized] * ranks[replica]}

                await self._command("/update_weights_from_tensor", body, timeout=self._weights_timeout)

    async def init_weights_update_group(
        self,
        master_address: str,
        master_port: int,
        *,
        group_name: str = WEIGHT_UPDATE_GROUP,
        backend: str = "nccl",
        timeout: float | None = None,
    ) -> None:
        """Let the servers join a torch process group in which the learner is rank 0.

        The learner must join at the same time (`torch.distributed`, or SGLang's `init_custom_process_group`), with
        the world size of `weights_world_size`. All servers must be healthy: a group waits for each of its ranks.
        """
        self._require_open()
        ranks = list(self._tensor_ranks().values())

        def body(replica: int) -> dict[str, Any]:
            return {
                "master_address": master_address,
                "master_port": master_port,
                "rank_offset": 1 + sum(ranks[:replica]),
                "world_size": self.weights_world_size,
                "group_name": group_name,
                "backend": backend,
            }

        await self._command("/init_weights_update_group", body, timeout=timeout or self._weights_timeout, everyone=True)

    @property
    def weights_world_size(self) -> int:
        """Ranks of the group that carries weights: the learner's one, and those of all servers."""
        return 1 + sum(self._tensor_ranks().values())

    async def update_weights_from_distributed(
        self,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        *,
        version: str,
        group_name: str = WEIGHT_UPDATE_GROUP,
        load_format: str | None = None,
    ) -> None:
        """Receive weights that the learner broadcasts in the group, in this order.

        The learner must not broadcast before this call has begun, and not wait for it to end: run both together. Where
        this call is refused a broadcast would wait for ever, so give the learner's a deadline too.

        Args:
            tensors: name, dtype ("float32") and shape of each.
            version: what the tokens sampled from here on say.
            group_name: as in `init_weights_update_group`.
            load_format: as SGLang's.
        """
        self._require_open()
        body: dict[str, Any] = {
            "names": [name for name, _, _ in tensors],
            "dtypes": [str(dtype).removeprefix("torch.") for _, dtype, _ in tensors],
            "shapes": [list(shape) for _, _, shape in tensors],
            "group_name": group_name,
            "flush_cache": self._flushes,
            "weight_version": _checked(version),
        }
        if load_format is not None:
            body["load_format"] = load_format
        async with self._new_weights(version), self._updating(everyone=True):
            await self._command("/update_weights_from_distributed", body, timeout=self._weights_timeout, everyone=True)

    async def destroy_weights_update_group(self, group_name: str = WEIGHT_UPDATE_GROUP) -> None:
        """Leave the group."""
        self._require_open()
        await self._command("/destroy_weights_update_group", {"group_name": group_name})

    async def update_weight_version(self, version: str) -> None:
        """Name the version of the weights, for whoever changed them by another way. Aborts nothing."""
        self._require_open()
        _checked(version)
        async with self._new_weights(version):
            await self._command("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    # ---- what it tells

    async def server_info(self) -> dict[str, dict[str, Any]]:
        """What each replica says about itself (`/server_info`), by its name."""
        return await self._inquire("/server_info")

    async def loads(self) -> dict[str, list[dict[str, Any]]]:
        """Running and waiting requests, tokens in use and throughput of each replica's schedulers (`/v1/loads`)."""
        return {name: answer["loads"] for name, answer in (await self._inquire("/v1/loads")).items()}

    async def metrics(self) -> dict[str, dict[str, float]]:
        """The Prometheus samples of each replica, for example "sglang:num_running_reqs{...}".

        Servers need `--enable-metrics`.
        """
        return {name: parse_metrics(text) for name, text in (await self._inquire("/metrics")).items()}

    # ---- inside

    @property
    def _flushes(self) -> bool:
        return self.paused is not PauseMode.IN_PLACE

    @contextlib.asynccontextmanager
    async def _new_weights(self, version: str) -> AsyncIterator[None]:
        """Account for an update: no replica is let back in meanwhile, and those that miss it are taken out."""
        self._updates_begun += 1
        try:
            yield
        except ControlError as error:
            if error.succeeded:
                self._weight_version = version
                self._diverged(error.failed)
            raise
        else:
            self._weight_version = version
        finally:
            self._updates_ended += 1

    @contextlib.asynccontextmanager
    async def _updating(self, *, everyone: bool = False) -> AsyncIterator[None]:
        """SGLang insists on a begin and an end around weights that arrive as tensors."""
        end = functools.partial(
            self._command, "/end_weight_update", {}, timeout=self._weights_timeout, everyone=everyone
        )
        try:
            await self._command(
                "/begin_weight_update", {"selector": "all"}, timeout=self._weights_timeout, everyone=everyone
            )
            yield
        except BaseException:
            with contextlib.suppress(EngineError):  # the first error is the one to tell
                await end()
            raise
        await end()


def _checked(version: object) -> str:
    if not isinstance(version, str) or not version:
        raise ConfigError(f"version must be a string that is not empty, got {version!r}")
    return version


def parse_metrics(text: Any) -> dict[str, float]:
    """Read Prometheus' text format: each sample by its name with its labels, as they stand there.

    Raises:
        EngineError: it is not that format.
    """
    if not isinstance(text, str):
        raise EngineError(f"/metrics must answer in Prometheus' text format, got {str(text)[:200]!r}")
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None:
            raise EngineError(f"/metrics must answer in Prometheus' text format, got the line {line[:200]!r}")
        samples[match["name"] + (match["labels"] or "")] = float(match["value"])
    return samples
