"""SkyRL's own client, checks, trainer and generator on ours; skipped where SkyRL is not installed."""

from __future__ import annotations

import pickle
import sys
import types

import numpy as np
import pytest

from tests.rollout.adapters.golden import assert_grouped
from tests.rollout.adapters.skyrl_stand_in import Router, support
from tests.rollout.adapters.slime_router_stand_in import CALL, routing
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.wrappers import Compact

pytest.importorskip("skyrl", reason="SkyRL is not installed")

import skyrl_gym
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train.entrypoints import main_base
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.generators.utils import merge_stepwise_output, prepare_generator_input
from skyrl.train.utils.trainer_utils import validate_generator_output

from toolgym.rollout.adapters import skyrl
from toolgym.rollout.adapters.skyrl import experiment

ENV = "CodeInterpreter-v0"


def config(**changes):
    return skyrl.ToolgymTrainConfig.from_cli_overrides(
        {
            "environment.env_class": ENV,
            "generator.n_samples_per_prompt": 2,
            "generator.max_input_length": 2000,
            "generator.sampling_params.max_generate_length": 200,
            "generator.max_turns": 4,
            "trainer.train_batch_size": 2,
            "trainer.policy_mini_batch_size": 2,
            "trainer.logger": "console",
            **{name.replace("__", "."): value for name, value in changes.items()},
        }
    )


def prompts(*answers, **columns):
    """SkyRL's prompts, as its data set gives them."""
    return [
        {
            "prompt": [{"role": "user", "content": f"What is 2*3? ({number})"}],
            "env_class": None,
            "env_extras": {"reward_spec": {"method": "rule", "ground_truth": answer}, "data_source": "sums", **columns},
            "uid": str(number),
        }
        for number, answer in enumerate(answers)
    ]


def input_of(cfg, rows, phase="train"):
    params = get_sampling_params_for_backend("vllm", cfg.generator.sampling_params)
    return prepare_generator_input(rows, cfg.generator.n_samples_per_prompt, params, ENV, phase, 3)


class Playing:
    """A router, SkyRL's own client of it, our generator, and SkyRL's trainer with what its methods read."""

    def __init__(self, tokenizer, cfg, policy=None):
        self.cfg, self.tokenizer = cfg, tokenizer
        self.router = Router(tokenizer, *([policy] if policy else []))

    async def __aenter__(self):
        self._served = self.router.serve()
        url = await self._served.__aenter__()
        engine = self.cfg.generator.inference_engine
        self.client = RemoteInferenceClient(
            proxy_url=url,
            server_urls=[url],
            data_parallel_size=1,
            model_name="policy",
            tokenizer=self.tokenizer,
            enable_return_routed_experts=engine.enable_return_routed_experts,
            enable_return_sample_support_set=engine.enable_return_sample_support_set,
        )
        self.exp = object.__new__(skyrl.ToolgymExp)
        self.generator = self.exp.get_generator(self.cfg, self.tokenizer, self.client)
        self.trainer = object.__new__(experiment.ToolgymTrainer)
        self.trainer.cfg, self.trainer.generator, self.trainer.tokenizer = self.cfg, self.generator, self.tokenizer
        self.trainer.all_metrics, self.trainer.global_step = {}, 3
        self.trainer.dispatch = types.SimpleNamespace(get_lcm_dp_size=lambda: 3)
        self.trainer.trajectory_logger = self.trainer.tracker = None
        return self

    async def __aexit__(self, *error):
        await self.client.teardown() if hasattr(self.client, "teardown") else None
        await self._served.__aexit__(*error)

    async def train(self, rows):
        """The trainer's steps from prompts to advantages."""
        given, uids = input_of(self.cfg, rows)
        output = await self.trainer.generate(given)
        if self.cfg.generator.step_wise_trajectories:
            uids = [one.instance_id for one in output["trajectory_ids"]]
        output, uids = self.trainer.postprocess_generator_output(output, uids)
        data = self.trainer.convert_to_training_input(output, uids)
        data["values"] = None
        return output, self.trainer.compute_advantages_and_returns(data)


