"""Bombs: more processes, memory, disk or output than a program was given."""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import (
    LIMITS,
    NAMESPACES,
    Outcome,
    Program,
    abuse,
    at_most,
    both,
    ended,
    held,
    prints,
    second,
)
from toolgym.tools.sandbox.base import ExecutionStatus

SLACK_MB = 512
"""What a watchdog may see too late. Each memory bomb goes for 1.5 GB."""

_memory = at_most(LIMITS.memory_mb + SLACK_MB, of="MB")
_disk = at_most(LIMITS.disk_mb + LIMITS.file_mb, of="MB")
_watched_disk = at_most(LIMITS.disk_mb + SLACK_MB, of="MB")


def _few_processes(outcome: Outcome) -> str:
    most = outcome.most_processes
    return f"{most} processes at once" if most > LIMITS.processes + 8 else ""


def _stopped_in_time(outcome: Outcome) -> str:
    """Its deadline ended it, the program is to blame, and a run beside it went well. Without forks it just spins."""
    neighbour = outcome.neighbour
    if neighbour is None or neighbour.stdout != "fine\n":
        return f"the run beside it: {neighbour}"
    return ended(ExecutionStatus.TIMEOUT, within=10)(outcome)


def _flood_is_stopped(outcome: Outcome) -> str:
    size = len(outcome.result.stdout) + len(outcome.result.stderr)
    return f"{size} characters came back" if size > 3 * LIMITS.output_bytes else ""


