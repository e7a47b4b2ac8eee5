"""`wrap` on Gymnasium's envs, for real: what is passed on, and what becomes of what goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import toolgym
from toolgym.envs import SeedTasks, StopReason, Task, seed_tasks, wrap
from toolgym.envs.foreign.threads import OwnRandom
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout
from toolgym.testing import EnvSuite
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxError, UnknownNameError
from toolgym.tools.parsers import ParsedTurn


class GuessEnv(gymnasium.Env):
    """A digit is drawn from the env's own generator; the episode ends with it, or is cut after three turns."""

    action_space = observation_space = spaces.Text(max_length=500)

    def __init__(self):
        self.closed = 0
        self.options = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.options = seed, options
        self.number, self.turn = int(self.np_random.integers(10)), 0
        return "Say a digit.", {"digits": 10}

    def step(self, action):
        self.turn += 1
        right = str(self.number) == action.strip()
        return f"not {action}", np.float32(right), np.bool_(right), self.turn >= 3, {"turn": self.turn, "name": "x"}

    def close(self):
        self.closed += 1


class Broken(GuessEnv):
    """Steps with what the test wants."""

    def __init__(self, step):
        super().__init__()
        self.wanted = step

    def step(self, action):
        return self.wanted(self, action)


def giving(obs="more", reward=0.0, terminated=False, truncated=False, info=None):
    return lambda env, action: (obs, reward, terminated, truncated, info or {})


class TestGymnasium(EnvSuite):
    actions = ("1", "2", "3")

    @pytest.fixture
    def env(self):
        return wrap(GuessEnv)


class TestObject(EnvSuite):
    actions = ("1", "2", "3")

    @pytest.fixture
    def env(self):
        return wrap(GuessEnv())


# ---------------------------------------------------------------------- what is passed on


async def test_the_seed_the_options_and_the_info():
    made = GuessEnv()
    async with wrap(made) as env:
        obs, info = await env.reset(seed=5, options={"easy": True})
        assert obs == [{"role": "user", "content": "Say a digit."}]
        assert (made.seed, made.options) == (5, {"easy": True})
        assert info["env_info"] == {"digits": 10}
        wrong = str((made.number + 1) % 10)
        result = await env.step(wrong)
        assert result.obs == [{"role": "user", "content": f"not {wrong}"}]
        assert (result.reward, result.done) == (0.0, False)
        assert result.info["metrics"] == {"turn": 1, "bad_calls": 0, "env/turn": 1.0}
        result = await env.step(str(made.number))
        assert (result.obs, result.reward, result.stop_reason) == ([], 1.0, StopReason.ANSWERED)
        assert type(result.reward) is float
        assert result.info["final_obs"][0]["content"] == f"not {made.number}"


async def test_terminated_and_truncated_stay_apart():
    for terminated, truncated, reason in (
        (True, False, StopReason.ANSWERED),
        (False, True, StopReason.MAX_TURNS),
        (True, True, StopReason.ANSWERED),
    ):
        async with wrap(Broken(giving(terminated=terminated, truncated=truncated))) as env:
            await env.reset(seed=0)
            result = await env.step("1")
            assert result.stop_reason is reason
            assert (result.info["terminated"], result.info["truncated"]) == (terminated, truncated)


async def test_a_task_tells_seed_and_options_and_its_messages_come_first():
    row = {"prompt": [{"role": "system", "content": "Play."}, {"role": "user", "content": "Now."}]}
    task = Task.from_row({**row, "extra_info": {"seed": 9, "reset": {"easy": True, "unused": None}}})
    made = GuessEnv()
    async with wrap(made, tasks=[task], system_prompt="Short answers.") as env:
        obs, info = await env.reset(seed=1)
        assert info["task"] is task
        assert (made.seed, made.options) == (9, {"easy": True})
        assert [one["content"] for one in obs] == ["Short answers.\n\nPlay.", "Now.\n\nSay a digit."]
        await env.reset(seed=1, options={"easy": False})
        assert made.options == {"easy": False}
    bad = Task.from_row({**row, "extra_info": {"seed": "nine"}})
    with pytest.raises(ConfigError, match="extra_info"):
        await wrap(GuessEnv, tasks=[bad]).reset()


