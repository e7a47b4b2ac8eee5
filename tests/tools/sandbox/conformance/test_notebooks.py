"""What the cells of a session show beside their output, and what they leave for later cells, as notebooks do.

What is the same in Jupyter's own kernel is compared with it in `test_like_jupyter`.
"""

from __future__ import annotations

import pytest

from tests.tools.sandbox.conformance.sandbox_makers import ERROR, OK, TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_rich_display(session):
    result = await session.run_cell("class A:\n    def _repr_html_(self): return '<b>a</b>'\nA()")
    assert any(one.get("text/html") == "<b>a</b>" for one in result.display)
    result = await session.run_cell("class A:\n    def _repr_json_(self): return {'a': 1}, {'root': 'meta'}\nA()")
    assert result.display[0]["application/json"] == {"a": 1}


async def test_the_text_that_comes_with_other_forms_is_shown(session):
    await session.run_cell("class A:\n    def __init__(self, forms): self._repr_mimebundle_ = lambda **_: forms")
    result = await session.run_cell("A({'text/plain': 'own', 'text/html': '<b>'})")
    assert (result.result, *result.display) == ("own", {"text/plain": "own", "text/html": "<b>"})
    result = await session.run_cell("A({'text/plain': 'own'})")
    assert (result.result, result.display) == ("own", ())
    result = await session.run_cell("A({'text/plain': 1, 'text/html': '<b>'})")
    assert "A object at" in (result.result or "")


async def test_display_with_options(session):
    result = await session.run_cell("display({'text/plain': 'own', 'image/png': b'1'}, raw=True, display_id='a')")
    assert (result.status, result.display) == (OK, ({"text/plain": "own", "image/png": "MQ=="},))
    result = await session.run_cell("display({'text/html': '<b>', 'a/b': {1}}, {'text/html': 'c'}, raw=True)")
    left_out = {"text/html": "<b>", "text/plain": "\n[left out: its a/b, which is not JSON]"}
    assert result.display == (left_out, {"text/html": "c"})
    result = await session.run_cell("display({'text/html': '<b>'}, 'a', metadata={})")
    assert result.display == ({"text/plain": "{'text/html': '<b>'}"}, {"text/plain": "'a'"})


async def test_what_a_cell_has_shown_can_be_changed(session):
    result = await session.run_cell("shown = display('a', 1, display_id='x')\nshown.update(2)\nshown.display(3)\nshown")
    assert result.result == "<DisplayHandle display_id=x>"
    assert [one["text/plain"] for one in result.display] == ["'a'", "2", "3"]
    result = await session.run_cell("shown.update('later')\nshown.update('still later')")
    assert result.display == ({"text/plain": "'still later'"},)
    result = await session.run_cell("display(1)\ndisplay(2, clear=True)")
    assert result.display == ({"text/plain": "2"},)


async def test_what_claims_to_have_any_method_shows_as_text(session):
    result = await session.run_cell("from unittest.mock import MagicMock\nMagicMock()")
    assert (result.result or "").startswith("<MagicMock id=")
    assert result.display == ()


async def test_a_form_that_fails_is_left_out(session):
    code = "class A:\n    def __repr__(self): return 'A'\n    def _repr_html_(self): return 1 / 0\n"
    result = await session.run_cell(code + "    def _repr_latex_(self): return '$a$'\nA()")
    assert (result.status, result.result) == (OK, "A")
    assert result.display == ({"text/plain": "A", "text/latex": "$a$"},)
    assert result.stderr == "_repr_html_ raised ZeroDivisionError: division by zero\n"


_PRINTING_DISPLAY = """
import os
os.makedirs("IPython/core")
for name, code in {
    "__init__": "",
    "core/display_functions": "def display(*values): print(*values)\\ndef clear_output(wait=False): print(wait)",
    "display": "from IPython.core.display_functions import *",
}.items():
    with open(f"IPython/{name}.py", "w") as file:
        file.write(code)
"""


async def test_the_display_of_ipython_shows(session):
    """What stands in for it prints, as IPython's does outside of notebooks."""
    await session.run_cell(_PRINTING_DISPLAY)
    result = await session.run_cell("from IPython.display import display as show\nshow('a')")
    assert (result.stdout, result.display) == ("", ({"text/plain": "'a'"},))
    result = await session.run_cell(
        "import importlib, IPython.core.display_functions as f\nimportlib.reload(f).display(1)"
    )
    assert (result.stdout, result.display) == ("", ({"text/plain": "1"},))


async def test_output_is_cleared_as_by_ipython(session):
    await session.run_cell(_PRINTING_DISPLAY)
    result = await session.run_cell("from IPython.display import *\ndisplay(1)\nclear_output()\ndisplay(2)")
    assert (result.stdout, result.display) == ("", ({"text/plain": "2"},))
    code = "for n in range(3):\n    clear_output(wait=True)\n    display(n)\nclear_output(wait=True)"
    result = await session.run_cell(code)
    assert (result.stdout, result.display) == ("", ({"text/plain": "2"},))


