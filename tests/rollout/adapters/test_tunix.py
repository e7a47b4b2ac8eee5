"""Items in Tunix's own queues, padding and reward manager, without JAX: only the modules that need none are loaded."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import logging
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tests.rollout.adapters.golden import assert_golden, response_row
from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError, MissingExtraError

found = importlib.util.find_spec("tunix")
if found is None:
    pytest.skip("Tunix is not installed", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def tunix():
    """The package without what its `__init__` imports, which is JAX and all that trains with it."""
    package = types.ModuleType("tunix")
    package.__path__ = [str(Path(found.origin).parent)]
    sys.modules["tunix"] = package
    yield package
    for name in [one for one in sys.modules if one == "tunix" or one.startswith("tunix.") or one.endswith(".tunix")]:
        del sys.modules[name]


@pytest.fixture
def to_items():
    adapter = importlib.import_module("toolgym.rollout.adapters.tunix")

    def convert(trajectories, **changes):
        given = {"group_size": 2, "pad_token_id": 0, "max_prompt_length": 4, "max_response_length": 6}
        given["temperature"] = 1.0
        return adapter.to_items(trajectories, **{**given, **changes})

    return convert


def policy(*ids, version="3"):
    return Segment.policy(ids, [-0.5] * len(ids), [version] * len(ids))


ONE = Trajectory(
    id="one", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0,
    messages=({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}), tools=(),
    sequences=(TokenSequence(np.array([5, 6]), (policy(7, 8), Segment.env([9]), policy(4, version="2"))),),
    reward=1.0, stop_reason=StopReason.ANSWERED, prompt_text="2+2?",
)  # fmt: skip
OTHER = dataclasses.replace(ONE, id="other", sample_index=1, reward=0.0, stop_reason=StopReason.MAX_TURNS)


def group(name, **changes):
    return [dataclasses.replace(one, id=f"{one.id}-{name}", group_id=name, **changes) for one in (ONE, OTHER)]


async def test_its_queues_and_its_learners_steps(to_items):
    from tunix.rl.agentic import utils
    from tunix.rl.agentic.queue_manager.group_queue_manager import GroupQueueManager
    from tunix.rl.queue.data_queue import SimpleDataQueue
    from tunix.rl.reward_manager import AgenticSequenceRewardManager

    manager = GroupQueueManager(group_size=2)
    for item in to_items([OTHER, ONE, *group("h")], first_group=8):
        await manager.put(item)
    batch = await manager.get_batch(2)
    queue = SimpleDataQueue()
    queue.put(batch)
    first, second = queue.get(block=False)
    assert [(one.group_id, one.pair_index) for one in batch] == [(8, 0), (8, 1)]
    assert [one.group_id for one in await manager.get_batch(2)] == [9, 9]
    prompt, conversation, _ = utils.pad_prompt_and_completion(
        first.traj["prompt_tokens"], first.traj["conversation_tokens"], 4, 6, 0
    )
    assert (prompt.tolist(), conversation.tolist()) == ([0, 0, 5, 6], [7, 8, 9, 4, 0, 0])
    assert utils.right_pad(first.traj["conversation_masks"], 6, 0).tolist() == [1, 1, 0, 1, 0, 0]
    assert first.traj["old_logprobs"].tolist() == [-0.5, -0.5, 0.0, -0.5]
    assert first.traj["old_logprobs"].dtype == np.float32
    assert [one.traj["status"] for one in (first, second)] == ["SUCCEEDED", "MAX_STEPS_REACHED"]
    assert first.traj["policy_version"] == 2
    rewards = AgenticSequenceRewardManager(None, None)(
        prompts=[one.traj["original_input"]["prompts"][0] for one in batch],
        completions=["4", "4"],
        trajectory_rewards=[one.traj["trajectory_reward"] for one in batch],
    )["rewards"]
    assert rewards.tolist() == [1.0, 0.0]


def test_it_has_the_keys_of_its_own_engine(to_items):
    source = (Path(found.origin).parent / "rl/agentic/trajectory/trajectory_collect_engine.py").read_text()
    token_mode = source.partition('elif mode == "Token"')[2].partition("elif mode ==")[0]
    returned = token_mode.partition("return {")[2]
    [first, _] = to_items([ONE, OTHER])
    assert re.findall(r'^\s+"(\w+)":', returned, re.MULTILINE) == sorted(
        first.traj, key=lambda name: returned.index(f'"{name}"')
    )


def test_a_group_with_a_failure_is_left_out_whole(to_items, caplog):
    broken = group("broken", stop_reason=StopReason.SANDBOX_FAILED)[:1] + group("broken")[1:]
    with caplog.at_level(logging.WARNING):
        items = to_items([*broken, ONE, OTHER])
    assert [one.metadata["trajectory_id"] for one in items] == ["one", "other"]
    assert "1 of 2 groups were left out" in caplog.text
    with pytest.raises(BatchError, match=r"no group is left of 1: .*\(sandbox_failed\)"):
        to_items(broken)


def test_refused(to_items):
    with pytest.raises(BatchError, match="group g has 1 trajectories"):
        to_items([ONE])
    with pytest.raises(BatchError, match="trajectory one has 4 tokens where max_response_length=3"):
        to_items([ONE, OTHER], max_response_length=3)
    with pytest.raises(BatchError, match="has 2 tokens where max_prompt_length=1"):
        to_items([ONE, OTHER], max_prompt_length=1)
    with pytest.raises(BatchError, match="has the id 6 in its prompt"):
        to_items([ONE, OTHER], pad_token_id=6)
    with pytest.raises(ConfigError, match="group_size"):
        to_items([ONE, OTHER], group_size=0)
    two = dataclasses.replace(ONE, sequences=ONE.sequences * 2)
    with pytest.raises(BatchError, match="trajectory one has 2 token sequences"):
        to_items([two, OTHER])
    named = dataclasses.replace(ONE, sequences=(TokenSequence(np.array([5]), (policy(1, version="step-4"),)),))
    with pytest.raises(BatchError, match="has the weight version 'step-4'"):
        to_items([named, OTHER])


def test_without_tunix(monkeypatch):
    monkeypatch.setitem(sys.modules, "tunix", None)
    monkeypatch.delitem(sys.modules, "toolgym.rollout.adapters.tunix", raising=False)
    for name in [one for one in sys.modules if one.startswith("tunix.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match="needs the package 'google-tunix"):
        importlib.import_module("toolgym.rollout.adapters.tunix")


def test_the_golden_set(to_items):
    """Each trajectory as a group of its own, since Tunix leaves out whole groups."""

    def read(trajectories):
        rows = []
        for one in trajectories:
            lengths = {"max_prompt_length": 8, "max_response_length": 12}
            items = to_items([one], group_size=1, **lengths) if one.trainable and one.in_group_statistics else []
            if not items:
                with pytest.raises(BatchError, match="no group is left"):
                    to_items([one], group_size=1, **lengths)
            rows.append([row_of(item.traj) for item in items])
        return rows

    def row_of(traj):
        names = ("prompt_tokens", "conversation_tokens", "conversation_masks", "old_logprobs", "trajectory_reward")
        return response_row(*(traj[name] for name in names))

    assert_golden(read, several_rows=False)
