"""Secrets of the host and of others, writes outside, and what stays behind.

No program knows a secret: it prints what it can read, and the runner looks for the secrets in what came back.
"""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import PRELUDE, Outcome, Program, abuse, brief, held, second

_NEIGHBOUR = """
import time
open("@mark@.txt", "w").write("@neighbour_secret@")
open("/tmp/@mark@.txt", "w").write("@neighbour_secret@")
time.sleep(6)
import os
os.unlink("/tmp/@mark@.txt")
"""

_READ = """
def read(path, size=200000):
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""
def show(path):
    data = read(path)
    if data:
        os.write(1, data + b"\\n")
def pids():
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
"""

SECRETS: tuple[Program, ...] = (
    abuse(
        "password_file",
        "secrets",
        """
try:
    if open("/etc/shadow").read():
        opened("/etc/shadow can be read")
except OSError:
    pass
""",
        bare="either",
    ),
    abuse("file_of_another_tenant", "secrets", _READ + 'show("@outside@/secret.txt")'),
    abuse(
        "file_of_another_tenant_by_proc",
        "secrets",
        _READ
        + """
for pid in pids():
    for link in ("root", "cwd"):
        show(f"/proc/{pid}/{link}@outside@/secret.txt")
""",
    ),
    abuse("environment", "secrets", "say(dict(os.environ))", bare="held"),
    abuse(
        "environment_in_proc",
        "secrets",
        _READ + "show('/proc/self/environ')\nshow(f'/proc/{os.getppid()}/environ')",
        bare="held",  # the parent is the supervisor, which has the program's own environment
    ),
    abuse("environment_of_all", "secrets", _READ + "for pid in [os.getppid(), *pids()]: show(f'/proc/{pid}/environ')"),
    abuse(
        "command_lines_of_all",
        "secrets",
        # The victim's first: on a busy machine those of all are more than a call may print.
        _READ + "for pid in [@victim@, *pids()]: show(f'/proc/{pid}/cmdline')",
    ),
    abuse(
        "processes_of_the_host",
        "secrets",
        _READ
        + """
if @victim@ in pids():
    opened("the host's processes can be listed")
try:
    os.kill(@victim@, 0)
    opened("a process of the host can be signalled")
except OSError:
    pass
""",
    ),
    abuse(
        "descriptors_of_the_host",
        "secrets",
        _READ
        + """
for pid in {@victim@, os.getppid()}:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            opened("descriptor", os.readlink(f"/proc/{pid}/fd/{name}"))
    except OSError:
        pass
""",
    ),
    abuse(
        "neighbour",
        "secrets",
        _READ
        + """
tops = ["/tmp", "/var/tmp", "/dev/shm", "/home", "/run", "/w", os.environ.get("TMPDIR", "/tmp"), "..", "../.."]
for pid in pids():
    tops += [f"/proc/{pid}/cwd", f"/proc/{pid}/root/tmp"]
end = time.monotonic() + 1
for top in tops:
    for folder, folders, names in os.walk(top):
        if time.monotonic() > end:
            break
        if folder.count("/") - top.count("/") > 2:
            folders.clear()
        if "@mark@.txt" in names:
            show(f"{folder}/@mark@.txt")
""",
        neighbour=_NEIGHBOUR,
    ),
    abuse(
        "memory_of_the_template",
        "secrets",
        # A secret that an earlier program held must not be found in this one's memory.
        """
import gc
found = [thing for thing in gc.get_objects() if type(thing) is dict and "only_of_the_first" in thing]
if found:
    opened("objects of an earlier program")
globals()["only_of_" + "the_first"] = 1
keep = {"only_of_" + "the_first": 1}
""",
        follow_up=PRELUDE
        + "import gc\nif any(type(t) is dict and 'only_of_the' + '_first' in t and t is not globals() "
        "for t in gc.get_objects()): opened('objects of an earlier program')",
        judge=second(held),
        bare="held",
    ),
)

_OUTSIDE = """
def attempt(what, action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    say("done", what)
"""