async def test_a_long_observation_is_cut_and_an_empty_one_is_named():
    async with wrap(Broken(giving(obs="a" * 50 + "z" * 50)), max_obs_chars=20) as env:
        await env.reset(seed=0)
        content = (await env.step("1")).obs[0]["content"]
        assert content.startswith("aaaaaaaaaa [... 80 characters left out ...]")
    async with wrap(Broken(giving(obs=""))) as env:
        await env.reset(seed=0)
        assert (await env.step("1")).obs == [{"role": "user", "content": "[no observation]"}]


async def test_the_turns_that_an_env_gets():
    said = []

    def keep(env, action):
        said.append(action)
        return "", 0.0, False, False, {}

    turn = ParsedTurn("<think>3?</think>7", "<think>3?</think>7", [], [])
    for drop in (False, True):
        async with wrap(Broken(keep), drop_thinking=drop, max_turns=4) as env:
            await env.reset(seed=0)
            await env.step(turn)
            await env.step({"role": "assistant", "content": "8"})
            await env.step('<tool_call>{"name": "a", "arguments": {}}</tool_call>')
            result = await env.step("9")
            assert (result.stop_reason, result.truncated) == (StopReason.MAX_TURNS, True)
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert said == ["<think>3?</think>7", "8", call, "9", "7", "8", call, "9"]


async def test_spaces_that_are_no_texts_take_functions():
    make = lambda: gymnasium.make("FrozenLake-v1", is_slippery=False)  # noqa: E731
    names = ["left", "down", "right", "up"]

    def to_action(turn):
        if turn.text not in names:
            raise ValueError(f"say one of {', '.join(names)}")
        return names.index(turn.text)

    with pytest.raises(ConfigError, match="to_action="):
        wrap(make())
    with pytest.raises(ConfigError, match="to_text="):
        wrap(make(), to_action=to_action)
    async with wrap(make, to_action=to_action, to_text=lambda obs: f"field {obs}") as env:
        obs, _ = await env.reset(seed=0)
        assert obs[0]["content"] == "field 0"
        assert (await env.step("jump")).obs[0]["content"] == "say one of left, down, right, up"
        for move in ["down", "down", "right", "right", "down"]:
            assert not (await env.step(move)).done
        result = await env.step("right")
        assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)


async def test_toolgyms_messages_pass_through_gymnasium():
    class Chat(GuessEnv):
        observation_space = spaces.Sequence(spaces.Text(10))

        def reset(self, **arguments):
            return (
                {"role": "system", "content": "Play."},
                {"role": "user", "content": [{"type": "text", "text": "1"}]},
            ), {}

    obs, _ = await wrap(Chat).reset(seed=0)
    assert obs == [{"role": "system", "content": "Play."}, {"role": "user", "content": "1"}]


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (float("nan"), "not finite: nan"),
        (np.float64("inf"), "not finite: inf"),
        (np.zeros(3), "wrap a single env, not a vector"),
        ("1", "no number: '1'"),
        ({"a": 1.0}, "no number"),
    ],
)
async def test_rewards_that_are_none(reward, told):
    async with wrap(Broken(giving(reward=reward))) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError, match=told) as failed:
            await env.step("1")
        assert failed.value.stop_reason is StopReason.ENV_FAILED
        with pytest.raises(EpisodeError):
            await env.step("1")


@pytest.mark.parametrize(("reward", "number"), [(np.array([0.5]), 0.5), (np.int64(2), 2.0), (True, 1.0), (None, 0.0)])
async def test_rewards_of_other_types(reward, number):
    async with wrap(Broken(giving(reward=reward, terminated=np.array([True])))) as env:
        await env.reset(seed=0)
        result = await env.step("1")
        assert (result.reward, result.done) == (number, True)
        assert type(result.reward) is float


async def test_what_an_env_raises_is_its_failure():
    def fail(env, action):
        raise KeyError("no such room")

    async with wrap(Broken(fail)) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError, match="gymnasium's Broken raised KeyError: no such room") as failed:
            await env.step("1")
    assert failed.value.stop_reason is StopReason.ENV_FAILED

    class NoReset(GuessEnv):
        def reset(self, **arguments):
            raise SystemExit(3)

    with pytest.raises(EpisodeFailedError, match="SystemExit") as failed:
        await wrap(NoReset).reset(seed=0)
    assert failed.value.stop_reason is StopReason.RESET_FAILED

    def no_env():
        raise OSError("no display")

    with pytest.raises(EpisodeFailedError, match="no display") as failed:
        await wrap(no_env).reset(seed=0)
    assert failed.value.stop_reason is StopReason.ENV_CREATE_FAILED