async def test_from_prompts_to_advantages(tokenizer):
    answers = iter(["#### 6", "#### 5", "#### 6", "#### 5"])
    policy = lambda seen: next(answers) if "<tool_response>" in seen else CALL.format("print(2*3)")  # noqa: E731
    async with Playing(tokenizer, config(), policy) as playing:
        output, data = await playing.train(prompts("6", "6"))
        bodies = playing.router.bodies
        assert sorted(playing.router.finished) == sorted(set(playing.router.sessions)) == ["0_0", "0_1", "1_0", "1_1"]
    assert len(bodies) == 8
    assert {one["model"] for one in bodies} == {playing.cfg.trainer.policy.model.path}
    assert len({one["cache_salt"] for one in bodies}) == 1
    assert all(tokenizer.eos_token_id in one["sampling_params"]["stop_token_ids"] for one in bodies)
    whole = {(*output["prompt_token_ids"][row], *output["response_ids"][row]) for row in range(4)}
    second = [tuple(one["token_ids"]) for one in bodies if "<tool_response>" in tokenizer.decode(one["token_ids"])]
    assert all(any(one[: len(sent)] == sent for one in whole) for sent in second)
    for row in range(4):
        mask, ids = np.array(output["loss_masks"][row]), np.array(output["response_ids"][row])
        said = tokenizer.decode(ids[mask == 1])
        assert said.count("<tool_call>") == 1
        assert "####" in said
        assert "<tool_response>" not in said
        assert "<tool_response>" in tokenizer.decode(ids)
        assert ids[-1] == tokenizer.eos_token_id
        assert mask[-1] == 1
        logprobs = np.array(output["rollout_logprobs"][row])
        assert (logprobs[mask == 1] <= -0.5).all()
        assert not logprobs[mask == 0].any()
    rewards = [sum(one) for one in output["rewards"]]
    assert sorted(rewards) == [0, 0, 1, 1]
    # SkyRL pads on the left and keeps responses at the right; its GRPO gives each response its group's z-score
    assert data["sequences"][0][data["attention_mask"][0].bool()].tolist() == [
        *output["prompt_token_ids"][0],
        *output["response_ids"][0],
    ]
    sizes = [len(one) for one in output["response_ids"]]
    assert [int(one.sum()) for one in data["response_mask"][:4]] == sizes
    for row, reward in enumerate(rewards):
        group = rewards[row // 2 * 2 : row // 2 * 2 + 2]
        expected = (reward - np.mean(group)) / (np.std(group, ddof=1) + 1e-6)
        assert data["advantages"][row, -1].item() == pytest.approx(expected, abs=1e-4)
    assert playing.trainer.all_metrics["environment/mean_tool_calls"] == 1
    assert playing.trainer.all_metrics["reward/avg_raw_reward"] == pytest.approx(0.5)


async def test_a_group_is_made_of_episodes(tokenizer):
    cfg = config(
        generator__step_wise_trajectories=True,
        generator__n_samples_per_prompt=4,
        trainer__train_batch_size=1,
        trainer__policy_mini_batch_size=1,
    )

    def read(trajectories):
        output = skyrl.to_generator_output(trajectories, filler_id=2, step_wise=True)
        uids = [one.instance_id for one in output["trajectory_ids"]]
        data = playing.trainer.convert_to_training_input(output, uids)
        data["values"] = None
        data = playing.trainer.compute_advantages_and_returns(data)
        rows = {one.sample_index: [] for one in trajectories}
        for name, advantages, mask in zip(
            output["trajectory_ids"], data["advantages"].tolist(), data["loss_mask"].tolist(), strict=False
        ):
            [advantage] = {value for value, trained in zip(advantages, mask, strict=True) if trained} or {0.0}
            rows[name.repetition_id].append(advantage)
        return list(rows.values())

    async with Playing(tokenizer, cfg) as playing:
        assert_grouped(read, deviation=True)
    assert playing.trainer.all_metrics["loss/avg_final_rewards"] == pytest.approx((0.0 + 1.0 + 0.25) / 3)


async def test_what_was_broken_off_is_no_sample_of_its_group(tokenizer):
    answers = iter(["#### 6", 400, "#### 5", "#### 6", 400, 400])
    cfg = config(generator__n_samples_per_prompt=3)
    async with Playing(tokenizer, cfg, lambda seen: next(answers)) as playing:
        output, data = await playing.train(prompts("6", "6"))
    broken = [row for row, one in enumerate(output["stop_reasons"]) if one == "abort"]
    assert len(broken) == 3
    assert [output["loss_masks"][row] for row in broken] == [[0]] * 3
    assert playing.trainer.all_metrics["environment/broken_off"] == 3
    mean = np.mean([sum(output["rewards"][row]) for row in range(6) if row not in broken])
    for name in ("reward/avg_raw_reward", "loss/avg_final_rewards"):
        assert playing.trainer.all_metrics[name] == pytest.approx(mean), name
    assert data.metadata["metrics"]["avg_final_rewards"] == pytest.approx(mean)
    assert not data["advantages"][broken].any()
    for group in (range(3), range(3, 6)):
        counted = [row for row in group if row not in broken]
        rewards = [sum(output["rewards"][row]) for row in counted]
        shown = [data["advantages"][row, -1].item() for row in counted]
        if len(counted) > 1:
            expected = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-6)
            assert shown == pytest.approx(expected.tolist(), abs=1e-4)
        else:
            assert shown == [0.0]
    assert data.metadata["uids"][:6] == ["0"] * 3 + ["1"] * 3


