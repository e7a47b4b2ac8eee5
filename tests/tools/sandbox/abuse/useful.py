"""Useful things that must still work inside, at least where namespaces carry the isolation."""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import NAMESPACES, Program, prints


def _works(name: str, code: str, text: str = "fine\n", **rest: object) -> Program:
    return Program(name, "works", code, judge=prints(text), **{"bare": "held", "timeout": 60.0, **rest})  # type: ignore[arg-type]


USEFUL: tuple[Program, ...] = (
    _works(
        "subprocess",
        "import subprocess\nprint(subprocess.run(['echo', 'fine'], capture_output=True, text=True).stdout, end='')",
        must=frozenset({"namespaces", "uid"}),
    ),
    _works(
        "python_in_a_subprocess",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, "
        "text=True).stdout, end='')",
        "42\n",
        must=NAMESPACES,
    ),
    _works(
        "process_pool",
        "import multiprocessing\ndef f(n): return n * n\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(f, range(4)))",
        "[0, 1, 4, 9]\n",
        must=NAMESPACES,
    ),
    _works(
        "spawned_pool",
        "import multiprocessing\ndef f(n): return n * n\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(f, range(4)))",
        "[0, 1, 4, 9]\n",
        must=NAMESPACES,
    ),
    _works(
        "shared_memory",
        "from multiprocessing import shared_memory\nm = shared_memory.SharedMemory(create=True, size=9)\n"
        "m.buf[:4] = b'fine'\nn = shared_memory.SharedMemory(m.name)\nprint(bytes(n.buf[:4]).decode())\n"
        "n.close(); m.close(); m.unlink()",
        must=NAMESPACES,
    ),
    _works(
        "threads",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as pool:\n"
        "    print(sum(pool.map(abs, range(-9, 0))))",
        "45\n",
    ),
    _works(
        "asyncio",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 'fine'\nprint(asyncio.run(f()))",
    ),
    _works(
        "sqlite",
        "import sqlite3\nc = sqlite3.connect('my.db')\nc.execute('create table t (n)')\n"
        "c.execute('insert into t values (42)')\nc.commit()\nprint(c.execute('select n from t').fetchone()[0])",
        "42\n",
    ),
    _works(
        "temporary_file",
        "import tempfile\nwith tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile('w+') as f:"
        "\n    f.write('fine'); f.seek(0); print(f.read())",
    ),
    _works(
        "files_of_its_own",
        "import os, shutil\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('fine')\n"
        "shutil.copytree('a', 'd')\nos.rename('d', 'e')\nos.chmod('e/b/c', 0o600)\nos.utime('e/b/c')\n"
        "print(open('e/b/c').read())\nshutil.rmtree('e')",
    ),
    _works("numpy", "import numpy as np\na = np.eye(50) * 2\nprint(int((a @ a).trace()))", "200\n", needs=("numpy",)),
    _works("sympy", "import sympy\nprint(sympy.factor('x**2-1'))", "(x - 1)*(x + 1)\n", needs=("sympy",), timeout=120),
    _works(
        "plot",
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt, os\nplt.plot([1, 2])\n"
        "plt.savefig('a.png')\nprint(os.path.getsize('a.png') > 1000)",
        "True\n",
        needs=("matplotlib",),
        timeout=120,
    ),
    _works("large_array", "data = bytearray(100 << 20)\nprint(len(data) >> 20)", "100\n"),
    _works(
        "system_files",
        "import os\nprint(len(os.listdir('/usr/bin')) > 10, os.path.exists('/etc/hosts'))",
        "True True\n",
    ),
    _works(
        "time_zone",
        "import datetime, zoneinfo\n"
        "print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris')).utcoffset())",
        "2:00:00\n",
    ),
    _works("local_time", "import time\nprint(time.localtime(0).tm_year in (1969, 1970))", "True\n"),
    _works("decimal_and_unicode", "from decimal import Decimal\nprint(Decimal('0.1') * 3, 'é日本')", "0.3 é日本\n"),
    _works(
        "pickle_of_its_own_class",
        "import dataclasses, inspect, pickle\n@dataclasses.dataclass\nclass A:\n    n: int\n"
        "print(pickle.loads(pickle.dumps(A(42))).n, 'class A' in inspect.getsource(A))",
        "42 True\n",
    ),
    _works(
        "user_and_home",
        "import getpass, os, pathlib\nh = pathlib.Path.home()\n(h / 'x').write_text('y')\n"
        "print(bool(getpass.getuser()), (h / 'x').read_text())",
        "True y\n",
    ),
    _works(
        "files_in_and_out",
        "print(open('in/a.txt').read())\nopen('out.txt', 'w').write('out')",
        files={"in/a.txt": b"fine"},
        fetch=("out.txt",),
    ),
    _works("standard_input", "print(input()[::-1])", stdin="enif\n"),
    _works(
        "loopback_server",
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
        "def serve():\n    c, _ = s.accept()\n    c.sendall(b'fine')\n    c.close()\n"
        "threading.Thread(target=serve).start()\n"
        "with socket.create_connection(s.getsockname()) as c: print(c.recv(9).decode())",
        network="loopback",
        must=NAMESPACES,
    ),
    _works("socket_pair", "import socket\na, b = socket.socketpair()\na.sendall(b'fine')\nprint(b.recv(9).decode())"),
    _works(
        "libraries",
        "import ctypes, ssl, hashlib, lzma, bz2, zlib, json, xml.etree.ElementTree, email, http.client\n"
        "print(hashlib.sha256(b'').hexdigest()[:4])",
        "e3b0\n",
    ),
)