WRITES: tuple[Program, ...] = (
    abuse(
        "write",
        "writes",
        _OUTSIDE
        + """
attempt("append", lambda: open("@outside@/canary.txt", "a").write("!"))
attempt("create", lambda: open("@outside@/new.txt", "w").write("!"))
""",
    ),
    abuse("truncate", "writes", _OUTSIDE + 'attempt("truncate", os.truncate, "@outside@/canary.txt", 1)'),
    abuse("delete", "writes", _OUTSIDE + 'attempt("unlink", os.unlink, "@outside@/canary.txt")'),
    abuse("rename", "writes", _OUTSIDE + 'attempt("rename", os.rename, "@outside@/canary.txt", "@outside@/moved")'),
    abuse("make_folder", "writes", _OUTSIDE + 'attempt("mkdir", os.mkdir, "@outside@/folder")'),
    abuse("make_fifo", "writes", _OUTSIDE + 'attempt("mkfifo", os.mkfifo, "@outside@/fifo")'),
    abuse(
        "links",
        "writes",
        _OUTSIDE
        + """
attempt("symlink", os.symlink, "/etc/passwd", "@outside@/link")
attempt("link out", os.link, "@outside@/canary.txt", "mine")
attempt("link in", os.link, "@outside@/canary.txt", "@outside@/hard")
""",
    ),
    abuse("change_mode", "writes", _OUTSIDE + 'attempt("chmod", os.chmod, "@outside@/canary.txt", 0o600)'),
    abuse(
        "change_attributes",
        "writes",
        # By calls that came in Linux 6.13 and 6.17, and have the same numbers everywhere.
        """
import struct
path = b"@outside@/canary.txt"
value = ctypes.create_string_buffer(b"1", 1)
what = struct.pack("QII", ctypes.addressof(value), 1, 0)
syscall(463, -100, path, 0, b"user.toolgym", what, ctypes.c_size_t(len(what)))
try:
    if os.listxattr(path):
        opened("setxattrat")
except OSError:
    pass
def flags():
    found = ctypes.create_string_buffer(24)
    return struct.unpack_from("Q", found)[0] if syscall(468, -100, path, found, ctypes.c_size_t(24), 0) == 0 else None
before = flags()
if before is not None:
    syscall(469, -100, path, struct.pack("QIIII", before ^ 0x80, 0, 0, 0, 0), ctypes.c_size_t(24), 0)
    if flags() != before:
        opened("file_setattr")
""",
        bare="either",
    ),
    abuse(
        "change_times",
        "writes",
        _OUTSIDE
        + """
attempt("utime", os.utime, "@outside@/canary.txt", (1, 1))
_libc.utimes(b"@outside@/canary.txt", None)
""",
    ),
    abuse(
        "change_owner",
        "writes",
        _OUTSIDE + 'attempt("chown", os.chown, "@outside@/canary.txt", 12345, 12345)',
        bare="either",
    ),
    abuse(
        "through_a_symlink",
        "writes",
        _OUTSIDE
        + """
os.symlink("@outside@/canary.txt", "way")
attempt("append", lambda: open("way", "a").write("!"))
""",
    ),
    abuse(
        "runtime",
        "writes",
        """
import json
for path in (os.__file__, json.__file__, sys.executable, "/usr/bin/env", "/etc/passwd"):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
        opened(path, "can be written")
    except OSError:
        pass
""",
        bare="either",
    ),
    abuse(
        "fetch_through_a_symlink",
        "writes",
        """
os.symlink("@outside@/secret.txt", "out.txt")
os.symlink("@outside@", "folder")
os.mkfifo("fifo.txt")
open("good.txt", "w").write("good")
""",
        fetch=("out.txt", "folder/secret.txt", "fifo.txt", "good.txt"),
        judge=lambda outcome: (
            held(outcome)
            or ("" if dict(outcome.result.files) == {"good.txt": b"good"} else f"fetched {dict(outcome.result.files)}")
        ),
        bare="unsafe",  # a bare process has no fetching of its own to speak of
    ),
)

_LOOK = """
import glob
for pattern in ("/tmp/*", "/var/tmp/*", "/dev/shm/*", "*", "/dev/mqueue/*", os.path.expanduser("~/*")):
    for name in glob.glob(pattern):
        if "@mark@" in os.path.basename(name):
            opened("left behind:", name)
"""


def _leaves(name: str, make: str, look: str, **rest: object) -> Program:
    return abuse(name, "leftovers", make, follow_up=PRELUDE + look, judge=second(held), **rest)


