"""What a policy does to a repository, and code that it leaves there, so that tests cannot be run."""

from __future__ import annotations

COMMANDS = {
    "kill all later": "(sleep 0.3; kill -9 -1) >/dev/null 2>&1 &",
    "nested folders": "python3 -c \"import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')\"",
    "a link in place of the repository": "cd ..; mv repo other; ln -s / repo",
    "a file in place of the repository": "cd ..; rm -rf repo; touch repo",
    "no repository": "cd ..; rm -rf repo",
    "a repository that none may read": "chmod 000 .",
    "names that are no text": "python3 -c \"open(b'\\xff\\xfe.py', 'w')\"",
    "names with line breaks": "touch $'a\\nb.py' $'\\x01.py' '-rf.py'",
    "names of 250 bytes": "for n in $(seq 50); do touch $(printf '%0250d' $n); done",
    "a pipe in place of a file": "rm calc.py; mkfifo calc.py",
    "a socket in place of a file": 'rm calc.py; python3 -c "import socket; '
    "socket.socket(socket.AF_UNIX).bind('calc.py')\"",
    "a folder in place of a file": "rm calc.py; mkdir -p calc.py/calc.py; touch calc.py/calc.py/x",
    "a link in a circle": "ln -sf calc.py calc.py",
    "a link to a device": "ln -sf /dev/zero calc.py",
    "a sparse file": "truncate -s 50M calc.py",
    "a folder in place of a test": "rm -rf tests; mkdir -p tests/test_calc.py/x; touch tests/test_calc.py/x/y",
    "a file in place of the tests": "rm -rf tests; touch tests",
    "a full disk": "for n in $(seq 9); do head -c 60M /dev/zero > x$n; done 2>/dev/null; true",
    "no inodes": "for n in $(seq 40); do mkdir n$n; (cd n$n; touch $(seq 200)); done 2>/dev/null; true",
    "a broken history": "rm -rf ../.repo.git .git; mkdir .git; echo x > .git/HEAD",
    "other modes": "chmod -R 000 tests calc.py",
}

CODE = {
    "end the process": "import os; os._exit(0)\n",
    "raise SystemExit": "raise SystemExit(0)\n",
    "a syntax error": "def add(:\n",
    "NULs": "\0\0\0",
    "a package that is missing": "import no_such_package\n",
    "kill all": "import os; os.kill(-1, 9)\n",
    "stop all": "import os; os.kill(-1, 19)\n",
    "stop the parent": "import os; os.kill(os.getppid(), 19)\n",
    "kill the parent": "import os; os.kill(os.getppid(), 9)\n",
    "hang": "import time; time.sleep(600)\n",
    "use up the memory": "x = [bytearray(1 << 24) for n in range(1000)]\n",
    "use up the stack": "def f(): f()\nimport sys; sys.setrecursionlimit(10 ** 9); f()\n",
    "use up the processes": "import os, time\nwhile True:\n    try: os.fork() or time.sleep(600)\n    except "
    "OSError: pass\n",
    "use up the disk": "for n in range(9): open('x%d' % n, 'wb').write(b'x' * (60 << 20))\n",
    "crash": "import ctypes; ctypes.string_at(0)\n",
    "close all descriptors": "import os; os.closerange(0, 65536)\n",
    "print without end": "while True: print('x' * 1000, file=__import__('sys').stderr)\n",
    "skip the tests": "import unittest\ndef add(a, b): raise unittest.SkipTest\ndouble = add\n",
    "a test runner that finds nothing": "import unittest\nunittest.TestLoader.loadTestsFromName = lambda *a: "
    "unittest.TestSuite()\n",
    "a report of a failed start": "import sys, os\nfor fd in (1, 2):\n    try: os.write(fd, b'\\nnull "
    '"no_start"\\n\')\n    except OSError: pass\nos._exit(127)\n',
    "exit 126": "import os; os._exit(126)\n",
    "remove the repository": "import shutil; shutil.rmtree('.', ignore_errors=True)\n",
    "remove the tests": "import shutil; shutil.rmtree('tests', ignore_errors=True)\n",
    "no modules": "import sys; sys.modules.clear()\n",
    "other builtins": "import builtins; builtins.print = builtins.open = builtins.repr = None\n",
    "fork and report twice": "import os; os.fork()\n",
}
"""What stands in `calc.py`."""