async def test_several_sequences_are_steps(tokenizer):
    cfg = config(
        generator__step_wise_trajectories=True,
        generator__merge_stepwise_output=True,
        toolgym__history="template",
    )
    thinking = "<think>\nmultiply\n</think>\n\n" + CALL.format("print(2*3)")
    async with Playing(tokenizer, cfg, lambda seen: "#### 6" if "<tool_response>" in seen else thinking) as playing:
        given, _ = input_of(cfg, prompts("6", "5"))
        output = await playing.trainer.generate(given)
        uids = [one.instance_id for one in output["trajectory_ids"]]
        assert len(uids) > 4
        assert sum(output["is_last_step"]) == 4
        merged, uids = playing.trainer.postprocess_generator_output(output, uids)
        data = playing.trainer.convert_to_training_input(merged, uids)
        data["values"] = None
        data = playing.trainer.compute_advantages_and_returns(data)
    assert merge_stepwise_output(output)["response_ids"] == merged["response_ids"]
    assert [sum(one) for one, last in zip(output["rewards"], output["is_last_step"], strict=True) if not last] == [
        0
    ] * (len(output["rewards"]) - 4)
    assert not data["advantages"].any()  # the episodes of a prompt are equally good


@pytest.mark.parametrize(
    "settings",
    [
        {"toolgym__history": "template"},
        {"toolgym__context": [{"name": "KeepToolResults", "kwargs": {"last": 1}}]},
        {"toolgym__context": [{"name": "KeepToolResult"}]},
        {"toolgym__env_kwargs": {"wrappers": [f"{__name__}:compact"]}},
    ],
)
async def test_what_makes_several_sequences_is_refused_before_it_is_played(tokenizer, settings):
    cfg = config(**settings)
    playing = Playing(tokenizer, cfg)
    with pytest.raises(ConfigError, match="step_wise_trajectories|did you mean"):
        async with playing:
            await playing.generator.generate(input_of(cfg, prompts("6"))[0])
    assert not playing.router.bodies


async def test_a_context_policy_is_a_setting(tokenizer):
    context = [{"name": "KeepToolResults", "kwargs": {"last": 1}}]
    cfg = config(generator__step_wise_trajectories=True, toolgym__context=context)
    async with Playing(tokenizer, cfg, call_twice) as playing:
        output = await playing.generator.generate(input_of(cfg, prompts("6"))[0])
    assert output["is_last_step"] == [False, True] * 2
    assert "left out here" in tokenizer.decode(output["prompt_token_ids"][1])
    assert [sum(one) for one in output["rewards"]] == [0, 1, 0, 1]


def compact(env):
    return Compact(env, 10_000, tokenizer=len)


def call_twice(seen):
    return "#### 6" if seen.count("<tool_response>") > 1 else CALL.format("print(2*3)")


async def test_routing_and_sample_support_are_those_of_each_token(tokenizer):
    cfg = config(
        generator__inference_engine__enable_return_routed_experts=True,
        generator__inference_engine__enable_return_sample_support_set=True,
        generator__sampling_params__top_k=3,
        generator__n_samples_per_prompt=1,
    )
    async with Playing(tokenizer, cfg) as playing:
        playing.router.policy = lambda seen, policy=playing.router.policy: 400 if "(1)" in seen else policy(seen)
        given, uids = input_of(cfg, prompts("6", "6"))
        output = await playing.trainer.generate(given)
        starts = [one["sampling_params"]["routed_experts_prompt_start"] for one in playing.router.bodies]
        evaluated = await playing.generator.generate(input_of(cfg, prompts("6"), "eval")[0])
    assert output["stop_reasons"] == ["stop", "abort"]
    whole = [*output["prompt_token_ids"][0], *output["response_ids"][0]]
    assert output["rollout_expert_indices"][0].tolist() == [routing(one) for one in whole[:-1]]
    assert max(starts) > 0
    for one, mask, rows in zip(
        output["response_ids"][0], output["loss_masks"][0], output["rollout_sample_support"][0].tolist(), strict=True
    ):
        assert rows == (support(one) if mask else [-1, -1, -1])
    output, uids = playing.trainer.postprocess_generator_output(output, uids)
    data = playing.trainer.convert_to_training_input(output, uids)
    assert data["rollout_sample_support"].segment(0).shape == (len(output["response_ids"][0]), 3)
    assert data["rollout_expert_indices"].segment(0).shape[0] == len(whole)
    assert evaluated["rollout_expert_indices"] is evaluated["rollout_sample_support"] is None


