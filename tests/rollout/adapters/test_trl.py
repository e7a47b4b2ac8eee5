"""`Spec` in TRL's own `GRPOTrainer`: real steps of the tiny policy on both roads, on the CPU."""

from __future__ import annotations

import gc
import threading
import time
import types

import pytest
import torch

from toolgym.envs import ArithmeticTasks, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, RunFailedError, SamplingParams
from toolgym.rollout.adapters.trl import Spec
from toolgym.rollout.tokens.context_policies import KeepToolResults
from toolgym.tools import BaseTool, ToolResult
from toolgym.tools.errors import ConfigError, SandboxError, UnknownNameError


class Instant(BaseTool):
    """The code interpreter's schema without its sandbox: computes `print(a*b)`."""

    def __init__(self, schema):
        super().__init__({}, schema)

    async def execute(self, instance_id, parameters, **kwargs):
        code = parameters["code"].removeprefix("print(").removesuffix(")")
        allowed = set("0123456789+-*()")
        return ToolResult(str(eval(code)) if set(code) <= allowed and code else "SyntaxError")


class Fragile(ToolEnv):
    """Breaks at the first turn of each episode whose task says so."""

    async def step(self, action):
        if self.task.source == "broken":
            raise SandboxError("no disk")
        return await super().step(action)


@pytest.fixture(scope="module")
def make_env():
    import toolgym

    made = toolgym.make("CodeInterpreter-v0")
    [schema], tasks = made.tool_schemas, made.tasks
    score = made._scorer

    return lambda: Fragile([Instant(schema)], tasks, scorer=score, max_turns=4)


CONFIG = RunConfig(sampling=SamplingParams(max_new_tokens=48))


@pytest.fixture
def spec(make_env):
    made = Spec(make_env, num_tasks=4, policy="tiny", config=CONFIG)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """TRL, which takes seconds to import, only where these tests run; no warnings that it is experimental, and one
    thread: two would wait for each other."""
    global trl, Probed
    import trl

    from tests.rollout.adapters.probed_trainer import Probed

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def arguments(folder, **changes):
    return trl.GRPOConfig(
        **{
            "output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "max_steps": 2,
            "learning_rate": 1e-3, "per_device_train_batch_size": 8, "num_generations": 4, "logging_steps": 1,
            "max_completion_length": 128, "beta": 0.0, "top_k": 0, "save_strategy": "no", "disable_tqdm": True,
            "max_tool_calling_iterations": 3, "activation_checkpointing": False, **changes,
        }
    )  # fmt: skip


def trainer_of(spec, folder, road="rollout_func", **changes):
    return Probed(
        model=spec.policy,
        args=arguments(folder, **changes),
        train_dataset=spec.train_dataset,
        processing_class=spec.tokenizer,
        reward_funcs=spec.reward_funcs,
        **{road: getattr(spec, road)},
    )


def test_steps_with_rollout_func_train_the_policys_tokens_and_no_others(spec, tmp_path):
    trainer = trainer_of(spec, tmp_path, learning_rate=1e-2)
    before = trainer.model.get_input_embeddings().weight.detach().clone()
    trainer.train()
    assert len(trainer.seen) == 2
    assert not torch.equal(before, trainer.model.get_input_embeddings().weight)
    learned = 0
    for inputs, logps, loss in trainer.seen:
        assert torch.isfinite(loss)
        completion, policy = inputs["completion_mask"].bool(), inputs["tool_mask"].bool()
        gradient, active = logps.grad, inputs["advantages"].abs() > 1e-6
        trained = completion & policy & active[:, None]
        assert (gradient[trained] != 0).all()
        assert (gradient[~(completion & policy)] == 0).all()
        learned += int(trained.sum())
    assert learned > 0
    inputs, logps, _ = trainer.seen[0]
    policy = inputs["completion_mask"].bool() & inputs["tool_mask"].bool()
    assert (inputs["completion_mask"].bool() & ~policy).any()  # a tool answered
    assert torch.allclose(logps.detach()[policy], inputs["sampling_per_token_logps"][policy], atol=1e-4)
    log = next(one for one in trainer.state.log_history if "reward" in one)
    assert log["toolgym/without_reward"] == 0.0
    assert "rewards/toolgym_reward/mean" in log


