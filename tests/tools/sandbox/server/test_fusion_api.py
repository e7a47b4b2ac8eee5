"""`/run_code` and `/run_jupyter` answer as SandboxFusion was seen to answer, except where `convert` says otherwise."""

from __future__ import annotations

import base64
import dataclasses
import json

import pytest

from toolgym.tools.sandbox.base import CellError, CellResult, ExecutionResult, ExecutionStatus
from toolgym.tools.sandbox.protocol.fusion import RunCodeResponse
from toolgym.tools.sandbox.protocol.messages import CellResponse
from toolgym.tools.serving.json_bodies import encode

PATIENCE = (0.5, 10.0)
"""Seconds after which a program is ended that should have printed by then. On a busy machine it may need the second."""


async def run(http, url, code, language="python", **fields):
    async with http.post(f"{url}/run_code", json={"code": code, "language": language, **fields}) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def jupyter(http, url, *cells, **fields):
    async with http.post(f"{url}/run_jupyter", json={"cells": list(cells), **fields}) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_success(shared_url, http):
    answer = await run(http, shared_url, "print(1+1)", run_timeout=20, unknown_field=1)
    assert {key: answer[key] for key in ("status", "message", "compile_result", "executor_pod_name", "files")} == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "executor_pod_name": None,
        "files": {},
    }
    result = answer["run_result"]
    assert (result["status"], result["return_code"], result["stdout"], result["stderr"]) == ("Finished", 0, "2\n", "")
    assert 0 < result["execution_time"] < 20


@pytest.mark.parametrize(
    ("code", "language", "return_code", "stderr"),
    [
        ("1/0", "python", 1, "ZeroDivisionError"),
        ("import sys; sys.exit(7)", "python", 7, ""),
        ("print('", "python", 1, "SyntaxError"),
        ("import ctypes; ctypes.string_at(0)", "python", -11, ""),
        ("exit 3", "bash", 3, ""),
        ("anything", "python_gpu", 127, "command not found"),
        ("x = '\ud800'", "python", 1, "Error"),
    ],
)
async def test_failure(shared_url, http, code, language, return_code, stderr):
    answer = await run(http, shared_url, code, language)
    assert answer["status"] == "Failed"
    assert answer["run_result"]["status"] == "Finished"
    assert answer["run_result"]["return_code"] == return_code
    assert stderr in answer["run_result"]["stderr"]


async def test_timeout_keeps_what_was_printed(shared_url, http):
    for seconds in PATIENCE:
        answer = await run(http, shared_url, "print('so far'); import time; time.sleep(60)", run_timeout=seconds)
        result = answer["run_result"]
        if result["stdout"]:
            break
    assert (answer["status"], result["status"], result["return_code"]) == ("Failed", "TimeLimitExceeded", None)
    assert result["stdout"] == "so far\n"
    assert 0.9 * seconds < result["execution_time"] < 30


async def test_no_time_is_exceeded_at_once(shared_url, http):
    answer = await run(http, shared_url, "print(1)", run_timeout=0)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")


async def test_memory_limit_is_the_programs_failure(shared_url, http):
    answer = await run(http, shared_url, "x = b'x' * (300 << 20)", memory_limit_MB=100)
    assert answer["status"] == "Failed"
    assert answer["run_result"]["return_code"] not in (0, None)
    assert "MemoryError" in answer["run_result"]["stderr"] or "memory" in answer["message"]


async def test_stdin_and_files(shared_url, http):
    code = "import sys; open('sub/out', 'w').write(open('sub/in').read() + sys.stdin.read()); raise SystemExit(1)"
    answer = await run(
        http,
        shared_url,
        code,
        stdin="typed",
        files={"sub/in": "Z2l2\nZW4g\n", "nothing": None, "IGNORE_THIS_FILE": "!"},
        fetch_files=["sub/out", "absent", "nothing"],
    )
    assert answer["status"] == "Failed"  # and the files are there all the same
    assert {name: base64.b64decode(data) for name, data in answer["files"].items()} == {"sub/out": b"given typed"}


async def test_what_cannot_be_fetched_is_told_and_the_program_runs(shared_url, http):
    outside = ["/mnt/b", "..", ".", ""]
    answer = await run(http, shared_url, "open('a', 'w').write('x')", fetch_files=["a", *outside])
    assert (answer["status"], list(answer["files"])) == ("Success", ["a"])
    assert answer["message"].startswith("not fetched: ")
    assert all(repr(name) in answer["message"] for name in outside)
    answer = await jupyter(http, shared_url, "open('a', 'w').write('x')", fetch_files=["a", *outside])
    assert (answer["status"], list(answer["files"])) == ("Success", ["a"])
    assert all(repr(name) in answer["message"] for name in outside)


