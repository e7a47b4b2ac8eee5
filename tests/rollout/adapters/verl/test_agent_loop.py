"""`ToolgymAgentLoop` in verl's own worker, in this process."""

from __future__ import annotations

import json
import logging

import pytest

from tests.rollout.adapters.golden import assert_golden, response_row
from tests.rollout.adapters.verl.fakes import CALL, ROW, SUMS, FakeServers, solve
from toolgym.tools.errors import ConfigError, UnknownArgumentError, UnknownNameError

pytest.importorskip("verl")

import hydra
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, _agent_loop_registry
from verl.utils.dataset.rl_dataset import RLHFDataset

from toolgym.rollout.adapters.verl.agent_loop import _warn, to_output
from toolgym.rollout.adapters.verl.rows import rows_of

OWN = f"+actor_rollout_ref.rollout.custom.toolgym.env='{SUMS}'"
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture
def loop(tokenizer, verl_config):
    """Makes the loop as verl's worker does: `loop(script, *overrides, **options)`."""

    def make(script=None, *overrides, **options):
        config = verl_config(*overrides)
        return hydra.utils.instantiate(
            config=OmegaConf.create({**_agent_loop_registry["toolgym_agent"], "env": SUMS, **options}),
            trainer_config=DictConfigWrap(config=config),
            server_manager=FakeServers(tokenizer, script),
            tokenizer=tokenizer,
            processor=None,
            hf_model_type="qwen3",
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([]),
        )

    return make


def test_the_golden_set():
    def read(trajectories):
        rows = [rows_of(one, response_length=12, pad_token_id=0) for one in trajectories]
        names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score")
        return [[response_row(*(getattr(to_output(row), name) for name in names)) for row in made] for made in rows]

    assert_golden(read)


async def test_verl_gets_what_its_servers_were_sent_and_gave(worker, as_batch, tokenizer):
    made = worker(None, OWN)
    batch = await made.generate_sequences(as_batch([{}]))
    (first_id, prompt, sampling, _), (second_id, longer, *_) = made.llm_client.requests
    attended = batch.batch["attention_mask"][0].bool()
    ids = batch.batch["input_ids"][0][attended].tolist()
    turns = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in (CALL, "#### 6")]
    assert ids[: len(prompt)] == prompt == batch.batch["prompts"][0][-len(prompt) :].tolist()
    assert ids == [*longer, *turns[1]]
    assert longer[: len(prompt) + len(turns[0])] == [*prompt, *turns[0]]
    observation = len(longer) - len(prompt) - len(turns[0])
    mask = batch.batch["response_mask"][0][: len(ids) - len(prompt)].tolist()
    assert mask == [1] * len(turns[0]) + [0] * observation + [1] * len(turns[1])
    logprobs = batch.batch["rollout_log_probs"][0]
    given = [-0.5 - n / 100 for turn in turns for n in range(len(turn))]
    assert logprobs[batch.batch["response_mask"][0].bool()].tolist() == torch.tensor(given).tolist()
    assert batch.batch["rm_scores"].nonzero().tolist() == [[0, len(mask) - 1]]
    assert (sampling["temperature"], sampling["repetition_penalty"]) == (1.0, 1.0)
    assert tokenizer.eos_token_id in sampling["stop_token_ids"]
    assert first_id == second_id
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [4]
    assert batch.non_tensor_batch["turn_scores"].tolist() == [[0.0, 1.0]]
    assert (batch.non_tensor_batch["min_global_steps"][0], batch.non_tensor_batch["max_global_steps"][0]) == (3, 4)


async def test_one_failure_is_masked_and_the_other_rows_are_whole(worker, as_batch, caplog):
    def script(text, number):
        return RuntimeError("the server is gone") if "break" in text else solve(text, number)

    bad = [{"role": "user", "content": "break"}]
    with caplog.at_level(logging.WARNING):
        batch = await worker(script, OWN).generate_sequences(as_batch([{}, {"raw_prompt": bad}, {}]))
    assert batch.batch["response_mask"].any(dim=-1).tolist() == [True, False, True]
    assert batch.batch["rm_scores"].sum(dim=-1).tolist() == [1.0, 0.0, 1.0]
    assert batch.non_tensor_batch["failed"].tolist() == [0.0, 1.0, 0.0]
    assert batch.meta_info["reward_extra_keys"][0] == "acc"
    assert "engine_failed: task '4', turn 0: RuntimeError: the server is gone" in caplog.text


