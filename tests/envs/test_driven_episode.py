"""`DrivenEpisode`: what ends an episode, and with which reason, for every caller that takes the turns itself."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.driven_episode import DrivenEpisode, EpisodeStage
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxError, SandboxUnavailableError
from toolgym.tools.message import user
from toolgym.wrappers.base import Wrapper

TASK = Task((user("q"),), id="q")


class Scripted(BaseEnv):
    """Gives one outcome after the other: a result, an error to raise, or "hang"."""

    def __init__(self, *outcomes, keeps_deadlines=False):
        self.outcomes = list(outcomes)
        self.keeps_deadlines = keeps_deadlines
        self.closed = False

    async def _next(self):
        outcome = self.outcomes.pop(0)
        if outcome == "hang":
            await asyncio.Event().wait()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def reset(self, *, seed=None, options=None):
        return await self._next() if self.outcomes and self.outcomes[0] is not None else [user("q")], {}

    async def step(self, action):
        return await self._next()

    async def truncate(self, reason, turn=None):
        return await self._next()

    async def close(self):
        self.closed = True


def result(reward=0.0, reason=None, done=None):
    return StepResult([], reward, reason is not None if done is None else done, {"stop_reason": reason})


async def begun(*outcomes, **options):
    env = Scripted(None, *outcomes)
    episode = DrivenEpisode(env, **options)
    await episode.reset()
    env.outcomes.pop(0)
    return episode


async def test_rewards_add_up_until_the_end():
    episode = await begun(result(0.25), result(1.0, StopReason.ANSWERED))
    assert (episode.stage, episode.over, episode.stop_reason) == (EpisodeStage.UNDER_WAY, False, None)
    await episode.step("a")
    await episode.step("b")
    assert (episode.reward, episode.steps, episode.stop_reason, episode.over) == (1.25, 2, StopReason.ANSWERED, True)
    with pytest.raises(EpisodeError, match=r"no episode is under way, for it is over \(answered\)"):
        await episode.step("c")


async def test_a_step_that_ends_without_a_reason_means_answered():
    episode = await begun(result(done=True))
    await episode.step("a")
    assert episode.stop_reason is StopReason.ANSWERED


FAILURES = [
    (ValueError("boom"), StopReason.ENV_FAILED, "ValueError: boom"),
    (ConfigError("no such action"), StopReason.ENV_FAILED, "ConfigError: no such action"),
    (SandboxError("no host"), StopReason.SANDBOX_FAILED, "SandboxError: no host"),
    (SandboxUnavailableError("no host"), StopReason.SANDBOX_FAILED, "SandboxUnavailableError: no host"),
    (EpisodeFailedError(StopReason.SCORE_FAILED, "no judge"), StopReason.SCORE_FAILED, "no judge"),
    ("hang", StopReason.ENV_TIMEOUT, "did not finish within 0.1 seconds"),
    (result(float("nan")), StopReason.ENV_FAILED, "not finite: nan"),
    (result(float("-inf"), StopReason.ANSWERED), StopReason.ENV_FAILED, "not finite: -inf"),
    (result("1"), StopReason.ENV_FAILED, "must be a finite number, got '1'"),
    (result(1.0, StopReason.TOOL_FAILED), StopReason.TOOL_FAILED, "the env ended the episode with tool_failed"),
    (result(1.0, "no reason", done=True), StopReason.ENV_FAILED, "ValueError"),
    (None, StopReason.ENV_FAILED, "AttributeError"),
]


@pytest.mark.parametrize(("outcome", "reason", "text"), FAILURES)
@pytest.mark.parametrize("call", ["step", "truncate"])
async def test_a_failed_step_names_its_reason(outcome, reason, text, call):
    episode = await begun(result(0.5), outcome, step_timeout=0.1)
    await episode.step("a")
    with pytest.raises(EpisodeFailedError, match=text) as raised:
        await (episode.step("b") if call == "step" else episode.truncate(StopReason.LENGTH, "b"))
    assert raised.value.stop_reason is episode.stop_reason is reason
    assert (episode.over, episode.reward, episode.steps) == (True, 0.5, 1)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ValueError("boom"), StopReason.RESET_FAILED),
        (SandboxError("no host"), StopReason.SANDBOX_FAILED),
        (EpisodeFailedError(StopReason.TOOL_FAILED, "no tool"), StopReason.TOOL_FAILED),
        ("hang", StopReason.ENV_TIMEOUT),
    ],
)
async def test_a_failed_reset_names_its_reason(outcome, reason):
    episode = DrivenEpisode(Scripted(outcome), reset_timeout=0.1)
    with pytest.raises(EpisodeFailedError):
        await episode.reset()
    assert (episode.over, episode.stop_reason) == (True, reason)
    await episode.reset()
    assert (episode.over, episode.stop_reason) == (False, None)


async def test_a_callers_mistake_about_a_reset_passes_through():
    episode = DrivenEpisode(Scripted(ConfigError("no such seed")))
    with pytest.raises(ConfigError, match="no such seed"):
        await episode.reset(seed=-1)
    assert (episode.over, episode.stop_reason) == (True, StopReason.RESET_FAILED)


async def test_a_truncated_episode_is_over_though_its_env_leaves_that_to_the_caller():
    episode = await begun(result(0.25), result(0.5))
    await episode.step("a")
    await episode.truncate(StopReason.BUDGET)
    assert (episode.stop_reason, episode.reward, episode.steps) == (StopReason.BUDGET, 0.75, 1)


async def test_a_cancelled_step_ends_the_episode():
    episode = await begun("hang")
    step = asyncio.ensure_future(episode.step("a"))
    await asyncio.sleep(0.01)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert (episode.over, episode.stop_reason) == (True, StopReason.ABORTED)


async def test_an_episode_that_is_closed_takes_no_step():
    with pytest.raises(EpisodeError, match="it was not reset yet"):
        await DrivenEpisode(Scripted()).step("a")
    episode = await begun(result())
    await episode.close()
    assert episode.env.closed
    assert episode.stop_reason is StopReason.ABORTED
    with pytest.raises(EpisodeError, match=r"it was closed \(aborted\)"):
        await episode.step("a")


async def test_one_step_may_have_a_deadline_of_its_own():
    episode = await begun("hang", step_timeout=600.0)
    with pytest.raises(EpisodeFailedError, match=r"within 0\.05 seconds"):
        await episode.step("a", timeout=0.05)


async def test_an_env_that_keeps_deadlines_gets_none(monkeypatch):
    monkeypatch.setattr("toolgym.envs.driven_episode.TIMEOUT", 0.05)

    class Slow(Scripted):
        async def step(self, action):
            await asyncio.sleep(0.2)
            return result(1.0)

    for keeps, reward in ((True, 1.0), (False, 0.0)):
        episode = DrivenEpisode(Slow(None, keeps_deadlines=keeps))
        await episode.reset()
        if keeps:
            await episode.step("a")
        else:
            with pytest.raises(EpisodeFailedError):
                await episode.step("a")
        assert episode.reward == reward


def test_who_keeps_deadlines():
    class Quick(ToolEnv):
        def respond(self, turn):
            return [user("go on")]

    class Unknown(ToolEnv):
        async def step(self, action):
            return await super().step(action)

    class Sure(Unknown):
        keeps_deadlines = True

        async def step(self, action):
            return await super().step(action)

    assert [kind.keeps_deadlines for kind in (BaseEnv, ToolEnv, Quick, Unknown, Sure)] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert Wrapper(Quick([], [TASK])).keeps_deadlines
    assert not Wrapper(Unknown([], [TASK])).keeps_deadlines
