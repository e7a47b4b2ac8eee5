"""The tests that the project's founding document asks for, by its names, and those of the execution pool."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
import time
from functools import partial

import cloudpickle
import psutil
import pytest

from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.envs.tasks.task import Task
from toolgym.tools import CodeInterpreterTool, from_config
from toolgym.tools.concurrency.eager_task import ExitError
from toolgym.tools.concurrency.execution_pool import PoolMode, init_execution_pool
from toolgym.tools.errors import ConfigError, SandboxError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a pool's process then need not import this module

TASK = Task(({"role": "user", "content": "go"},), ground_truth="4")


def call(code):
    import json

    return f"<tool_call>{json.dumps({'name': 'code_interpreter', 'arguments': {'code': code}})}</tool_call>"


def test_tools_registration():
    [tool] = from_config(
        {
            "tools": [
                {
                    "class_name": "toolgym.tools.CodeInterpreterTool",
                    "config": {
                        "num_workers": 10,
                        "enable_global_rate_limit": True,
                        "rate_limit": 10,
                        "default_timeout": 30,
                        "default_language": "python",
                    },
                    "tool_schema": {
                        "type": "function",
                        "function": {
                            "name": "code_interpreter",
                            "description": "A tool for executing code.",
                            "parameters": {
                                "type": "object",
                                "properties": {"code": {"type": "string", "description": "The code to execute."}},
                                "required": ["code"],
                            },
                            "strict": False,
                        },
                    },
                }
            ]
        }
    )
    assert isinstance(tool, CodeInterpreterTool)
    assert tool.name == "code_interpreter"
    assert tool.get_openai_tool_schema()["function"]["strict"] is False


async def test_tool_call_basic_case():
    async with CodeInterpreterEnv([TASK]) as env:
        await env.reset()
        result = await env.step(call("print(2 + 2)"))
        assert [m["content"] for m in result.obs] == ["4"]
        assert (await env.step("#### 4")).reward == 1.0


async def test_tool_call_batch_case():
    tool = CodeInterpreterTool()
    envs = [CodeInterpreterEnv([TASK], tools=[tool], own_tools=False) for _ in range(32)]
    await asyncio.gather(*(env.reset() for env in envs))
    results = await asyncio.gather(*(env.step(call(f"x = {n}\nprint(x * x)")) for n, env in enumerate(envs)))
    assert [r.obs[0]["content"] for r in results] == [str(n * n) for n in range(32)]
    again = await asyncio.gather(*(env.step(call("x")) for env in envs))
    assert [r.obs[0]["content"] for r in again] == [str(n) for n in range(32)]
    await asyncio.gather(*(env.close() for env in envs))
    await tool.close()


MODES = pytest.mark.parametrize("mode", list(PoolMode))


def explode():
    raise ValueError("rotten")


@MODES
async def test_rotten_execution(mode):
    """The limiter recovers from functions that raise, and from workers that die."""
    pool = init_execution_pool(1, rate_limit=1, mode=mode)
    for _ in range(3):
        with pytest.raises(ValueError, match="rotten"):
            await pool.execute(explode)
    if mode is PoolMode.ProcessMode:
        with pytest.raises(SandboxError, match="died"):
            await pool.execute(os._exit, 1)
    assert await asyncio.wait_for(pool.execute(lambda: 7), 120) == 7
    await pool.close()


class TestSingleNodeRateLimiterCase:
    """The rate limit on one machine."""

    async def test_the_limit_holds_for_all_pools_together(self):
        running = peak = 0
        lock = threading.Lock()

        def work():
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)
            time.sleep(0.02)
            with lock:
                running -= 1

        pools = [init_execution_pool(8, rate_limit=3) for _ in range(3)]
        await asyncio.gather(*(pool.execute(work) for pool in pools for _ in range(10)))
        assert peak == 3
        for pool in pools:
            await pool.close()

    async def test_first_come_first_served(self):
        order = []
        pool = init_execution_pool(1, rate_limit=1)
        await asyncio.gather(*(pool.execute(order.append, n) for n in range(50)))
        assert order == list(range(50))
        await pool.close()

    async def test_it_can_be_switched_off(self):
        pool = init_execution_pool(6, enable_global_rate_limit=False, rate_limit=1)
        barrier = threading.Barrier(6, timeout=60)
        await asyncio.gather(*(pool.execute(barrier.wait) for _ in range(6)))  # all six at once, or it breaks
        await pool.close()

    async def test_num_workers_holds_without_it(self):
        pool = init_execution_pool(2, enable_global_rate_limit=False)
        started = time.monotonic()
        await asyncio.gather(*(pool.execute(time.sleep, 0.1) for _ in range(6)))
        assert time.monotonic() - started >= 0.3
        await pool.close()


@MODES
async def test_a_function_that_overruns_its_time(mode):
    pool = init_execution_pool(1, enable_global_rate_limit=False, mode=mode)
    await pool.execute(int)  # a process takes its time to start
    with pytest.raises(TimeoutError):
        await pool.execute(time.sleep, 10, timeout=0.2)
    assert await asyncio.wait_for(pool.execute(lambda: 7), 120) == 7
    await pool.close()


class UncopiedError(Exception):
    """Cannot be unpickled: its initializer wants what `Exception` does not keep."""

    def __init__(self, first, second):
        super().__init__(first)


def raising(error):
    raise error


def raising_uncopied():
    raise UncopiedError("rotten", 2)


@MODES
async def test_whatever_a_function_raises_is_told_and_the_worker_goes_on(mode):
    pool = init_execution_pool(1, enable_global_rate_limit=False, mode=mode)
    worker = await pool.execute(os.getpid)
    for function, kind, said in [
        (partial(next, iter([])), RuntimeError, "StopIteration"),
        (partial(raising, SystemExit(3)), ExitError, "SystemExit"),
        (partial(raising, KeyboardInterrupt()), ExitError, "KeyboardInterrupt"),
        (partial(raising, asyncio.CancelledError()), ExitError, "CancelledError"),
        (partial(raising, concurrent.futures.CancelledError()), RuntimeError, "CancelledError"),
        (partial(raising, TimeoutError("its own")), TimeoutError, "its own"),
    ]:
        with pytest.raises(kind, match=said):
            await asyncio.wait_for(pool.execute(function, timeout=60), 120)
        assert await pool.execute(os.getpid) == worker
    await pool.close()


async def test_what_cannot_travel_back_breaks_no_process():
    pool = init_execution_pool(1, enable_global_rate_limit=False, mode=PoolMode.ProcessMode)
    worker = await pool.execute(os.getpid)
    with pytest.raises(RuntimeError, match="UncopiedError: rotten"):
        await pool.execute(raising_uncopied)
    with pytest.raises(ConfigError, match="cannot be sent"):
        await pool.execute(threading.Lock)
    assert await pool.execute(os.getpid) == worker
    await pool.close()


@MODES
async def test_a_function_that_is_given_up_takes_neither_a_place_nor_others_with_it(mode):
    pool = init_execution_pool(2, enable_global_rate_limit=False, mode=mode)
    over = threading.Event()
    endless = (time.sleep, 60) if mode is PoolMode.ProcessMode else (over.wait, 60)
    await asyncio.gather(pool.execute(time.sleep, 0.1), pool.execute(time.sleep, 0.1))  # both workers are there
    innocent = asyncio.create_task(pool.execute(time.sleep, 0.5))
    stuck = asyncio.create_task(pool.execute(*endless))
    await asyncio.sleep(0.1)
    stuck.cancel()
    assert await asyncio.wait_for(pool.execute(lambda: 7), 120) == 7
    assert await innocent is None
    over.set()
    await pool.close()


async def test_wrong_use_is_told():
    with pytest.raises(ConfigError, match="num_workers"):
        init_execution_pool(0)
    with pytest.raises(ConfigError, match="mode"):
        init_execution_pool(1, mode="threads")
    pool = init_execution_pool(1, enable_global_rate_limit=False, mode=PoolMode.ProcessMode)
    with pytest.raises(ConfigError, match="cannot be sent"):
        await pool.execute(print, threading.Lock())
    await pool.close()


async def test_the_sandbox_starts_while_the_model_writes_its_first_turn(end_lingering):
    tool = CodeInterpreterTool({"memory_limit_mb": 777})
    local = tool.sandbox.local
    assert local.template_ids == []
    await tool.create()
    async with asyncio.timeout(60):
        while not local.template_ids:
            await asyncio.sleep(0.01)
    await tool.close()
    end_lingering()
    assert local.template_ids == []


async def test_closing_while_the_sandbox_starts_leaves_nothing_behind(end_lingering):
    before = {*psutil.Process().children(recursive=True)}
    for wait in (0, 0.05, 0.2):
        tool = CodeInterpreterTool({"memory_limit_mb": 777})
        local = tool.sandbox.local
        await tool.create()
        await asyncio.sleep(wait)
        await tool.close()
        end_lingering()
        assert local.template_ids == []
    async with asyncio.timeout(60):  # what a killed process leaves is collected by others, at their pace
        while not {*psutil.Process().children(recursive=True)} <= before:
            await asyncio.sleep(0.02)