LEFTOVERS: tuple[Program, ...] = (
    _leaves(
        "temporary_files",
        """
for folder in ("/tmp", "/var/tmp", "/dev/shm", "."):
    try:
        open(f"{folder}/@mark@", "w").close()
    except OSError:
        pass
""",
        _LOOK
        + """
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    try:
        os.unlink(f"{folder}/@mark@")
    except OSError:
        pass
""",
    ),
    _leaves(
        "system_v_shared_memory",
        "_libc.shmget(0x70011, 4096, 0o1666)",
        """
number = _libc.shmget(0x70011, 4096, 0)
if number >= 0:
    opened("System V shared memory")
    _libc.shmctl(number, 0, None)
""",
    ),
    _leaves(
        "system_v_semaphores_and_queues",
        "_libc.semget(0x70012, 1, 0o1666)\n_libc.msgget(0x70013, 0o1666)",
        """
number = _libc.semget(0x70012, 1, 0)
if number >= 0:
    opened("System V semaphores")
    _libc.semctl(number, 0, 0, 0)
number = _libc.msgget(0x70013, 0)
if number >= 0:
    opened("System V queue")
    _libc.msgctl(number, 0, None)
""",
    ),
    _leaves(
        "posix_queue",
        "_libc.mq_open(b'/@mark@', os.O_CREAT | os.O_RDWR, 0o666, None)",
        """
if _libc.mq_open(b'/@mark@', os.O_RDWR, 0, None) >= 0:
    opened("POSIX message queue")
    _libc.mq_unlink(b'/@mark@')
""",
    ),
    _leaves(
        "shared_memory_object",
        """
fd = _libc.shm_open(b"/@mark@", os.O_CREAT | os.O_RDWR, 0o666)
""",
        """
if _libc.shm_open(b"/@mark@", os.O_RDWR, 0) >= 0:
    opened("POSIX shared memory")
    _libc.shm_unlink(b"/@mark@")
""",
    ),
    _leaves(
        "keys",
        "syscall({'x86_64': 248, 'aarch64': 217}[os.uname().machine], b'user', b'@mark@', b'x', 1, -4)",
        """
nr = {'x86_64': 249, 'aarch64': 218}[os.uname().machine]
if syscall(nr, b"user", b"@mark@", None, 0) >= 0:
    opened("a key in a keyring")
""",
        bare="either",
    ),
    Program(
        "state_of_the_interpreter",
        "leftovers",
        """
import builtins, json, os, sys
print(getattr(builtins, "seen", 0), getattr(json, "seen", 0), os.environ.get("SEEN"), len(sys.path), os.listdir("."))
builtins.seen = json.seen = 1
os.environ["SEEN"] = "1"
sys.path.append("/somewhere")
json.dumps = None
open("left.txt", "w").close()
sys.setrecursionlimit(77)
""",
        follow_up="same",
        judge=lambda outcome: (
            ""
            if outcome.second is not None and outcome.second.ok and outcome.second.stdout == outcome.result.stdout
            else f"{brief(outcome.result)} then {brief(outcome.second) if outcome.second else ''}"
        ),
        bare="held",
    ),
)


def _differs(outcome: Outcome) -> str:
    first, again = outcome.result, outcome.second
    if again is None or not (first.ok and again.ok):
        return brief(first)
    same = [line for line in first.stdout.splitlines() if line in again.stdout.splitlines()]
    return f"the same in both: {same}" if same else ""


RANDOMNESS: tuple[Program, ...] = (
    Program(
        "randomness_differs",
        "leftovers",
        """
import os, random, secrets, tempfile, uuid
print("random", random.random(), random.getrandbits(64))
print("secrets", secrets.token_hex(8))
print("urandom", os.urandom(8).hex())
print("uuid", uuid.uuid4(), uuid.uuid1())
print("names", next(tempfile._get_candidate_names()))
import ssl
print("ssl", ssl.RAND_bytes(8).hex())
try:
    import numpy
    print("numpy", numpy.random.random(), numpy.random.randint(1 << 40))
    print("generator", numpy.random.default_rng().random())
except ImportError:
    pass
""",
        follow_up="same",
        judge=_differs,
        bare="held",
    ),
)
