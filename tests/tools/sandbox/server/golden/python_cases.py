"""Programs in Python."""

from __future__ import annotations

from tests.tools.sandbox.server.golden.case import b64, run

OUTPUT = [
    run("hello", "print('hello')"),
    run("no_newline", "print('x', end='')"),
    run("unicode", "print('Grüße, 世界 🌍')"),
    run("stderr", "import sys; print('oops', file=sys.stderr)"),
    run("both_streams", "import sys; print('out'); print('err', file=sys.stderr); print('out2')"),
    run("carriage_returns", "print('a\\r\\nb\\rc')"),
    run("nul_in_output", "print('a\\0b')"),
    run("escape_codes", "print('\\x1b[31mred\\x1b[0m\\x07')"),
    run("empty", ""),
    run("blank", "\n  \n\n"),
    run("comment", "# nothing"),
    run("nothing_is_echoed", "1 + 1\n'text'"),
    run("60_kilobytes", "print('x' * 60_000)"),
    run("60_kilobytes_of_stderr", "import sys; sys.stderr.write('y' * 60_000)"),
    run("2000_lines", "for n in range(2000): print(n)"),
    run("300_kilobytes", "print('x' * 300_000)"),
    run("2_megabytes", "print('x' * 2_000_000)", run_timeout=2),
    run("buffer", "import sys; sys.stdout.buffer.write(b'bytes\\n')"),
    run("invalid_utf8", "import os; print('before', flush=True); os.write(1, b'\\xff\\xfe\\n'); print('after')"),
    run(
        "descriptors_and_streams",
        "import os; print('first', flush=True); os.write(1, b'second\\n'); os.write(2, b'3\\n')",
    ),
    run("child_process", "import subprocess; subprocess.run(['echo', 'from a child'])"),
    run("os_system", "import os; print(os.system('echo shell; exit 3') >> 8)"),
    run(
        "captured_child",
        (
            "import subprocess as s; print(s.run('echo x; echo y >&2; exit 2', shell=True, capture_output=True, "
            "text=True))"
        ),
    ),
    run(
        "child_python",
        "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'print(6*7)'], text=True))",
    ),
    run("warning", "import warnings\nwarnings.warn('careful')"),
    run("logging", "import logging\nlogging.warning('look')\nlogging.info('unseen')"),
    run("closed_stdout", "import sys\nsys.stdout.close()"),
    run("print_after_close", "import sys\nsys.stdout.close()\nprint(1)"),
    run("replaced_stdout", "import io, sys\nsys.stdout = io.StringIO()\nprint('unseen')"),
    run("lone_surrogate_printed", "print('\\ud800')"),
    run("at_exit", "import atexit\natexit.register(print, 'bye')\nprint('hi')"),
    run("flushed_at_exit", "import sys\nsys.stdout.write('no newline, no flush')"),
]

ERRORS = [
    run("zero_division", "def f(x):\n    return 1 / x\n\nprint('before')\nf(0)"),
    run("chained", "try:\n    {}['k']\nexcept KeyError:\n    int('x')"),
    run("raise_from", "try:\n    [][1]\nexcept IndexError as e:\n    raise RuntimeError('outer') from e"),
    run("custom_exception", "class Odd(Exception):\n    pass\nraise Odd('really', 3)"),
    run("assertion", "x = 3\nassert x == 4, f'x is {x}'"),
    run("syntax_error", "print('a')\nfor x in range(3) print(x)"),
    run("indentation_error", "def f():\nreturn 1"),
    run("unterminated_string", "print('abc"),
    run("name_error", "value = 1\nprint(valeu)"),
    run("attribute_error", "import math\nmath.squirt(4)"),
    run("missing_module", "import not_a_module_at_all"),
    run("type_error", "len(5)"),
    run("recursion", "def f(n):\n    return f(n + 1)\nf(0)"),
    run("exception_group", "raise ExceptionGroup('many', [ValueError(1), TypeError('two')])"),
    run("notes", "e = ValueError('v')\ne.add_note('a note')\nraise e"),
    run("multiline_statement", "x = (1 +\n     2 +\n     None)"),
    run("keyboard_interrupt", "raise KeyboardInterrupt"),
    run(
        "error_in_thread",
        "import threading\nt = threading.Thread(target=lambda: 1/0, name='T')\nt.start(); t.join()\nprint('on')",
    ),
    run("error_in_del", "class C:\n    def __del__(self): raise ValueError('late')\ndel (c := C())"),
    run("excepthook", "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1/0"),
    run("printed_traceback", "import traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()"),
    run("input_at_end", "input('name? ')"),
    run("nul_in_source", "print(1)\0print(2)"),
    run("tabs_and_spaces", "if 1:\n\tx = 1\n        y = 2"),
    run("bom", "\ufeffprint('bom')"),
    run("crlf_source", "print(1)\r\nprint(2)\r\n"),
    run("coding_line", "# -*- coding: utf-8 -*-\nprint('é')"),
    run("future_import", "from __future__ import annotations\ndef f(x: nope): pass\nprint(f.__annotations__)"),
    run("future_import_late", "x = 1\nfrom __future__ import annotations"),
    run("return_outside", "return 5"),
    run("await_outside", "await f()"),
    run("magic_is_no_python", "%matplotlib inline\nprint(1)"),
]

