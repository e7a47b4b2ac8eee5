"""NeMo-RL and Ray, neither of which is installed: the names that an environment uses, and a rollout, in shape."""

from __future__ import annotations

import abc
import inspect
import sys
import types
from typing import Any, NamedTuple

import torch


class EnvironmentReturn(NamedTuple):
    """What a step gives."""

    observations: list
    metadata: list
    next_stop_strings: list
    rewards: Any
    terminateds: Any
    answers: Any = None

    def __class_getitem__(cls, _):
        return cls


class EnvironmentInterface(abc.ABC):
    """NeMo-RL's base class."""

    @abc.abstractmethod
    def step(self, message_log_batch, metadata):
        """Take a turn."""

    @abc.abstractmethod
    def global_post_process_and_metrics(self, batch):
        """Say figures."""


def install(monkeypatch):
    """Make `import nemo_rl` and `import ray` find the stand-ins; returns the two registries."""
    envs, pythons = {}, {}

    def register_env(name, fqn):
        envs[name] = fqn

    made = {
        "ray": {"remote": lambda made: made},
        "nemo_rl": {},
        "nemo_rl.environments": {},
        "nemo_rl.environments.interfaces": {
            "EnvironmentInterface": EnvironmentInterface,
            "EnvironmentReturn": EnvironmentReturn,
        },
        "nemo_rl.environments.utils": {"register_env": register_env},
        "nemo_rl.distributed": {},
        "nemo_rl.distributed.ray_actor_environment_registry": {"ACTOR_ENVIRONMENT_REGISTRY": pythons},
        "nemo_rl.distributed.virtual_cluster": {"PY_EXECUTABLES": types.SimpleNamespace(SYSTEM="python")},
    }
    for name, content in made.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return envs, pythons


async def rollout(env, data, tokenizer, policy, turns=8):
    """Play episodes as NeMo-RL's rollout does; returns their message logs and total rewards."""
    logs, latest = [list(one["message_log"]) for one in data], [one["extra_env_info"] for one in data]
    rewards, active = [0.0] * len(data), list(range(len(data)))
    for _ in range(turns):
        for n in active:
            ids = torch.cat([one["token_ids"] for one in logs[n]])
            said = policy(tokenizer.decode(ids))
            new = torch.tensor([*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id])
            text = tokenizer.decode(new, skip_special_tokens=True)
            logs[n].append({"role": "assistant", "content": text, "token_ids": new})
        shown = [[{"role": one["role"], "content": one["content"]} for one in logs[n]] for n in active]
        answer = env.step(shown, [latest[n] for n in active])
        obs, metadata, _, gained, ended, _ = await answer if inspect.isawaitable(answer) else answer
        for place, n in enumerate(active):
            rewards[n] += gained[place].item()
            ids = tokenizer(obs[place]["content"], return_tensors="pt", add_special_tokens=False).input_ids[0]
            logs[n].append({**obs[place], "token_ids": ids})
            latest[n] = metadata[place]
        active = [n for place, n in enumerate(active) if not ended[place]]
        if not active:
            break
    return logs, rewards
