"""A sandbox server with data sets, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import aiohttp
import pytest

from tests.tools.sandbox.served import serving
from toolgym.tools.integrations.sandbox_fusion.api import EvaluationApi
from toolgym.tools.integrations.sandbox_fusion.config import EvaluatingServerConfig
from toolgym.tools.sandbox.local import LocalSandbox

PROMPT = '''from typing import List


def scale(number: int) -> int:
    return number * 10


def scaled(numbers: List[int]) -> List[int]:
    """Scale each number.
    >>> scaled([1, 2])
    [10, 20]
    """
'''

HUMANEVAL = {
    "task_id": "own/0",
    "prompt": PROMPT,
    "entry_point": "scaled",
    "canonical_solution": "    return [scale(one) for one in numbers]\n",
    "test": "def check(candidate):\n    assert candidate([]) == []\n    assert candidate([3]) == [scale(3)]\n",
}
MULTIPLE = {
    "name": "own_1_cpp",
    "language": "cpp",
    "prompt": "#include <assert.h>\nlong twice(long n) {\n",
    "tests": "}\nint main() {\n    auto candidate = twice;\n    assert(candidate(4) == 8);\n}\n",
    "stop_tokens": ["\n}"],
}
MBPP = {
    "id": 7,
    "content": "Write a function that adds two numbers.",
    "labels": {"test_setup_code": "import math", "challenge_test_list": []},
    "code": "def sum(a, b): return a + b",
    "test_list": ["assert sum(1, 2) == 3", "assert math.isclose(sum(0.1, 0.2), 0.3)"],
}
OJ = {
    "id": 1,
    "content": "Print twice the number.",
    "labels": '{"difficulty": "easy"}',
    "test": [
        {"input": {"stdin": "2\n"}, "output": {"stdout": "4\n"}},
        {"input": {"stdin": "0.5\n"}, "output": {"stdout": "1.0\n"}},
        {"input": {"stdin": "7\n"}, "output": {"stdout": "14\n"}},
    ],
}
AUTO = {
    "id": "a",
    "content": "Write `total()`, the sum of the numbers in the file.",
    "labels": {"programming_language": "python", "context": "The file is numbers.txt."},
    "test": json.dumps({"asset": {"numbers.txt": "MSAyIDM="}, "code": "#<INSERT>\nassert total() == 6"}),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("datasets")
    sets = {"own_humaneval": [HUMANEVAL], "cpp": [MULTIPLE], "own_mbpp": [MBPP], "oj": [OJ], "auto": [AUTO]}
    for name, rows in sets.items():
        (made / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return made


@contextlib.contextmanager
def evaluating(**settings):
    """A server with the evaluation endpoints, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def start():
        sandbox = await stack.enter_async_context(LocalSandbox(preload=[]))
        server = serving(
            sandbox,
            config_class=EvaluatingServerConfig,
            routes_of=lambda app, config: EvaluationApi(app, config).routes(),
            **settings,
        )
        return (await stack.enter_async_context(server)).url

    yield asyncio.run_coroutine_threadsafe(start(), loop).result(180)
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(180)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture(scope="session")
def judge_url(folder):
    with evaluating(datasets=str(folder)) as url:
        yield url


@pytest.fixture
async def ask(judge_url):
    """Asks the server; returns the status and the answer."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as client:

        async def post(path, **body):
            async with client.request("POST" if body else "GET", f"{judge_url}/{path}", json=body or None) as response:
                return response.status, await response.json()

        yield post