class Kept:
    def __init__(self):
        self.trajectories = []

    def write(self, trajectory):
        self.trajectories.append(trajectory)


@pytest.mark.long
def test_an_evaluation_plays_validation_episodes_of_its_own_tasks(make_env, tmp_path):
    kept = Kept()
    spec = Spec(make_env, num_tasks=4, policy="tiny", config=CONFIG, sinks=[kept])
    held_out = ArithmeticTasks("test").take(2, seed=0)
    trainer = trainer_of(spec, tmp_path, per_device_eval_batch_size=8, num_generations_eval=2)
    metrics = trainer.evaluate(spec.dataset(held_out))
    spec.close()
    assert metrics["eval_reward"] == pytest.approx(sum(one.reward for one in kept.trajectories) / 4)
    assert {one.validate for one in kept.trajectories} == {True}
    assert {one.task_id for one in kept.trajectories} == {task.id for task in held_out}


@pytest.mark.long
def test_steps_with_environment_factory_shows_the_policy_the_same_prompt(spec, tmp_path):
    from toolgym.rollout.tokens import ChatRenderer

    trainer = trainer_of(spec, tmp_path, "environment_factory")
    trainer.train()
    assert len(trainer.seen) == 2
    inputs, logps, loss = trainer.seen[-1]
    assert torch.isfinite(loss)
    policy = inputs["completion_mask"].bool() & inputs["tool_mask"].bool()
    assert (logps.grad[~policy] == 0).all()
    assert (inputs["completion_mask"].bool() & ~policy).any()  # a tool answered
    env = spec._factory()
    renderer = ChatRenderer(spec.tokenizer, env.tool_schemas)
    ours = {tuple(renderer.prompt(task.messages)) for task in spec._train_tasks}
    theirs = {
        tuple(ids[mask.bool()].tolist()) for ids, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)
    }
    assert theirs <= ours


@pytest.mark.long
@pytest.mark.parametrize(
    ("masks", "message"), [(True, "TRL would train on nothing"), (False, "sample past the end of its turn")]
)
def test_environment_factory_needs_the_token_that_ends_turns(spec, tmp_path, masks, message):
    spec.tokenizer.eos_token = "<|endoftext|>"
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(spec.policy)
    model.generation_config.eos_token_id = spec.tokenizer.eos_token_id
    trainer = Probed(
        model=model,
        args=arguments(tmp_path, max_steps=1, mask_truncated_completions=masks),
        train_dataset=spec.train_dataset,
        processing_class=spec.tokenizer,
        reward_funcs=spec.reward_funcs,
        environment_factory=spec.environment_factory,
    )
    with pytest.raises(ConfigError, match=message):
        trainer.train()


@pytest.mark.long
def test_several_envs_by_the_column_environment(spec, make_env, tmp_path):
    from datasets import concatenate_datasets

    other = Spec(make_env, num_tasks=4, policy="tiny", seed=1)
    specs = {"one": spec, "other": other}
    rows = [made.train_dataset.select([0]).add_column("environment", [name]) for name, made in specs.items()]
    classes = {name: made.environment_factory for name, made in specs.items()}
    trainer = Probed(
        model=spec.policy,
        args=arguments(tmp_path, max_steps=1, shuffle_dataset=False),
        train_dataset=concatenate_datasets(rows),
        processing_class=spec.tokenizer,
        reward_funcs=spec.reward_funcs,
        environment_factory=classes,
    )
    trainer.train()
    other.close()
    assert [type(one) for one in trainer.environments] == [classes["one"]] * 4 + [classes["other"]] * 4
    tasks = [one._episode._episode.env.task.id for one in trainer.environments]
    assert tasks == [spec._train_tasks[0].id] * 4 + [other._train_tasks[0].id] * 4
    assert next(one for one in trainer.state.log_history if "reward" in one)["toolgym/without_reward"] == 0.0


