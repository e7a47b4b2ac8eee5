"""`generate` as slime calls it: an episode over HTTP with slime's router, its samples, and slime's hooks.

Runs with slime's own classes too, where slime is on the path.
"""

from __future__ import annotations

import asyncio
import itertools
from argparse import Namespace

import pytest
import torch
from aiohttp import web

from tests.rollout.adapters import slime_stand_in
from tests.rollout.adapters.slime_router_stand_in import CALL, LAYERS, TOP_K, Router, routing, weights
from toolgym.rollout import tiny_policy_path
from toolgym.rollout.adapters.slime import generate, log_eval_rollout, post_process_rewards
from toolgym.tools.errors import ConfigError, UnknownNameError

SAMPLING = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 256, "stop": None, "stop_token_ids": None,
    "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
}  # fmt: skip
HOOKS = "toolgym.rollout.adapters.slime"


@pytest.fixture(params=["shape", "slime"])
async def state(request, monkeypatch, tokenizer):
    if request.param == "shape":
        yield slime_stand_in.install(monkeypatch, tokenizer)
        return
    pytest.importorskip("slime.rollout.sglang_rollout", reason="slime is not on the path")
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils import http_utils
    from slime.utils.misc import SingletonMeta

    monkeypatch.setattr(SingletonMeta, "_instances", {})
    args = arguments()
    monkeypatch.setattr(http_utils, "_http_client", None)
    http_utils.init_http_client(args)
    yield GenerateState(args)
    await http_utils._http_client.aclose()


def arguments(url="http://127.0.0.1:1", **more):
    ip, port = url.removeprefix("http://").split(":")
    given = {
        "hf_checkpoint": str(tiny_policy_path()), "sglang_router_ip": ip, "sglang_router_port": int(port),
        "rollout_seed": 3, "rollout_max_context_len": 2048, "eval_max_context_len": 2048, "group_rm": False,
        "reward_key": None, "eval_reward_key": None, "apply_chat_template": False, "advantage_estimator": "grpo",
        "rewards_normalization": True, "grpo_std_normalization": True, "custom_eval_rollout_log_function_path": None,
        "custom_reward_post_process_path": f"{HOOKS}.post_process_rewards", "toolgym": "CodeInterpreter-v0",
        "sglang_server_concurrency": 8, "rollout_num_engines": 1, "use_distributed_post": False,
        "rollout_temperature": 1.0, "rollout_top_p": 1.0, "rollout_top_k": -1, "rollout_max_response_len": 256,
        "rollout_stop": None, "rollout_stop_token_ids": None, "rollout_skip_special_tokens": False,
        "sglang_dp_size": 1, "n_samples_per_prompt": 2, "n_samples_per_eval_prompt": 2,
    }  # fmt: skip
    return Namespace(**{**given, **more})


def sample_of(**more):
    from slime.utils.types import Sample

    prompt = [{"role": "user", "content": "What is 2*3?"}]
    return Sample(**{"group_index": 1, "index": 5, "prompt": prompt, "label": "6", **more})


async def play(router, sample=None, sampling=SAMPLING, evaluation=False, **more):
    async with router.serve() as url:
        return await generate(arguments(url, **more), sample or sample_of(), dict(sampling), evaluation=evaluation)


async def test_an_episode_is_the_sample_that_slime_gave(state, tokenizer):
    router, given = Router(tokenizer), sample_of(session_id="s")
    sample = await play(router, given, router_policy="consistent_hashing")
    assert sample is given
    first, second = (body["input_ids"] for body in router.bodies)
    start = len(first)
    answer = [*tokenizer.encode("#### 6"), tokenizer.eos_token_id]
    assert sample.tokens == [*second, *answer]
    assert sample.response == tokenizer.decode(sample.tokens[start:])
    assert sample.response_length == len(sample.tokens) - start
    called = len(tokenizer.encode(CALL.format("print(2*3)"))) + 1
    shown = len(second) - start - called
    assert sample.loss_mask == [1] * called + [0] * shown + [1] * len(answer)
    assert sample.rollout_log_probs == [
        *(-0.5 - n / 64 for n in range(called)), *[0.0] * shown, *(-0.5 - n / 64 for n in range(len(answer)))
    ]  # fmt: skip
    assert (sample.reward, sample.status, sample.remove_sample) == (1.0, type(sample).Status.COMPLETED, False)
    assert sample.weight_versions == ["5", "6"]
    assert sample.rollout_top_p_token_ids is sample.rollout_routed_experts is sample.rollout_id is None
    assert sample.prefix_cache_info.cached_tokens == 6
    assert sample.metadata["toolgym"]["stop_reason"] == "answered"
    assert {one["X-SMG-Routing-Key"] for one in router.headers} == {"s"}
    assert all(body["sampling_params"]["max_new_tokens"] <= 256 for body in router.bodies)


