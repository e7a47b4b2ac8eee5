"""Ways out: other processes' memory, new namespaces, mounts, devices, and parts of the kernel that no program needs.

A call counts as open when the kernel let it through, even if it then failed for want of sensible arguments.
"""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import Program, abuse

_NUMBERS = """
NR = {
    "x86_64": dict(ptrace=101, process_vm_readv=310, process_vm_writev=311, kcmp=312, pidfd_open=434, pidfd_getfd=438,
        mount=165, umount2=166, pivot_root=155, chroot=161, unshare=272, setns=308, open_tree=428, move_mount=429,
        fsopen=430, fsmount=432, name_to_handle_at=303, open_by_handle_at=304, bpf=321, perf_event_open=298,
        userfaultfd=323, add_key=248, request_key=249, keyctl=250, io_uring_setup=425, init_module=175,
        finit_module=313, delete_module=176, kexec_load=246, reboot=169, swapon=167, swapoff=168, acct=163,
        quotactl=179, clone=56, clone3=435, sethostname=170, syslog=103, fanotify_init=300, memfd_secret=447,
        iopl=172, ioperm=173, modify_ldt=154, mount_setattr=442, setuid=105, capset=126, process_madvise=440,
        kexec_file_load=320, personality=135, migrate_pages=256, move_pages=279, vmsplice=278, adjtimex=159),
    "aarch64": dict(ptrace=117, process_vm_readv=270, process_vm_writev=271, kcmp=272, pidfd_open=434, pidfd_getfd=438,
        mount=40, umount2=39, pivot_root=41, chroot=51, unshare=97, setns=268, open_tree=428, move_mount=429,
        fsopen=430, fsmount=432, name_to_handle_at=264, open_by_handle_at=265, bpf=280, perf_event_open=241,
        userfaultfd=282, add_key=217, request_key=218, keyctl=219, io_uring_setup=425, init_module=105,
        finit_module=273, delete_module=106, kexec_load=104, reboot=142, swapon=224, swapoff=225, acct=89,
        quotactl=60, clone=220, clone3=435, sethostname=161, syslog=116, fanotify_init=262, memfd_secret=447,
        mount_setattr=442, setuid=146, capset=91, process_madvise=440, kexec_file_load=294, personality=92,
        migrate_pages=238, move_pages=239, vmsplice=75, adjtimex=171),
}[os.uname().machine]
REFUSED = (-errno.EPERM, -errno.ENOSYS, -errno.EACCES)
def reaches(name, *arguments):
    value = syscall(NR[name], *arguments)
    if value not in REFUSED:
        opened(name, "gave", value)
    return value
"""


def _escape(name: str, code: str, **rest: object) -> Program:
    return abuse(name, "escapes", _NUMBERS + code, **rest)


