"""The notebooks can be read as they are stored, and what executes them notices what is wrong with one."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def _module(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


execute = _module("execute")


def notebook(*outputs, source="1 + 1", count=1):
    """A notebook as it should be, with a single code cell."""
    cell = new_code_cell(source, execution_count=count, outputs=list(outputs))
    first, last = new_markdown_cell("# T\n\nYou will learn it."), new_markdown_cell("## Where to go on\n\n- There.")
    return new_notebook(cells=[first, cell, last])


def text(value, name="stdout"):
    return new_output("stream", name=name, text=value)


def shown(**data):
    return new_output("display_data", data={kind.replace("_", "/"): value for kind, value in data.items()})


def test_there_are_eight_in_their_order():
    assert [path.name[:3] for path in NOTEBOOKS] == [f"0{number}_" for number in range(1, 9)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_can_be_read_as_it_is_stored(path):
    assert execute.faults(nbformat.read(path, as_version=4), path.stat().st_size) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_somewhere(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    targets = [target for cell in cells for target in re.findall(r"\]\(([^)#\s]+)", cell.source)]
    assert targets
    assert [target for target in targets if "://" not in target and not (FOLDER / target).exists()] == []


def test_a_sound_notebook_has_no_faults():
    assert execute.faults(notebook(text("2\n")), 1000) == []


@pytest.mark.parametrize(
    ("outputs", "size", "fault"),
    [
        (notebook(), 1000, "it has no outputs"),
        (notebook(text("2"), count=None), 1000, "cells were not executed in their order"),
        (notebook(text("2"), count=7), 1000, "cells were not executed in their order"),
        (notebook(text("2")), 300_001, "300001 bytes"),
        (notebook(new_output("error", ename="E", evalue="boom", traceback=[])), 1000, "cell 1 raised E: boom"),
        (notebook(text("careful", name="stderr")), 1000, "cell 1 has a warning: 'careful'"),
        (notebook(text("x.py:3: UserWarning: careful")), 1000, "cell 1 has a warning"),
        (notebook(text("\x1b[1mbold\x1b[0m")), 1000, "cell 1 has codes for a terminal's colours"),
        (notebook(text("it is in /home/me/toolgym/x.py")), 1000, "a path of this machine: '/home/me/toolgym/x.py'"),
        (notebook(shown(text_html="<b>/tmp/tmpab12/x</b>")), 1000, "a path of this machine: '/tmp/tmpab12/x'"),
        (new_notebook(cells=notebook(text("2")).cells[1:]), 1000, "the first cell must have a title"),
        (new_notebook(cells=notebook(text("2")).cells[:-1]), 1000, "the last cell must be"),
    ],
)
def test_faults_are_found(outputs, size, fault):
    assert any(fault in line for line in execute.faults(outputs, size))


def test_only_what_differs_each_time_may_differ():
    old = notebook(text("took 1.25 s at http://127.0.0.1:30001, id 0123456789abcdef\n"))
    same = notebook(text("took 0.7 s at http://127.0.0.1:41234, id fedcba9876543210\n"))
    other, picture = notebook(text("took it away\n")), notebook(shown(image_png="iVBO"))
    assert execute.differences(old, same) == ([], [])
    assert execute.differences(old, other) == ([], [1])
    assert execute.differences(old, picture) == ([1], [])
    assert execute.differences(picture, notebook(shown(image_png="iVBP"))) == ([], [1])


def test_outputs_that_are_the_same_stay_as_they_are():
    old, same = notebook(text("in 12 ms")), notebook(text("in 31 ms"))
    execute.keep_unchanged(old, same)
    assert same.cells[1].outputs[0].text == "in 12 ms"
    other = notebook(text("never"))
    execute.keep_unchanged(old, other)
    assert other.cells[1].outputs[0].text == "never"


def test_a_notebook_runs_in_a_fresh_kernel_and_an_empty_folder():
    stored = notebook(text("?"), source="import os\nprint(os.listdir())")
    fresh = execute.execute(stored)
    assert fresh.cells[1].outputs == [text("[]\n")]
    assert stored.cells[1].outputs == [text("?")]
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute.execute(notebook(source="1 / 0"))


def test_a_server_that_does_not_start_says_why():
    servers = _module("sglang_servers").Servers("broken ones")
    servers.start(sys.executable, "-c", "import sys; sys.exit('no room on port ' + sys.argv[1])", "PORT")
    port = servers.urls[0].rpartition(":")[2]
    with pytest.raises(RuntimeError, match=f"no room on port {port}"):
        servers.wait()
    servers.close()
