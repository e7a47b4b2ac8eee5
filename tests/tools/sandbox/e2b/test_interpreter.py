"""Cells in code contexts: results, streams of output, variables of one cell, languages, and interruption."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.tools.sandbox.e2b.conftest import printed


async def context(box, **fields):
    return await box.client.ask("POST", "/contexts", json=fields, headers=box.headers)


@pytest.fixture(params=["default", "further"])
async def where(request, box):
    """A context as the fields that name it: the session's interpreter, or a program beside it."""
    return {} if request.param == "default" else {"context_id": (await context(box))["id"]}


async def test_a_cell_has_output_and_a_value_and_keeps_its_state(box, where):
    lines = await box.cell("import sys, os\nx = 41\nprint('hi')\nprint('no', file=sys.stderr)\nos.getcwd()", **where)
    assert printed(lines) == "hi\n"
    assert printed(lines, "stderr") == "no\n"
    assert lines[-1] == {"type": "result", "is_main_result": True, "text": "/home/user"}
    assert (await box.cell("x + 1", **where))[-1]["text"] == "42"
    assert await box.cell("x = 1;", **where) == []


async def test_an_error_has_its_name_and_where(box, where):
    (line,) = await box.cell("def f():\n    return 1 / 0\nf()", **where)
    assert (line["type"], line["name"], line["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert "in f" in line["traceback"]


async def test_a_value_has_forms_and_others_are_displayed(box, where):
    code = (
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>bold</b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def _repr_e2b_data_(self): return {'n': [1]}\n"
        "    def _repr_e2b_chart_(self): return {'type': 'line'}\n"
        "    def __repr__(self): return 'rich'\n"
        "display(Rich()); display({'text/plain': 'p', 'my/type': [1]}, raw=True)\n"
        "Rich()"
    )
    first, second, last = await box.cell(code, **where)
    forms = {"type": "result", "text": "rich", "html": "<b>bold</b>", "png": "cG5n"}
    forms |= {"data": {"n": [1]}, "chart": {"type": "line"}}
    assert first == forms | {"is_main_result": False}
    assert (second["text"], second["extra"]) == ("p", {"my/type": [1]})
    assert last == forms | {"is_main_result": True}


@pytest.mark.long
async def test_a_data_frame_has_data_and_a_figure_a_chart_if_its_package_is_there(box):
    code = (
        "import pandas, decimal\n"
        "d, t = decimal.Decimal('.5'), pandas.Timestamp(0)\n"
        "display(pandas.DataFrame({'a': [1, 2], 2: [t, None], ('x', 'y'): [d, float('nan')]}))\n"
        "pandas.DataFrame({'a': range(40_001)})"
    )
    small, large = await box.cell(code)
    assert small["data"] == {"a": [1, 2], "2": ["1970-01-01T00:00:00", "NaT"], "('x', 'y')": ["0.5", None]}
    assert "data" not in large
    assert "40000" in large["text"]
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    (line,) = await box.cell(f"import sys; sys.modules['e2b_charts'] = None  # it cannot be imported\n{plot}")
    assert "chart" not in line
    assert line["png"]
    await box.write("e2b_charts.py", b"def chart_figure_to_dict(figure): return {'elements': len(figure.axes)}")
    (line,) = await box.cell(f"del sys.modules['e2b_charts']\n{plot}")
    assert line["chart"] == {"elements": 1}


async def test_variables_of_one_cell_end_with_it(box, where):
    code = "import os; os.environ.get('Q'), os.environ['HOME']"
    assert (await box.cell(code, env_vars={"Q": "it's"}, **where))[-1]["text"] == "(\"it's\", '/home/user')"
    assert (await box.cell(code, **where))[-1]["text"] == "(None, '/home/user')"


async def test_output_comes_while_a_cell_runs(box, where):
    await box.cell("1", **where)
    code = "import time, subprocess\nprint('first', flush=True)\nwhile True:\n    time.sleep(0.01)"
    body = {"code": code} | where
    async with box.client.http.post(f"{box.client.url}/execute", json=body, headers=box.headers) as response:
        line = json.loads(await response.content.readline())
        assert (line["type"], line["text"]) == ("stdout", "first\n")
    # The client is gone, which interrupts the cell; its context lives on.
    assert (await box.cell("time.__name__", **where))[-1]["text"] == "time"
    assert printed(await box.cell("subprocess.run('echo of a program', shell=True).returncode", **where)) == (
        "of a program\n"
    )


async def test_much_output_arrives_whole(box, where):
    lines = await box.cell("for n in range(100000): print(n)", **where)
    assert printed(lines) == "".join(f"{n}\n" for n in range(100_000))


async def test_contexts_share_files_and_no_variables(box):
    one, two = await context(box, cwd="/tmp"), await context(box, language="python")
    assert (one["language"], one["cwd"]) == ("python", "/tmp")
    await box.cell("x = 1; open('f', 'w').write('shared')", context_id=one["id"])
    (line,) = await box.cell("x", context_id=two["id"])
    assert line["name"] == "NameError"
    assert (await box.cell("open('/tmp/f').read()"))[-1]["text"] == "shared"
    listed = await box.client.ask("GET", "/contexts", headers=box.headers)
    assert {one["id"], two["id"]} < {row["id"] for row in listed}
    assert len(listed) == 3  # with the default one
    await box.client.ask("POST", f"/contexts/{one['id']}/restart", 204, headers=box.headers)
    (line,) = await box.cell("x", context_id=one["id"])
    assert line["name"] == "NameError"
    await box.client.ask("DELETE", f"/contexts/{one['id']}", 204, headers=box.headers)
    await box.client.ask("POST", "/execute", 404, json={"code": "1", "context_id": one["id"]}, headers=box.headers)
    await context_refused(box, cwd="/nope")


async def context_refused(box, **fields):
    refused = await box.client.ask("POST", "/contexts", 400, json=fields, headers=box.headers)
    assert "/nope" in refused["message"]


async def test_the_default_context_can_begin_anew(box):
    await box.cell("x = 1\nimport os; os.chdir('/tmp')")
    (row,) = await box.client.ask("GET", "/contexts", headers=box.headers)
    await box.client.ask("POST", f"/contexts/{row['id']}/restart", 204, headers=box.headers)
    (line,) = await box.cell("x")
    assert line["name"] == "NameError"
    assert (await box.cell("import os; os.getcwd()"))[-1]["text"] == "/home/user"


async def test_bash_keeps_its_state(box):
    lines = await box.cell("A=1; cd /tmp; echo out; echo err >&2", language="bash")
    assert (printed(lines), printed(lines, "stderr")) == ("out\n", "err\n")
    assert printed(await box.cell("echo $A $PWD $Q", language="bash", env_vars={"Q": "it's"})) == "1 /tmp it's\n"
    assert printed(await box.cell("echo $A $Q.", language="bash")) == "1 .\n"
    (line,) = await box.cell("exit 3", language="bash")
    assert line["name"] == "ContextEnded"
    assert printed(await box.cell("echo $A.", language="bash")) == ".\n"


async def test_cells_of_bash_share_no_names_with_the_loop_that_runs_them(box):
    async def run(code):
        lines = await box.cell(code, language="bash")
        return printed(lines), printed(lines, "stderr")

    assert await run("printf() { echo fake; }; eval() { echo fake; }; trap 'echo bye' EXIT; set -x") == ("", "")
    assert await run("printf") == ("fake\n", "+++ printf\n+++ echo fake\n")
    await run("set +x; exec >/dev/null 2>&1")
    assert await run("echo shown; compgen -v text; compgen -v __; read x; echo .$x") == ("shown\n.\n", "")
    assert (await run('echo "open'))[1].count("unexpected EOF") == 1


async def test_a_cell_that_ends_its_interpreter_is_an_error(box, where):
    if where:
        (line,) = await box.cell("import os; os._exit(1)", **where)
        assert line["name"] == "ContextEnded"
        assert (await box.cell("1 + 1", **where))[-1]["text"] == "2"


async def test_what_cannot_be_run_is_refused(box):
    ask = box.client.ask
    refused = await ask("POST", "/execute", 501, json={"code": "1", "language": "r"}, headers=box.headers)
    assert "'r'" in refused["message"]
    nul = {"code": "a\0b", "language": "bash"}
    for body in ({"code": 1}, {"code": "1", "context_id": "a", "language": "python"}, nul):
        await ask("POST", "/execute", 400, json=body, headers=box.headers)


async def test_the_end_of_a_sandbox_cuts_a_cell(client):
    box = await client.create()
    running = asyncio.create_task(box.cell("import time; time.sleep(60)"))
    await asyncio.sleep(0.5)
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)
    with pytest.raises(Exception, match="payload|disconnected|closed"):
        await asyncio.wait_for(running, 10)


@pytest.mark.long
async def test_a_client_that_reads_late_gets_all_lines(box, where):
    code = "import sys\nfor n in range(3000): print('x' * 5000)\nlen('end')"
    body = {"code": code} | where
    async with box.client.http.post(f"{box.client.url}/execute", json=body, headers=box.headers) as response:
        await asyncio.sleep(1.5)
        lines = [json.loads(line) for line in (await response.read()).splitlines()]
    assert printed(lines) == ("x" * 5000 + "\n") * 3000
    assert [line["type"] for line in lines[-3:]] == ["result", "number_of_executions", "end_of_execution"]


async def test_cells_may_take_any_name_and_any_output_for_themselves(box, where):
    await box.cell("exec = globals = open = 1\nimport sys, io\nkept, sys.stdout = sys.stdout, io.StringIO()", **where)
    assert await box.cell("print('to nobody')", **where) == []
    lines = await box.cell("sys.stdout = kept\nprint('back')\nexec", env_vars={"A": "1"}, **where)
    assert (printed(lines), lines[-1]["text"]) == ("back\n", "1")


async def test_bash_outlives_an_interrupted_cell(box):
    await box.cell("A=1", language="bash")
    body = {"code": "echo begun; sleep 60", "language": "bash"}
    async with box.client.http.post(f"{box.client.url}/execute", json=body, headers=box.headers) as response:
        assert json.loads(await response.content.readline())["text"] == "begun\n"
    assert printed(await box.cell("echo $A", language="bash")) == "1\n"


async def test_headers_of_a_cell_come_before_its_output(box):
    code = "import os, time\nwhile not os.path.exists('/home/user/released'): time.sleep(0.01)\n7"
    async with box.client.http.post(f"{box.client.url}/execute", json={"code": code}, headers=box.headers) as response:
        assert response.status == 200  # the cell is still waiting for the file
        await box.write("/home/user/released", b"")
        lines = (await response.text()).splitlines()
    assert [json.loads(line)["text"] for line in lines if '"result"' in line] == ["7"]
