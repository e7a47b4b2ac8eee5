"""`same_value`: answers compared by math-verify, in processes that a hang cannot leave."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal

import psutil
import pytest

from tests.envs.rewards.outcomes import outcome
from toolgym.envs import Score, StopReason
from toolgym.envs.rewards import math_answer, same_value
from toolgym.tools.errors import ConfigError, MissingExtraError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the extra math")

HANGS = r"\boxed{\sin(10^{1000000})}"


@pytest.fixture(autouse=True, scope="module")
def workers_end():
    yield
    math_answer._pool.end_idle()


@pytest.fixture
def no_workers():
    math_answer._pool.end_idle()


def processes():
    return [process for process in psutil.Process().children() if _is_worker(process)]


def _is_worker(process):
    try:
        return any(part.endswith("math_worker.py") for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):  # another test's, that has ended meanwhile
        return False


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        (r"so \boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        (r"the answer is $\frac{3}{6}$.", "1/2", 1.0),
        (r"\boxed{\{1, 2\}}", r"\{2,1\}", 1.0),
        (r"\boxed{(1,2]}", r"$(1, 2]$", 1.0),
        (r"\boxed{[1,2]}", r"(1,2)", 0.0),
        ("#### 7", 7.0, 1.0),
        (r"\boxed{8}", ["7", "8.0"], 1.0),
        (r"\boxed{3}", "4", 0.0),
        (r"<think>\boxed{4}</think>\boxed{3}", "4", 0.0),
        ("nothing", "5", 0.0),
        ("", "5", 0.0),
        ("5", None, 0.0),
        (r"\boxed{" + "(" * 30 + "}", "2", 0.0),
        (r"\boxed{18.9}", r"\$18.90", 1.0),
        ("18.90", r"\$18.90", 1.0),
        (r"\boxed{\$18.90}", r"\$18.90", 1.0),
        (r"\boxed{19}", r"\$18.90", 0.0),
        (r"\boxed{32348}", r"\$32,\!348", 1.0),
        (r"\boxed{5}", r"$\$5$", 1.0),
        (r"\boxed{5}", r"\\$5", 0.0),
        (r"\boxed{A.}", "A", 1.0),
        (r"\boxed{A}", "(A)", 1.0),
        ("A.", "A", 1.0),
        (r"\boxed{B.}", "A", 0.0),
        (r"\boxed{}", "2", 0.0),
        ("\ud800 \\boxed{2}", "2", 1.0),
        ("\\boxed{2\ud800}", "2", 0.0),
    ],
)
async def test_equal_as_mathematics(text, truth, score):
    assert (await same_value(timeout=60)(outcome(text, truth=truth))).value == score


async def test_a_comparison_that_does_not_end_is_no_right_answer_and_holds_nothing_up(no_workers):
    scorer = same_value(timeout=1.5)
    await scorer(outcome(r"\boxed{1.0}", truth="1"))  # the worker has started
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    score = await scorer(outcome(HANGS, truth="5"))
    ticking.cancel()
    assert score == Score(0.0, {"no_answer": 0.0, "unreadable": 0.0, "not_comparable": 1.0})
    assert ticks > 5
    assert processes() == []  # it was killed
    assert (await same_value(timeout=60)(outcome(r"\boxed{1.0}", truth="1"))).value == 1.0


async def test_a_worker_that_died_is_replaced(no_workers):
    scorer = same_value(timeout=60)
    await scorer(outcome(r"\boxed{1.0}", truth="1"))
    [worker] = processes()
    os.kill(worker.pid, signal.SIGKILL)
    assert (await scorer(outcome(r"\boxed{2.0}", truth="2"))).value == 1.0


async def test_a_comparison_that_is_cancelled_leaves_no_process(no_workers):
    scorer = same_value(timeout=60)
    await scorer(outcome(r"\boxed{1.0}", truth="1"))
    [worker] = processes()
    asking = asyncio.create_task(scorer(outcome(HANGS, truth="5")))
    async with asyncio.timeout(60):
        while math_answer._pool._idle:
            await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not worker.is_running()


async def test_many_comparisons_share_a_few_workers():
    scorer = same_value(timeout=60)
    scores = await asyncio.gather(*(scorer(outcome(rf"\boxed{{{n}.0}}", truth=str(n))) for n in range(20)))
    assert [score.value for score in scores] == [1.0] * 20
    assert 1 <= len(processes()) <= (os.cpu_count() or 1)


async def test_a_ground_truth_that_is_no_mathematics_is_the_users_error():
    with pytest.raises(ConfigError, match="cannot be read as mathematics"):
        await same_value()(outcome(r"\boxed{1}", truth="$$"))


async def test_an_episode_without_an_answer_scores_nothing():
    cut = outcome(r"\boxed{1}", truth="1", stop_reason=StopReason.MAX_TURNS)
    assert (await same_value()(cut)).value == 0.0


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("I do not know.", "no_answer"),
        (r"\boxed{}", "no_answer"),
        (r"\boxed{\frac{1}{}", "no_answer"),
        (r"\boxed{5 + }", "unreadable"),
        (r"\boxed{" + "9" * 9000 + "}", "unreadable"),
        (r"\boxed{6}", None),
        (r"\boxed{\text{six}}", None),
    ],
)
async def test_the_components_tell_what_cannot_be_read_from_what_is_wrong(text, remark):
    score = await same_value(timeout=60)(outcome(text, truth="5"))
    names = ("no_answer", "unreadable", "not_comparable")
    assert (score.value, score.components) == (0.0, {name: float(name == remark) for name in names})


def test_a_missing_extra_is_said_when_the_scorer_is_made(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"math"):
        same_value()
