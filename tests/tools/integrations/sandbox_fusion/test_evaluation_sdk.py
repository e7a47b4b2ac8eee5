"""SandboxFusion's official client, unchanged, against our evaluation endpoints."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from tests.tools.integrations.sandbox_fusion.conftest import MBPP

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about the pydantic that it uses
    sdk = pytest.importorskip("sandbox_fusion", reason="the SDK is not installed: pip install sandbox-fusion")
    models = pytest.importorskip("sandbox_fusion.models")

RIGHT = "```python\ndef sum(a, b):\n    return a + b\n```"


def config(**fields):
    return models.TestConfig(**fields)


def submit(url, completion, **fields):
    request = sdk.SubmitRequest(dataset="own_mbpp", id=7, completion=completion, config=config(**fields))
    return sdk.submit(request, endpoint=url, max_attempts=1, client_timeout=300)


def test_prompts(judge_url):
    prompts = sdk.get_prompts(sdk.GetPromptsRequest(dataset="own_mbpp", config=config()), endpoint=judge_url)
    assert [one.id for one in prompts] == [7]
    request = sdk.GetPromptByIdRequest(dataset="own_mbpp", config=config(), id="7")
    assert sdk.get_prompt_by_id(request, endpoint=judge_url) == prompts[0]
    given = config(dataset_type="MBPPDataset", provided_data=[MBPP, MBPP])
    assert len(sdk.get_prompts(sdk.GetPromptsRequest(dataset="mine", config=given), endpoint=judge_url)) == 2


def test_submit(judge_url):
    right, wrong = submit(judge_url, RIGHT), submit(judge_url, "```python\ndef sum(a, b): return 3\n```")
    assert (right.accepted, right.extracted_type, [one.passed for one in right.tests]) == (True, "fenced", [True, True])
    assert (wrong.accepted, [one.passed for one in wrong.tests]) == (False, [True, False])
    assert wrong.tests[1].exec_info.status == "Failed"


def test_submit_safe_gives_a_rejected_result_for_an_error(judge_url):
    request = sdk.SubmitRequest(dataset="none", id=7, completion=RIGHT, config=config())
    assert sdk.submit_safe(request, endpoint=judge_url, max_attempts=1).accepted is False


async def test_async_and_concurrent(judge_url):
    request = sdk.SubmitRequest(dataset="own_mbpp", id=7, completion=RIGHT, config=config())
    done = await asyncio.gather(*(sdk.submit_async(request, endpoint=judge_url, max_attempts=1) for _ in range(8)))
    assert all(one.accepted for one in done)
