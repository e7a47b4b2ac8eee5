"""verl itself loads `compute_score` and calls it."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn

from tests.envs.served.sessions.counting import serving
from toolgym.envs.served.sessions.client import SessionClient


@pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])
async def test_verl_loads_it_by_name_with_its_arguments(tmp_path, name):
    async with serving(tmp_path / "sessions.db") as service, SessionClient(service.url) as client:
        sid = (await client.start("count:3")).sid
        config = OmegaConf.create(
            {
                "reward": {
                    "custom_reward_function": {
                        "path": "pkg://toolgym.rollout.adapters.verl.session_reward",
                        "name": name,
                        "reward_kwargs": {"base_url": [service.url]},
                    }
                }
            }
        )
        function = get_custom_reward_fn(config)
        row = {"data_source": "swedev", "solution_str": "", "ground_truth": None, "extra_info": {"sids": int(sid)}}
        if name == "compute_score":
            result = await asyncio.to_thread(function, **row)
        else:
            result = await function(**row)
        assert result["score"] == 0.3