async def test_files_that_do_not_fit_are_refused(shared_url, http):
    too_many = {f"d{n}/f": "" for n in range(2048)}
    for path, rest in (("run_jupyter", {"cells": ["1"]}), ("sessions", {})):
        async with http.post(f"{shared_url}/{path}", json={"files": too_many, **rest}) as response:
            assert response.status == 422
            assert (await response.json())["detail"][0]["loc"] == ["body", "files"]


async def test_compiled_language(shared_url, http):
    good = await run(http, shared_url, "int main() { return 3; }", "cpp", compile_timeout=60)
    assert (good["status"], good["compile_result"]["return_code"], good["run_result"]["return_code"]) == (
        "Failed",
        0,
        3,
    )
    bad = await run(http, shared_url, "int main() { return 3 }", "cpp", compile_timeout=60)
    assert (bad["status"], bad["run_result"]) == ("Failed", None)
    assert bad["compile_result"]["return_code"] == 1
    assert "expected" in bad["compile_result"]["stderr"]
    late = await run(http, shared_url, "int main() { return 3; }", "cpp", compile_timeout=0.001)
    assert (late["status"], late["run_result"]) == ("Failed", None)
    assert (late["compile_result"]["status"], late["compile_result"]["return_code"]) == ("TimeLimitExceeded", None)


async def test_odd_output_is_no_error(shared_url, http):
    code = "import os; os.write(1, b'\\xff\\x00\\n'); print('\\ud800')"
    answer = await run(http, shared_url, code)
    assert answer["run_result"]["stdout"].startswith("\ufffd\x00\n")


@pytest.mark.parametrize(
    ("body", "loc", "kind"),
    [
        ({"language": "python"}, ["body", "code"], "missing"),
        ({"code": "1"}, ["body", "language"], "missing"),
        ({"code": 1, "language": "python"}, ["body", "code"], "string_type"),
        ({"code": "1", "language": "cobol"}, ["body", "language"], "literal_error"),
        ({"code": "1", "language": "python", "run_timeout": "soon"}, ["body", "run_timeout"], "float_parsing"),
        ({"code": "1", "language": "python", "run_timeout": 1e9}, ["body", "run_timeout"], "less_than_equal"),
        (
            {"code": "1", "language": "python", "memory_limit_MB": 10**30},
            ["body", "memory_limit_MB"],
            "less_than_equal",
        ),
        ({"code": "1", "language": "python", "files": {"../x": ""}}, ["body", "files", "../x"], "value_error"),
        ({"code": "1", "language": "python", "files": {"/etc/x": ""}}, ["body", "files", "/etc/x"], "value_error"),
        ({"code": "1", "language": "python", "files": {"a\0b": ""}}, ["body", "files", "a\0b"], "value_error"),
        ({"code": "1", "language": "python", "files": {"\ud800": ""}}, ["body", "files", "\ufffd"], "value_error"),
        ({"code": "1", "language": "python", "files": {"x": "a"}}, ["body", "files", "x"], "base64_decode"),
        ({"code": "1", "language": "python", "files": {"x": "%%%"}}, ["body", "files", "x"], "base64_decode"),
        ({"code": "1", "language": "python", "files": {"x": "YQ==!"}}, ["body", "files", "x"], "base64_decode"),
        ({"code": "1", "language": "python", "run_timeout": -1}, ["body", "run_timeout"], "greater_than_equal"),
        ({"code": "1", "language": "cpp", "compile_timeout": -0.1}, ["body", "compile_timeout"], "greater_than_equal"),
        ({"code": "1", "language": "python", "files": {"x/": ""}}, ["body", "files", "x/"], "value_error"),
        ({"code": "1", "language": "python", "files": {"a/b": "", "a": ""}}, ["body", "files", "a/b"], "value_error"),
        (
            {"code": "1", "language": "python", "files": {"a/" * 64 + "b": ""}},
            ["body", "files", "a/" * 64 + "b"],
            "value_error",
        ),
        (
            {"code": "1", "language": "python", "files": {f"d{n}/f": "" for n in range(2048)}},
            ["body", "files"],
            "value_error",
        ),
        ({"code": "1", "language": "python", "fetch_files": ["a"] * 10_001}, ["body", "fetch_files"], "too_long"),
        ({"code": "1", "language": "python", "env": {f"{n}": 1 for n in range(10_001)}}, ["body", "env"], "too_long"),
        (
            {"code": "1", "language": "python", "files": {f"{n}": 1 for n in range(10_001)}},
            ["body", "files"],
            "too_long",
        ),
        ({"code": "1", "language": "python", "env": {"A": "\ud800"}}, ["body", "env", "A"], "value_error"),
        ({"code": "1", "language": "python", "env": {"A=B": "1"}}, ["body", "env", "A=B"], "value_error"),
        ("{", ["body", 1], "json_invalid"),
        ("", ["body"], "missing"),
        ("null", ["body"], "missing"),
        ("[" * 100_000, ["body", 0], "json_invalid"),
        ('{"code": "1", "language": "python", "run_timeout": NaN}', ["body", "run_timeout"], "finite_number"),
        ('{"code": "1", "language": "python", "run_timeout": 1e999}', ["body", "run_timeout"], "finite_number"),
        ('{"code": "1", "language": "python", "memory_limit_MB": %s}' % ("9" * 5000), ["body", 0], "json_invalid"),
        (b'{"code": "\xff"}', ["body", 0], "json_invalid"),
        ("[]", ["body"], "model_attributes_type"),
    ],
)
async def test_bad_requests_name_the_field(shared_url, http, body, loc, kind):
    data = json.dumps(body) if isinstance(body, dict) else body
    async with http.post(f"{shared_url}/run_code", data=data) as response:
        assert response.status == 422
        detail = (await response.json())["detail"]
    assert (detail[0]["loc"], detail[0]["type"]) == (loc, kind)
    assert detail[0]["msg"]


