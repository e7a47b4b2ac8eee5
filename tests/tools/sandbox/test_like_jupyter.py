"""Cells come to the same in a session as in Jupyter's own kernel, which runs beside it here."""

from __future__ import annotations

import os
import re
import sys

import pytest
import pytest_asyncio

from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local import LocalSandbox

jupyter = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:Proactor event loop"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PATIENCE = 120.0

ALIKE = {
    "names": ["x = 20\ndef f(n): return n + x", "f(22)", "y = 5; y", "x", "del x", "x", "import math\nmath.floor(2.5)"],
    "silence": ["1;", "'a;'  # why;", "f(1);", "None", "z: int = 6", "(w := 9)", "w", "if True: 3", "...", "print(1);"],
    "underscores": ["1", "_ + 1", "_, __", "_ = 5\n6", "_", "for _ in range(3): pass", "7", "_", "del _", "8", "_"],
    "output": [
        "import sys\nprint('out'); print('err', file=sys.stderr); print('no newline', end='')",
        "print('a\\rb'); 4; print('é')",
        "import logging\nlog = logging.getLogger('x'); log.addHandler(logging.StreamHandler(sys.stdout))",
        "log.warning('from the cell before')",
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as b: print('in')\nb.getvalue()",
        "!echo from the shell\n# no more\nprint('after')",
        "import warnings\ndef warn(): warnings.warn('twice')\nwarn(); warn()",
        "warn()",
        "import threading\nt = threading.Thread(target=print, args=('thread',)); t.start(); t.join()",
    ],
    "shell": [
        "v = 5\n!echo {v} '{v + 1}'\n!echo $v",
        "!echo 1 2 | awk '{print $2}'",
        "!echo '{1: 2}' {v}",
        "files = !echo a; echo b\nfiles == ['a', 'b']",
        "import os\nos.mkdir('d')\nos.chdir('d')\n!basename $PWD",
        "for name in ('a', 'b'):\n    !echo $name",
        "!echo one \\\n    two\nprint('three')",
        "text = '''\n!echo in a text\n%time\n'''\n!echo out of it\ntext",
        "a = [\n  7\n  % 4,\n]\n!echo and a list\na",
        "def g():\n    inner = 'local'\n    !echo {inner}\ng()",
        "!exit 3\n5",
        "x = 5 \\\n  % 3\n!true\nx",
    ],
    "layout": [
        "    a = 1\n    if a:\n        a = 2\n    a",
        "\n\n  5",
        "# only this",
        "",
        "pass",
        "'''text'''",
        "\n1\n# end",
    ],
    "errors": [
        "def f(z):\n    y = z - z\n    return 1 / y",
        "def g():\n    return f(3)\n\ng()",
        "import json\njson.loads('{')",
        "try:\n    {}['k']\nexcept KeyError:\n    undefined",
        "class Own(Exception):\n    def __str__(self): return 'two\\nlines'\nraise Own",
        "[1 / n for n in (1, 0)]",
        "exec('1 / 0')",
        "raise KeyboardInterrupt",
        "assert 1 == 2, 'why'",
        "g = 3\ng()",
        "import asyncio\nasync def late():\n    await asyncio.sleep(0)\n    raise ValueError('async')\nawait late()",
        "await asyncio.gather(late())",
        "class Odd:\n    def __repr__(self): raise ValueError('in repr')\nOdd()",
    ],
    "no Python": ["def f(:", "if True:\nx = 1", "print(1))", "x = = 3", "await 5", "return 5", "f?:"],
    "sources": [
        "import inspect, pickle\ndef f(a):\n    # said\n    return a + 1\nclass K:\n    def m(self): return 1",
        "print(inspect.getsource(f))",
        "pickle.loads(pickle.dumps(K())).m(), pickle.loads(pickle.dumps(f))(1)",
        "import __main__\n__main__.f is f, __name__, K.__module__",
        "from __future__ import annotations",
        "def q(a: Undefined): return 1\nq.__annotations__",
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    a: Undefined2 = 3\nD()",
        "open('mod.py', 'w').write('X = 1\\ndef double(x): return 2 * x')\nimport mod\nmod.X",
        "from multiprocessing import get_context\nwith get_context('spawn').Pool(1) as p: p.map(mod.double, [4])",
        "__file__",
        "open('mod.py', 'w').write('X = 22')\nimport importlib\nimportlib.reload(mod).X",
        "eval('1+1'), exec('zz = 3'), zz, locals() is globals()",
    ],
    "values": [
        "import numpy as np\nnp.arange(3)",
        "np.zeros((1000, 1000))",
        "np.set_printoptions(precision=2); np.array([1 / 3])",
        "class A:\n    def __repr__(self): return 'A'\n    def _repr_html_(self): return '<b>'\nA()",
        "display(A(), 1, 'a')",
        "[A()]",
        "class B(A):\n    def _repr_latex_(self): return '$b$'\n    def _repr_html_(self): return None\nB()",
        "class C(A):\n    def _repr_mimebundle_(self, **_): return {'text/plain': 'own', 'image/png': 'MQ=='}, {}\nC()",
        "class AttrDict(dict):\n    __getattr__ = dict.__getitem__\nAttrDict(a=1)",
        "class Proxy(A):\n    _repr_html_ = None\n    def __getattr__(self, name): return lambda *_: 'any'\nProxy()",
        "class N(A):\n    def _repr_html_(self): return '<n>'\n    def _repr_pdf_(self): return b'%PDF'\nN()",
        "class I(A):\n    def _ipython_display_(self): print('by itself')\nI()",
        "display(I())",
        "import enum, datetime, pathlib\ndatetime.date(2020, 1, 1), pathlib.Path('a')",
        "display(A(), include=['text/html'])",
        "display({'text/plain': 'raw', 'text/html': '<r>'}, raw=True)",
        "display()",
    ],
    "IPython": [
        "from IPython.display import HTML, Markdown, JSON, Latex, SVG, Javascript, display, publish_display_data",
        "HTML('<b>x</b>')",
        "display(Markdown('# a'), Latex('$x$'))\nJSON({'a': [1]})",
        "SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')",
        "Javascript('1')",
        "publish_display_data({'text/plain': 'x', 'text/html': 'y'})",
        "from IPython.display import display_html\ndisplay_html('<b>r</b>', raw=True)",
        "type(display(1, display_id=True)).__name__",
    ],
    "await": [
        "import asyncio\nasync def f(): return 5\nawait f()",
        "async def gen():\n    for i in range(3): yield i\n[i async for i in gen()]",
        "async for i in gen(): print(i)",
        "task = asyncio.create_task(f())\nawait task",
        "print(asyncio.get_running_loop().is_running())\nasync with asyncio.timeout(9): task = asyncio.current_task()\n"
        "task is asyncio.current_task()",
        "event = asyncio.Event()\ntask = asyncio.ensure_future(event.wait()); await asyncio.sleep(0)",
        "event.set(); await task",
        "await asyncio.wait_for(asyncio.sleep(5), 0.01)",
        "import contextvars\nseen = contextvars.ContextVar('seen', default=0)",
        "await asyncio.sleep(0); seen.set(4)\nseen.get()",
    ],
}
"""Cells by what they are about, for one kernel and one session."""


