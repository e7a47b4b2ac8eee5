"""Any env in the real TitanRL: its `Rollouter`, its `TokenEnv`, its renderer, and its training samples.

Its generator is vLLM on GPUs under Monarch, so a function stands for it, and `torchtitan.experiments.rl` is a package
without its `__init__`, which imports vLLM.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import types
from typing import ClassVar

import pytest

from tests.rollout.adapters.page import program
from tests.rollout.adapters.slime_router_stand_in import CALL, call_then_answer
from tests.rollout.adapters.sums import Sums
from toolgym import register
from toolgym.envs import from_generator
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout import tiny_policy_path
from toolgym.tools.errors import MissingExtraError, SandboxUnavailableError, UnknownNameError

ADAPTER = "toolgym.rollout.adapters.titanrl"
needs_titan = pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")


def test_without_torchtitan_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchtitan.config", None)
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    with pytest.raises(MissingExtraError, match="pip install '?torchtitan"):
        importlib.import_module(ADAPTER)


def question(rng):
    return {"prompt": [{"role": "user", "content": "What is 2*3?"}], "reward_model": {"ground_truth": "6"}}


class Six(Sums):
    """Asks for 2*3 alone, and tells how each episode was seeded."""

    seeds: ClassVar[list] = []

    def __init__(self, **kwargs):
        super().__init__(tasks=from_generator(question), **kwargs)

    async def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return await super().reset(seed=seed, options=options)

    async def truncate(self, reason, turn=None):
        result = await super().truncate(reason, turn)
        return result._replace(reward=0.125)


class Shaky(Six):
    """Every second episode loses its sandbox with its first call."""

    envs = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        type(self).envs += 1
        self.number = self.envs

    async def step(self, action):
        if self.number % 2:
            raise SandboxUnavailableError("no disk")
        return await super().step(action)


class Lost(Six):
    async def step(self, action):
        raise SandboxUnavailableError("no disk")


register("tests/TitanSix-v0", Six)
register("tests/TitanShaky-v0", Shaky)
register("tests/TitanLost-v0", Lost)


@pytest.fixture(scope="module")
def titan():
    """The adapter, and what of TitanRL is used with it."""
    import torchtitan.experiments

    name = "torchtitan.experiments.rl"
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [f"{torchtitan.experiments.__path__[0]}/rl"]
        sys.modules[name] = package
    from torchtitan.experiments.rl.components.training_sample_builder import TrainingSampleBuilder
    from torchtitan.experiments.rl.renderer import RendererConfig

    sys.modules.pop(ADAPTER, None)
    renderer = RendererConfig(name="qwen3").build(tokenizer_path=str(tiny_policy_path()))
    builder = TrainingSampleBuilder.Config(drop_zero_std_reward_groups=False).build()
    return types.SimpleNamespace(adapter=importlib.import_module(ADAPTER), renderer=renderer, builder=builder)


@dataclasses.dataclass
class Sampling:
    """The fields of TitanRL's `SamplingConfig` that its rollouter looks at; the class itself needs vLLM."""

    seed: int | None = None


class Generator:
    """TitanRL's `GenerateFn` with a policy that a test writes; `asked` has prompts and completions."""

    def __init__(self, policy=call_then_answer, most=1000):
        self.policy, self.most, self.asked = policy, most, {}

    async def __call__(self, prompt_token_ids, *, request_id, routing_session_id, sampling_config):
        from torchtitan.experiments.rl.types import Completion

        tokenizer = self.renderer._tokenizer
        text = self.policy(tokenizer.decode(prompt_token_ids))
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>")]
        reason = "stop" if len(ids) <= self.most else "length"
        ids = ids[: self.most]
        version = len(self.asked)
        self.asked[request_id] = (prompt_token_ids, ids)
        return Completion(
            min_policy_version=version, max_policy_version=version, request_id=request_id, token_ids=ids,
            token_logprobs=logprobs(ids), finish_reason=reason,
        )  # fmt: skip


def logprobs(ids):
    return [-0.5 - place / 64 for place in range(len(ids))]


async def play(titan, generator, size=1, env="tests/TitanSix-v0", **settings):
    generator.renderer = titan.renderer
    rollouter = titan.adapter.rollouter_config(env, **settings).build()
    return await rollouter.run_group_rollouts(
        generate_fn=generator, sample=rollouter.get_training_sample(), group_id=4, group_size=size,
        sampling=Sampling(), renderer=titan.renderer,
    )  # fmt: skip


