"""Ways out of a root that is an image: what its layers bring, the copy that all share, and the mounts around it.

They run in the image of `in_image.py` alone, whose layers hold the traps that are named here.
"""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import NAMESPACES, PRELUDE, Program, abuse, held, second

_TRIES = """
def tries(what, action, *arguments, **rest):
    try:
        value = action(*arguments, **rest)
    except OSError:
        return False
    opened(what, value)
    return True
"""


def _root(name: str, code: str, **rest: object) -> Program:
    return abuse(name, "roots", _TRIES + code, must=NAMESPACES, image=True, bare="unsafe", **rest)


ROOTS: tuple[Program, ...] = (
    _root(
        "set_user_id_files_of_a_layer",
        """
import subprocess
if os.stat("/traps/root-shell").st_mode & 0o6000:
    opened("a layer brought a set-user-id file")
os.chmod("/usr/bin/bash", 0o6755)
for shell in ("/traps/root-shell", "/usr/bin/bash"):
    script = "echo $EUID; while read -r line; do echo $line; done < /proc/self/status"
    done = subprocess.run([shell, "-p", "-c", script], capture_output=True, text=True, check=True)
    if done.stdout.split()[0] != "1000" or "CapEff: 0000000000000000" not in done.stdout:
        opened(shell, done.stdout)
""",
    ),
    _root(
        "attributes_of_files",
        """
import struct
for path in ("/traps/attributes", "/traps/root-shell"):
    if os.listxattr(path):
        opened("a layer brought", os.listxattr(path))
capable = struct.pack("<5I", 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
tries("capabilities", os.setxattr, "/usr/bin/bash", "security.capability", capable)
tries("an overlay's whiteout", os.setxattr, "/etc", "trusted.overlay.opaque", b"y")
names = os.listdir("/etc")
values = {"opaque": b"y", "redirect": b"/traps", "metacopy": b"", "origin": b"o" * 24, "upper": b"x"}
for name, value in values.items():
    for path in ("/etc", "/etc/marker"):
        try:
            os.setxattr(path, f"user.overlay.{name}", value)
        except OSError:
            pass
if os.listdir("/etc") != names or open("/etc/marker").read() != "from the image\\n":
    opened("an attribute changed what lies below")
""",
    ),
    _root(
        "devices_of_a_layer",
        """
import stat
for name in ("memory", "disk", "whiteout", "pipe"):
    if os.path.lexists(f"/traps/{name}"):
        opened("a layer brought", name)
for folder in ("/", "/etc", "/dev", "/dev/shm", "/tmp", "/.toolgym"):
    for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 0, 0)):
        tries("mknod", os.mknod, f"{folder}/node", kind | 0o666, os.makedev(major, minor))
""",
    ),
    _root(
        "the_copy_that_all_share",
        """
import mmap
def quietly(action, *arguments):
    try:
        return action(*arguments)
    except (OSError, ValueError):
        return None
places = ["", "/.toolgym/image/below", "/.toolgym/image/root", "/image/below", "/proc/1/root/image/below"]
for place in places:
    marker = f"{place}/etc/marker"
    quietly(lambda: open(marker, "a").write("changed"))
    quietly(lambda: mmap.mmap(os.open(marker, os.O_RDWR), 0).write(b"changed"))
    quietly(os.chmod, marker, 0o777)
    quietly(os.setxattr, marker, "user.x", b"x")
    quietly(os.link, marker, f"{place}/etc/linked")
    quietly(lambda: open(f"{place}/etc/linked", "a").write("changed"))
    quietly(os.rename, f"{place}/usr/bin/rm", f"{place}/usr/bin/mr")
    quietly(os.unlink, f"{place}/usr/bin/ls")
    quietly(lambda: open(f"{place}/etc/new", "w").close())
for folder in ("/.toolgym/image/below", "/.toolgym/w/upper", "/.toolgym/w/scratch", "/image"):
    if quietly(os.listdir, folder):
        opened(folder, "can be listed")
""",
        follow_up=PRELUDE
        + """
about = os.stat("/etc/marker")
if open("/etc/marker").read() != "from the image\\n" or about.st_mode & 0o777 != 0o644 or os.listxattr("/etc/marker"):
    opened("another session's file has changed")
if not (os.path.exists("/usr/bin/ls") and os.path.exists("/usr/bin/rm")) or os.path.exists("/etc/new"):
    opened("another session's files came or went")
""",
        judge=lambda outcome: held(outcome) or second(held)(outcome),
    ),
    _root(
        "locks_on_the_shared_copy",
        """
import fcntl
for path in ("/etc/marker", "/usr/bin/bash", "/.toolgym/image/below/etc/marker"):
    try:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened("the lock of another session on", path)
    except OSError:
        pass
""",
        neighbour="""
import fcntl, os, time
for path in ("/etc/marker", "/usr/bin/bash", "/.toolgym/image/below/etc/marker"):
    try:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    except OSError:
        pass
time.sleep(4)
""",
    ),
    _root(
        "names_of_the_host",
        """
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for name in ("mountinfo", "mounts", "mountstats"):
        try:
            if "@images@" in open(f"/proc/{pid}/{name}").read():
                opened("where images lie on the host, in", f"/proc/{pid}/{name}")
        except OSError:
            pass
    tries("the root of a process outside", os.listdir, f"/proc/{pid}/root/image")
for way in ("/traps/up", "/traps/first", "/traps/machine", "/.toolgym", ""):
    tries("the host's file", lambda: open(f"{way}@outside@/canary.txt").read())
""",
    ),
    _root(
        "mount_points",
        """
for name in ("tmp", "dev", "proc", ".toolgym", "dev/shm", "dev/null"):
    tries("rename", os.rename, f"/{name}", "/moved")
    tries("link", os.link, f"/{name}", "/linked")
    tries("replace", os.rename, "/traps", f"/{name}")
for path in ("/.toolgym/x", "/.toolgym/usr/x", "/.toolgym/dev/x", "/dev/x", "/proc/sys/x", "/.toolgym/image/x"):
    tries("write", lambda: open(path, "w"))
    tries("mkdir", os.mkdir, path)
""",
    ),
    _root(
        "more_than_the_disk_by_copies",
        """
copied = failed = 0
library = os.path.dirname(os.__file__)
for path in ("/large", *(f"{folder}/{name}" for folder, _, names in os.walk(library) for name in names)):
    try:
        os.close(os.open(path, os.O_RDWR))
        copied += os.stat(path).st_size
    except OSError:
        failed += 1
    if failed > 9:
        break
if not failed or copied > 40 << 20:
    opened("copies of", copied, "bytes on a disk of 32 MiB")
for size in (1 << 40, 1 << 62):
    with open("/sparse", "wb") as file:
        tries("a sparse file", os.truncate, file.fileno(), size)
""",
        timeout=20.0,
    ),
)
