"""slime where it is not installed: its `Sample` in shape, its state, and its `post`."""

from __future__ import annotations

import enum
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Counters:
    """Adds up what answers say, as slime's `PrefixCacheInfo` and `SpecInfo` do."""

    cached_tokens: int = 0

    def add(self, meta_info):
        self.cached_tokens += meta_info.get("cached_tokens", 0)


@dataclass
class Sample:
    """The fields that slime 0.3's `Sample` has (August 2026), in so far as they are ours to fill or to keep."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list = field(default_factory=list)
    multimodal_inputs: dict | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: list | None = None
    weight_versions: list = field(default_factory=list)
    rollout_log_probs: list | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    train_metadata: dict | None = None
    remove_sample: bool = False
    status: Any = None
    metadata: dict = field(default_factory=dict)
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: Counters = field(default_factory=Counters)
    prefix_cache_info: Counters = field(default_factory=Counters)

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    def __post_init__(self):
        self.status = self.status or Sample.Status.PENDING

    def get_reward_value(self, args):
        return self.reward


def flatten(samples):
    """All samples of a rollout, as slime's manager makes a list of them: it looks at the first element only."""
    while isinstance(samples[0], list):
        samples = [one for inner in samples for one in inner]
    return samples


def install(monkeypatch, tokenizer):
    """Make `import slime` find the stand-in; returns the state that slime keeps for a process."""
    state = types.SimpleNamespace(tokenizer=tokenizer, aborted=False)

    async def post(url, payload, max_retries=60, headers=None):
        async with aiohttp.ClientSession() as session, session.post(url, json=payload, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()

    made = {
        "slime": {},
        "slime.utils": {},
        "slime.utils.types": {"Sample": Sample},
        "slime.utils.http_utils": {"post": post},
        "slime.rollout": {},
        "slime.rollout.sglang_rollout": {"GenerateState": lambda args: state},
    }
    for name, content in made.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return state