def tidied(text):
    """Without colours, addresses, and the names that a cell's file has."""
    if not isinstance(text, str):
        return text
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|0x[0-9a-f]{6,}", "", text).replace("\r\n", "\n")
    return re.sub(r"\S*ipykernel_\d+/\d+\.py|\b\d{6,}\.py|<cell \d+>", "CELL", text)


def tidied_forms(forms):
    return {mime: tidied(data) for mime, data in forms.items()}


def places_in_cells(places):
    in_cell = False
    for heading, number, line in places:
        if heading:
            in_cell = heading == "Cell In"
        elif in_cell:
            yield int(number), line.strip()


async def in_jupyter(client, code):
    came = {"stdout": "", "stderr": "", "result": None, "display": [], "error": None}
    asked = client.execute(code, allow_stdin=False, stop_on_error=False)
    while True:
        message = await client.get_iopub_msg(timeout=PATIENCE)
        content, kind = message["content"], message["msg_type"]
        if message["parent_header"].get("msg_id") != asked:
            continue
        if kind == "stream":
            came[content["name"]] += content["text"]
        elif kind == "execute_result":
            came["result"] = tidied(content["data"]["text/plain"])
            came["display"] += [tidied_forms(content["data"])] if len(content["data"]) > 1 else []
        elif kind == "display_data":
            came["display"].append(tidied_forms(content["data"]))
        elif kind == "error":
            text = tidied("\n".join(content["traceback"]))
            places = re.findall(r"^(Cell In|File ).*|^-+> (\d+) (.*)", text, re.MULTILINE)
            came["error"] = content["ename"], list(places_in_cells(places))
        elif kind == "status" and content["execution_state"] == "idle":
            return {**came, "stdout": tidied(came["stdout"]), "stderr": tidied(came["stderr"])}


async def in_session(session, code):
    came = await session.run_cell(code, timeout=PATIENCE)
    assert came.alive
    error = None
    if came.error is not None:
        text = "".join(came.error.traceback)
        places = re.findall(r'  File "<cell \d+>", line (\d+), in .*\n(.*)', text)
        error = came.error.name, [(int(number), line.strip()) for number, line in places]
        assert "toolgym" not in text
        assert "asyncio/base_events" not in text
    return {
        "stdout": tidied(came.stdout),
        "stderr": tidied(came.stderr),
        "result": tidied(came.result),
        "display": [tidied_forms(forms) for forms in came.display],
        "error": error,
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def session():
    pytest.importorskip("numpy")
    limits = Limits(memory_mb=800)
    async with LocalSandbox(limits=limits, preload=("numpy",), templates=1) as sandbox, await sandbox.session() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def kernel(tmp_path_factory):
    place = tmp_path_factory.mktemp("kernel")
    # Ports would be chosen here and taken by the kernel much later, when another process may have them.
    manager = jupyter.AsyncKernelManager(transport="ipc", ip=str(place / "socket"))
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    await manager.start_kernel(cwd=str(place), env={**os.environ, "IPYTHONDIR": str(place / ".ipython")})
    client = manager.client()
    try:
        client.start_channels()
        await client.wait_for_ready(timeout=PATIENCE)
        yield client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def same_but_for_what_is_meant(theirs, ours, code):
    """Theirs, with our error where only what is meant to differ does: a syntax error's place, and the frames that
    IPython takes from elsewhere for the first errors of a chain, and that it hides."""
    if theirs["error"] and ours["error"]:
        told_otherwise = "except KeyError" in code or code.startswith(("display(", "raise KeyboardInterrupt"))
        if told_otherwise or theirs["error"][0].endswith(("SyntaxError", "IndentationError")):
            return {**theirs, "error": (theirs["error"][0], ours["error"][1])}
    return theirs


@pytest.mark.parametrize("about", ALIKE)
async def test_cells_come_to_the_same_as_in_jupyter(session, kernel, about):
    for code in ALIKE[about]:
        theirs, ours = await in_jupyter(kernel, code), await in_session(session, code)
        assert ours == same_but_for_what_is_meant(theirs, ours, code), code
