from __future__ import annotations

import copy
import gc
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import toolgym
from toolgym.envs.gym.gymnasium_env import GymnasiumEnv
from toolgym.envs.gym.vector_env import ToolVectorEnv, VectorEnvError
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.errors import ConfigError, EpisodeError, UnknownNameError
from toolgym.tools.views.conversation import conversation_text

CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}</tool_call>'


@pytest.fixture
def toy_id(registry, toy_env):
    registry.register("Toy-v0", toy_env)
    return "Toy-v0"


def children() -> set[str]:
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return set(file.read().split())


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_check_env_passes_without_a_warning(toy_id, render_mode, no_warnings):
    env = gymnasium.make(toy_id, render_mode=render_mode)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("id", ["CodeInterpreter-v0", "toolgym:CodeInterpreter-v0"])
def test_check_env_passes_with_the_code_interpreter(id, no_warnings):
    env = gymnasium.make(id)
    check_env(env.unwrapped)
    env.close()


def test_five_tuples_through_gymnasiums_default_wrappers(toy_id, no_warnings):
    env = gymnasium.make(toy_id, max_turns=2)
    obs, info = env.reset(seed=1)
    number = info["number"]
    assert [message["role"] for message in obs] == ["system", "user"]
    obs, reward, terminated, truncated, info = env.step("hello")
    assert obs == ({"role": "tool", "content": f"hello {number}", "tool_call_id": "call_1", "name": "echo"},)
    assert (reward, terminated, truncated) == (number / 8 + 5, False, False)
    assert type(reward) is float
    obs, _, terminated, truncated, info = env.step("again")
    assert (obs, terminated, truncated, str(info["stop_reason"])) == ((), False, True, "max_turns")
    env.reset()
    assert env.step("done")[2:4] == (True, False)
    env.close()


def test_seeds(toy_id):
    env = gymnasium.make(toy_id)
    first = [env.reset(seed=5)[1]["number"], env.reset()[1]["number"]]
    assert first == [env.reset(seed=5)[1]["number"], env.reset()[1]["number"]]
    assert env.unwrapped.np_random_seed == 5
    assert first[0] != env.reset(seed=6)[1]["number"]
    env.close()


def test_options_reach_the_async_env(toy_id):
    env = gymnasium.make(toy_id)
    env.reset(seed=1, options={"colour": "red"})
    assert env.unwrapped.base_env.log == ["reset(1, {'colour': 'red'})"]
    env.close()


def test_an_env_that_only_says_done_has_terminated(toy_env):
    class Terse(toy_env):
        async def step(self, action):
            return (await super().step(action))._replace(done=True, info={})

    env = GymnasiumEnv(Terse())
    env.reset()
    assert env.step("x")[2:4] == (True, False)
    env.close()


def test_observations_share_nothing_with_the_env(toy_env):
    kept = [{"role": "user", "content": "always the same object"}]

    class Careless(toy_env):
        async def reset(self, **kwargs):
            _, info = await super().reset(**kwargs)
            return kept, info

    env = GymnasiumEnv(Careless())
    env.reset()[0][0]["content"] = "altered by the user"
    assert env.reset()[0][0]["content"] == "always the same object"
    env.close()


def test_errors_say_what_to_do(toy_id):
    env = gymnasium.make(toy_id).unwrapped
    with pytest.raises(EpisodeError):
        env.step("x")
    env.reset()
    with pytest.raises(ConfigError, match="got dict"):
        env.step({"role": "assistant", "content": "x"})
    with pytest.raises(ValueError, match="on purpose"):
        env.step("fail")
    env.close()
    with pytest.raises(EpisodeError, match="closed"):
        env.reset()


def test_render_gives_the_conversation_with_one_block_per_message(toy_id, no_warnings):
    env = gymnasium.make(toy_id, render_mode="ansi")
    obs, info = env.reset(seed=0)
    env.step("hello")
    obs[0]["content"] = "altered by the user"
    number = info["number"]
    assert env.render() == (
        f"[system]\nEcho.\n\n[user]\nThe number is {number}.\n\n[assistant]\nhello\n\n[tool echo]\nhello {number}"
    )
    env.reset()
    assert env.render().count("\n\n") == 1
    env.close()


