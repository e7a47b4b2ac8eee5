"""Retries, shared limits and records: what is repeated, what waits, and what is written."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal

import pytest

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter, global_limiter
from toolgym.tools.errors import ConfigError, EpisodeError, ForkNotSupportedError, SandboxUnsupportedError
from toolgym.wrappers import RateLimit, Record, RetryOnInfraError, TurnLimit, Wrapper

QUICK = {"first_delay": 1e-3, "max_delay": 1e-3}


async def test_a_reset_is_repeated_with_the_task_that_it_drew(counting, counter, down, caplog):
    async with counting() as plain:
        tasks = [(await plain.reset(seed=5))[1]["task"].id, (await plain.reset())[1]["task"].id]
    async with RetryOnInfraError(counting(), **QUICK) as env:
        counter.open_failures = [down("gone"), down("gone")]
        with caplog.at_level(logging.WARNING, "toolgym.wrappers"):
            drawn = [(await env.reset(seed=5))[1]["task"].id]
        assert caplog.text.count("failed: SandboxUnavailableError: gone") == 2
        assert (await env.step("done")).info["metrics"]["infra_retries"] == 2
        counter.open_failures = [down("gone")]
        drawn.append((await env.reset())[1]["task"].id)
        assert drawn == tasks
        assert (await env.step("done")).info["metrics"]["infra_retries"] == 1
    assert counter.open_sessions == 0


async def test_the_last_failure_is_raised(counting, counter, down):
    async with RetryOnInfraError(counting(), attempts=2, **QUICK) as env:
        counter.open_failures = [down("third"), down("second"), down("first")]
        with pytest.raises(down, match="second"):
            await env.reset(seed=0)
        assert [str(one) for one in counter.open_failures] == ["third"]


@pytest.mark.parametrize(
    "error", [ConfigError("mine"), ValueError("mine"), SandboxUnsupportedError("mine"), ForkNotSupportedError("mine")]
)
async def test_what_will_not_pass_is_not_repeated(counting, counter, error):
    async with RetryOnInfraError(counting(), **QUICK) as env:
        counter.open_failures = [error]
        with pytest.raises(type(error), match="mine"):
            await env.reset()
        assert counter.opened == 1


async def test_an_env_that_names_the_sandbox_is_repeated(counting):
    class Fails(Wrapper):
        left = 1

        async def reset(self, **arguments):
            self.left -= 1
            if self.left >= 0:
                raise EpisodeFailedError(StopReason.SANDBOX_FAILED, "gone")
            return await self.env.reset(**arguments)

    async with RetryOnInfraError(Fails(counting()), **QUICK) as env:
        await env.reset()


async def test_a_step_is_left_alone_unless_asked(counting, counter, call, down):
    async with RetryOnInfraError(counting(), **QUICK) as env:
        await env.reset(seed=0)
        counter.call_failures = [down("gone")]
        result = await env.step(call(3))
        assert "not available now" in result.obs[0]["content"]
        assert result.info["tool_calls"][0].infra_failure
        assert result.info["metrics"]["infra_retries"] == 0


async def test_a_step_is_repeated_from_before_it(counting, counter, call, down):
    async with RetryOnInfraError(counting(), steps=True, **QUICK) as env:
        await env.reset(seed=0)
        assert (await env.step(call(1))).obs[0]["content"] == "1"
        counter.call_failures = [down("gone"), down("gone")]
        result = await env.step(call(3))
        assert (result.obs[0]["content"], result.info["metrics"]["infra_retries"]) == ("4", 2)  # not 7 or 10
        assert counter.open_sessions == 1
        result = await env.step("done")
        assert (result.reward, result.info["metrics"]["turn"]) == (0.04, 3)
    assert counter.open_sessions == 0


async def test_a_step_that_fails_every_time_says_so(counting, counter, call, down):
    async with RetryOnInfraError(counting(), attempts=2, steps=True, **QUICK) as env:
        await env.reset(seed=0)
        counter.call_failures = [down("gone")] * 5
        result = await env.step(call(3))
        assert "not available now" in result.obs[0]["content"]
        assert (len(counter.call_failures), counter.open_sessions) == (3, 1)
        counter.call_failures = []
        assert (await env.step(call(1))).obs[0]["content"] == "4"  # the state is that of the attempt that was given
        assert (await env.step("done")).info["metrics"]["turn"] == 3
    assert counter.open_sessions == 0


async def test_a_cancelled_step_leaves_no_fork_behind(counting, counter, call):
    async with RetryOnInfraError(counting(), steps=True) as env:
        await env.reset(seed=0)
        counter.hangs = True
        step = asyncio.ensure_future(env.step(call(1)))
        async with asyncio.timeout(60):
            while counter.open_sessions < 2:
                await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert counter.open_sessions == 1
    assert counter.open_sessions == 0


async def test_an_env_that_cannot_be_forked_says_so(counting, call):
    class Alone(Wrapper):
        async def fork(self):
            raise ForkNotSupportedError("alone")

    async with RetryOnInfraError(Alone(counting()), steps=True, **QUICK) as env:
        await env.reset()
        with pytest.raises(ForkNotSupportedError, match="alone"):
            await env.step(call(1))


class Crowd(BaseEnv):
    """Counts how many of its like run at once."""

    running = most = 0

    async def reset(self, *, seed=None, options=None):
        await self._run()
        return [{"role": "user", "content": "x"}], {}

    async def step(self, action):
        await self._run()
        return StepResult([], 0.0, False, {})

    async def _run(self):
        Crowd.running += 1
        Crowd.most = max(Crowd.most, Crowd.running)
        for _ in range(5):
            await asyncio.sleep(0)
        Crowd.running -= 1

    async def close(self):
        pass


@pytest.mark.parametrize(("of", "resets", "steps"), [("both", 2, 2), ("steps", 6, 2), ("resets", 2, 6)])
async def test_only_so_many_run_at_once(of, resets, steps):
    limiter = LocalRateLimiter(2)
    envs = [RateLimit(Crowd(), limiter, of=of) for _ in range(6)]
    for expected, calls in (
        (resets, [env.reset for env in envs]),
        (steps, [lambda e=env: e.step("x") for env in envs]),
    ):
        Crowd.most = 0
        await asyncio.gather(*(call() for call in calls))
        assert (Crowd.most, limiter.in_use) == (expected, 0)


async def test_envs_whose_limits_have_a_name_share_it():
    envs = [RateLimit(Crowd(), 3, name="of this test") for _ in range(6)]
    assert envs[0].limiter is global_limiter("of this test", 3)
    Crowd.most = 0
    await asyncio.gather(*(env.reset() for env in envs))
    assert Crowd.most == 3
    with pytest.raises(ConfigError, match="already 3"):
        RateLimit(Crowd(), 4, name="of this test")


async def test_who_stops_waiting_gives_up_the_place():
    limiter = LocalRateLimiter(1)
    lease = await limiter.acquire()
    waiting = asyncio.ensure_future(RateLimit(Crowd(), limiter).reset())
    while not limiter.waiting:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    lease.release()
    assert (limiter.waiting, limiter.in_use) == (0, 0)


@pytest.mark.parametrize(
    "arguments", [{"limit": 0}, {"limit": 1.5}, {"limit": 1, "of": "all"}, {"limit": 1, "name": 3}]
)
def test_limits_that_cannot_be(arguments):
    with pytest.raises(ConfigError):
        RateLimit(Crowd(), **arguments)


def episodes(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_every_episode_is_a_line(counting, call, tmp_path):
    path = tmp_path / "episodes.jsonl"
    async with Record(counting(), path) as env:
        _, info = await env.reset(seed=3)
        await env.step(call(2))
        await env.step(info["task"].ground_truth)
        [one] = episodes(path)
        assert (one["task"], one["seed"], one["stop_reason"], one["error"]) == (info["task"].id, 3, "answered", None)
        assert [message["role"] for message in one["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert one["actions"] == [call(2), info["task"].ground_truth]
        assert (one["rewards"], one["reward"]) == ([0.0, 1.02], 1.02)
        assert one["metrics"]["score"] == 1.0
        await env.reset()
        await env.step(call(1))
        await env.reset()  # breaks off the second
    assert [one["stop_reason"] for one in episodes(path)] == ["answered", None, None]  # close broke off the third
    await env.close()
    assert len(episodes(path)) == 3


async def test_a_step_that_raises_is_recorded(counting, tmp_path):
    class Breaks(Wrapper):
        async def step(self, action):
            raise EpisodeFailedError(StopReason.SANDBOX_FAILED, "gone")

    path = tmp_path / "episodes.jsonl"
    async with Record(Breaks(counting()), path) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError):
            await env.step("x")
    [one] = episodes(path)
    assert (one["stop_reason"], one["error"]) == ("sandbox_failed", "EpisodeFailedError: gone")


async def test_a_step_out_of_order_is_no_episode(counting, tmp_path):
    async with Record(counting(), tmp_path / "episodes.jsonl") as env:
        with pytest.raises(EpisodeError):
            await env.step("x")
    assert not (tmp_path / "episodes.jsonl").exists()


async def test_the_end_by_a_limit_is_recorded(counting, call, tmp_path):
    path = tmp_path / "episodes.jsonl"
    async with TurnLimit(Record(counting(), path), 2) as env:
        await env.reset(seed=0)
        await env.step(call(1))
        await env.step(call(2))
    [one] = episodes(path)
    assert (one["stop_reason"], one["rewards"]) == ("max_turns", [0.0, 0.03])


async def test_envs_and_forks_share_a_file(counting, call, tmp_path):
    path = tmp_path / "episodes.jsonl"
    envs = [Record(counting(), path) for _ in range(8)]

    async def play(env, number):
        await env.reset(seed=number)
        await env.step(call(number, "long " * 5000))
        async with await env.fork() as twin:
            await twin.step("twin \ud800")
        await env.step("origin")
        await env.close()

    await asyncio.gather(*(play(env, number) for number, env in enumerate(envs)))
    said = [one["actions"][-1] for one in episodes(path)]
    assert sorted(said) == ["origin"] * 8 + ["twin ?"] * 8
    assert {len(one["actions"]) for one in episodes(path)} == {2}


@pytest.mark.parametrize("path", ["no/such/folder/file.jsonl", ".", 3])
def test_files_that_cannot_be(counting, path):
    with pytest.raises(ConfigError, match="path must be"):
        Record(counting(), path)


async def test_a_record_that_cannot_be_written_is_an_error(counting, counter, tmp_path):
    (tmp_path / "sub").mkdir()
    env = Record(counting(), tmp_path / "sub" / "file")
    await env.reset()
    (tmp_path / "sub").rmdir()
    with pytest.raises(FileNotFoundError):
        await env.close()
    assert counter.open_sessions == 0


async def test_half_a_line_is_taken_back(counting, tmp_path):
    path = tmp_path / "episodes.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with Record(counting(), path) as env:
        await env.reset(seed=0)
        await env.step("first")
        await env.reset(seed=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))  # as a full disk does
        try:
            with pytest.raises(OSError, match="only 100 of"):
                await env.step("lost")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
        await env.reset(seed=0)
        await env.step("last")
    assert [one["actions"] for one in episodes(path)] == [["first"], ["last"]]