async def test_no_response_is_longer_than_verl_s(worker, as_batch):
    batch = await worker(lambda text, number: ("word " * 500, "length"), OWN).generate_sequences(as_batch([{}]))
    assert batch.batch["responses"].shape == (1, 160)
    assert batch.batch["response_mask"].sum() == 160
    assert batch.non_tensor_batch["truncated"].tolist() == [1.0]
    assert batch.non_tensor_batch["failed"].tolist() == [0.0]


async def test_log_probs_are_there_when_verl_asks_for_them(worker, as_batch):
    made = worker(None, OWN, "actor_rollout_ref.rollout.calculate_log_probs=False")
    batch = await made.generate_sequences(as_batch([{}]))
    assert "rollout_log_probs" not in batch.batch
    assert batch.batch["rm_scores"].sum() == 1.0


async def test_an_entry_in_a_file_says_which_env_with_which_arguments(worker, as_batch, tmp_path):
    target = "toolgym.rollout.adapters.verl.ToolgymAgentLoop"
    entry = [{"name": "short", "_target_": target, "env": SUMS, "env_kwargs": {"max_turns": 1}}]
    path = tmp_path / "loops.yaml"
    path.write_text(json.dumps(entry))  # JSON is YAML
    made = worker(None, f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path}")
    try:
        batch = await made.generate_sequences(as_batch([{"agent_name": "short"}]))
    finally:
        _agent_loop_registry.pop("short")
    assert batch.non_tensor_batch["stop_reason"].tolist() == ["max_turns"]
    assert len(made.llm_client.requests) == 1


@pytest.mark.parametrize(
    "given", ['{"multiply": {"create_kwargs": {"factor": 7}}}', {"multiply": "{}", "search": None}]
)
async def test_tools_kwargs_as_text_reach_the_tool(given, loop, tokenizer):
    output = await loop().run(SAMPLING, **{**ROW, "tools_kwargs": given})
    assert ("\n42\n" if "7" in given else "\n6\n") in tokenizer.decode(output.response_ids)


async def test_tools_kwargs_of_a_tool_that_the_env_has_not_are_a_failure_that_names_it(loop, caplog):
    output = await loop().run(SAMPLING, **{**ROW, "tools_kwargs": {"search": {"create_kwargs": {"top": 1}}}})
    assert set(output.response_mask) == {0}
    assert "reset_failed" in caplog.text
    assert "tools_kwargs for 'search'" in caplog.text


async def test_a_turn_that_the_server_aborts_goes_on_from_what_it_had(loop, tokenizer):
    made = loop(lambda text, number: ("#### ", "aborted") if number == 1 else "6")
    output = await made.run(SAMPLING, **ROW)
    first, second = made.server_manager.requests
    partial = tokenizer.encode("#### ")
    assert second[1] == [*first[1], *partial]
    assert output.response_ids == [*partial, *tokenizer.encode("6"), tokenizer.eos_token_id]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 4)


async def test_a_server_that_gives_no_tokens_has_failed(loop):
    output = await loop(lambda text, number: ("", "length")).run(SAMPLING, **ROW)
    assert output.extra_fields["stop_reason"] == "engine_failed"
    assert output.response_mask == [0]


async def test_the_v1_trainer_gets_as_many_rows_as_there_are(loop):
    v1 = {**ROW, "uid": "abc", "session_id": 1, "global_steps": 7}
    failing = lambda text, number: OSError("no")  # noqa: E731
    assert await loop(failing, failed="drop").run(SAMPLING, **v1) == []
    masked = await loop(failing).run(SAMPLING, **v1)
    assert set(masked.response_mask) == {0}
    assert (masked.extra_fields["min_global_steps"], masked.extra_fields["max_global_steps"]) == (7, 7)
    with pytest.raises(ConfigError, match="V1 trainer"):
        await loop(failed="drop").run(SAMPLING, **ROW)