def test_render_shows_tool_calls_and_spells_out_control_characters():
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
    text = conversation_text(
        [
            {"role": "assistant", "content": "Let me see.", "tool_calls": [call, call]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "\x1b[31mred\x07\ttab"},
        ]
    )
    assert text == (
        '[assistant]\nLet me see.\n-> f {"x": "é"}\n-> f {"x": "é"}\n\n'
        '[assistant]\n-> f {"x": "é"}\n\n[tool]\n\\x1b[31mred\\x07\ttab'
    )


def test_render_lists_through_gymnasiums_own_wrapper(toy_id, no_warnings):
    env = gymnasium.make(toy_id, render_mode="ansi_list")
    env.reset()
    env.step("hello")
    assert len(env.render()) == 2
    env.close()


def test_render_without_a_mode_warns_as_gymnasiums_envs_do(toy_id):
    env = gymnasium.make(toy_id)
    env.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.unwrapped.render() is None
    env.close()


def test_an_unknown_render_mode_is_an_error(toy_id, toy_env):
    with pytest.raises(UnknownNameError, match="did you mean 'ansi'"):
        GymnasiumEnv(toy_env(), render_mode="ansy")
    with (
        pytest.raises(UnknownNameError, match="expected None or one of: ansi, html, human"),
        pytest.warns(UserWarning, match="rgb_array"),
    ):
        gymnasium.make(toy_id, render_mode="rgb_array")


def test_a_person_reads_the_conversation_as_it_goes_on(toy_id, capsys, no_warnings):
    env = gymnasium.make(toy_id, render_mode="human")
    _, info = env.reset(seed=0)
    assert capsys.readouterr().out == f"[system]\nEcho.\n\n[user]\nThe number is {info['number']}.\n\n"
    env.step("hello")
    assert capsys.readouterr().out == f"[assistant]\nhello\n\n[tool echo]\nhello {info['number']}\n\n"
    assert env.render() is None
    env.close()


def test_render_as_html_is_what_a_notebook_shows_of_the_text(toy_id, no_warnings):
    env = gymnasium.make(toy_id, render_mode="html")
    env.reset(seed=0)
    env.step("<b>hello")
    shown = env.render()
    assert "&lt;b&gt;hello" in shown
    assert (shown, str(shown)[:4]) == (shown._repr_html_(), "<div")
    assert "ToyEnv" in env.unwrapped._repr_html_()
    env.close()


def test_a_typo_in_an_argument_names_the_argument():
    with pytest.raises(TypeError, match="max_turn"):
        gymnasium.make("CodeInterpreter-v0", max_turn=3)


def test_close_closes_the_async_env_once_and_ends_the_thread(toy_id, end_lingering, env_threads):
    before = env_threads()
    env = gymnasium.make(toy_id)
    env.reset()
    assert env_threads() - before
    base = env.unwrapped.base_env
    env.close()
    env.close()
    assert base.closed == 1
    assert env_threads() - before == set()


def test_a_forgotten_env_is_closed(toy_id, env_threads):
    before = env_threads()
    env = gymnasium.make(toy_id)
    env.reset()
    base = env.unwrapped.base_env
    (thread,) = env_threads() - before
    del env
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert base.closed == 1


async def test_it_steps_inside_a_running_event_loop():
    env = gymnasium.make("CodeInterpreter-v0")
    env.reset(seed=0)
    assert env.step(CALL)[0][0]["content"] == "42"
    env.close()


def test_it_steps_from_another_thread():
    env = gymnasium.make("CodeInterpreter-v0")
    seen = []

    def play():
        env.reset(seed=0)
        seen.append(env.step(CALL)[0][0]["content"])

    worker = threading.Thread(target=play)
    worker.start()
    worker.join(240)
    env.close()
    assert seen == ["42"]


def test_a_full_episode_of_the_code_interpreter(no_warnings, end_lingering):
    before_threads, before_children = set(threading.enumerate()), children()
    with gymnasium.make("CodeInterpreter-v0", render_mode="ansi") as env:
        obs, info = env.reset(seed=0)
        assert obs in env.observation_space
        assert info["tools"][0]["function"]["name"] == "code_interpreter"
        obs, reward, terminated, truncated, info = env.step(CALL)
        assert (obs[0]["content"], reward, terminated, truncated) == ("42", 0.0, False, False)
        task = env.unwrapped.base_env.task
        obs, reward, terminated, truncated, info = env.step(f"#### {task.ground_truth}")
        assert (obs, reward, terminated, truncated) == ((), 1.0, True, False)
        assert "[tool code_interpreter]\n42" in env.render()
    end_lingering()
    assert set(threading.enumerate()) <= before_threads
    assert children() <= before_children