@needs_titan
async def test_a_training_sample_has_exactly_the_tokens_that_the_generator_saw_and_gave(titan):
    generator = Generator()
    group = await play(titan, generator)
    [rollout] = group.rollouts
    assert (rollout.status.value, rollout.reward, rollout.reward_breakdown) == (
        "completed",
        1.25,
        {"ToolgymReward": 1.25},
    )
    (first, called), (second, answered) = generator.asked.values()
    assert "code_interpreter" in titan.renderer._tokenizer.decode(first)
    assert second[: len(first + called)] == first + called
    [sample] = titan.builder.build_from_group(rollout_group=group).training_samples
    assert sample.token_ids == second + answered
    shown = len(second) - len(first + called)
    mask = [False] * len(first) + [True] * len(called) + [False] * shown + [True] * len(answered)
    assert sample.loss_mask == mask
    zeros = [0.0] * len(first), [0.0] * shown
    assert sample.logprobs == [*zeros[0], *logprobs(called), *zeros[1], *logprobs(answered)]
    assert (sample.min_policy_version, sample.max_policy_version) == (0, 1)
    assert [message["content"] for message in rollout.turns[0].env_messages] == ["6"]


@needs_titan
async def test_the_advantages_of_a_group_are_those_of_its_episodes(titan):
    policies = iter(["#### 6", "#### 7", "#### 6", "#### 6"])
    group = await play(titan, Generator(lambda seen: next(policies)), size=4)
    rewards = [rollout.reward for rollout in group.rollouts]
    assert sorted(rewards) == [0.0, 1.0, 1.0, 1.0]
    assert [rollout.advantage for rollout in group.rollouts] == [reward - 0.75 for reward in rewards]
    assert len(set(Six.seeds[-4:])) == 1
    assert Six.seeds[-1] is not None


@needs_titan
async def test_a_limit_of_titanrl_ends_the_episode_and_the_env_scores_it(titan):
    def call(seen):
        return CALL.format("print(2*3)")

    [cut] = (await play(titan, Generator(most=5))).rollouts
    assert (cut.status.value, cut.reward, len(cut.turns)) == ("truncated_length", 0.125, 1)
    [full] = (await play(titan, Generator(call), max_num_turns=2)).rollouts
    assert (full.status.value, full.reward, len(full.turns)) == ("truncated_max_turns", 0.625, 2)
    [long] = (await play(titan, generator := Generator(call), max_rollout_tokens=260)).rollouts
    assert (long.status.value, long.reward) == ("truncated_prompt_too_long", 0.25 * len(long.turns) + 0.125)
    assert all(len(prompt) < 260 for prompt, _ in generator.asked.values())


@needs_titan
async def test_the_model_reads_what_was_wrong_with_its_call(titan):
    def policy(seen):
        return "#### 6" if "could not be read" in seen else '<tool_call>\n{"name": "code_interpreter", \n</tool_call>'

    [rollout] = (await play(titan, Generator(policy))).rollouts
    assert (rollout.status.value, rollout.reward) == ("completed", 1.25)
    [message] = rollout.turns[0].env_messages
    assert "write it whole" in message["content"]


@needs_titan
async def test_an_episode_that_something_broke_off_is_no_episode_of_its_group(titan):
    def policy(seen):
        return "#### 6"

    group = await play(titan, Generator(policy), size=4, env="tests/TitanShaky-v0")
    assert [rollout.reward for rollout in group.rollouts] == [1.0, 1.0]
    assert [rollout.advantage for rollout in group.rollouts] == [0.0, 0.0]
    assert len(titan.builder.build_from_group(rollout_group=group).training_samples) == 2
    with pytest.raises(EpisodeFailedError, match="all 2 episodes of group 4"):
        await play(titan, Generator(policy), size=2, env="tests/TitanLost-v0")


@needs_titan
async def test_tasks_depend_on_the_seed_and_validation_has_others(titan):
    def drawn(**settings):
        rollouter = titan.adapter.rollouter_config("CodeInterpreter-v0", **settings).build()
        return [[get() for _ in range(300)] for get in (rollouter.get_training_sample, rollouter.get_validation_sample)]

    train, validation = drawn(seed=1)
    assert drawn(seed=1)[0] == train != drawn(seed=2)[0]
    assert not {sample.seed for sample in train} & {sample.seed for sample in validation}
    assert len({sample.task.messages[-1]["content"] for sample in train}) > 100
    with pytest.raises(UnknownNameError, match="CodeInterpreter-v0"):
        titan.adapter.rollouter_config("CodeInterpreter-v")
    with pytest.raises(UnknownNameError, match="no split 'tost', did you mean 'test'"):
        drawn(validation_split="tost")


@needs_titan
def test_the_program_of_the_page(titan):
    exec(program("TitanRL"), names := {})
    assert names["rollouter"].message_env.env == "CodeInterpreter-v0"
    assert names["rollouter"].token_env.max_num_turns == 8