async def test_an_image_that_is_none_is_refused():
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    async with wrap(Broken(giving(obs=[picture]))) as env:
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="expected an image as a data URL"):
            await env.step("1")
    async with wrap(Broken(giving(obs=np.zeros(2)))) as env:
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="to_text="):
            await env.step("1")


async def test_a_step_that_hangs_is_left_behind_and_the_env_is_closed_once_when_it_ends():
    let_go, closed = threading.Event(), threading.Event()

    class Hangs(GuessEnv):
        def step(self, action):
            let_go.wait(60)
            self.still_open = not self.closed
            return super().step(action)

        def close(self):
            super().close()
            closed.set()

    made = Hangs()
    env = wrap(made)
    await env.reset(seed=0)
    env._options = dataclasses.replace(env._options, timeout=0.2)  # only now: a thread may take long to begin
    with pytest.raises(EpisodeFailedError, match=r"did not finish within 0\.2 seconds") as failed:
        await env.step("1")
    assert failed.value.stop_reason is StopReason.ENV_TIMEOUT
    with pytest.raises(EpisodeFailedError, match="still runs"):
        await env.reset(seed=0)
    await env.close()
    assert made.closed == 0  # it still steps
    let_go.set()
    assert await asyncio.to_thread(closed.wait, 60)
    assert (made.closed, made.still_open) == (1, True)


async def test_an_env_that_is_made_too_late_is_closed():
    let_go, closed = threading.Event(), threading.Event()

    class Late(GuessEnv):
        def close(self):
            closed.set()

    def make():
        let_go.wait(60)
        return Late()

    env = wrap(make, timeout=0.2)
    with pytest.raises(EpisodeFailedError, match="making the env") as failed:
        await env.reset(seed=0)
    assert failed.value.stop_reason is StopReason.ENV_TIMEOUT
    let_go.set()
    assert await asyncio.to_thread(closed.wait, 60)
    await env.close()


async def test_a_broken_env_is_replaced_where_another_can_be_made():
    made = []

    def make():
        made.append(Broken(giving(reward=float("nan"))) if not made else GuessEnv())
        return made[-1]

    async with wrap(make) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError):
            await env.step("1")
        await env.reset(seed=0)
        await env.step("1")
        await env.reset(seed=1)  # and is kept where it works
    assert [one.closed for one in made] == [1, 1]


async def test_all_functions_run_in_one_thread_where_that_is_wanted():
    threads = set()

    class Bound(GuessEnv):
        def __init__(self):
            super().__init__()
            threads.add(threading.get_ident())

        def step(self, action):
            threads.add(threading.get_ident())
            return super().step(action)

        def close(self):
            threads.add(threading.get_ident())

    async with wrap(Bound, own_thread=True) as env:
        for seed in range(3):
            await env.reset(seed=seed)
            await env.step("1")
    assert len(threads) == 1
    assert threading.get_ident() not in threads


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_be_wrapped():
    with pytest.raises(ConfigError, match="expected an env of aviary"):
        wrap(object())
    with pytest.raises(ConfigError, match="a vector of envs"):
        wrap(gymnasium.vector.SyncVectorEnv([GuessEnv]))
    with pytest.raises(ConfigError, match="use it as it is"):
        wrap(toolgym.make("CodeInterpreter-v0"))
    with gymnasium.make("CodeInterpreter-v0") as ours, pytest.raises(ConfigError, match="toolgym's own"):
        wrap(ours)
    with pytest.raises(UnknownNameError, match="did you mean 'gymnasium'"):
        wrap(GuessEnv, project="gymnasum")
    with pytest.raises(UnknownNameError, match="did you mean 'max_turns'"):
        wrap(GuessEnv, max_turn=3)
    with pytest.raises(ConfigError, match="takes nothing, or the task"):
        wrap(lambda a, b: GuessEnv())
    with pytest.raises(ConfigError, match="players means nothing to an env of gymnasium; it uses: drop_thinking"):
        wrap(GuessEnv(), players=2, opponents=str)
    with pytest.raises(ConfigError, match="max_turns"):
        wrap(GuessEnv, max_turns=0)