async def test_an_evaluation_counts_what_was_not_broken_off(tokenizer):
    cfg = config(generator__eval_n_samples_per_prompt=1, trainer__dump_eval_results=False)
    rows = [*prompts("6", "5"), *prompts("6", data_source="lost")[:1]]
    rows[2] = {**rows[2], "uid": "2", "prompt": [{"role": "user", "content": "broken"}]}
    async with Playing(tokenizer, cfg) as playing:
        playing.router.policy = lambda seen, policy=playing.router.policy: 400 if "broken" in seen else policy(seen)
        playing.trainer.eval_dataloader = [rows]
        metrics = await playing.trainer.eval()
    assert metrics["eval/all/avg_score"] == metrics["eval/sums/avg_score"] == metrics["eval/all/pass_at_1"] == 0.5
    assert metrics["eval/all/environment/broken_off"] == 1
    assert not any(name.startswith("eval/lost/") for name in metrics)


async def test_skyrls_settings_hold(tokenizer):
    cfg = config(
        generator__zero_reward_on_non_stop=True,
        generator__apply_overlong_filtering=True,
        generator__sampling_params__max_generate_length=9,
    )
    async with Playing(tokenizer, cfg) as playing:
        given, _ = input_of(cfg, prompts("6"))
        output = await playing.generator.generate(given)
        validate_generator_output(2, output)
        assert output["stop_reasons"] == ["length"] * 2
        assert output["loss_masks"] == [[0] * 9] * 2
        given["env_classes"] = ["CodeInterpeter-v0"] * 2
        with pytest.raises(UnknownNameError, match=ENV):
            await playing.generator.generate(given)
    for name, value in {"batched": True, "use_conversation_multi_turn": False}.items():
        with pytest.raises(ConfigError, match=name):
            skyrl.ToolgymGenerator(config(**{f"generator__{name}": value}).generator, None, tokenizer)


def test_skyrls_own_main_starts_ours(monkeypatch):
    monkeypatch.setattr(
        sys, "argv",
        ["skyrl", "trainer.override_entrypoint=toolgym.rollout.adapters.skyrl", f"environment.env_class={ENV}",
         "toolgym.env_kwargs={max_turns: 6}", "toolgym.limits={max_response_tokens: 900}", "trainer.logger=console",
         "toolgym.context=[{name: KeepToolResults, kwargs: {last: 1}}]"],
    )  # fmt: skip
    started = []
    monkeypatch.setattr(experiment, "initialize_ray", lambda cfg: started.append("ray"))
    monkeypatch.setattr(experiment, "validate_cfg", lambda cfg: started.append("checked"))
    monkeypatch.setattr(experiment, "_train", types.SimpleNamespace(remote=started.append))
    monkeypatch.setattr(experiment, "ray", types.SimpleNamespace(get=lambda cfg: None))
    main_base.main()
    cfg = started.pop()
    assert started == ["checked", "ray"]
    assert pickle.loads(pickle.dumps(cfg)) == cfg
    assert cfg.toolgym == experiment.ToolgymSettings(
        env_kwargs={"max_turns": 6},
        limits={"max_response_tokens": 900},
        context=[{"name": "KeepToolResults", "kwargs": {"last": 1}}],
    )


async def test_any_env_in_skyrls_own_generator(tokenizer, registry):
    cfg = config(toolgym__generator="skyrl_gym")
    async with Playing(tokenizer, cfg) as playing:
        assert isinstance(playing.generator, SkyRLGymGenerator)
        output = await playing.generator.generate(input_of(cfg, prompts("6", "5"))[0], disable_tqdm=True)
        ours = skyrl.ToolgymGenerator(config().generator, playing.client, tokenizer)
        same = await ours.generate(input_of(cfg, prompts("6", "5"))[0])
    validate_generator_output(4, output)
    for name in ("prompt_token_ids", "response_ids", "loss_masks", "rewards", "rollout_logprobs", "stop_reasons"):
        assert output[name] == same[name]
    assert [sum(one) for one in output["rewards"]] == [1, 1, 0, 0]
    assert output["rollout_metrics"]["environment/tool_calls"] == 1


def test_ids_of_others_are_refused(registry):
    registry.register("Other-v0", lambda: None)
    skyrl_gym.register("Other-v0", "other:Env")
    with pytest.raises(ConfigError, match="other:Env"):
        skyrl.register_envs("Other-v0")
    skyrl_gym.envs.registration.deregister("Other-v0")
    with pytest.raises(UnknownNameError, match=ENV):
        skyrl.register_envs("CodeInterpeter-v0")