def fake(spec, **changes):
    """A trainer as far as `rollout_func` looks at it."""
    model = torch.nn.Module() if "model" not in changes else changes.pop("model")
    made = types.SimpleNamespace(
        tools=[], use_vllm=False, args=trl.GRPOConfig(use_cpu=True, bf16=False, top_k=0), model=model,
        chat_template_kwargs={}, model_wrapped=model, processing_class=spec.tokenizer, max_completion_length=64,
        state=types.SimpleNamespace(global_step=3),
        accelerator=types.SimpleNamespace(
            process_index=0, unwrap_model=lambda model, **_: model, state=types.SimpleNamespace(deepspeed_plugin=None)
        ),
    )  # fmt: skip
    vars(made).update(changes)
    return made


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    from toolgym.rollout import tiny_policy_path

    return AutoModelForCausalLM.from_pretrained(tiny_policy_path())


def prompts_of(dataset, times=2):
    return [row["prompt"] for row in dataset for _ in range(times)]


def test_rows_come_back_in_the_order_of_their_prompts(spec, model):
    trainer = fake(spec, model=model)
    prompts = prompts_of(spec.train_dataset)
    first, again = spec.rollout_func(prompts, trainer), spec.rollout_func(prompts, trainer)
    for row, prompt in enumerate(prompts):
        assert prompt[-1]["content"] in spec.tokenizer.decode(first["prompt_ids"][row])
    assert first["completion_ids"] != again["completion_ids"]  # another call of the same step
    assert len({tuple(ids) for ids in first["completion_ids"]}) > 4
    other = Spec(spec._factory, num_tasks=4, policy="tiny", config=CONFIG)
    repeated = other.rollout_func(prompts_of(other.train_dataset), trainer)
    other.close()
    assert repeated["completion_ids"] == first["completion_ids"]  # the seeds are the same
    assert max(map(len, first["completion_ids"])) <= 64


def test_the_trainers_template_variables_and_limits_hold(spec, model):
    row = prompts_of(spec.train_dataset, 1)[:1]
    trainer = fake(spec, model=model, max_completion_length=None, chat_template_kwargs={"extra": 1})
    assert len(spec.rollout_func(row, trainer)["completion_ids"][0]) > 0
    short = spec.rollout_func(row, fake(spec, model=model, max_completion_length=3))
    assert len(short["completion_ids"][0]) == 3
    assert short["toolgym_stop_reason"] in (["budget"], ["length"])


def test_what_the_infrastructure_broke_is_masked_and_the_rest_is_trained(spec, model):
    tasks = spec._train_tasks[:2]
    broken = [Task(task.messages, task.ground_truth, source="broken", id=f"broken {task.id}") for task in tasks]
    output = spec.rollout_func(prompts_of(spec.dataset([*tasks, *broken])), fake(spec, model=model))
    failed = [StopReason(reason).failed for reason in output["toolgym_stop_reason"]]
    assert failed[:4] == [False] * 4
    assert sum(failed) > 0  # but for turns that were cut, all of the others
    assert [not any(mask) for mask in output["env_mask"]] == failed
    assert [reward is None for reward in output["toolgym_reward"]] == failed
    assert all(len(ids) > 1 for ids in output["completion_ids"])  # what was sampled stays, masked


def test_a_step_without_a_token_to_train_is_an_error(spec, model):
    task = spec._train_tasks[0]
    broken = Task(task.messages, source="broken", id="broken", tools_kwargs={"nosuch": {}})
    with pytest.raises(RunFailedError, match="all 2 episodes failed in the same way"):
        spec.rollout_func(prompts_of(spec.dataset([broken])), fake(spec, model=model))


