"""`async_reset`, `send` and `recv`: each env of a vector env at its own pace."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from toolgym.envs.gym.vector_env import ToolVectorEnv, VectorEnvError
from toolgym.tools.concurrency.event_loop_thread import LoopTimeoutError
from toolgym.tools.errors import ConfigError, EpisodeError


def nap(seconds):
    return f'<tool_call>{{"name": "nap", "arguments": {{"seconds": {seconds}}}}}</tool_call>'


@pytest.fixture
def vector(toy_env):
    """Makes vector envs of toys, and closes them."""
    made: list[ToolVectorEnv] = []

    def make(count=3, **kwargs):
        made.append(ToolVectorEnv([toy_env] * count, **kwargs))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def in_order(received):
    """What was received, its rows by env and without the ids."""
    obs, *arrays, infos = received
    order = np.argsort(infos.pop("env_id"))

    def ordered(value):
        return {key: ordered(one) for key, one in value.items()} if isinstance(value, dict) else value[order]

    return tuple(obs[row] for row in order), *(array[order] for array in arrays), ordered(infos)


def same(one, other):
    return data_equivalence(one, other, exact=True)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_every_env_gives_what_step_gives(vector, mode, render_mode):
    asked = {"autoreset_mode": mode, "render_mode": render_mode, "max_episode_steps": 2}
    ours, stepped = vector(4, **asked), vector(4, **asked)
    obs, infos = stepped.reset(seed=7)
    ours.async_reset(seed=7)
    received = in_order(ours.recv(4))
    assert same(received[0], obs)
    assert same(received[4], infos)
    assert not any(array.any() for array in received[1:4])
    words = iter(["a", "bb", "done", "ccc", "dddd", "done", "e"] * 20)
    for _ in range(12):
        actions = [next(words) for _ in range(4)]
        mine = stepped.step(actions)
        ours.send(actions[2:], [2, 3])
        ours.send(actions[:2], np.array([0, 1]))
        received = in_order(ours.recv(4))
        assert same(received, mine)
        assert [array.dtype for array in received[1:4]] == [np.float64, np.bool_, np.bool_]
        if render_mode:
            assert ours.render() == stepped.render()
        ended = mine[2] | mine[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            options = {"reset_mask": ended}
            stepped.reset(options=options)
            ours.async_reset(options=options)
            assert sorted(ours.recv(ended.sum().item())[4]["env_id"]) == np.flatnonzero(ended).tolist()
    assert same(ours.step(["x"] * 4), stepped.step(["x"] * 4))  # nothing is in flight


def test_a_hung_tool_in_one_env_holds_up_no_other(sleep_tool):
    envs = napping(sleep_tool(), tool_timeout=600)
    envs.send([nap(600), nap(0), nap(0)], [0, 1, 2])
    with pytest.raises(LoopTimeoutError, match=r"of 3 envs were ready within 0\.05 seconds"):
        envs.recv(3, timeout=0.05)
    counts = [0, 0, 0]
    while min(counts[1:]) < 5:
        obs, *_, infos = envs.recv(1)
        [index] = infos["env_id"]
        assert index != 0
        assert obs[0][0]["content"] == "slept"
        counts[index] += 1
        envs.send([nap(0)], [index])
    envs.close()


def test_a_hung_tool_ends_at_its_deadline(sleep_tool):
    envs = napping(sleep_tool(), tool_timeout=0.2)
    envs.send([nap(600)], [0])
    obs, *_, infos = envs.recv(1)
    assert infos["env_id"].tolist() == [0]
    assert "did not finish within 0.2 seconds" in obs[0][0]["content"]
    envs.close()


def napping(tool, **kwargs):
    """Three envs with this tool that were reset."""
    envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=3, tools=[tool], own_tools=False, max_turns=99, **kwargs)
    envs.async_reset(seed=0)
    envs.recv(3)
    return envs


def test_an_env_that_raises_is_named_and_the_others_stay_ready(vector):
    envs = vector(4)
    envs.async_reset(seed=0)
    envs.recv(4)
    envs.send(["a", "fail", "b", "fail"], [3, 2, 1, 0])
    failed = {}
    while len(failed) < 2:
        with pytest.raises(VectorEnvError, match=r"failed in env (0|2).*ValueError: step failed on purpose") as caught:
            envs.recv(4 - len(failed))
        failed |= caught.value.errors
    assert sorted(failed) == [0, 2]
    assert sorted(envs.recv(2)[4]["env_id"]) == [1, 3]
    with pytest.raises(EpisodeError, match="env 2 had no episode"):
        envs.send(["a", "a"], [1, 2])
    envs.async_reset(options={"reset_mask": np.array([True, False, True, False])})
    envs.send(["a"], [1])  # the refused call began nothing
    envs.recv(3)
    envs.step(["a"] * 4)
    envs.async_reset(options={"fail": True})
    with pytest.raises(VectorEnvError, match="reset failed on purpose"):
        envs.recv(4)


def test_what_does_not_fit_what_is_in_flight_is_refused(vector):
    envs = vector(2)
    with pytest.raises(EpisodeError, match="env 1 had no episode"):
        envs.send(["a"], [1])
    envs.async_reset()
    for doing, call in [
        ("step", lambda: envs.step(["a", "b"])),
        ("reset", lambda: envs.reset()),
        ("async_reset", lambda: envs.async_reset(options={"reset_mask": np.array([True, False])})),
        ("send", lambda: envs.send(["a"], [0])),
    ]:
        with pytest.raises(EpisodeError, match=rf"{doing} was called while env 0(, 1)? was in flight"):
            call()
    with pytest.raises(ConfigError, match=r"recv\(3\) would wait forever: 2 envs are in flight"):
        envs.recv(3)
    envs.recv(2)
    with pytest.raises(ConfigError, match=r"recv\(1\) would wait forever: 0 envs"):
        envs.recv()


@pytest.mark.parametrize("ids", [[], [2], [-1], [0, 0], ["a"], [0.5], 1, None])
def test_wrong_env_ids_are_refused(vector, ids):
    envs = vector(2)
    envs.reset()
    with pytest.raises(ConfigError, match="env_ids must"):
        envs.send(["a"], ids)


def test_wrong_actions_begin_nothing(vector):
    envs = vector(2)
    envs.reset()
    for wrong in ("ab", ["a"], ["a", 3], None):
        with pytest.raises(ConfigError):
            envs.send(wrong, [0, 1])
    assert [env.turn for env in envs.envs] == [0, 0]
    envs.step(["a", "b"])


def test_closing_in_mid_flight_cancels_and_leaves_no_thread(toy_env, env_threads):
    before = env_threads()
    envs = ToolVectorEnv([lambda: toy_env(sleep=600)] * 2)
    envs.async_reset()
    envs.recv(2)
    envs.send(["a", "b"], [0, 1])
    with pytest.raises(LoopTimeoutError, match="0 of 1 envs"):
        envs.recv(timeout=0.05)
    deadline = time.monotonic() + 60
    while envs.get_attr("stepping") != (1, 1):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    envs.close()
    assert envs.get_attr("cancelled") == (1, 1)
    assert env_threads() <= before
    with pytest.raises(EpisodeError, match="recv was called after close"):
        envs.recv()