async def test_jupyter(shared_url, http):
    answer = await jupyter(
        http,
        shared_url,
        "a = 123",
        "a",
        "print(a)",
        "import sys; sys.stderr.write('stderr message')",
        "raise RuntimeError('error message')",
        "open('out', 'w').write(open('in').read() * 2)",
        files={"in": base64.b64encode(b"ab").decode()},
        fetch_files=["out", "absent"],
    )
    assert (answer["status"], answer["driver"]["status"], answer["driver"]["return_code"]) == ("Success", "Finished", 0)
    nothing = {"stdout": "", "stderr": "", "display": [], "error": []}
    cells = answer["cells"]
    assert cells[:4] == [
        nothing,
        {**nothing, "display": [{"text/plain": "123"}]},
        {**nothing, "stdout": "123\n"},
        {**nothing, "stderr": "stderr message", "display": [{"text/plain": "14"}]},
    ]
    assert (cells[4]["error"][0]["ename"], cells[4]["error"][0]["evalue"]) == ("RuntimeError", "error message")
    assert cells[4]["error"][0]["traceback"]
    assert cells[5]["display"] == [{"text/plain": "4"}]  # cells after an error still run
    assert base64.b64decode(answer["files"]["out"]) == b"abab"


@pytest.mark.parametrize("limit", ["total_timeout", "cell_timeout"])
async def test_jupyter_timeout_keeps_what_there_is(shared_url, http, limit):
    for seconds in PATIENCE:
        fields = {limit: seconds}
        answer = await jupyter(http, shared_url, "1", "print('x')\nimport time; time.sleep(60)", "3", **fields)
        if len(answer["cells"]) == 2 and answer["cells"][1]["stdout"]:
            break
    assert (answer["status"], answer["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert [cell["display"] for cell in answer["cells"]] == [[{"text/plain": "1"}], []]
    assert answer["cells"][1]["stdout"] == "x\n"


async def test_jupyter_whose_interpreter_dies_does_not_hang(shared_url, http):
    answer = await jupyter(http, shared_url, "1", "import os; os._exit(3)", "3", total_timeout=20)
    assert (answer["status"], answer["driver"]["status"]) == ("Failed", "Finished")
    assert answer["driver"]["return_code"] != 0
    assert len(answer["cells"]) == 2


async def test_jupyter_memory_limit(shared_url, http):
    answer = await jupyter(http, shared_url, "x = b'x' * (300 << 20)", memory_limit_MB=100)
    assert answer["status"] == "Failed" or answer["cells"][0]["error"][0]["ename"] == "MemoryError"


async def test_jupyter_without_time_or_cells(shared_url, http):
    late = await jupyter(http, shared_url, "1", total_timeout=0)
    assert (late["status"], late["driver"]["status"], late["cells"]) == ("Failed", "TimeLimitExceeded", [])
    empty = await jupyter(http, shared_url)
    assert (empty["status"], empty["cells"]) == ("Success", [])


@pytest.mark.parametrize(
    ("cells", "loc"), [("1", ["body", "cells"]), ([1], ["body", "cells", 0]), (None, ["body", "cells"])]
)
async def test_bad_jupyter_requests_name_the_field(shared_url, http, cells, loc):
    async with http.post(f"{shared_url}/run_jupyter", json={"cells": cells}) as response:
        assert (response.status, (await response.json())["detail"][0]["loc"]) == (422, loc)


async def test_other_pages(shared_url, http):
    async with http.get(f"{shared_url}/v1/ping") as response:
        assert (response.status, await response.json()) == (200, "pong")
    async with http.get(f"{shared_url}/") as response:
        assert (response.status, response.content_type) == (200, "text/html")
    async with http.get(f"{shared_url}/run_code") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    async with http.get(f"{shared_url}/nowhere") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
    async with http.get(f"{shared_url}/worker/metrics") as response:
        assert response.status == 404
    async with http.get(f"{shared_url}/health") as response:
        health = await response.json()
        assert (response.status, health["status"]) == (200, "ok")
        assert {"python", "bash"} <= set(health["languages"])


async def test_the_description_covers_sandboxfusions_fields(shared_url, http):
    async with http.get(f"{shared_url}/openapi.json") as response:
        description = await response.json()
    schemas = description["components"]["schemas"]
    fields = {name: schemas[name]["properties"] for name in schemas if "properties" in schemas[name]}
    code = fields["RunCodeRequest"]
    assert {name: code[name].get("default") for name in code} == {
        "compile_timeout": 10,
        "run_timeout": 10,
        "memory_limit_MB": -1,
        "code": None,
        "stdin": None,
        "language": None,
        "files": {},
        "fetch_files": [],
        "env": {},  # ours
    }
    assert schemas["RunCodeRequest"]["required"] == ["code", "language"]
    notebook = fields["RunJupyterRequest"]
    assert {name: notebook[name].get("default") for name in notebook} == {
        "cells": None,
        "cell_timeout": 0,
        "total_timeout": 45,
        "memory_limit_MB": -1,
        "kernel": "python3",
        "files": {},
        "fetch_files": [],
    }
    assert schemas["RunStatus"]["enum"] == ["Success", "Failed", "SandboxError"]
    assert schemas["CommandRunStatus"]["enum"] == ["Finished", "Error", "TimeLimitExceeded"]
    used = set(json.dumps(description["paths"]).split('"#/components/schemas/')[1:])
    assert {name.partition('"')[0] for name in used} <= set(schemas)


LIMITS = {status for status in ExecutionStatus if status.value.endswith("_limit")} - {ExecutionStatus.CPU_LIMIT}
STATUSES = [status for status in ExecutionStatus if status is not ExecutionStatus.COMPILE_ERROR]


@pytest.mark.parametrize("status", STATUSES)
def test_results_come_back_from_messages_as_they_were(status):
    code = {ExecutionStatus.OK: 0, ExecutionStatus.ERROR: 2, ExecutionStatus.KILLED: -11}.get(status)
    result = ExecutionResult(
        status, "out", "err", 1.5, stdout_truncated=True, return_code=code, cpu_seconds=0.1, memory_bytes=5,
        files={"a": b"\xff"},
    )  # fmt: skip
    message = RunCodeResponse.model_validate_json(encode(RunCodeResponse.of(result)))
    back = message.result()
    assert back.status is status
    if status is not ExecutionStatus.SANDBOX_ERROR:
        assert dataclasses.replace(back, message="") == result
        assert bool(back.message) == (status in LIMITS)


def test_a_failed_compilation_comes_back_as_one():
    compiled = ExecutionResult(ExecutionStatus.ERROR, stderr="bad", return_code=1)
    result = ExecutionResult(ExecutionStatus.COMPILE_ERROR, stderr="bad", return_code=1, compile=compiled)
    assert RunCodeResponse.of(result).result() == result


def test_sandboxfusions_own_answers_can_be_read():
    run_result = {"status": "Finished", "execution_time": 0.1, "return_code": -9, "stdout": "a", "stderr": ""}
    message = RunCodeResponse(status="Failed", message="", run_result=run_result)
    assert message.result().status is ExecutionStatus.KILLED


def test_cells_come_back_from_messages_as_they_were():
    cell = CellResult(
        ExecutionStatus.ERROR, "o", "e", 0.5, result="1", display=({"text/html": "<b>"},),
        error=CellError("E", "v", ("t",)), alive=False,
    )  # fmt: skip
    message = CellResponse.model_validate_json(encode(CellResponse(cell)))
    assert message.root == cell


def test_what_json_cannot_hold_is_mended():
    deep = nested = {}
    for _ in range(5000):
        nested["x"] = nested = {}
    cell = CellResult(ExecutionStatus.OK, "\ud800", display=({"n": float("nan"), "d": deep, "\udfff": 1 << 70},))
    read = json.loads(encode(CellResponse(cell)))
    assert (read["stdout"], read["display"][0]["n"], read["display"][0]["\ufffd"]) == ("\ufffd", None, 1 << 70)