_DRAWING = """
import os
os.makedirs("matplotlib")
for name, code in {
    "__init__": "",
    "figure": '''
class Figure:
    axes = lines = ()
    def __repr__(self): return f"<Figure of {len(self.axes)}>"
    def savefig(self, file, **_): file.write(self.axes[0])
''',
    "pyplot": '''
from matplotlib.figure import Figure
figures = {}
def figure(number): return figures[number]
def get_fignums(): return [*figures]
def close(_): figures.clear()
def show(): print("drawn for nobody")
def plot(data):
    one = figures.setdefault(1, Figure())
    one.axes = [*one.axes, data]
    return one
show.__signature__ = None
''',
}.items():
    with open(f"matplotlib/{name}.py", "w") as file:
        file.write(code)
"""


async def test_figures_are_shown_as_in_jupyter(session):
    """What stands in for matplotlib draws on the figure that is open, as that does, and shows it nowhere."""
    await session.run_cell(_DRAWING)
    one, two = ({"text/plain": f"<Figure of {count}>", "image/png": "MQ=="} for count in (1, 2))
    code = "from matplotlib import pyplot as plt\nfor _ in range(2):\n    plt.plot(b'1')\n    plt.show(block=True)\n5"
    result = await session.run_cell(code)
    assert (result.stdout, result.result, result.display) == ("", "5", (one, one))
    result = await session.run_cell("plt.show.__signature__ = None\nfig = plt.plot(b'1'); plt.plot(b'1');")
    assert result.display == (two,)
    assert (await session.run_cell("fig")).display == (two,)
    assert (await session.run_cell("display(fig, plt.Figure())")).display == (two, {"text/plain": "<Figure of 0>"})
    result = await session.run_cell("plt.plot(b'1')\n1 / 0")
    assert (result.status, result.display) == (ERROR, (one,))
    result = await session.run_cell("plt.plot('cannot be drawn');")
    assert result.error is not None
    assert (result.error.name, result.display) == ("TypeError", ())
    assert (await session.run_cell("1")).status is OK


async def test_a_name_of_the_programs_own_is_kept(session):
    await session.run_cell("from functools import partial as _\n'text'")
    assert (await session.run_cell("_.__name__")).result == "'partial'"
    assert (await session.run_cell("del _\n'echo'")).result == "'echo'"
    assert (await session.run_cell("_")).result == "'echo'"


async def test_an_await_that_is_stopped_does_not_go_on(session):
    code = "import asyncio\nwent = []\nasync def go():\n    try:\n        while True:\n            went.append(1)\n"
    code += "            await asyncio.sleep(0.01)\n    finally:\n        print('left')\nawait go()"
    for seconds in (0.5, 10):  # the second time for a busy machine, which may not have begun with it
        late = await session.run_cell(code, timeout=seconds)
        if late.stdout:
            break
    assert (late.status, late.stdout, late.alive) == (TIMEOUT, "left\n", True)
    assert late.error is not None
    assert late.error.name == "KeyboardInterrupt"
    assert "await go()" in late.error.traceback[1]
    await session.run_cell("went.clear(); await asyncio.sleep(0.1)")
    assert (await session.run_cell("went")).result == "[]"


async def test_what_was_never_awaited_is_told_without_a_place_of_ours(session):
    await session.run_cell("import asyncio\nasync def f(): pass")
    result = await session.run_cell("asyncio.create_task(f())")
    assert result.error is not None
    assert result.error.value == "no running event loop"
    assert result.stderr.startswith("<session>:1: RuntimeWarning: coroutine 'f' was never awaited\n")


async def test_places_of_displayed_values_and_of_clearing_are_reported(session):
    result = await session.run_cell(
        "print('a')\ndisplay(1)\nprint('b')\nfrom os import dup2, open, dup\ndisplay(2)\n[3]"
    )
    assert (result.stdout, result.display_offsets[:2]) == ("a\nb\n", (2, 4))
    result = await session.run_cell("display.__self__.clear_output(wait=True)\nprint('x')")
    assert (result.stdout, result.cleared) == ("x\n", 0)
    result = await session.run_cell("print('x')\ndisplay.__self__.clear_output()\ndisplay(3)")
    assert (result.cleared, result.display_offsets) == (2, (2,))


async def test_no_mark_goes_to_a_file_that_output_is_redirected_to(session):
    code = (
        "import os\nkept = os.dup(1)\nfile = os.open('out', os.O_CREAT | os.O_WRONLY)\nos.dup2(file, 1)\n"
        "display('value')\nprint('text')\nos.dup2(kept, 1)\nopen('out').read()"
    )
    assert (await session.run_cell(code)).result == "'text\\n'"
