"""The suite of all envs, on ours and on the example of an own one."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest

import toolgym
from tests.actors import call
from toolgym.envs import StopReason, Task, ToolEnv
from toolgym.envs.base import StepResult
from toolgym.testing import ConformanceError, EnvSuite, check_env
from toolgym.tools import tool
from toolgym.tools.errors import EpisodeError, ForkNotSupportedError
from toolgym.tools.sandbox.local import probe

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = [Task(({"role": "user", "content": str(n)},), ground_truth=str(n), id=str(n)) for n in range(50)]


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@tool
def double(number: int) -> str:
    """Multiply by two."""
    return str(number * 2)


class TestCodeInterpreter(EnvSuite):
    actions = (call("code_interpreter", code="x = 6 * 7\nx"), call("code_interpreter", code="x + 1"), "#### 42")
    forks = "namespaces" in probe()["levels"]

    @pytest.fixture
    def env(self):
        return toolgym.make("CodeInterpreter-v0")


class TestLetters(EnvSuite):
    actions = (call("spell", word="strawberry"), "3")
    forks = True

    @pytest.fixture
    def env(self):
        return example("own_env").LettersEnv()


class Sums(ToolEnv):
    """Keeps the contract; each class below breaks it in one way."""

    def __init__(self):
        super().__init__([double], TASKS)


class GoesOn(Sums):
    async def step(self, action):
        try:
            return await super().step(action)
        except EpisodeError:
            if self.task is None:
                raise
            return StepResult([], 0.0, True, {"stop_reason": StopReason.ANSWERED})


class NoInfo(Sums):
    async def reset(self, **arguments):
        return (await super().reset(**arguments))[0]


class NoMessages(Sums):
    async def reset(self, **arguments):
        _, info = await super().reset(**arguments)
        return [], info


class Everything(Sums):
    async def step(self, action):
        result = await super().step(action)
        return result._replace(obs=[dict(message) for message in self.messages])


class PlainTuple(Sums):
    async def step(self, action):
        return tuple(await super().step(action))


class NoNumber(Sums):
    async def step(self, action):
        return (await super().step(action))._replace(reward=float("nan"))


class OwnReason(Sums):
    async def step(self, action):
        result = await super().step(action)
        return result._replace(info={"stop_reason": "bored"}) if result.done else result


class EarlyReason(Sums):
    async def step(self, action):
        result = await super().step(action)
        return result._replace(info={"stop_reason": StopReason.MAX_TURNS})


class NeverEnds(Sums):
    async def step(self, action):
        self._over = False
        self._turn = 0
        result = await super().step(action)
        return result._replace(done=False, info={})


class Unseeded(Sums):
    """Takes one task after another, whatever the seed: drawn at random, two may be equal."""

    def __init__(self):
        super().__init__()
        self._next = itertools.cycle(TASKS)

    async def reset(self, *, seed=None, options=None):
        return await super().reset(options=options or {"task": next(self._next)})


class OtherTask(Sums):
    async def reset(self, *, seed=None, options=None):
        return await super().reset(seed=seed)


class TextOnly(Sums):
    async def step(self, action):
        result = await super().step(action)
        return result._replace(reward=float(isinstance(action, str)))


class StillOpen(Sums):
    async def close(self):
        self._over = False


class Twinless(Sums):
    async def fork(self):
        return self


class FreshTwin(Sums):
    """The fork begins another episode."""

    async def fork(self):
        twin = await super().fork()
        await twin.reset(seed=3)
        await twin.step(call("double", number=1))
        twin._calls_seen = 5
        return twin


ACTIONS = [call("double", number=4), "8"]
BROKEN = [
    (GoesOn, "step after the end of the episode raises EpisodeError; got StepResult"),
    (NoInfo, r"reset returns \(messages, info\)"),
    (NoMessages, "at least one"),
    (Everything, "only the new messages"),
    (PlainTuple, r"step returns StepResult\(obs, reward, done, info\)"),
    (NoNumber, "a reward is a finite number; got nan"),
    (OwnReason, "stop_reason is one of answered.*; got bored"),
    (EarlyReason, "stop_reason is None while the episode goes on; got max_turns"),
    (NeverEnds, "an episode ends within max_steps=8"),
    (Unseeded, r"reset\(seed=0\) twice begins the same"),
    (OtherTask, "begins with that task"),
    (TextOnly, "means the same as text, parsed turn and message"),
    (StillOpen, "step after close raises EpisodeError"),
    (Twinless, "fork returns another env"),
    (FreshTwin, "a fork goes on from the same state"),
]


async def test_an_env_that_keeps_the_contract_passes():
    await check_env(Sums(), ACTIONS, forks=True)
    await check_env(toolgym.make("CodeInterpreter-v0"), ["#### 42"])


@pytest.mark.parametrize(("broken", "said"), BROKEN)
async def test_a_broken_env_is_told_what_is_wrong(broken, said):
    with pytest.raises(ConformanceError, match=said):
        await check_env(broken(), ACTIONS, max_steps=8)


async def test_an_env_is_asked_before_its_first_reset():
    env = Sums()
    await env.reset()
    with pytest.raises(ConformanceError, match="step before reset raises EpisodeError; got StepResult"):
        await check_env(env, ACTIONS)


async def test_whether_it_forks_can_be_demanded():
    with pytest.raises(ConformanceError, match="fork raises ForkNotSupportedError; got"):
        await check_env(Sums(), ACTIONS, forks=False)

    class Alone(Sums):
        async def fork(self):
            raise ForkNotSupportedError("alone")

    await check_env(Alone(), ACTIONS)
    with pytest.raises(ConformanceError, match="fork: ForkNotSupportedError: alone"):
        await check_env(Alone(), ACTIONS, forks=True)