async def test_a_function_that_makes_something_else():
    with pytest.raises(ConfigError, match="expected an env of"):
        await wrap(lambda: 3).reset(seed=0)
    env = wrap(GuessEnv)
    await env.close()
    with pytest.raises(EpisodeError, match="after close"):
        await env.reset(seed=0)


async def test_another_class_with_the_same_contract():
    class Alike:
        def reset(self, *, seed=None, options=None):
            return "Go.", {}

        def step(self, action):
            return "", 1.0, True, False, {}

    async with wrap(lambda: Alike(), project="gymnasium") as env:
        await env.reset(seed=0)
        assert (await env.step("x")).reward == 1.0


# ---------------------------------------------------------------------- rollouts


async def test_it_rolls_out_with_exact_tokens_and_a_group_begins_alike(exact_rollout):
    class Numbers(GuessEnv):
        def reset(self, **arguments):
            _, info = super().reset(**arguments)
            return f"The number is {self.np_random.integers(10**6)}.", info

    done = await exact_rollout(lambda: wrap(Numbers), max_new_tokens=8)
    assert {one.stop_reason for one in done} <= {StopReason.ANSWERED, StopReason.MAX_TURNS}
    assert [one.task_id for one in done][::2] == [one.task_id for one in done][1::2]
    firsts = [one.messages[0]["content"] for one in done]
    assert firsts[::2] == firsts[1::2]
    assert len(set(firsts)) == 4


async def test_by_an_id_and_a_failure_is_no_reward_of_0(registry, caplog):
    class Fails(GuessEnv):
        def step(self, action):
            if self.seed == 2:
                raise RuntimeError("the world ended")
            return super().step(action)

    toolgym.register("Guess-v0", lambda: wrap(Fails, max_turns=1))
    async with open_engine("tiny") as engine:
        config = RunConfig(sampling=SamplingParams(max_new_tokens=8), on_truncated_turn="close")
        done = await rollout("Guess-v0", engine, seed_tasks(range(4)), config=config)
    assert [one.stop_reason for one in done if one.failed] == [StopReason.ENV_FAILED]
    assert not done[2].stop_reason.in_group_statistics
    assert "RuntimeError: the world ended" in done[2].error.message
    assert "the world ended" in caplog.text


# ---------------------------------------------------------------------- the pieces


def test_tasks_that_are_seeds():
    one, other = SeedTasks().take(2, seed=1)
    assert (one.id, other.id) == (str(one.extra_info["seed"]), str(other.extra_info["seed"]))
    assert one != other
    assert Task.from_row(one.to_row()) == one
    assert SeedTasks().take(2, seed=1) == [one, other]
    with pytest.raises(ConfigError, match="a seed must be a whole number"):
        seed_tasks([-1])


def test_each_env_has_random_generators_of_its_own():
    one, other = OwnRandom(10), OwnRandom(10)
    state = random.getstate()
    one.run(random.seed, 4)
    other.run(random.seed, 4)
    one.run(np.random.seed, 4)
    first = [one.run(random.random), other.run(random.random), one.run(random.random), one.run(np.random.rand)]
    assert random.getstate() == state
    expected = random.Random(4)
    a, b = expected.random(), expected.random()
    assert first == [a, a, b, np.random.RandomState(4).rand()]


def test_a_generator_that_is_never_given_back_is_no_hang():
    entered, let_go = threading.Event(), threading.Event()

    def hold():
        entered.set()
        let_go.wait(60)

    thread = threading.Thread(target=OwnRandom(10).run, args=(hold,))
    thread.start()
    try:
        assert entered.wait(60)
        with pytest.raises(EpisodeFailedError, match="holds the global random generators"):
            OwnRandom(0.05).run(random.random)
    finally:
        let_go.set()
        thread.join()


async def test_a_sandbox_that_fails_below_an_env_is_named(caplog):
    class Broken(GuessEnv):
        def step(self, action):
            raise SandboxError("no host")

    async with wrap(Broken) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError, match="SandboxError: no host") as raised:
            await env.step("5")
    assert raised.value.stop_reason is StopReason.SANDBOX_FAILED


async def test_it_renders_the_conversation_as_the_policy_had_it():
    async with wrap(GuessEnv) as env:
        await env.reset(seed=0)
        await env.step("11")
        assert env.render() == "[user]\nSay a digit.\n\n[assistant]\n11\n\n[user]\nnot 11"
        await env.reset()
        assert env.render() == "[user]\nSay a digit."
