"""Programs that make a session, or what is left of it, hard to score. None of them leaves a right answer."""

from __future__ import annotations


def _python(program: str) -> str:
    return f"python3 - <<'EOF'\n{program}\nEOF"


def _later(command: str, seconds: float = 0.2) -> str:
    return f"(sleep {seconds}; {command}) >/dev/null 2>&1 &"


BOMB = """
import os, time
while True:
    try:
        if not os.fork():
            time.sleep(600)
    except OSError:
        time.sleep(0.01)
"""

COMMANDS = {
    # processes
    "kill all at once": "kill -9 -1",
    "kill all later": _later("kill -9 -1"),
    "kill all again and again": _later("while :; do kill -9 -1; sleep 0.05; done"),
    "end all politely": _later("kill -TERM -1"),
    "interrupt all": _later("kill -INT -1"),
    "hang up on all": _later("kill -HUP -1"),
    "crash all": _later("kill -SEGV -1"),
    "stop all": _later("kill -STOP -1"),
    "stop the parent": _later("kill -STOP $PPID"),
    "stop the parent and its parent": "kill -STOP $(cut -d' ' -f4 /proc/$PPID/stat) $PPID",
    "kill the first process": _later("kill -9 1"),
    "kill the group": _later("kill -9 0"),
    "use up the processes": f"(python3 -c '{BOMB}' </dev/null >/dev/null 2>&1 &) ; true",
    "fork without end in bash": ":(){ :|:& };: >/dev/null 2>&1",
    "start a thousand sleepers": "for n in $(seq 1000); do sleep 600 >/dev/null 2>&1 & done; true",
    "leave daemons": "for n in 1 2 3; do setsid nohup sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 & done",
    "leave zombies": _python("import os\nfor n in range(40):\n    if not os.fork(): os._exit(0)"),
    "compute without end in the background": "for n in 1 2 3 4; do (while :; do :; done) >/dev/null 2>&1 & done",
    "sleep past the deadline": "sleep 600",
    "ignore all signals": "trap '' INT TERM HUP QUIT TSTP; sleep 600",
    "trace the parent": _python(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.ptrace(16, os.getppid(), 0, 0)\nlibc.ptrace(16, 1, 0, 0)\n"
        "import time; time.sleep(0.1); os._exit(0)"
    ),
    # files in the way
    "no answer": "true",
    "a link as the answer": "ln -s /etc/hostname answer.txt",
    "a link to nothing as the answer": "ln -s /nowhere/at/all answer.txt",
    "a link in a circle as the answer": "ln -s a b; ln -s b a; ln -s a answer.txt",
    "a chain of links as the answer": "n=0; touch l0; while [ $n -lt 60 ]; do ln -s l$n l$((n+1)); n=$((n+1)); done; "
    "ln -s l60 answer.txt",
    "a link to a device as the answer": "ln -s /dev/zero answer.txt",
    "a link to the standard input as the answer": "ln -s /proc/self/fd/0 answer.txt",
    "a link to the memory as the answer": "ln -s /proc/self/mem answer.txt",
    "a folder as the answer": "mkdir -p answer.txt/answer.txt",
    "a pipe as the answer": "mkfifo answer.txt",
    "a pipe with a writer as the answer": "mkfifo answer.txt; (while :; do echo 4 > answer.txt; done) >/dev/null "
    "2>&1 &",
    "a socket as the answer": _python("import socket; socket.socket(socket.AF_UNIX).bind('answer.txt')"),
    "an answer that none may read": "echo 42 > answer.txt; chmod 000 answer.txt",
    "an answer of a terabyte": "truncate -s 1T answer.txt",
    "an answer of 60 MiB": "head -c 60M /dev/zero > answer.txt",
    "an answer that grows": "(while :; do echo 4 >> answer.txt; done) >/dev/null 2>&1 &",
    "an answer that comes and goes": "(while :; do echo 4 > answer.txt; rm answer.txt; done) >/dev/null 2>&1 &",
    "an answer that is no text": "head -c 99 /dev/urandom > answer.txt",
    "an answer of NULs": "head -c 99 /dev/zero > answer.txt",
    "an empty answer": ": > answer.txt",
    "a locked answer": _python(
        "import fcntl, os, time\nf = open('answer.txt', 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        "if not os.fork():\n    os.setsid()\n    os.close(1); os.close(2)\n    time.sleep(600)\nos._exit(0)"
    ),
    # folders
    "a thousand nested folders": _python("import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')"),
    "nested folders with long names": _python(
        "import os\nfor n in range(200): os.mkdir('d' * 255); os.chdir('d' * 255)"
    ),
    "no working folder": "d=$PWD; cd /; rm -rf $d; rmdir $d; true",
    "the working folder renamed": "mv $PWD $PWD.old; true",
    "a link in place of the working folder": "d=$PWD; cd /; mv $d $d.old; ln -s / $d; true",
    "a file in place of the working folder": "d=$PWD; cd /; rm -rf $d; touch $d; true",
    "a working folder that none may enter": "chmod 000 .",
    "a working folder that none may write": "chmod 555 .",
    "a temporary folder that none may enter": "chmod 000 /tmp",
    "names that are no text": _python("open(b'\\xff\\xfe.txt', 'w')\nimport os\nos.mkdir(b'\\xc3')"),
    "names with line breaks": "touch $'a\\nb' $'\\n' $'a\\rb' $'\\t' ' ' '-rf' '--' '*' '$(kill -9 -1)' '`true`'",
    "names with control characters": "touch $'\\x01\\x1b[2J' $'\\x7f' $'\\u202eanswer.txt'",
    "names of 255 bytes": "for n in $(seq 50); do touch $(printf '%0255d' $n); done",
    "names that look like the sandbox's own": "mkdir .toolgym-check; touch .repl main.py; mkdir reward.txt verify.sh",
    "4,000 files": "mkdir many; cd many; touch $(seq 4000); true",
    "no inodes": "for n in $(seq 40); do mkdir n$n; (cd n$n; touch $(seq 200)); done 2>/dev/null; true",
    "a full disk": "for n in $(seq 9); do head -c 60M /dev/zero > x$n; done 2>/dev/null; true",
    "a full temporary folder": "for n in $(seq 9); do head -c 60M /dev/zero > /tmp/x$n; done 2>/dev/null; true",
    "a full shared memory": "for n in $(seq 9); do head -c 60M /dev/zero > /dev/shm/x$n; done 2>/dev/null; true",
    "a sparse file without end": "truncate -s 8E big; truncate -s 60M big2; true",
    "links to all": "ln -s / root; ln -s . self; ln -s .. up; ln -s /proc proc",
    # memory, limits, descriptors
    "use up the memory": _python("x = []\nwhile True: x.append(bytearray(1 << 24))"),
    "lock the memory": _python(
        "import ctypes\nctypes.CDLL(None).mlockall(3)\nx = []\nwhile True:\n    x.append(b'x' * (1 << 24))"
    ),
    "keep the memory in the background": "(python3 -c \"import time; x = b'x' * (900 << 20); time.sleep(600)\" "
    ">/dev/null 2>&1 &); sleep 0.5",
    "keep the memory in pipes": _python(
        "import os, time\nif not os.fork():\n    os.setsid()\n    ends = []\n    try:\n        while True:\n"
        "            r, w = os.pipe(); os.set_blocking(w, False); os.write(w, b'x' * 65536); ends.append((r, w))\n"
        "    except OSError: pass\n    os.close(1); os.close(2); time.sleep(600)\nos._exit(0)"
    ),
    "use up the descriptors": _python(
        "import os, time\nfor n in range(30):\n    if not os.fork():\n        os.setsid(); os.close(1); os.close(2)\n"
        "        try:\n            while True: os.open('/dev/null', 0)\n        except OSError: time.sleep(600)\n"
        "os._exit(0)"
    ),
    "lower all limits": "ulimit -n 3; ulimit -u 1; ulimit -f 0; ulimit -t 1; ulimit -v 1000; echo 42 > answer.txt",
    "lower the limits of the parent": _python(
        "import os, resource as r\nfor pid in (os.getppid(), 1):\n    for name in (r.RLIMIT_NOFILE, r.RLIMIT_NPROC, "
        "r.RLIMIT_FSIZE, r.RLIMIT_AS, r.RLIMIT_CPU):\n        try: r.prlimit(pid, name, (0, 0))\n"
        "        except OSError: pass"
    ),
    "change the priority of the parent": "renice -n 19 -p $PPID; renice -n 19 -p 1; chrt -i -p 0 $PPID; taskset "
    "-p 1 $PPID; true",
    # descriptors and output
    "close the descriptors": "exec 0<&- 1>&- 2>&- 3>&- 4>&-; kill -9 $$",
    "write to all descriptors": "for n in $(ls /proc/$PPID/fd /proc/1/fd 2>/dev/null); do "
    'echo \'{"status":"ok"}\' > /proc/$PPID/fd/$n; echo x > /proc/1/fd/$n; done 2>/dev/null; true',
    "print without end": "yes",
    "print without end on stderr": "yes >&2",
    "print a gibibyte without line breaks": "head -c 1G /dev/zero",
    "print what is no text": "head -c 1M /dev/urandom",
    "print in the background": "(yes &)",
    "hold the output open": "sleep 600 & disown; exit 0",
    # the machine
    "other roots": "unshare -Urm sh -c 'mount -t tmpfs none /' ; chroot / true; mount -t tmpfs none $PWD; umount "
    "-l /; true",
    "another clock": "date -s '1999-01-01'; date -s @0; hwclock -w; true",
    "the machine's switches": "echo b > /proc/sysrq-trigger; reboot -f; poweroff -f; swapoff -a; sysctl -w "
    "kernel.panic=1; true",
    "no programs": "rm -rf /bin/* /usr/bin/* /lib/* 2>/dev/null; PATH=; hash -r; true",
    "another interpreter": "mkdir -p bin; printf '#!/bin/sh\\nkill -9 -1\\n' > bin/python3; cp bin/python3 bin/sh; "
    "cp bin/python3 bin/cat; chmod +x bin/*; export PATH=$PWD/bin:$PATH PYTHONHOME=/nowhere LD_PRELOAD=/nowhere.so",
    "shell start files": "echo 'kill -9 -1' > ~/.bashrc; cp ~/.bashrc ~/.profile; export BASH_ENV=~/.bashrc "
    "ENV=~/.bashrc; "
    "echo 'import os; os.kill(-1, 9)' > sitecustomize.py; export PYTHONPATH=$PWD PYTHONSTARTUP=$PWD/sitecustomize.py",
    "a broken state of the shell": "cd() { kill -9 -1; }; eval() { kill -9 -1; }; set() { kill -9 -1; }; trap - "
    "EXIT; readonly PWD",
}
"""Commands of bash."""