ESCAPES: tuple[Program, ...] = (
    _escape(
        "ptrace",
        """
if syscall(NR["ptrace"], 16, @victim@, 0, 0) == 0:
    opened("attached to a process of the host")
    os.waitpid(@victim@, 0x40000000)
    syscall(NR["ptrace"], 17, @victim@, 0, 0)
if syscall(NR["ptrace"], 0x4206, @victim@, 0, 0) == 0:
    opened("seized a process of the host")
""",
    ),
    _escape(
        "ptrace_parent",
        """
if syscall(NR["ptrace"], 0x4206, os.getppid(), 0, 0) == 0:
    opened("seized the parent")
""",
    ),
    _escape(
        "read_memory",
        """
def regions(pid):
    try:
        with open(f"/proc/{pid}/maps") as file:
            for line in file:
                parts = line.split()
                if parts[1].startswith("rw") and parts[-1] in ("[heap]", "[stack]"):
                    yield tuple(int(part, 16) for part in parts[0].split("-"))
    except OSError:
        return
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
pid = @victim@
spans = list(regions(pid)) or [(0x400000, 0x401000)]
for begin, end in spans:
    buffer = ctypes.create_string_buffer(4096)
    mine, theirs = Vector(ctypes.addressof(buffer), 4096), Vector(begin, 4096)
    if syscall(NR["process_vm_readv"], pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0:
        opened("process_vm_readv")
    if syscall(NR["process_vm_writev"], pid, ctypes.byref(mine), 0, ctypes.byref(theirs), 0, 0) == 0:
        opened("process_vm_writev")
""",
    ),
    _escape(
        "memory_files",
        """
for pid in {@victim@, os.getppid(), 1} - {os.getpid()}:
    for name, flags in (("mem", os.O_RDONLY), ("mem", os.O_RDWR), ("maps", os.O_RDONLY), ("environ", os.O_RDONLY)):
        try:
            fd = os.open(f"/proc/{pid}/{name}", flags)
            if name != "environ" or os.read(fd, 1):
                opened(f"/proc/{pid}/{name}")
        except OSError:
            pass
""",
    ),
    _escape(
        "roots_of_others",
        """
for pid in ["self", "thread-self", 1, os.getppid(), @victim@]:
    for link in ("root", "cwd", "ns/../root"):
        for way in (f"/proc/{pid}/{link}@outside@", f"/proc/{pid}/{link}/../../../../../../..@outside@"):
            if os.path.exists(f"{way}/canary.txt"):
                try:
                    open(f"{way}/canary.txt").read()
                    opened(way)
                except OSError:
                    pass
""",
    ),
    _escape(
        "climb_out_of_the_root",
        """
fd = os.open(".", os.O_RDONLY)
try:
    os.mkdir("jail")
    os.chroot("jail")
    opened("chroot")
    os.fchdir(fd)
    for n in range(30):
        os.chdir("..")
    os.chroot(".")
    if os.path.exists("@outside@/canary.txt"):
        opened("outside of the root")
except OSError:
    pass
""",
        bare="either",
    ),
    _escape(
        "unshare",
        """
for name, flag in dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000, ipc=0x08000000, uts=0x04000000,
                       cgroup=0x02000000, time=0x80).items():
    if syscall(NR["unshare"], flag) == 0:
        opened("a new", name, "namespace")
if syscall(NR["unshare"], 0x10000000 | 0x20000) == 0:
    opened("a new user and mount namespace")
""",
    ),
    _escape(
        "clone_with_namespaces",
        """
for flag in (0x10000000, 0x10000000 | 0x20000, 0x10000000 | 0x40000000, 0x20000, 0x20000000):
    pid = syscall(NR["clone"], flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        opened("clone with", hex(flag))
        os.waitpid(pid, 0)
""",
    ),
    _escape(
        "clone3_with_namespaces",
        """
import struct
for flag in (0x10000000, 0x20000, 0x20000000):
    arguments = struct.pack("QQQQQQQQ", flag, 0, 0, 0, 17, 0, 0, 0)
    pid = syscall(NR["clone3"], arguments, 64)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        opened("clone3 with", hex(flag))
        os.waitpid(pid, 0)
""",
    ),
    _escape(
        "enter_namespaces",
        """
for pid in ("self", 1, os.getppid(), @victim@):
    for name in ("mnt", "net", "pid", "user", "uts", "ipc", "cgroup"):
        try:
            fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        if syscall(NR["setns"], fd, 0) == 0:
            opened("entered the", name, "namespace of", pid)
fd = syscall(NR["pidfd_open"], @victim@, 0)
if fd >= 0 and syscall(NR["setns"], fd, 0x20000) == 0:
    opened("entered by a pidfd")
""",
        bare="either",
    ),
    _escape(
        "mounts",
        """
os.makedirs("at", exist_ok=True)
def mounted(what, value):
    if value >= 0:
        opened(what)
mounted("tmpfs", syscall(NR["mount"], b"tmpfs", b"at", b"tmpfs", 0, None))
mounted("bind", syscall(NR["mount"], b"/", b"at", None, 4096, None))
mounted("proc", syscall(NR["mount"], b"proc", b"at", b"proc", 0, None))
mounted("remount", syscall(NR["mount"], None, b"/", None, 32 | 4096, None))
mounted("fsopen", syscall(NR["fsopen"], b"tmpfs", 0))
mounted("open_tree", syscall(NR["open_tree"], -100, b"/", 1))
for n in range(3):
    syscall(NR["umount2"], b"at", 2)
if syscall(NR["umount2"], b"/proc/sys", 2) == 0 or syscall(NR["umount2"], b"/tmp", 2) == 0:
    opened("umount")
""",
        bare="unsafe",
    ),
    _escape(
        "pivot_root", 'os.makedirs("at/old", exist_ok=True)\nreaches("pivot_root", b"at", b"at/old")', bare="either"
    ),
    _escape(
        "devices",
        """
import stat
for name, kind, major, minor in (("disk", stat.S_IFBLK, 254, 0), ("memory", stat.S_IFCHR, 1, 1)):
    try:
        os.mknod(name, kind | 0o666, os.makedev(major, minor))
        opened("mknod", name)
        os.unlink(name)
    except OSError:
        pass
paths = ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control"]
try:
    paths += ["/dev/" + line.split()[-1] for line in open("/proc/partitions") if line.strip() and "name" not in line]
except OSError:
    paths += ["/dev/vda", "/dev/sda", "/dev/nvme0n1"]
for path in paths:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(path, flags))
            opened(path)
        except OSError:
            pass
""",
        bare="either",
    ),
    _escape(
        "kernel_settings",
        """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger",
             "/proc/sys/kernel/hostname", "/proc/sys/vm/swappiness", "/sys/power/state", "/sys/kernel/uevent_helper",
             "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/mm/transparent_hugepage/enabled"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        opened(path, "can be written")
    except OSError:
        pass
for path in ("/proc/kcore", "/proc/kmsg", "/sys/kernel/debug", "/sys/kernel/security", "/sys/firmware"):
    try:
        if os.path.isdir(path) and os.listdir(path):
            opened(path, "can be listed")
        elif os.path.isfile(path):
            os.close(os.open(path, os.O_RDONLY))
            opened(path, "can be read")
    except OSError:
        pass
""",
        bare="either",
    ),
    _escape(
        "control_groups",
        """
for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"):
    try:
        os.mkdir(f"{top}/@mark@")
        opened("a control group in", top)
        os.rmdir(f"{top}/@mark@")
    except OSError:
        pass
    for name in ("cgroup.procs", "release_agent", "memory.max"):
        try:
            os.close(os.open(f"{top}/{name}", os.O_WRONLY))
            opened(f"{top}/{name}", "can be written")
        except OSError:
            pass
""",
        bare="either",
    ),
    _escape(
        "handles",
        """
import struct
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
if syscall(NR["name_to_handle_at"], -100, b"/", handle, ctypes.byref(mount), 0) == 0:
    fd = os.open("/", os.O_RDONLY)
    if syscall(NR["open_by_handle_at"], fd, handle, 0) >= 0:
        opened("a file by its handle")
""",
        bare="either",
    ),
    _escape(
        "keyrings",
        'reaches("keyctl", 0, -3, 0)\nreaches("add_key", b"user", b"@mark@", b"x", 1, -2)\n'
        'reaches("request_key", b"user", b"none", None, 0)',
    ),
    _escape("bpf", 'reaches("bpf", 0, ctypes.create_string_buffer(128), 128)', bare="either"),
    _escape("io_uring", 'reaches("io_uring_setup", 1, ctypes.create_string_buffer(120))'),
    _escape("userfaultfd", 'reaches("userfaultfd", 1)'),
    _escape(
        "perf_event_open",
        'import struct\nreaches("perf_event_open", struct.pack("IIQ", 1, 128, 0) + bytes(112), 0, -1, -1, 0)',
        bare="either",
    ),
    _escape("memfd_secret", 'reaches("memfd_secret", 0)', bare="either"),
    _escape(
        "modules",
        'reaches("init_module", b"", 0, b"")\nreaches("finit_module", -1, b"", 0)\n'
        'reaches("delete_module", b"no_such_module_here", 0)',
        bare="either",
    ),
    _escape("new_kernel", 'reaches("kexec_load", 0, 99, None, 0)\nreaches("reboot", 1, 2, 3, None)', bare="either"),
    _escape(
        "swap_and_accounting",
        'reaches("swapon", b"/nonexistent", 0)\nreaches("swapoff", b"/nonexistent")\n'
        'reaches("acct", b"/nonexistent")\nreaches("quotactl", 0x800007 << 8, None, 0, None)',
        bare="either",
    ),
    _escape("kernel_log", 'reaches("syslog", 10, None, 0)\nreaches("fanotify_init", 0, 0)', bare="either"),
    _escape("host_name", 'name = os.uname().nodename.encode()\nreaches("sethostname", name, len(name))', bare="either"),
    _escape(
        "ports_and_segments",
        """
if "iopl" in NR:
    reaches("iopl", 3)
    reaches("ioperm", 0x80, 1, 1)
    reaches("modify_ldt", 17, None, 0)
""",
        bare="either",
    ),
    _escape(
        "descriptors_of_a_victim",
        """
fd = syscall(NR["pidfd_open"], @victim@, 0)
if fd >= 0 and syscall(NR["pidfd_getfd"], fd, 1, 0) >= 0:
    opened("took a descriptor out of a process of the host")
if syscall(NR["kcmp"], os.getpid(), @victim@, 1, 0, 0) >= 0:
    opened("kcmp")
""",
    ),
    _escape(
        "by_the_old_system_calls",
        # The 32-bit entry has numbers of its own: unshare(CLONE_NEWUSER) by `int 0x80`.
        """
import mmap
if os.uname().machine == "x86_64":
    pid = -1
    code = bytes.fromhex("53b836010000bb00000010cd805bc3")
    try:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        if function() == 0:
            opened("unshare by the 32-bit entry")
    except OSError:
        pass
""",
        bare="either",
    ),
    _escape(
        "by_the_x32_system_calls",
        """
if os.uname().machine == "x86_64":
    if syscall(0x40000000 | NR["unshare"], 0x10000000) == 0:
        opened("unshare by the x32 numbers")
""",
        bare="held",
    ),
    _escape(
        "privileges",
        """
if _libc.prctl(39, 0, 0, 0, 0) != 1:
    opened("new privileges can be gained")
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
if _libc.capget(header, data) == 0 and any(data):
    opened("capabilities", [hex(word) for word in data])
if any(_libc.prctl(23, n, 0, 0, 0) == 1 for n in range(41)):
    say("bounding set is not empty")
actions = [lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0])]
if os.getgid() != 0:  # as an ordinary user's may be in a container: then it is nothing new
    actions.append(lambda: os.setgid(0))
for action in actions:
    try:
        action()
        if os.path.exists("@outside@"):
            opened("became root")
    except OSError:
        pass
""",
    ),
    _escape(
        "set_user_id_programs",
        """
import subprocess
for command in (["su", "-c", "id"], ["sudo", "-n", "id"], ["mount", "-t", "tmpfs", "tmpfs", "/mnt"]):
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=3, check=False)
        if done.returncode == 0:
            opened(command[0])
            subprocess.run(["umount", "/mnt"], check=False)
    except (OSError, subprocess.SubprocessError):
        pass
""",
        bare="either",
    ),
)
