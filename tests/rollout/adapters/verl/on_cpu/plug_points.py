"""A processor as a platform of verl's, so that its real trainer runs where there is no GPU.

verl imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`), and finds at its own plug points:

- a platform `cpu` (`VERL_PLATFORM`), whose processes talk through gloo;
- its FSDP engine, for that platform, which writes each micro batch of the actor to `$VERL_ON_CPU/batch-*.pt`;
- a server in the place of vLLM's, see `server`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import types
from pathlib import Path

import torch
from verl.plugin.platform import platform_base, platform_manager

from toolgym.tools.lazy import after_import

FOLDER = Path(os.environ["VERL_ON_CPU"])
"""Gets the micro batches and the server's requests."""


class Device(types.ModuleType):
    """What verl calls of `torch.cuda`, where there is nothing to wait for, to free or to measure."""

    get_rng_state, set_rng_state = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)

    def is_available(self):
        return False  # then verl asks for little more

    def get_device_name(self, device=None):
        return "cpu"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: (0, 0) if name == "mem_get_info" else 0)


DEVICE = Device("torch_cpu")


def _nothing(self, *_):
    return None


@platform_manager.PlatformRegistry.register(platform="cpu")
class CpuPlatform(platform_base.PlatformBase):
    device_name, vendor_name, device_module = "cpu", "cpu", DEVICE
    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"  # where verl puts tensors

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def ray_resource_name(self):
        return "GPU"  # of which Ray is started with one

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


def _gloo_alone(module):
    # verl's "cpu:gloo,cpu:gloo" names a device twice.
    started = module.initialize_global_process_group_ray
    module.initialize_global_process_group_ray = functools.partial(started, backend="gloo")


def _engine(module):
    from verl.workers.engine.base import EngineRegistry

    @EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device="cpu")
    class CpuEngine(module.FSDPEngineWithLMHead):
        def forward_backward_batch(self, data, loss_function, forward_only=False):
            if not forward_only:
                tensors = {name: value for name, value in data.items() if torch.is_tensor(value)}
                torch.save(tensors, FOLDER / f"batch-{time.time_ns()}.pt")
            return super().forward_backward_batch(data, loss_function, forward_only)


def _server(module):
    def load():
        from on_cpu.server import CpuReplica

        return CpuReplica

    module.RolloutReplicaRegistry.register("vllm", load)


def _adapter(module):
    module._ROLLOUT_REGISTRY["vllm", "async"] = "on_cpu.server.CpuRollout"


after_import("verl.utils.distributed", _gloo_alone)
after_import("verl.workers.engine.fsdp.transformer_impl", _engine)
after_import("verl.workers.rollout.replica", _server)
after_import("verl.workers.rollout.base", _adapter)