def test_gymnasiums_own_vector_envs_take_it(toy_id, no_warnings):
    envs = gymnasium.make_vec(toy_id, num_envs=3, vectorization_mode="sync")
    envs.reset(seed=0)
    obs = envs.step(("a", "bb", "ccc"))[0]
    assert [chat[0]["content"].split()[0] for chat in obs] == ["a", "bb", "ccc"]
    envs.close()


@pytest.mark.long
def test_gymnasiums_process_vector_env_takes_it():
    done = python(
        """
        import gymnasium, toolgym
        if __name__ == "__main__":
            envs = gymnasium.make_vec("CodeInterpreter-v0", num_envs=2, vectorization_mode="async",
                                      vector_kwargs={"shared_memory": False, "context": "spawn"})
            envs.reset(seed=0)
            print(envs.step(("#### 1", "#### 2"))[2])
            envs.close()
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[ True  True]\n", "", 0)


def test_a_spec_makes_the_same_env_again(toy_id):
    env = gymnasium.make(toy_id, max_turns=9)
    again = gymnasium.make(copy.deepcopy(env.spec))
    assert again.unwrapped.base_env.max_turns == 9
    env.close()
    again.close()


def test_a_keyboard_interrupt_cancels_the_step():
    done = python(
        """
        import asyncio, os, signal
        from toolgym.envs import BaseEnv, GymnasiumEnv

        class Slow(BaseEnv):
            async def reset(self, *, seed=None, options=None):
                return [], {}
            async def step(self, action):
                asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGINT)
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    print("cancelled")
                    raise
            async def close(self):
                print("closed")

        signal.signal(signal.SIGINT, signal.default_int_handler)
        env = GymnasiumEnv(Slow())
        env.reset()
        try:
            env.step("x")
        except KeyboardInterrupt:
            print("interrupted")
        env.close()
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("cancelled\ninterrupted\nclosed\n", "", 0)


@pytest.mark.parametrize(
    "ending", ["", pytest.param("env.close()", marks=pytest.mark.long), pytest.param("del env", marks=pytest.mark.long)]
)
def test_nothing_is_left_and_nothing_is_said_at_the_end(ending):
    done = python(
        f"""
        import gymnasium, toolgym, subprocess, sys, time
        env = gymnasium.make("CodeInterpreter-v0")
        env.reset(seed=0)
        print(env.step({CALL!r})[0][0]["content"])
        print(time.monotonic())
        {ending}
        """
    )
    assert (done.stderr, done.returncode) == ("", 0)
    said, at = done.stdout.split()
    assert said == "42"
    assert time.monotonic() - float(at) < 30  # one clock for all programs


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program with every warning shown; it gets a process group of its own, which must be empty afterwards."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(textwrap.dedent(code))
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", file.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=300)
        except BaseException:
            os.killpg(process.pid, 9)
            process.wait()
            raise
    deadline = time.monotonic() + 60  # multiprocessing's resource tracker goes a moment after its parent
    while group_exists(process.pid):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.02)
    # On a machine that is busy, asyncio remarks in this mode that a step took long.
    stderr = re.sub(r"^Executing <.*> took [0-9.]+ seconds\n", "", stderr, flags=re.MULTILINE)
    return subprocess.CompletedProcess([], process.returncode, stdout, stderr)


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_toolgym_make_gives_the_env_that_gymnasium_wraps(toy_id, toy_env):
    env = gymnasium.make(toy_id)
    assert type(env.unwrapped.base_env) is type(toolgym.make(toy_id)) is toy_env
    env.close()


def test_a_reward_that_is_not_finite_is_a_failure(toy_env):
    class Odd(toy_env):
        async def step(self, action):
            return (await super().step(action))._replace(reward=float("nan"))

    env = GymnasiumEnv(Odd())
    env.reset(seed=1)
    with pytest.raises(EpisodeFailedError, match="not finite: nan"):
        env.step("hello")
    env.close()
    envs = ToolVectorEnv([Odd, toy_env])
    envs.reset(seed=1)
    with pytest.raises(VectorEnvError, match="step failed in env 0; .*not finite: nan"):
        envs.step(("hello", "hello"))
    envs.close()