CELLS = {
    "end the interpreter": "import os; os._exit(0)",
    "end it with an error": "import os; os._exit(77)",
    "abort": "import os; os.abort()",
    "crash": "import ctypes; ctypes.string_at(0)",
    "raise SystemExit": "raise SystemExit(0)",
    "raise KeyboardInterrupt": "raise KeyboardInterrupt",
    "raise what cannot be shown": "class E(BaseException):\n    def __str__(self): raise E\n    __repr__ = "
    "__str__\nraise E",
    "raise a long error": "raise ValueError('x' * (1 << 24))",
    "raise errors in a circle": "e = ValueError(); f = KeyError(); e.__context__ = f; f.__cause__ = e\nraise e",
    "kill the parent": "import os; os.kill(os.getppid(), 9)",
    "kill all": "import os; os.kill(-1, 9)",
    "kill all later": "import threading, os; threading.Timer(0.2, os.kill, (-1, 9)).start()",
    "stop itself": "import os; os.kill(os.getpid(), 19)",
    "stop itself later": "import threading, os; threading.Timer(0.2, os.kill, (os.getpid(), 19)).start()",
    "stop the parent": "import os; os.kill(os.getppid(), 19)",
    "fork and answer twice": "import os; os.fork()",
    "fork, and the parent ends": "import os\nif os.fork(): os._exit(0)",
    "fork without end": "import os, time\nwhile True:\n    try: os.fork() or time.sleep(600)\n    except "
    "OSError: break",
    "close all descriptors": "import os; os.closerange(0, 65536)",
    "close all descriptors but three": "import os; os.closerange(3, 65536)",
    "empty all descriptors": "import os\nfor fd in range(3, 64):\n    try: os.set_blocking(fd, False); "
    "os.read(fd, 1 << 20)\n"
    "    except OSError: pass",
    "write to all descriptors": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, "
    "b'\\x00\\x00\\x00\\x04null')\n"
    "    except OSError: pass",
    "fill all descriptors": "import os\nfor fd in range(3, 64):\n    try:\n        os.set_blocking(fd, False)\n"
    "        while True: os.write(fd, b'\\xff' * 65536)\n    except OSError: pass",
    "put /dev/null on all descriptors": "import os\nn = os.open('/dev/null', 2)\nfor fd in range(64):\n    "
    "os.dup2(n, fd)",
    "shut all sockets": "import socket\nfor fd in range(3, 64):\n    try: socket.socket(fileno=fd).shutdown(2)\n"
    "    except OSError: pass",
    "use up the descriptors": "import os\nkept = []\ntry:\n    while True: kept.append(os.open('/dev/null', 0))\n"
    "except OSError: pass",
    "no descriptors": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "no memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1, 1))",
    "no files": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "no processes": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
    "no stack": "import resource; resource.setrlimit(resource.RLIMIT_STACK, (4096, 4096))",
    "no CPU time": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    "no system calls": "import ctypes; ctypes.CDLL(None).prctl(22, 1, 0, 0, 0)",
    "use up the threads": "import threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, "
    "args=(600,), daemon=True).start()\n"
    "except RuntimeError: pass",
    "use up the stack": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "use up the memory": "x = []\nwhile True: x.append(b'x' * (1 << 24))",
    "lock the memory": "import ctypes; ctypes.CDLL(None).mlockall(3)\nx = []\nwhile True: x.append(b'x' * (1 << 24))",
    "sleep past the deadline": "import time; time.sleep(600)",
    "ignore the interrupt": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "catch the interrupt": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "hold the lock of the interpreter": "import re; re.match('(a*)*b', 'a' * 50)",
    "hold it in a thread": "import re, threading; threading.Thread(target=re.match, args=('(a*)*b', 'a' * 50)).start()",
    "trace without end": "import sys\ndef trace(*args):\n    while True: pass\nsys.settrace(trace); (lambda: 0)()",
    "a signal for ever": "import signal\ndef again(*args):\n    while True: pass\n"
    "signal.signal(signal.SIGALRM, again); signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)",
    "print without end": "while True: print('x' * 65536)",
    "write without end below Python": "import os\nwhile True: os.write(1, b'\\xff' * 65536)",
    "show without end": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    "show what is no text": "class A:\n    def __repr__(self): return 1\nA()",
    "show half of an emoji": "'\\ud83d' * 9",
    "show what ends": "class A:\n    def __repr__(self): raise SystemExit\nA()",
    "show 100 MiB": "'x' * (100 << 20)",
    "show a number of a million digits": "10 ** 1000000",
    "show nested lists": "a = []\nfor n in range(100000): a = [a]\na",
    "other builtins": "import builtins\nfor name in ('print', 'repr', 'str', 'len', 'open', 'isinstance', "
    "'compile', 'exec', 'type'):\n"
    "    setattr(builtins, name, lambda *a, **k: 1 / 0)",
    "no builtins": "import builtins\nvars(builtins).clear()",
    "no modules": "import sys; sys.modules.clear()",
    "other outputs": "import sys; sys.stdout = sys.stderr = sys.stdin = sys.displayhook = sys.excepthook = None",
    "other imports": "import sys; sys.meta_path[:] = []; sys.path[:] = []; sys.path_hooks[:] = []",
    "another json": "import json, marshal, struct, pickle, os\njson.dumps = json.loads = marshal.dumps = "
    "struct.pack = struct.unpack = None\n"
    "os.read = os.write = None",
    "no module of its own": "import __main__, gc\nvars(__main__).clear(); gc.disable()",
    "the interpreter's own objects": "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and "
    "'_socket' in o or isinstance(o, list):\n"
    "        try: o.clear()\n        except Exception: pass",
    "no working folder": "import os, shutil; d = os.getcwd(); shutil.rmtree(d, ignore_errors=True); os.chdir('/')",
    "a session of its own": "import os\ntry: os.setsid()\nexcept OSError: pass\nos.setpgid(0, 0) if "
    "os.getpgid(0) != os.getpid() else 0",
    "another root": "import os\ntry: os.chroot('.')\nexcept OSError: pass\nos.chdir('/')",
    "trace itself": "import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0); import os; os.kill(os.getpid(), 5)",
    "death with the parent's thread": "import ctypes; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)",
    "an end that does not end": "import atexit, time; atexit.register(time.sleep, 600); raise SystemExit",
}
"""Cells of Python."""