EXITS = [
    run("exit_0", "import sys; print('a'); sys.exit(0); print('b')"),
    run("exit_7", "import sys; sys.exit(7)"),
    run("exit_256", "import sys; sys.exit(256)"),
    run("exit_minus_1", "import sys; sys.exit(-1)"),
    run("exit_text", "import sys; sys.exit('said at the end')"),
    run("exit_none", "import sys; sys.exit()"),
    run("exit_true", "import sys; sys.exit(True)"),
    run("exit_float", "import sys; sys.exit(2.5)"),
    run("exit_tuple", "import sys; sys.exit((1, 2))"),
    run("exit_huge", "import sys; sys.exit(2 ** 80)"),
    run("system_exit", "raise SystemExit(4)"),
    run("exit_builtin", "exit(3)"),
    run("quit_builtin", "quit()"),
    run("os_exit", "import os; print('kept', flush=True); os._exit(5)"),
    run("os_exit_drops_buffers", "import os; print('lost'); os._exit(0)"),
    run(
        "exit_in_thread",
        "import sys, threading\nt = threading.Thread(target=sys.exit, args=(9,)); t.start(); t.join(); print('on')",
    ),
    run("exit_in_finally", "import sys\ntry:\n    1/0\nfinally:\n    sys.exit(6)"),
    run("exit_caught", "try:\n    exit(3)\nexcept SystemExit as e:\n    print('caught', e.code)"),
    run("abort", "import os; os.abort()", gist="last"),
    run("segfault", "import ctypes; ctypes.string_at(0)", gist="last"),
    run("kill_self", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    run("term_self", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    run("interrupt_self", "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(1)"),
    run("user_signal", "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); import time; time.sleep(1)"),
    run("alarm", "import signal, time; signal.alarm(1); time.sleep(5)"),
    run(
        "handled_signal",
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('handled'))\nos.kill(os.getpid(), 15)",
    ),
    run("broken_pipe", "import os\nr, w = os.pipe(); os.close(r)\nos.write(w, b'x')"),
    run(
        "threads_are_waited_for",
        (
            "import threading, time\ndef f():\n    time.sleep(.2); print('thread')\n"
            "threading.Thread(target=f).start()\nprint('main')"
        ),
    ),
    run(
        "daemon_threads_are_not",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('main')",
    ),
]

STDIN = [
    run("stdin_none", "import sys; print(repr(sys.stdin.read()))"),
    run("stdin_null", "import sys; print(repr(sys.stdin.read()))", stdin=None),
    run("stdin_empty", "import sys; print(repr(sys.stdin.read()))", stdin=""),
    run("stdin_line", "print(input()[::-1])", stdin="abc\n"),
    run("stdin_no_newline", "print(input(), 'end')", stdin="abc"),
    run("stdin_lines", "import sys\nprint([line for line in sys.stdin])", stdin="a\nb\n\nc"),
    run("stdin_numbers", "n = int(input())\nprint(sum(map(int, input().split())), n)", stdin="3\n1 2 3\n"),
    run("stdin_prompt", "x = input('x: ')\nprint(x)", stdin="1\n"),
    run("stdin_runs_out", "print(input()); print(input())", stdin="only\n"),
    run("stdin_unicode", "print(len(input()))", stdin="日本語\n"),
    run("stdin_crlf", "import sys; print(repr(sys.stdin.read()))", stdin="a\r\nb\r\n"),
    run("stdin_buffer", "import sys; print(sys.stdin.buffer.read())", stdin="a\0b"),
    run("stdin_50_kilobytes", "import sys; print(len(sys.stdin.read()))", stdin="x" * 50_000),
    run("stdin_unread", "print('done')", stdin="x" * 50_000),
    run("stdin_by_descriptor", "import os; print(os.read(0, 100)); print(open(0).read())", stdin="abc"),
    run("stdin_tty", "import sys; print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())"),
    run("stdin_to_child", "import subprocess; subprocess.run(['cat'])", stdin="for the child\n"),
]

TIME = [
    run("sleeps_too_long", "print('so far', flush=True)\nimport time; time.sleep(30)", run_timeout=0.5),
    run("unflushed_and_too_long", "print('so far')\nimport time; time.sleep(30)", run_timeout=0.5),
    run("loops", "while True: pass", run_timeout=0.5),
    run("ignores_signals", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(30)", run_timeout=0.5),
    run("no_time", "print(1)", run_timeout=0),
    run("negative_time", "print(1)", run_timeout=-3),
    run(
        "file_of_a_timed_out_program",
        "open('kept', 'w').write('x')\nimport time; time.sleep(30)",
        run_timeout=0.5,
        fetch_files=["kept"],
    ),
    run("compile_timeout_is_not_for_python", "print(1)", compile_timeout=0),
    run(
        "child_outlives",
        (
            "import subprocess\nsubprocess.Popen(['sleep', '30'], stdout=subprocess.DEVNULL, "
            "stderr=subprocess.DEVNULL)\nprint('gone')"
        ),
    ),
]

FILES = [
    run("file_in", "print(open('in.txt').read())", files={"in.txt": b64("content")}),
    run(
        "file_in_folder",
        "import os; print(open('a/b/c.txt').read(), os.listdir('a'))",
        files={"a/b/c.txt": b64("deep")},
    ),
    run("binary_file", "print(open('b', 'rb').read())", files={"b": b64(bytes([0, 255, 10, 128]))}),
    run("empty_file", "print(repr(open('e').read()))", files={"e": ""}),
    run("null_file", "import os; print(os.path.exists('n'))", files={"n": None}),
    run(
        "ignored_file",
        "import os; print(os.listdir('d') if os.path.isdir('d') else 'no folder')",
        files={"d/IGNORE_THIS_FILE": b64("x")},
    ),
    run("module", "import helper\nprint(helper.VALUE)", files={"helper.py": b64("VALUE = 42")}),
    run(
        "package",
        "from pack.mod import f\nprint(f())",
        files={"pack/__init__.py": "", "pack/mod.py": b64("def f(): return 'f'")},
    ),
    run(
        "error_in_module",
        "import helper\nhelper.f()",
        files={"helper.py": b64("def f():\n    raise ValueError('in helper')\n")},
    ),
    run(
        "data_beside_file",
        "import os; print(open(os.path.join(os.path.dirname(__file__), 'd')).read())",
        files={"d": b64("beside")},
    ),
    run(
        "odd_names",
        "import os; print(sorted(n for n in os.listdir() if not n.endswith('.py')))",
        files={"mit leer.txt": "", "ünï": "", "-x": "", ".hidden": ""},
    ),
    run("dotted_name", "print(open('a.txt').read())", files={"./a.txt": b64("dot")}),
    run(
        "file_is_writable",
        "import os; open('f', 'a').write('+'); print(open('f').read(), os.access('f', os.X_OK))",
        files={"f": b64("x")},
    ),
    run("outside_name", "print(1)", files={"../outside.txt": b64("x")}),
    run("not_base64", "print(repr(open('f', 'rb').read()))", files={"f": "!!!"}),
    run("base64_with_noise", "print(repr(open('f', 'rb').read()))", files={"f": "YW\nJj"}),
    run("bad_padding", "print(1)", files={"f": "YWJ"}),
    run("empty_name", "print(1)", files={"": b64("x")}),
    run("nul_in_name", "print(1)", files={"a\0b": b64("x")}),
    run("long_name", "print(1)", files={"x" * 300: b64("x")}),
    run("file_and_folder_collide", "print(1)", files={"a": b64("x"), "a/b": b64("y")}),
    run("fetch", "open('out.txt', 'w').write('result')", fetch_files=["out.txt"]),
    run("fetch_binary", "open('o', 'wb').write(bytes(range(256)))", fetch_files=["o"]),
    run("fetch_empty", "open('o', 'w')", fetch_files=["o"]),
    run("fetch_missing", "open('a', 'w').write('a')", fetch_files=["missing", "a", "no/such/folder"]),
    run("fetch_nested", "import os; os.makedirs('x/y'); open('x/y/z', 'w').write('deep')", fetch_files=["x/y/z"]),
    run("fetch_folder", "import os; os.mkdir('d'); open('d/f', 'w').write('x')", fetch_files=["d", "d/"]),
    run("fetch_dotted", "open('f', 'w').write('x')", fetch_files=["./f", "f", "f"]),
    run(
        "fetch_absolute",
        "import os; open('/tmp/golden_probe', 'w').write('x'); print(os.path.isabs(os.getcwd()))",
        fetch_files=["/tmp/golden_probe"],
    ),
    run("fetch_glob", "open('a.txt', 'w').write('x')", fetch_files=["*.txt", "*"]),
    run("fetch_after_failure", "open('f', 'w').write('kept'); raise SystemExit(3)", fetch_files=["f"]),
    run(
        "fetch_after_kill",
        "f = open('f', 'w'); f.write('kept'); f.close(); import os; os.kill(os.getpid(), 9)",
        fetch_files=["f"],
    ),
    run("fetch_what_was_given", "pass", files={"f": b64("same")}, fetch_files=["f"]),
    run("fetch_link", "import os; open('f', 'w').write('x'); os.symlink('f', 'l')", fetch_files=["l"]),
    run("fetch_link_outside", "import os; os.symlink('/etc/debian_version', 'l'); print(1)", fetch_files=["l"]),
    run("fetch_host_file", "print(1)", fetch_files=["/etc/debian_version"]),
    run("fetch_outside", "print(1)", fetch_files=["../../etc/debian_version"]),
    run("fetch_empty_name", "print(1)", fetch_files=[""]),
    run("fetch_unicode", "open('ünï', 'w').write('x')", fetch_files=["ünï"]),
    run("fetch_unreadable", "import os; open('f', 'w').write('x'); os.chmod('f', 0)", fetch_files=["f"]),
    run("deleted_itself", "import os; os.remove(__file__); print('gone', os.path.exists(__file__))"),
    run(
        "changed_folder", "import os; os.mkdir('s'); os.chdir('s'); open('f', 'w').write('x')", fetch_files=["f", "s/f"]
    ),
]

SURROUNDINGS = [
    run("main", "if __name__ == '__main__': print('main')"),
    run("names", "print(sorted(globals()))", versioned=True),
    run(
        "module_attributes",
        "print(__doc__, __package__, __spec__, __annotations__, __cached__, type(__builtins__).__name__)",
        versioned=True,
    ),
    run("loader", "print(type(__loader__).__name__)", versioned=True),
    run(
        "file_is_absolute",
        "import os; print(os.path.isabs(__file__), os.path.exists(__file__), __file__.endswith('.py'))",
    ),
    run("file_is_in_folder", "import os; print(os.path.dirname(os.path.abspath(__file__)) == os.getcwd())"),
    run("argv", "import sys; print(len(sys.argv), sys.argv[0] == __file__)"),
    run("path_0", "import os, sys; print(sys.path[0] == os.getcwd())"),
    run("own_source", "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))"),
    run("source_on_disk", "print(open(__file__).read())"),
    run(
        "pickle",
        (
            "import pickle\nclass A:\n    def __init__(self): self.x = 1\n"
            "print(pickle.loads(pickle.dumps(A())).x, A.__module__)"
        ),
    ),
    run(
        "dataclass", "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 2\nprint(P(1))"
    ),
    run(
        "encodings",
        "import sys; print(sys.stdin.encoding, sys.stdout.encoding, sys.stderr.encoding, sys.getfilesystemencoding())",
    ),
    run("stream_errors", "import sys; print(sys.stdin.errors, sys.stdout.errors, sys.stderr.errors)"),
    run(
        "stream_names",
        "import sys; print(sys.stdin.name, sys.stdout.name, sys.stderr.name, sys.stdout.mode, sys.stdin.fileno())",
        versioned=True,
    ),
    run(
        "stream_buffering",
        "import sys; print(sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.write_through)",
    ),
    run("flags", "import sys; print(sys.flags)", versioned=True),
    run("recursion_limit", "import sys; print(sys.getrecursionlimit())"),
    run("recursion_900_deep", "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(900))"),
    run(
        "recursion_limit_raised",
        "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(15000))",
    ),
    run(
        "threads_at_start",
        (
            "import threading; print(threading.active_count(), threading.current_thread().name, "
            "threading.main_thread() is threading.current_thread())"
        ),
    ),
    run(
        "signal_handlers",
        (
            "import signal; print(signal.getsignal(signal.SIGINT).__name__, signal.getsignal(signal.SIGTERM), "
            "signal.getsignal(signal.SIGPIPE))"
        ),
    ),
    run("warnings_filters", "import warnings; print(len(warnings.filters))", versioned=True),
    run("integer_text_limit", "import sys; print(sys.get_int_max_str_digits())"),
    run(
        "switch_interval",
        "import gc, sys; print(sys.getswitchinterval(), gc.isenabled(), gc.get_threshold())",
        versioned=True,
    ),
    run(
        "profilers",
        (
            "import sys; print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__, "
            "sys.displayhook is sys.__displayhook__)"
        ),
    ),
    run("executable", "import os, sys; print(os.path.isabs(sys.executable), os.access(sys.executable, os.X_OK))"),
    run("original_arguments", "import sys; print(len(sys.orig_argv))"),
    run("descriptors", "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:3])"),
    run(
        "user_can_write_tmp",
        "import os, tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x'); print(os.path.dirname(f.name))",
    ),
    run(
        "home_is_set",
        "import os; print(bool(os.environ.get('HOME')), bool(os.environ.get('PATH')), os.path.expanduser('~') != '~')",
    ),
    run("annotations", "x: int = 1\nprint(__annotations__)", versioned=True),
    run("type_hints", "import typing\nx: int = 1\nprint(typing.get_type_hints(__import__('__main__')))"),
    run("import_main", "import __main__\nx = 5\nprint(__main__.x, __main__.__name__)"),
    run(
        "runpy_and_reimport",
        (
            "import importlib, os\nname = os.path.basename(__file__)[:-3]\nif __name__ == '__main__':\n"
            "    importlib.import_module(name)\n    print('twice')\nelse:\n    print('as module')"
        ),
    ),
    run("exec_and_eval", "exec('y = 2'); print(eval('y + 1'))"),
    run(
        "asyncio",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01); return 'async'\nprint(asyncio.run(f()))",
    ),
    run(
        "pool",
        (
            "from multiprocessing import Pool\ndef f(x): return x * x\nif __name__ == '__main__':\n"
            "    with Pool(2) as p: print(p.map(f, range(5)))"
        ),
    ),
    run(
        "spawned_process",
        (
            "import multiprocessing as m\ndef f(q): q.put('spawned')\nif __name__ == '__main__':\n"
            "    c = m.get_context('spawn'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start(); "
            "print(q.get(timeout=8)); p.join()"
        ),
    ),
    run(
        "process_pool_executor",
        (
            "from concurrent.futures import ProcessPoolExecutor\nif __name__ == '__main__':\n"
            "    with ProcessPoolExecutor(2) as p: print(list(p.map(abs, [-1, -2])))"
        ),
    ),
    run(
        "sqlite",
        (
            "import sqlite3; c = sqlite3.connect('d.db'); c.execute('create table t(x)'); c.execute('insert into "
            "t values(3)'); print(c.execute('select * from t').fetchall())"
        ),
    ),
    run(
        "fork",
        (
            "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); os._exit(3)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        ),
    ),
    run(
        "thread_pool",
        (
            "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p: "
            "print(sum(p.map(lambda x: x * x, range(100))))"
        ),
    ),
    run(
        "loopback",
        (
            "import socket\ns = socket.create_server(('127.0.0.1', 0)); "
            "c = socket.create_connection(s.getsockname()); c.sendall(b'hi'); print(s.accept()[0].recv(2))"
        ),
    ),
    run(
        "decimal_and_locale",
        "import locale, decimal; print(locale.getlocale(), decimal.getcontext().prec)",
        versioned=True,
    ),
    run("big_integers", "print(len(str(2 ** 10000)), 10 ** 40)"),
    run("floats", "print(0.1 + 0.2, float('nan'), 1e308 * 10)"),
    run("seeded_random", "import random; random.seed(1); print(random.random())"),
    run("numpy", "import numpy as np\nprint(np.arange(6).reshape(2, 3).sum(axis=0))", needs="numpy"),
    run("numpy_error", "import numpy as np\nnp.zeros(3) @ np.zeros(4)", needs="numpy", gist="last"),
    run("memory_limit", "x = bytearray(500 << 20)\nprint(len(x))", memory_limit_MB=256),
    run("memory_limit_is_enough", "x = bytearray(50 << 20)\nprint(len(x))", memory_limit_MB=256),
    run(
        "memory_limit_and_thread",
        "import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()",
        memory_limit_MB=1024,
    ),
    run("memory_limit_and_numpy", "import numpy; print(numpy.ones(3).sum())", memory_limit_MB=1024, needs="numpy"),
    run("no_memory_limit", "print(1)", memory_limit_MB=0),
    run("negative_memory_limit", "print(1)", memory_limit_MB=-5),
]

PYTHON = [*OUTPUT, *ERRORS, *EXITS, *STDIN, *TIME, *FILES, *SURROUNDINGS]
