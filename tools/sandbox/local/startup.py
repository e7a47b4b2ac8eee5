"""How a template process comes to be: its jail, its libraries, and the rules for its children."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import branch, jail, kernel, memory, program, seccomp, wire
from toolgym.tools.sandbox.local.confine import Confinement
from toolgym.tools.sandbox.local.landlock import Ruleset, abi
from toolgym.tools.sandbox.local.leaves import Leaves
from toolgym.tools.sandbox.local.script import high_descriptor
from toolgym.tools.sandbox.local.stem import Birth, Stem
from toolgym.tools.sandbox.local.template import Template
from toolgym.tools.sandbox.local.watchdog import Eyes

STDLIB = (
    "argparse", "array", "asyncio", "bisect", "calendar", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json",
    "logging", "math", "operator", "pathlib", "pickle", "pprint", "queue", "random", "re", "shutil", "statistics",
    "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "time", "traceback", "typing", "unittest",
    "uuid",
)  # fmt: skip
"""What nearly every program imports; loaded before the fork, it is shared."""

_FIRST_WORDS = 65536

_MOST_PINNED = 1 << 30

_ONLY_OWN = "hidepid=ptraceable"

_FROZEN = {"namespaces": (), "uid": (*seccomp.TIMES, *seccomp.ATTRIBUTES), "landlock": seccomp.METADATA}
"""Per level, calls on files that do nothing, for Landlock does not cover them."""


def main(config: Mapping[str, Any]) -> NoReturn:
    """Be a template process. `config` is what `toolgym.tools.sandbox.local.supervisor` sends."""
    host = socket.socket(fileno=config["socket"])
    os.set_inheritable(host.fileno(), False)
    _forget_signals()
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _raise_limits()
    leaves = _leaves(config)
    jailed = jail.Jailed(0, os.path.isdir("/proc/self"), -1, -1)
    if config["level"] == "namespaces":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
        jailed = jail.enter(config["read_only"], network=config["network"] == "host")
        if jailed.pid:
            host.close()
            _wait_for(jailed.pid)
        if jailed.host_proc >= 0:
            jailed = replace(jailed, host_proc=high_descriptor(jailed.host_proc))
    _clean_environment(config)
    _count_processors(config["processors"])
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if jailed.fresh_proc else jailed.host_proc
    birth = Birth(
        confinement=_confinement(config, jailed),
        work=config["work"],
        output_bytes=config["limits"]["output_bytes"],
        pid_namespace=jailed.pid_namespace,
        leaves=leaves,
    )
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    stem, line = _fork_stem(host, config, birth, proc)
    told = json.loads(line.recv(_FIRST_WORDS) or "{}")
    if not told:
        os.waitpid(stem, 0)
        os._exit(3)  # what it died of, it wrote to standard error
    if "refused" in told:
        _refuse(host, told["refused"])
    limits = config["limits"]
    eyes = Eyes(
        proc=proc,
        same_numbers=jailed.fresh_proc,
        shared_pages=told["resident"],
        leaves=leaves,
        first_uid=config["first_uid"],
        disk=None if config["level"] == "namespaces" else (limits["disk_mb"] << 20, limits["inodes"]),
        work=config["work"],
    )
    can_fork = config["level"] != "landlock"
    template = Template(
        host, birth, line, stem, warm=config["warm"], can_fork=can_fork, eyes=eyes, pinned=told["pinned"]
    )
    _filter_calls(namespaces=config["level"] == "namespaces")
    template.serve()


def _forget_signals() -> None:
    """What the host ignores or blocks is inherited, under `nohup` say, or a launcher that wants no SIGCHLD: undo it."""
    fixed, pythons = {signal.SIGKILL, signal.SIGSTOP}, {signal.SIGPIPE, signal.SIGXFSZ}  # which Python ignores
    for number in signal.valid_signals() - fixed - pythons:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _fork_stem(host: socket.socket, config: Mapping[str, Any], birth: Birth, proc: int) -> tuple[int, socket.socket]:
    """Fork the process that loads the libraries. Returns its id, and the line to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if birth.pid_namespace >= 0:
        # Children are number 2 in their namespaces. The stem must not be: libraries that renew their random state when
        # they find another number than before would not.
        passed = os.fork()
        if passed == 0:
            os._exit(0)
        os.waitpid(passed, 0)
    template = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    if os.getppid() != template:
        os._exit(0)
    ours.close()
    host.close()
    return _be_stem(theirs, config, birth, proc)


def _be_stem(line: socket.socket, config: Mapping[str, Any], birth: Birth, proc: int) -> NoReturn:
    for name in (*STDLIB, *config["preload"]):
        try:
            importlib.import_module(name)
        except ImportError as error:
            _tell(line, refused=f"cannot preload {name!r}: {error}")
            os._exit(3)
    if config["warm_code"]:
        exec(compile(config["warm_code"], "<warm>", "exec"), {"__name__": "__warm__"})
    if proc >= 0 and _threads(proc) != 1:
        _tell(line, refused="a preloaded module started a thread; a process with threads cannot be forked safely")
        os._exit(3)
    resident, private = memory.own_pages(proc) if proc >= 0 else (0, 0)
    stem = Stem(line, replace(birth, confinement=replace(birth.confinement, data_pages=private)))
    program.prepare()
    _forget_ourselves()
    pinned = stem.rehearse(proc)
    _filter_calls(namespaces=config["level"] == "namespaces")
    _tell(line, resident=resident, pinned=pinned)
    stem.serve()