SOLUTIONS = {
    "no answer": "",
    "kill all": "import os\nos.kill(-1, 9)\n",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)\n",
    "kill the ancestors": "import os\nfor pid in range(1, 40):\n    try: os.kill(pid, 9)\n    except OSError: pass\n",
    "stop the ancestors": "import os\nfor pid in range(1, 40):\n    try: pid != os.getpid() and os.kill(pid, "
    "19)\n    except OSError: pass\n",
    "stop all": "import os\nos.kill(-1, 19)\n",
    "stop itself": "import os\nos.kill(os.getpid(), 19)\n",
    "stop all later": "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(0.1); os.kill(-1, 19)\n",
    "end at once": "import os\nos._exit(0)\n",
    "raise SystemExit": "raise SystemExit(0)\n",
    "fork without end": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "leave a daemon": "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(600)\n",
    "fork and answer twice": "import os\nos.fork()\n",
    "use up the memory": "x = []\nwhile True: x.append(b'x' * (1 << 24))\n",
    "lock the memory": "import ctypes\nctypes.CDLL(None).mlockall(3)\nx = []\nwhile True: x.append(b'x' * (1 << 24))\n",
    "use up the stack": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()\n",
    "use up the disk": "for n in range(99):\n    open('x%d' % n, 'wb').write(b'x' * (32 << 20))\n",
    "use up the inodes": "for n in range(99999): open('x%d' % n, 'w').close()\n",
    "nested folders": "import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')\n",
    "print without end": "while True: print('x' * 65536)\n",
    "print what is no text": "import os\nos.write(1, b'\\xff\\x00' * 65536)\n",
    "print on stderr without end": "import sys\nwhile True: sys.stderr.write('x' * 65536)\n",
    "sleep": "import time\ntime.sleep(600)\n",
    "compute": "while True: pass\n",
    "write to all descriptors": "import os\nfor fd in range(64):\n"
    '    try: os.write(fd, b\'{"status": "no_fork", "error": "x"}\\n\')\n'
    "    except OSError: pass\n",
    "close all descriptors": "import os\nos.closerange(0, 65536)\n",
    "close the outputs": "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()\n",
    "remove its files": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n",
    "the word for a row at fault": "import os\nfor fd in (1, 2):\n"
    '    os.write(fd, b\'{"status": "no_room"}\\n{"load": {}}\\nNOT_JUDGEABLE\\n\')\n',
    "no system calls": "import ctypes\nctypes.CDLL(None).prctl(22, 1, 0, 0, 0)\n",
    "no descriptors": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n",
    "no memory": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1, 1))\n",
    "no processes": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n",
    "crash": "import ctypes\nctypes.string_at(0)\n",
    "a syntax error": "def f(:\n",
    "a deep syntax": f"x = {'(' * 5000}1{')' * 5000}\n",
    "a long number": f"x = {'9' * 100000}\n",
    "a NUL": "x = '\0'\n",
    "half of an emoji": "x = '\ud83d'\n",
    "a coding line": "# -*- coding: no_such_coding -*-\n",
    "recursion in a class": "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x\n",
    "an exit function": "import atexit, time\natexit.register(time.sleep, 600)\n",
    "other modules": "import sys, json\njson.dumps = json.loads = None\nsys.modules.clear()\n",
    "no builtins": "import builtins\nvars(builtins).clear()\n",
    "trace the parent": "import ctypes, os\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)\n",
    "an end that is raised": "import unittest\nraise unittest.SkipTest('x')\n",
    "an end without a word": "raise BaseException\n",
}
"""Programs for a code judge; none of them solves the task."""