async def test_what_slime_replays_fits_every_token(state, tokenizer):
    router = Router(tokenizer)
    sample = await play(
        router,
        sampling={**SAMPLING, "top_p": 0.9, "custom_params": {"return_top_p_token_ids": True}},
        use_rollout_routing_replay=True,
        num_layers=LAYERS,
        moe_router_topk=TOP_K,
    )
    assert sample.rollout_routed_experts.tolist() == [routing(one) for one in sample.tokens[:-1]]
    ids, offsets = sample.rollout_top_p_token_ids.tolist(), sample.rollout_top_p_token_offsets.tolist()
    response = sample.tokens[-sample.response_length :]
    kept = [ids[start:end] for start, end in itertools.pairwise(offsets)]
    assert len(kept) == sample.response_length
    assert [len(one) > 0 for one in kept] == [bool(one) for one in sample.loss_mask]
    assert all(one in some for one, some in zip(response, kept, strict=True) if some)


REPLAY = {"use_rollout_routing_replay": True, "num_layers": LAYERS, "moe_router_topk": TOP_K}
WEIGHED = {"env": "CodeInterpreter-v0", "routing_weights": True}


async def test_the_weights_of_replayed_experts_come_along(state, tokenizer, monkeypatch):
    """In a sample's own field where the trainer's samples have one, and else beside what its training data gets."""
    sample = await play(Router(tokenizer), toolgym=WEIGHED, **REPLAY)
    rows = sample.train_metadata["rollout_routed_experts_weights"]
    assert rows.dtype is torch.float32
    assert rows.shape == sample.rollout_routed_experts.shape
    assert rows.tolist() == [weights(one) for one in sample.tokens[:-1]]
    assert sample.rollout_routed_experts.tolist() == [routing(one) for one in sample.tokens[:-1]]
    monkeypatch.setattr(type(sample), "rollout_routed_experts_weights", None, raising=False)
    sample = await play(Router(tokenizer), sample_of(), toolgym=WEIGHED, **REPLAY)
    assert sample.rollout_routed_experts_weights.tolist() == rows.tolist()
    masked = await play(Router(tokenizer, fail), sample_of(), toolgym=WEIGHED, **REPLAY)
    assert masked.remove_sample
    assert masked.rollout_routed_experts_weights.tolist() == [[[0.5, 0.5]] * LAYERS]
    plain = await play(Router(tokenizer), sample_of(), **REPLAY)
    assert plain.rollout_routed_experts_weights is None


async def test_weights_that_do_not_come_are_named(state, tokenizer, caplog):
    router = Router(tokenizer)
    router.weighs = False
    sample = await play(router, toolgym=WEIGHED, **REPLAY)
    assert sample.remove_sample
    assert "sent no routed_expert_weights" in sample.metadata["toolgym"]["error"]
    with pytest.raises(ConfigError, match="--use-rollout-routing-replay"):
        await play(Router(tokenizer), toolgym=WEIGHED)
    with pytest.raises(ConfigError, match="true or false, got 'yes'"):
        await play(Router(tokenizer), toolgym={**WEIGHED, "routing_weights": "yes"}, **REPLAY)


async def test_several_sequences_are_samples_of_one_episode(state, tokenizer):
    settings = {"env": "CodeInterpreter-v0", "history": "template"}
    samples = await play(Router(tokenizer, said_oddly), toolgym=settings)
    assert isinstance(samples, list)
    assert [one.rollout_id for one in samples] == [5] * len(samples)
    assert [one.reward for one in samples] == [1.0] * len(samples)
    assert len({id(one) for one in samples}) == len({tuple(one.tokens) for one in samples}) == 2