def test_the_trainers_sampling_is_used(spec):
    from toolgym.rollout.adapters.trl.spec import sampling_of

    args = trl.GRPOConfig(use_cpu=True, bf16=False, temperature=0.7, top_p=0.9, top_k=0, min_p=0.1)
    made = sampling_of(fake(spec, args=args), SamplingParams(max_new_tokens=500))
    assert made == SamplingParams(max_new_tokens=64, temperature=0.7, top_p=0.9, top_k=-1, min_p=0.1)
    made = sampling_of(fake(spec, args=args, max_completion_length=None), SamplingParams(max_new_tokens=500))
    assert made.max_new_tokens == 500


def test_what_cannot_go_with_rollout_func_is_an_error(spec, model):
    prompts = prompts_of(spec.train_dataset)
    cases = {
        "neither tools nor environment_factory": {"tools": [print]},
        "repetition_penalty": {"args": trl.GRPOConfig(use_cpu=True, bf16=False, repetition_penalty=1.1)},
    }
    for text, changes in cases.items():
        with pytest.raises(ConfigError, match=text):
            spec.rollout_func(prompts, fake(spec, model=model, **changes))
    with pytest.raises(ConfigError, match="prompt 0 is not of this spec"):
        spec.rollout_func([[{"role": "user", "content": "q"}]], fake(spec, model=model))
    with pytest.raises(ConfigError, match="prompt 0 is not of this spec"):
        spec.rollout_func(["q"], fake(spec, model=model))


def test_another_tokenizer_is_refused(spec, model):
    from toolgym.rollout import load_tokenizer, tiny_policy_path

    same, other = load_tokenizer(tiny_policy_path()), load_tokenizer(tiny_policy_path())
    other.add_tokens(["one more"])
    prompts = prompts_of(spec.train_dataset, 1)[:1]
    spec.rollout_func(prompts, fake(spec, model=model, processing_class=same))
    same.chat_template += " "
    for wrong in (same, other):
        with pytest.raises(ConfigError, match=r"processing_class=spec\.tokenizer"):
            spec.rollout_func(prompts, fake(spec, model=model, processing_class=wrong))


def test_the_data_set_holds_whole_tasks(spec):
    row = spec.train_dataset[0]
    task = spec._train_tasks[0]
    assert [message["content"] for message in row["prompt"]] == [message["content"] for message in task.messages]
    env = spec.environment_factory()
    assert env.reset(**row) is None
    assert env.code_interpreter(code="print(6*7)") == "42"
    assert env.finish(f"#### {task.ground_truth}") == 1.0


def test_mistakes_are_errors(make_env):
    with pytest.raises(UnknownNameError, match="did you mean"):
        Spec("CodeInterpretr-v0", num_tasks=1, policy="tiny")
    with pytest.raises(ConfigError, match="num_tasks"):
        Spec(make_env, num_tasks=0, policy="tiny")
    with pytest.raises(ConfigError, match="history must be 'append'"):
        Spec(make_env, num_tasks=1, policy="tiny", config=RunConfig(history="template"))
    with pytest.raises(ConfigError, match="KeepToolResults"):
        Spec(make_env, num_tasks=1, policy="tiny", config=RunConfig(context=KeepToolResults(1)))
    with pytest.raises(ConfigError, match="RunConfig"):
        Spec(make_env, num_tasks=1, policy="tiny", config=EpisodeLimits())


def test_a_spec_that_is_forgotten_leaves_no_thread(make_env, model):
    def ours():
        return {one for one in threading.enumerate() if one.name.startswith("toolgym-")}

    before = ours()

    def play():
        spec = Spec(make_env, num_tasks=1, policy="tiny", config=CONFIG)
        assert ours() - before
        spec.rollout_func(prompts_of(spec.train_dataset), fake(spec, model=model))

    play()
    deadline = time.monotonic() + 60
    while not ours() <= before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert ours() <= before
