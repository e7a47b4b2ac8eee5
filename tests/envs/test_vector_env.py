from __future__ import annotations

import gc
import itertools
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from toolgym.envs.gym.gymnasium_env import GymnasiumEnv
from toolgym.envs.gym.vector_env import ToolVectorEnv, VectorEnvError
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.tools.errors import ConfigError, EpisodeError, UnknownNameError

NAP = '<tool_call>{"name": "nap", "arguments": {"seconds": 0}}</tool_call>'
CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}</tool_call>'

every_mode = pytest.mark.parametrize("mode", list(AutoresetMode))


@pytest.fixture
def vector(toy_env):
    """Makes vector envs of toys, and closes them."""
    made: list[ToolVectorEnv] = []

    def make(count=3, mode=AutoresetMode.NEXT_STEP, render_mode=None, max_episode_steps=None, **kwargs):
        made.append(
            ToolVectorEnv(
                [lambda: toy_env(**kwargs)] * count,
                autoreset_mode=mode,
                render_mode=render_mode,
                max_episode_steps=max_episode_steps,
            )
        )
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def same(one, other) -> bool:
    return data_equivalence(one, other, exact=True)


def mask(*flags: bool) -> dict:
    return {"reset_mask": np.array(flags, dtype=np.bool_)}


@every_mode
@pytest.mark.parametrize("max_episode_steps", [None, 2])
def test_every_autoreset_mode_does_what_gymnasiums_sync_vector_env_does(toy_env, vector, mode, max_episode_steps):
    ours = vector(4, mode, max_turns=3, max_episode_steps=max_episode_steps)

    def single():
        env = GymnasiumEnv(toy_env(max_turns=3))
        return gymnasium.wrappers.TimeLimit(env, max_episode_steps) if max_episode_steps else env

    theirs = SyncVectorEnv([single] * 4, autoreset_mode=mode)
    assert ours.metadata == theirs.metadata
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert same(ours.reset(seed=7), theirs.reset(seed=7))
    words = itertools.cycle(["a", "bb", "done", "ccc", "dddd", "done", "e"])
    for _ in range(20):
        actions = tuple(next(words) for _ in range(4))
        mine, reference = ours.step(actions), theirs.step(actions)
        assert same(mine, reference)
        assert mine[0] in ours.observation_space
        assert [array.dtype for array in mine[1:4]] == [np.float64, np.bool_, np.bool_]
        ended = mine[2] | mine[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            options = {"reset_mask": ended}
            assert same(
                ours.reset(seed=[1, None, 3, 4], options=options),
                theirs.reset(seed=[1, None, 3, 4], options=dict(options)),
            )
            assert "reset_mask" in options
    assert same(ours.reset(seed=[4, 3, None, 1]), theirs.reset(seed=[4, 3, None, 1]))
    assert same(ours.step(("done",) * 4), theirs.step(("done",) * 4))
    assert same(ours.reset(), theirs.reset())
    theirs.close()


def test_same_step_keeps_the_end_under_final(vector):
    envs = vector(2, AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    obs, _, terminations, _, infos = envs.step(("done", "x"))
    assert terminations.tolist() == [True, False]
    assert len(obs[0]) == 2
    assert infos["final_obs"][0] == ()
    assert infos["_final_info"].tolist() == [True, False]
    assert infos["final_info"]["metrics"]["score"].tolist() == [0.5, 0.0]
    assert envs.step(("x", "x"))[0][0][0]["content"].startswith("x ")


def test_next_step_does_not_look_at_the_action_of_an_env_that_is_reset(vector):
    envs = vector(2)
    envs.reset(seed=0)
    envs.step(("done", "x"))
    obs, rewards, terminations, _, _ = envs.step((None, "y"))
    assert len(obs[0]) == 2
    assert rewards[0] == 0
    assert not terminations.any()


def test_disabled_refuses_to_step_an_env_that_ended(vector):
    envs = vector(3, AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(("x", "done", "done"))
    with pytest.raises(EpisodeError, match="env 1, 2 had no episode"):
        envs.step(("x", "x", "x"))
    before = envs.envs[0].log[:]
    obs, infos = envs.reset(options=mask(False, True, False))
    assert len(obs[0]) == 1  # kept
    assert infos["_number"].tolist() == [False, True, False]
    assert envs.envs[0].log == before
    with pytest.raises(EpisodeError, match="env 2 had"):
        envs.step(("x", "x", "x"))
    envs.reset(options=mask(False, False, True))
    envs.step(("x", "x", "x"))


@pytest.mark.parametrize(
    "wrong", [[True, True], np.ones(2), np.ones(3, dtype=np.bool_), np.zeros(2, dtype=np.bool_), None]
)
def test_a_wrong_reset_mask_is_refused(vector, wrong):
    envs = vector(2)
    with pytest.raises(ConfigError, match="reset_mask"):
        envs.reset(options={"reset_mask": wrong})


def test_seeds_and_options(vector):
    envs = vector(2)
    envs.reset(seed=np.int64(3), options={"colour": "red"})
    assert [env.log[-1] for env in envs.envs] == ["reset(3, {'colour': 'red'})", "reset(4, {'colour': 'red'})"]
    assert envs.np_random_seed == 3
    envs.reset(seed=[9, None])
    assert [env.log[-1] for env in envs.envs] == ["reset(9, None)", "reset(None, None)"]
    with pytest.raises(ConfigError, match="one seed per env, 2, got 3"):
        envs.reset(seed=[1, 2, 3])


@pytest.mark.parametrize("actions", ["ab", ("a",), ("a", "b", "c"), ("a", 3), None])
def test_wrong_actions_are_refused_before_any_env_steps(vector, actions):
    envs = vector(2)
    envs.reset(seed=0)
    with pytest.raises(ConfigError):
        envs.step(actions)
    envs.step(np.array(["a", "b"]))
    assert [env.turn for env in envs.envs] == [1, 1]


def test_step_before_reset(vector):
    with pytest.raises(EpisodeError, match="env 0, 1 had no episode"):
        vector(2).step(("a", "b"))


@every_mode
def test_one_env_that_raises_leaves_the_others_in_order(vector, mode):
    envs = vector(4, mode, sleep=0.1)
    envs.reset(seed=0)
    with pytest.raises(
        VectorEnvError, match=r"step failed in env 1, 3; env 1 raised ValueError: .* on purpose"
    ) as caught:
        envs.step(("a", "fail", "done", "fail"))
    assert sorted(caught.value.errors) == [1, 3]
    assert caught.value.__cause__ is caught.value.errors[1]
    assert envs.envs[0].turn == 1  # it was waited for
    with pytest.raises(EpisodeError, match="env 1"):
        envs.step(("a",) * 4)
    envs.reset(options=mask(False, True, mode is AutoresetMode.DISABLED, True))
    obs = envs.step(("a",) * 4)[0]
    assert obs[0][0]["tool_call_id"] == "call_2"
    assert len(obs[2]) == (2 if mode is AutoresetMode.NEXT_STEP else 1)


def test_a_reset_that_raises(vector):
    envs = vector(2)
    with pytest.raises(VectorEnvError, match="reset failed in env 0, 1"):
        envs.reset(options={"fail": True})
    with pytest.raises(EpisodeError, match="env 0, 1"):
        envs.step(("a", "b"))
    envs.reset()
    envs.step(("a", "b"))


def test_a_reset_that_raises_in_some_envs_begins_the_others(vector, monkeypatch):
    async def fail(**kwargs):
        raise ValueError("on purpose")

    envs = vector(3)
    with monkeypatch.context() as patch:
        patch.setattr(envs.envs[1], "reset", fail)
        with pytest.raises(VectorEnvError, match="reset failed in env 1; .* on purpose") as caught:
            envs.reset(seed=0)
    assert list(caught.value.errors) == [1]
    with pytest.raises(EpisodeError, match="env 1 had no episode"):
        envs.step(("a",) * 3)
    obs, _ = envs.reset(options=mask(False, True, False))
    assert [[message["role"] for message in messages][-1] for messages in obs] == ["user"] * 3
    envs.step(("a",) * 3)
    assert [env.turn for env in envs.envs] == [1, 1, 1]


def test_an_env_that_cannot_be_made_closes_those_before(toy_env, env_threads):
    made = []

    def first():
        made.append(toy_env())
        return made[0]

    def second():
        raise ValueError("no room")

    before = env_threads()
    with pytest.raises(ValueError, match="no room"):
        ToolVectorEnv([first, second])
    assert made[0].closed == 1
    assert env_threads() <= before


def test_observations_share_nothing(vector):
    envs = vector(2, AutoresetMode.DISABLED)
    first, _ = envs.reset(seed=0)
    first[0][0]["content"] = "altered by the user"
    envs.step(("done", "x"))
    again, _ = envs.reset(options=mask(False, True))
    assert again[0] == ()
    assert envs.reset(seed=0)[0][0][0]["content"] == "Echo."


def test_render(vector, no_warnings):
    envs = vector(2, render_mode="ansi")
    envs.reset(seed=0)
    envs.step(("a", "done"))
    texts = envs.render()
    assert "[tool echo]\na " in texts[0]
    assert texts[1].endswith("[assistant]\ndone")
    assert vector(1, render_mode="html").render()[0].startswith("<div")
    envs.step(("b", "ignored"))
    assert envs.render()[1].count("\n\n") == 1


def test_render_without_a_mode_warns(vector):
    envs = vector(1)
    with pytest.warns(UserWarning, match="render_mode"):
        assert envs.render() is None
    with pytest.raises(UnknownNameError, match="ansi"):
        vector(1, render_mode="human")


def test_wrong_options_are_refused(vector):
    with pytest.raises(ConfigError, match="'NextStep', 'SameStep', 'Disabled'"):
        vector(1, mode="Sometimes")
    with pytest.raises(ConfigError, match="at least one env"):
        vector(0)
    with pytest.raises(ConfigError, match="max_episode_steps"):
        vector(1, max_episode_steps=0)
    with pytest.raises(ConfigError, match="num_envs"):
        gymnasium.make_vec("CodeInterpreter-v0", num_envs=0)


def test_close_closes_every_env_once_and_ends_the_thread(toy_env, end_lingering, env_threads):
    before = env_threads()
    envs = ToolVectorEnv([toy_env] * 5)
    envs.reset()
    assert len(env_threads() - before) == 1
    envs.close()
    envs.close()
    assert envs.get_attr("closed") == (1,) * 5
    assert env_threads() <= before
    with pytest.raises(EpisodeError, match="closed"):
        envs.reset()


def test_one_that_cannot_be_closed_does_not_keep_the_others_open(toy_env):
    class Stuck(toy_env):
        async def close(self):
            await super().close()
            raise ValueError("stuck")

    envs = ToolVectorEnv([toy_env, Stuck, toy_env])
    envs.reset()
    with pytest.raises(VectorEnvError, match="close failed in env 1"):
        envs.close()
    assert envs.get_attr("closed") == (1, 1, 1)


def test_a_forgotten_vector_env_is_closed(toy_env, env_threads):
    before = env_threads()
    envs = ToolVectorEnv([toy_env] * 2)
    envs.reset()
    inner = list(envs.envs)
    (thread,) = env_threads() - before
    del envs
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert [env.closed for env in inner] == [1, 1]


def test_make_vec(registry, toy_env, no_warnings):
    registry.register("Toy-v0", toy_env, kwargs={"max_turns": 7})
    envs = gymnasium.make_vec(
        "Toy-v0", num_envs=2, sleep=0.01, autoreset_mode="SameStep", max_episode_steps=1, render_mode="ansi"
    )
    assert isinstance(envs, ToolVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.get_attr("max_turns") == (7, 7)
    assert envs.get_attr("sleep") == (0.01, 0.01)
    assert envs.spec.id == "Toy-v0"
    assert len({id(env) for env in envs.envs}) == 2
    envs.reset()
    assert envs.step(("x", "y"))[3].all()
    envs.close()


def test_vector_wrappers_of_gymnasium_work(registry, toy_env, no_warnings):
    registry.register("Toy-v0", toy_env)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.make_vec("Toy-v0", num_envs=2))
    envs.reset(seed=0)
    *_, infos = envs.step(("done", "x"))
    assert infos["episode"]["l"].tolist() == [1, 0]
    envs.close()


def test_the_env_class_adapts_arguments_for_a_vector_env(registry, toy_env):
    class Adapting(toy_env):
        @classmethod
        def vector_defaults(cls, num_envs, kwargs):
            return {"sleep": num_envs / 100, **{key: value for key, value in kwargs.items() if key != "max_turns"}}

    registry.register("Toy-v0", Adapting, kwargs={"max_turns": 7})
    envs = gymnasium.make_vec("Toy-v0", num_envs=2)
    assert envs.get_attr("sleep") == (0.02, 0.02)
    assert envs.get_attr("max_turns") == (3, 3)
    envs.close()


async def test_64_envs_sleep_at_the_same_time_also_inside_a_running_loop(sleep_tool, no_warnings):
    nap = sleep_tool()
    nap.meet = 64
    envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=64, tools=[nap], own_tools=False)
    envs.reset(seed=0)
    obs, *_ = envs.step((NAP,) * 64)
    envs.close()
    assert all(chat[0]["content"] == "slept" for chat in obs)
    assert nap.most == 64


def test_envs_with_a_code_interpreter_each(no_warnings, end_lingering):
    before = set(threading.enumerate())
    envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=8)
    assert all(isinstance(env, CodeInterpreterEnv) for env in envs.envs)
    envs.reset(seed=0)
    envs.step((CALL,) * 8)  # the sandbox starts with the first calls
    sleep = "import time; begun = time.monotonic(); time.sleep(0.5); print(begun, time.monotonic(), 6 * 7)"
    obs, *_ = envs.step((CALL.replace("print(6 * 7)", sleep),) * 8)
    times = [chat[0]["content"].split() for chat in obs]
    assert [answer for *_, answer in times] == ["42"] * 8
    begun, ended = ([float(one[place]) for one in times] for place in (0, 1))
    assert max(ended) - min(begun) < sum(ended) - sum(begun)  # one after the other they take longer than all together
    truths = [env.task.ground_truth for env in envs.envs]
    _, rewards, terminations, *_ = envs.step([f"#### {truth}" for truth in truths])
    assert rewards.tolist() == [1.0] * 8
    assert terminations.all()
    envs.close()
    end_lingering()
    assert set(threading.enumerate()) <= before