async def test_groups_of_episodes_with_one_and_several_sequences_are_flat_for_slime(state, tokenizer):
    """Slime looks at the first element of all: what each episode gives has the same shape."""
    settings = {"env": "CodeInterpreter-v0", "history": "template"}
    policies = (answer_at_once, said_oddly, answer_at_once, fail)
    group = [
        await play(Router(tokenizer, said), sample_of(index=n), toolgym=settings) for n, said in enumerate(policies)
    ]
    flat = slime_stand_in.flatten([group, group[::-1]])
    assert [one.index for one in flat] == [0, 1, 1, 2, 3, 3, 2, 1, 1, 0]
    raw, rewards = post_process_rewards(arguments(), flat[:5])
    assert raw == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert rewards == [0.0] * 5


async def test_a_context_policy_is_a_setting(state, tokenizer):
    cut = {"name": "CutToolResults", "kwargs": {"max_tokens": 64}}
    context = [cut, {"name": "KeepToolResults", "kwargs": {"last": 1}}]
    router = Router(tokenizer, call_twice)
    samples = await play(router, toolgym={"env": "CodeInterpreter-v0", "context": context})
    assert [one.rollout_id for one in samples] == [5, 5]
    assert "left out here" in tokenizer.decode(samples[1].tokens)
    [alone] = await play(Router(tokenizer), toolgym={"env": "CodeInterpreter-v0", "context": context})
    assert alone.rollout_id is None
    settings = {"env": "CodeInterpreter-v0", "context": cut}
    assert not isinstance(await play(Router(tokenizer), toolgym=settings), list)


async def test_an_env_that_may_begin_the_context_anew_gives_a_list(state, tokenizer):
    compact = {"name": "toolgym.wrappers:Compact", "kwargs": {"max_tokens": 10_000, "tokenizer": len}}
    settings = {"env": "CodeInterpreter-v0", "env_kwargs": {"wrappers": [compact]}}
    [sample] = await play(Router(tokenizer), toolgym=settings)
    assert sample.reward == 1.0
    args = {"env": "CodeInterpreter-v0"}
    row = sample_of(metadata={"env_id": "CodeInterpreter-v0", "env_kwargs": settings["env_kwargs"]})
    async with Router(tokenizer).serve() as url:
        run = arguments(url, toolgym=args)
        await generate(run, sample_of(), dict(SAMPLING))
        with pytest.raises(ConfigError, match="may give several samples"):
            await generate(run, row, dict(SAMPLING))


def answer_at_once(seen):
    return "#### 6"


def fail(seen):
    return 400


def call_twice(seen):
    calls = seen.count("<tool_call>\n{")
    return "#### 6" if seen.count("<tool_response>") > 1 else CALL.format(f"print({calls})")


def said_oddly(seen):
    """A call that the template writes otherwise."""
    return "#### 6" if "<tool_response>" in seen else CALL.format("print(2*3)").replace('": "', '":   "')


async def test_a_failed_episode_is_masked_and_does_not_count(state, tokenizer, caplog):
    router = Router(tokenizer)
    router.generate = nonsense
    sampling = {**SAMPLING, "top_p": 0.9, "custom_params": {"return_top_p_token_ids": True}}
    sample = await play(
        router, sampling=sampling, use_rollout_routing_replay=True, num_layers=LAYERS, moe_router_topk=TOP_K
    )
    assert (sample.status, sample.remove_sample) == (type(sample).Status.ABORTED, True)
    assert sample.loss_mask == [0]
    assert sample.metadata["toolgym"]["usable"] is False
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 0]
    assert list(sample.rollout_routed_experts.shape) == [1, LAYERS, TOP_K]
    assert "engine_failed" in caplog.text
    good = [sample_of(index=n, reward=reward) for n, reward in ((6, 1.0), (7, 0.0))]
    raw, rewards = post_process_rewards(arguments(), [sample, *good])
    assert raw == [0.5, 1.0, 0.0]  # what slime plots
    assert rewards == pytest.approx([0.0, 0.5 / (0.5**0.5 + 1e-6), -0.5 / (0.5**0.5 + 1e-6)])


async def test_what_slime_aborts_comes_back_and_is_played_again(state, tokenizer):
    router = Router(tokenizer)
    router.held.clear()
    given = sample_of()
    async with router.serve() as url:
        playing = asyncio.create_task(generate(arguments(url), given, dict(SAMPLING)))
        async with asyncio.timeout(60):
            while not router.bodies:
                await asyncio.sleep(0.005)
        state.aborted = router.aborting = True
        router.held.set()
        assert (await playing).status is type(given).Status.ABORTED
        assert len(router.bodies) == 1  # nothing is asked of an engine that slime has aborted
        state.aborted = router.aborting = False
        again = await generate(arguments(url), given, dict(SAMPLING))
    assert (again.status, again.reward, again.remove_sample) == (type(given).Status.COMPLETED, 1.0, False)