async def test_an_episode_that_does_not_count_is_dropped_though_nothing_failed(loop):
    aborted = loop(lambda text, number: ("#### ", "aborted"), failed="drop", limits={"max_resumes": 0})
    assert await aborted.run(SAMPLING, **ROW, uid="abc", session_id=1, global_steps=7) == []


KEEP = {"name": "toolgym.rollout.tokens.context_policies:KeepToolResults", "kwargs": {"last": 1}}


async def test_a_context_policy_is_named_in_the_options(loop, tokenizer):
    def script(text, number):
        return "#### 6" if number == 3 else CALL

    made = loop(script, context=[KEEP, "tests.rollout.adapters.verl.fakes:Shorter"])
    outputs = await made.run(SAMPLING, **ROW, uid="abc", session_id=1, global_steps=7)
    assert len(outputs) == 2
    assert "[An earlier tool result was left out here.]" in tokenizer.decode(outputs[1].prompt_ids)
    with pytest.raises(hydra.errors.InstantiationException, match="'KeepToolResult'.*did you mean 'KeepToolResults'"):
        loop(context={"name": "toolgym.rollout.tokens.context_policies:KeepToolResult"})
    with pytest.raises(hydra.errors.InstantiationException, match="missing 1 required positional argument: 'last'"):
        loop(context="toolgym.rollout.tokens.context_policies:KeepToolResults")


@pytest.mark.parametrize("options", [{"history": "template"}, {"context": KEEP}])
async def test_what_may_give_several_rows_is_refused_before_the_v0_trainer_s_first_episode(loop, options):
    made = loop(**options)
    with pytest.raises(ConfigError, match="need verl's V1 trainer"):
        await made.run(SAMPLING, **ROW)
    assert not made.server_manager.requests


@pytest.mark.parametrize(
    ("estimator", "options", "expected"),
    [
        ("grpo", {}, ["the 0 of a failed episode enters its group's mean"]),
        ("grpo", {"failed": "drop", "history": "template"}, []),
        ("rloo", {"failed": "drop", "history": "template"}, ["enters its group's mean with each of them"]),
        ("toolgym_grpo", {"history": "template"}, []),
        ("gae", {}, []),
    ],
)
def test_an_estimator_that_mistakes_our_rows_is_warned_of_once(loop, caplog, estimator, options, expected):
    _warn.cache_clear()
    for _ in range(2):
        loop(None, f"algorithm.adv_estimator={estimator}", **options)
    assert len(caplog.messages) == len(expected)
    assert all(text in message for text, message in zip(expected, caplog.messages, strict=True))


async def test_what_verl_says_of_order_and_sampling_is_passed_on(loop):
    made = loop(None, max_new_tokens=40)
    await made.run(SAMPLING, **ROW, priority=3)
    for _, _, sampling, further in made.server_manager.requests:
        assert further == {"priority": 3}
        assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (0.7, 0.9, 40)
    made = loop(None, "actor_rollout_ref.rollout.full_determinism=True")
    await made.run(SAMPLING, **ROW, priority=3)
    assert {request_id for request_id, *_ in made.server_manager.requests} == {"det-3"}


async def test_a_mistake_in_the_configuration_is_an_error_that_names_it(loop):
    with pytest.raises(hydra.errors.InstantiationException, match=r"max_new_token.*max_new_tokens") as caught:
        loop(max_new_token=3)
    assert isinstance(caught.value.__cause__, UnknownArgumentError)
    with pytest.raises(hydra.errors.InstantiationException, match="rollout.prompt_length"):
        loop(limits={"max_prompt_tokens": 3})
    with pytest.raises(hydra.errors.InstantiationException, match="'mask' or 'drop', got 'ignore'"):
        loop(failed="ignore")
    with pytest.raises(UnknownNameError, match="CodeInterpreter-v0"):
        await loop(env="CodeInterpeter-v0").run(SAMPLING, **ROW)