def _tell(line: socket.socket, **words: Any) -> None:
    line.send(json.dumps(words).encode())


def _leaves(config: Mapping[str, Any]) -> Leaves | None:
    """The control groups of the children. While this process is still who it was when it started."""
    group = config["cgroup"]
    if group is None:
        return None
    limits = config["limits"]
    return Leaves(
        group["version"],
        group["folders"],
        processes=limits["processes"],
        cores=limits["cores"],
        files_mb=limits["disk_mb"] if config["level"] == "namespaces" else 0,
    )


def _threads(proc: int) -> int:
    fd = os.open("self/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    try:
        return len(os.listdir(fd))
    finally:
        os.close(fd)


def _refuse(host: socket.socket, why: str) -> NoReturn:
    host.sendall(wire.encode({"refused": why}))
    os._exit(3)


def _wait_for(pid: int) -> NoReturn:
    """Outside of the jail: end when it ends."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    while True:
        with contextlib.suppress(InterruptedError):
            _, status = os.waitpid(pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _raise_limits() -> None:
    """Of descriptors, and of memory that `pinning` pins; all templates of a user count together for that."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (hard, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if 0 <= hard < _MOST_PINNED:
        with contextlib.suppress(ValueError, OSError):  # it takes root
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (_MOST_PINNED, _MOST_PINNED))


def _clean_environment(config: Mapping[str, Any]) -> None:
    libraries = kernel.library_path()
    os.environ.clear()
    os.environ.update(
        libraries,
        PATH=config["path"],
        HOME="/tmp",
        TMPDIR="/tmp",
        USER="user",
        LOGNAME="user",
        LANG="C.UTF-8",
        MPLBACKEND="Agg",
        MPLCONFIGDIR="/tmp",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        GOMAXPROCS=str(config["processors"]),
        PYTHON_CPU_COUNT=str(config["processors"]),
        POLARS_MAX_THREADS=str(config["processors"]),
        RAYON_NUM_THREADS=str(config["processors"]),
        JE_ARROW_MALLOC_CONF="background_thread:false",  # pyarrow, which pandas loads where it is installed
        PYTHONDONTWRITEBYTECODE="1",
        NODE_PATH="/usr/local/lib/node_modules:/usr/lib/node_modules:/usr/share/nodejs",  # what is installed for all
        OPENSSL_CONF="/dev/null",  # Node and git end where they may not read the system's settings
        GIT_CONFIG_NOSYSTEM="1",
    )


def _count_processors(processors: int) -> None:
    """Programs count these: see `processors.told`. Python before 3.13 has no variable for it."""
    for name in ("cpu_count", "process_cpu_count"):
        if (getattr(os, name, lambda: 0)() or 0) > processors:
            setattr(os, name, lambda: processors)


def _confinement(config: Mapping[str, Any], jailed: jail.Jailed) -> Confinement:
    """What every child does to itself; opened and computed here, once."""
    namespaces = config["level"] == "namespaces"
    network = config["network"]
    limits = config["limits"]
    ruleset = None
    if abi():
        readable = ["/"] if namespaces else config["read_only"]
        ruleset = Ruleset(
            readable, [f"/dev/{name}" for name in jail.DEVICES], [os.path.dirname(branch.BASE)] if namespaces else ()
        )
    child_filter = None
    if seccomp.supported():
        child_filter = seccomp.child_filter(
            fork=config["level"] != "landlock",
            network=network != "off",
            sockets=namespaces or network != "off",
            frozen=_FROZEN[config["level"]],
            own_only=not namespaces,
            chroot=namespaces,
            truncate=namespaces or abi() >= 3,
            signals=config["level"] != "landlock" or abi() >= 6,
            reserve=namespaces,
        )
    return Confinement(
        namespaces=namespaces,
        own_network=network == "loopback",
        fresh_proc=namespaces and jailed.fresh_proc,
        landlock=ruleset,
        filter=child_filter,
        network=network != "off",
        first_uid=config["first_uid"],
        disk_mb=limits["disk_mb"],
        inodes=limits["inodes"],
        file_mb=limits["file_mb"],
        processes=limits["processes"],
        open_files=limits["open_files"],
        data_pages=0,  # known once the libraries are loaded
        proc=jailed.host_proc,
        proc_options=_proc_options() if namespaces and jailed.fresh_proc else None,
        below_tmp=tuple(path for path in jail.outermost(config["read_only"]) if path.startswith("/tmp/")),
    )


def _proc_options() -> str | None:
    """Have a /proc show those processes alone that one may look into: not the other forks of a session."""
    try:
        kernel.mount("proc", "/w", "proc", kernel.MS_NOSUID, _ONLY_OWN)
    except OSError:
        return None  # before Linux 5.8
    kernel.detach("/w")
    return _ONLY_OWN


def _filter_calls(*, namespaces: bool) -> None:
    """Forbid this process, and so its children, the calls that neither ever needs."""
    if seccomp.supported():
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(seccomp.template_filter(needs=seccomp.TEMPLATE_NEEDS if namespaces else ()))


def _forget_ourselves() -> None:
    """Programs shall find none of this; and here, before the fork, forgetting it costs them nothing."""
    for name in [key for key in sys.modules if key.partition(".")[0] == "toolgym"]:
        del sys.modules[name]