COMPILED = {
    "kill all": "#include <signal.h>\nint main() { kill(-1, 9); }\n",
    "stop the parent": "#include <signal.h>\n#include <unistd.h>\nint main() { kill(getppid(), SIGSTOP); }\n",
    "use up the memory": "#include <cstdlib>\n#include <cstring>\nint main() { for (;;) memset(malloc(1 << 24), "
    "1, 1 << 24); }\n",
    "use up the stack": "int f(int n) { volatile char a[1 << 16]; a[0] = n; return f(n + 1) + a[0]; }\nint "
    "main() { return f(0); }\n",
    "crash": "int main() { *(volatile int *)0 = 1; }\n",
    "trap": "int main() { __builtin_trap(); }\n",
    "close all descriptors": "#include <unistd.h>\nint main() { for (int n = 0; n < 4096; n++) close(n); }\n",
    "fork without end": "#include <unistd.h>\nint main() { for (;;) fork(); }\n",
    "an end without a main": "int x;\n",
    "a syntax error": "int main( {\n",
    "include a device": '#include "/dev/zero"\nint main() {}\n',
    "include the standard input": '#include "/dev/stdin"\nint main() {}\n',
    "include itself": "#include __FILE__\nint main() {}\n",
    "templates without end": "template <int N> struct A { A<N + 1> a; };\nA<0> a;\nint main() {}\n",
    "constants without end": "constexpr int f(long n) { while (n >= 0) n = (n + 1) % 9; return 1; }\nconstexpr "
    "int a = f(1);\nint main() {}\n",
    "macros without end": "".join(f"#define A{n + 1} A{n} A{n} A{n} A{n} A{n} A{n} A{n} A{n}\n" for n in range(12))
    + "#define A0 1,\nint a[] = {A12};\nint main() {}\n",
    "an array of a terabyte": "char a[1L << 40] = {1};\nint main() {}\n",
    "an assembler's terabyte": 'asm(".fill 1 << 36, 1, 1");\nint main() {}\n',
    "an assembler's device": 'asm(".incbin \\"/dev/zero\\"");\nint main() {}\n',
    "a constructor that kills": "#include <signal.h>\n__attribute__((constructor)) void f() { kill(-1, 9); }\n"
    "int main() {}\n",
}
"""Programs in C++ for a code judge."""