async def test_the_bounds_are_slimes(state, tokenizer):
    router = Router(tokenizer)
    sample = await play(router, sampling={**SAMPLING, "max_new_tokens": 9})
    assert (sample.status, sample.response_length) == (type(sample).Status.TRUNCATED, 9)
    assert (await play(Router(tokenizer), rollout_max_context_len=20)).status is type(sample).Status.ABORTED


async def nonsense(request):
    return web.json_response({"meta_info": {}, "output_ids": "nonsense"})


WRONG = {
    "no env": ({"toolgym": None}, {}, SAMPLING, "which env"),
    "unknown setting": ({"toolgym": {"env": "CodeInterpreter-v0", "historie": "x"}}, {}, SAMPLING, "history"),
    "rendered": ({"apply_chat_template": True}, {}, SAMPLING, "--apply-chat-template"),
    "no hook": ({"custom_reward_post_process_path": None}, {}, SAMPLING, "post_process_rewards"),
    "group_rm": ({"group_rm": True}, {}, SAMPLING, "--group-rm"),
    "unknown policy": (
        {"toolgym": {"env": "CodeInterpreter-v0", "context": [{"name": "KeepToolResult", "kwargs": {"last": 1}}]}},
        {},
        SAMPLING,
        "did you mean 'KeepToolResults'",
    ),
    "half groups": (
        {"toolgym": {"env": "CodeInterpreter-v0", "history": "template"}, "partial_rollout": True},
        {},
        SAMPLING,
        "--partial-rollout",
    ),
    "slime's filter": (
        {
            "toolgym": {"env": "CodeInterpreter-v0", "context": {"name": "KeepToolResults", "kwargs": {"last": 1}}},
            "dynamic_sampling_filter_path": "slime.rollout.filter_hub.dynamic_sampling_filters.check",
        },
        {},
        SAMPLING,
        "--dynamic-sampling-filter-path",
    ),
    "images": ({}, {"multimodal_inputs": {"images": [1]}}, SAMPLING, "images"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
async def test_what_cannot_go_with_slime_is_refused(case, state, tokenizer):
    args, sample, sampling, message = case
    with pytest.raises(ConfigError, match=message):
        await play(Router(tokenizer), sample_of(**sample), sampling, **args)


async def test_each_row_may_name_its_env(state, tokenizer, monkeypatch):
    with pytest.raises(UnknownNameError, match="CodeInterpreter-v0"):
        await play(Router(tokenizer), sample_of(metadata={"env_id": "CodeInterpreter-v9"}))
    monkeypatch.setenv("TOOLGYM_ENV", "CodeInterpreter-v0")
    assert (await play(Router(tokenizer), toolgym=None)).reward == 1.0


async def test_an_evaluation_leaves_failed_episodes_out(state, tokenizer, caplog):
    with pytest.raises(ConfigError, match="log_eval_rollout"):
        await play(Router(tokenizer), evaluation=True)
    hook = {"custom_eval_rollout_log_function_path": f"{HOOKS}.log_eval_rollout"}
    good = await play(Router(tokenizer), sample_of(index=0), evaluation=True, **hook)
    bad = sample_of(index=3, reward=0.0, metadata={"toolgym": {"usable": False}})
    other = sample_of(index=2, reward=0.0)
    data = {"set": {"rewards": [1.0, 0.0, 0.0], "truncated": [False] * 3, "samples": [good, other, bad]}}
    passes = {"set": {name: list(values) for name, values in data["set"].items()}}
    assert log_eval_rollout(0, arguments(log_passrate=False), data, None) is False
    assert data["set"]["samples"] == [good, other]
    assert "1 of 3 episodes" in caplog.text
    several = {"set": {"rewards": [1.0, 1.0, 0.0], "truncated": [False] * 3, "samples": [good, good, other]}}
    log_eval_rollout(0, arguments(log_passrate=False), several, None)
    assert several["set"]["rewards"] == [1.0, 0.0]
    log_eval_rollout(0, arguments(log_passrate=True), passes, None)
    assert passes["set"] == {"rewards": [1.0], "truncated": [False], "samples": [good]}