BOMBS: tuple[Program, ...] = (
    abuse(
        "fork_bomb",
        "bombs",
        """
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
        count += 1
except OSError:
    pass
say("held", count)
""",
        judge=both(at_most(LIMITS.processes, of="forks"), _few_processes),
        alone=True,
    ),
    abuse(
        "fork_bomb_exponential",
        "bombs",
        """
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
time.sleep(1)
""",
        judge=both(held, _few_processes),
        alone=True,
    ),
    abuse(
        "fork_bomb_without_pause",
        "bombs",
        """
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
        neighbour="import time\ntime.sleep(1.5)\nprint('fine')",
        follow_up="print('fine')",
        judge=both(_stopped_in_time, _few_processes, second(prints("fine\n"))),
        bare="unsafe",
        timeout=2.0,
        alone=True,
    ),
    abuse(
        "thread_bomb",
        "bombs",
        """
import threading
count = 0
try:
    while count < 300:
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
say("held", count)
os._exit(0)
""",
        judge=at_most(LIMITS.processes, of="threads"),
        alone=True,
    ),
    abuse(
        "memory",
        "bombs",
        """
kept = []
for n in range(1, 49):
    kept.append(b"x" * (32 << 20))
    say("held", 32 * n)
""",
        judge=_memory,
        alone=True,
    ),
    abuse(
        "memory_spread_over_children",
        "bombs",
        """
alive = set()
r, w = os.pipe()
for n in range(15):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        kept = b"x" * (100 << 20)
        os.write(w, b"k")
        time.sleep(100)
        os._exit(0)
    alive.add(pid)
    os.set_blocking(r, False)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            os.read(r, 1)
            break
        except BlockingIOError:
            time.sleep(0.005)
        if os.waitpid(pid, os.WNOHANG)[0]:
            alive.discard(pid)
            break
    for pid in tuple(alive):
        if os.waitpid(pid, os.WNOHANG)[0]:
            alive.discard(pid)
    say("held", 100 * len(alive))
""",
        judge=_memory,
        timeout=8,
        alone=True,
    ),
    abuse(
        "memory_in_shared_mappings",
        "bombs",
        """
import mmap
kept = []
for n in range(1, 49):
    kept.append(mmap.mmap(-1, 32 << 20))
    for at in range(0, 32 << 20, 4096):
        kept[-1][at] = 1
    say("held", 32 * n)
""",
        judge=_memory,
        timeout=8,
        alone=True,
    ),
    abuse(
        "memfd",
        "bombs",
        """
kept = []
block = b"x" * (8 << 20)
for n in range(1, 100):
    kept.append(os.memfd_create("bomb"))
    os.write(kept[-1], block)
    os.write(kept[-1], block[: (8 << 20) - 1])
    say("held", 16 * n)
""",
        judge=_memory,
        alone=True,
    ),
    abuse(
        "shared_memory_files",
        "bombs",
        """
block = b"x" * (8 << 20)
n = 0
try:
    for n in range(1, 190):
        fd = os.open(f"/dev/shm/@mark@-{n}", os.O_CREAT | os.O_WRONLY)
        os.write(fd, block)
        os.close(fd)
        say("held", 8 * n)
finally:
    for k in range(1, n + 1):
        try:
            os.unlink(f"/dev/shm/@mark@-{k}")
        except OSError:
            pass
""",
        judge=at_most(LIMITS.memory_mb, of="MB"),
        alone=True,
    ),
    abuse(
        "disk",
        "bombs",
        """
block = b"x" * (8 << 20)
n = 0
for folder in (".", "/tmp", "/var/tmp", os.environ.get("HOME", ".")):
    try:
        for k in range(12):
            with open(f"{folder}/@mark@-{n}", "wb") as file:
                file.write(block)
            n += 1
            say("held", 8 * n)
    except OSError:
        pass
import glob
for folder in ("/tmp", "/var/tmp"):
    for name in glob.glob(folder + "/@mark@-*"):
        os.unlink(name)
""",
        judge=_disk,
        must=NAMESPACES,
        timeout=10,
        alone=True,
    ),
    abuse(
        "disk_by_the_gigabyte",
        "bombs",
        """
block = b"x" * (8 << 20)
try:
    for n in range(190):
        with open(f"@mark@-{n}", "wb") as file:
            file.write(block)
        say("held", 8 * n)
except OSError:
    pass
finally:
    for n in range(190):
        try:
            os.unlink(f"@mark@-{n}")
        except OSError:
            pass
""",
        judge=both(_watched_disk, ended(ExecutionStatus.DISK_LIMIT, ExecutionStatus.OK)),
        timeout=60,
        alone=True,
    ),
    abuse(
        "disk_in_deleted_files",
        "bombs",
        """
block = b"x" * (8 << 20)
kept = []
try:
    for n in range(100):
        kept.append(open("gone", "wb", buffering=0))
        os.unlink("gone")
        for part in range(2):
            if kept[-1].write(block) < len(block):
                raise OSError
            say("held", 16 * n + 8 * part)
except OSError:
    pass
""",
        judge=_watched_disk,
        timeout=20,
        alone=True,
    ),
    abuse(
        "huge_file",
        "bombs",
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open("big", os.O_CREAT | os.O_WRONLY)
block = b"x" * (1 << 20)
for n in range(1, 100):
    if os.write(fd, block) < len(block):
        break
    say("held", n)
""",
        judge=at_most(LIMITS.file_mb, of="MB"),
        alone=True,
    ),
    abuse(
        "sparse_file",
        "bombs",
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("big", "wb") as file:
    file.truncate(1 << 36)
opened("a file of", os.path.getsize("big"), "bytes")
""",
    ),
    abuse(
        "inodes",
        "bombs",
        """
os.mkdir("many")
try:
    for n in range(1, 6001):
        os.close(os.open(f"many/{n}", os.O_CREAT | os.O_WRONLY))
        if n % 50 == 0:
            say("held", n)
except OSError:
    pass
""",
        judge=at_most(LIMITS.inodes, of="files"),
        must=NAMESPACES,
        timeout=10,
        alone=True,
    ),
    abuse(
        "inodes_by_the_thousand",
        "bombs",
        """
try:
    for n in range(1, 80_001):
        if n % 1000 == 1:
            os.mkdir(f"many-{(n - 1) // 1000}")
        os.close(os.open(f"many-{(n - 1) // 1000}/{n}", os.O_CREAT | os.O_WRONLY))
        if n % 500 == 0:
            say("held", n)
except OSError:
    pass
""",
        judge=at_most(LIMITS.inodes + 20_000, of="files"),
        timeout=20,
        alone=True,
    ),
    abuse(
        "deep_folders",
        "bombs",
        """
try:
    for n in range(1500):
        os.mkdir("d")
        os.chdir("d")
except OSError:
    pass
""",
        follow_up="import os\nprint('d' in os.listdir('.'))",
        judge=both(held, second(prints("False\n"))),
        bare="either",
        timeout=10,
        alone=True,
    ),
    Program(
        "endless_output",
        "bombs",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        judge=both(ended(ExecutionStatus.OUTPUT_LIMIT, within=50), _flood_is_stopped),
        bare="held",
        timeout=60,
    ),
    Program(
        "endless_errors",
        "bombs",
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        judge=both(ended(ExecutionStatus.OUTPUT_LIMIT, within=50), _flood_is_stopped),
        bare="held",
        timeout=60,
    ),
    Program(
        "long_output_that_ends",
        "bombs",
        "for n in range(300): print('y' * 1023)\nprint('the end')",
        judge=both(
            ended(ExecutionStatus.OK, out="the end\n", within=50),
            _flood_is_stopped,
            lambda outcome: "" if outcome.result.stdout_truncated else "not marked as truncated",
        ),
        bare="held",
        timeout=60,
    ),
)
