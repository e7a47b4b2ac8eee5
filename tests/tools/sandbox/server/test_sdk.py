"""SandboxFusion's official client, unchanged, against our server."""

from __future__ import annotations

import asyncio
import base64
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about the pydantic that it uses
    sdk = pytest.importorskip("sandbox_fusion", reason="the SDK is not installed: pip install sandbox-fusion")


def run(url, code, language="python", **fields):
    request = sdk.RunCodeRequest(code=code, language=language, **fields)
    return sdk.run_code(request, endpoint=url, max_attempts=1, client_timeout=300)


def test_run_code(shared_url):
    good = run(shared_url, "print(input())", stdin="typed")
    assert (good.status, good.run_result.status, good.run_result.stdout) == ("Success", "Finished", "typed\n")
    assert good.run_result.cpu_time is not None
    bad = run(shared_url, "1/0")
    assert (bad.status, bad.run_result.return_code) == ("Failed", 1)
    late = run(shared_url, "while True: pass", run_timeout=0.5)
    assert (late.status, late.run_result.status, late.run_result.return_code) == ("Failed", "TimeLimitExceeded", None)


def test_files(shared_url):
    given = {"a.txt": base64.b64encode(b"abc").decode()}
    done = run(shared_url, "cat a.txt > b.txt", "bash", files=given, fetch_files=["b.txt"])
    assert base64.b64decode(done.files["b.txt"]) == b"abc"


def test_summaries(shared_url):
    mapping = sdk.SummaryMapping(
        Success="ok", Failed="no", CompileFailed="c", CompileTimeout="ct", RunFailed="r", RunTimeout="rt"
    )
    said = [
        sdk.summary_run_code_result(run(shared_url, code, language, run_timeout=seconds, compile_timeout=120), mapping)
        for code, language, seconds in (
            ("1", "python", 60),
            ("1/0", "python", 60),
            ("while True: pass", "python", 0.5),
            ("int main() {", "cpp", 60),
            ("int main() { return 1; }", "cpp", 60),
        )
    ]
    assert said == ["ok", "r", "rt", "c", "r"]


def test_run_jupyter(shared_url):
    request = sdk.RunJupyterRequest(cells=["a = 1", "a + 1", "1/0"])
    done = sdk.run_jupyter(request, endpoint=shared_url, max_attempts=1, client_timeout=300)
    assert done.status == "Success"
    assert done.cells[1].display == [{"text/plain": "2"}]
    assert done.cells[2].error[0]["ename"] == "ZeroDivisionError"


async def test_async_and_concurrent(shared_url):
    requests = [sdk.RunCodeRequest(code=f"print({n})", language="python") for n in range(20)]
    done = await asyncio.gather(*(sdk.run_code_async(one, endpoint=shared_url, max_attempts=1) for one in requests))
    assert [one.run_result.stdout for one in done] == [f"{n}\n" for n in range(20)]
    assert len(sdk.run_concurrent(sdk.run_code, args=[[requests[0]]] * 4, kwargs=[{"endpoint": shared_url}] * 4)) == 4
