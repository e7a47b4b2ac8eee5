"""Starts a template process: enters the jail, forks the zygote that loads the libraries, and becomes the broker."""

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
from typing import TYPE_CHECKING, Any, NoReturn

from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.broker import Broker
from toolgym.tools.sandbox.local.child import program
from toolgym.tools.sandbox.local.kernel import fork_mounts, jail, seccomp, syscalls, users
from toolgym.tools.sandbox.local.kernel.child_cgroups import ChildCgroups, group_folders
from toolgym.tools.sandbox.local.kernel.harden import TERMINALS, Hardening
from toolgym.tools.sandbox.local.kernel.landlock import SCOPED_SINCE, Ruleset, abi, around
from toolgym.tools.sandbox.local.kernel.syscall_batch import high_descriptor
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.zygote import loading
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec, Zygote

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import Refused, ZygoteFailed, ZygoteReady

_MAX_HANDSHAKE = 65536

_FAILED = 3

_JUDGE = "toolgym.tools.judge.inside"

_PINNED_BYTES = 1 << 30
"""Memory that the template processes of a user may pin together, if root may say so; see `fork_pages`."""

_ONLY_OWN = "hidepid=ptraceable"  # a /proc shows only the processes that its reader may look into

_FROZEN = {"namespaces": (), "uid": (*seccomp.TIMES, *seccomp.ATTRIBUTES), "landlock": seccomp.METADATA}
"""By level, calls on files that do nothing, because Landlock does not cover them."""


def main(config: Mapping[str, Any]) -> NoReturn:
    """Become a template process. `config` is put together by `TemplatePool` and `TemplateProcess`."""
    host = socket.socket(fileno=config["socket"])
    os.set_inheritable(host.fileno(), False)
    _reset_signals()
    os.umask(0o022)
    for limit, wanted in ((resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_MEMLOCK, _PINNED_BYTES)):
        hard = resource.getrlimit(limit)[1]
        with contextlib.suppress(ValueError, OSError):  # only root may raise a hard limit
            resource.setrlimit(limit, (hard, hard))
            if 0 <= hard < wanted:  # RLIM_INFINITY is negative
                resource.setrlimit(limit, (wanted, wanted))
    _offer_judge()  # before the jail, in which these files may not be
    cgroups = _cgroups(config)
    jailed = jail.Jailed(0, os.path.isdir("/proc/self"), -1, -1)
    if config["level"] == "namespaces":
        jailed = _enter_jail(config, host)
    _clean_environment(config)
    _count_processors(config["processors"])
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if jailed.fresh_proc else jailed.host_proc
    spec = ChildSpec(
        hardening=_hardening(config, jailed, cgroups),
        work=config["work"],
        output_bytes=config["limits"]["output_bytes"],
        pid_namespace=jailed.pid_namespace,
        cgroups=cgroups,
        proc=proc,
        same_numbers=jailed.fresh_proc,
    )
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    absent: dict[str, str] = {}
    while True:
        zygote_pid, zygote = _fork_zygote(host, config, spec, absent)
        ready = _await_zygote(host, zygote, zygote_pid)
        if "failed" not in ready:
            break
        zygote.close()
        os.waitpid(zygote_pid, 0)
        absent[ready["failed"]] = ready["reason"]
    spec = replace(spec, shared_pages=ready["resident"], calibrated=ready["calibrated"])
    reasons = ", ".join(f"{library} ({reason})" for library, reason in absent.items())
    broker = Broker(host, spec, zygote, zygote_pid, config["warm"], reasons)
    _filter_calls(namespaces=spec.hardening.namespaces)
    broker.serve()


def _enter_jail(config: Mapping[str, Any], host: socket.socket) -> jail.Jailed:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    jailed = jail.enter(
        config["read_only"],
        network=config["network"] == "host",
        folders=config["folders"],
        hidden=config["hidden"],
        first_uid=config["first_uid"],
        image=config["image"],
    )
    if jailed.pid:
        host.close()
        _wait_for(jailed.pid)
    return replace(jailed, host_proc=high_descriptor(jailed.host_proc)) if jailed.host_proc >= 0 else jailed


def _await_zygote(host: socket.socket, zygote: socket.socket, zygote_pid: int) -> ZygoteReady | ZygoteFailed:
    handshake: ZygoteReady | ZygoteFailed | Refused | None = json.loads(zygote.recv(_MAX_HANDSHAKE) or "null")
    if handshake is None:
        os.waitpid(zygote_pid, 0)
        os._exit(_FAILED)  # the zygote wrote to standard error why it died
    if "refused" in handshake:
        host.sendall(frames.encode(handshake))
        os._exit(_FAILED)
    return handshake


def _reset_signals() -> None:
    """Undo what was inherited: a host under `nohup`, or a launcher that ignores SIGCHLD, passes ignored signals on.
    SIGINT is ignored: it is for the host to heed."""
    fixed, pythons = {signal.SIGKILL, signal.SIGSTOP}, {signal.SIGPIPE, signal.SIGXFSZ}  # Python itself ignores these
    for number in signal.valid_signals() - fixed - pythons:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fork_zygote(
    host: socket.socket, config: Mapping[str, Any], spec: ChildSpec, absent: Mapping[str, str]
) -> tuple[int, socket.socket]:
    """Fork the zygote, which does without the libraries in `absent`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if spec.pid_namespace >= 0:
        # Children are number 2 in their namespaces. The zygote must not be number 2 itself: libraries that renew their
        # random state when their process id has changed would not notice the fork.
        skipped = os.fork()
        if skipped == 0:
            os._exit(0)
        os.waitpid(skipped, 0)
    broker = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    if os.getppid() != broker:
        os._exit(0)
    ours.close()
    host.close()
    return _become_zygote(theirs, config, spec, absent)


def _become_zygote(
    broker: socket.socket, config: Mapping[str, Any], spec: ChildSpec, without: Mapping[str, str]
) -> NoReturn:
    proc = spec.proc
    try:
        with loading.writable_folder(spec.hardening.namespaces, config["work"]):
            loading.load(config["preload"], config["warm_code"], without)
    except loading.LoadError as error:
        if error.library in loading.STDLIB or config["on_preload_error"] == "fail":
            _refuse(broker, f"cannot preload {error.library!r}: {error.reason}")
        failed: ZygoteFailed = {"failed": error.library, "reason": error.reason}
        broker.send(json.dumps(failed).encode())
        os._exit(0)
    resident = private = 0
    if proc >= 0:
        resident, private = usage.own_pages(proc)
    zygote = Zygote(broker, replace(spec, hardening=replace(spec.hardening, data_pages=private)))
    program.prepare()
    for name in [key for key in sys.modules if key.partition(".")[0] == "toolgym"]:
        del sys.modules[name]  # before the fork: that saves each child the page copies
    calibrated = zygote.calibrate()
    _filter_calls(namespaces=spec.hardening.namespaces)
    ready: ZygoteReady = {"resident": resident, "calibrated": calibrated}
    broker.send(json.dumps(ready).encode())
    zygote.serve()


def _offer_judge() -> None:
    """Load what the judge runs in a sandbox, for runs that begin with its first line."""
    with contextlib.suppress(ImportError, SyntaxError):  # another interpreter may lack it; then each run brings it
        inside = importlib.import_module(_JUDGE)
        program.offers[inside.first_line()] = {"main": importlib.import_module(f"{_JUDGE}.in_sandbox").main}


def _refuse(broker: socket.socket, why: str) -> NoReturn:
    refused: Refused = {"refused": why}
    broker.send(json.dumps(refused).encode())
    os._exit(_FAILED)


def _cgroups(config: Mapping[str, Any]) -> ChildCgroups | None:
    """Control groups of the children. Must run before the process changes its user."""
    group = config["cgroup"]
    if group is None:
        return None
    limits = config["limits"]
    return ChildCgroups(
        group["version"],
        group["folders"],
        processes=limits["processes"],
        cores=limits["cores"],
        files_mb=limits["disk_mb"] if config["level"] == "namespaces" else 0,
    )


def _wait_for(pid: int) -> NoReturn:
    """Outside of the jail: wait for the jailed process, and end with its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    while True:
        with contextlib.suppress(InterruptedError):
            _, status = os.waitpid(pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _clean_environment(config: Mapping[str, Any]) -> None:
    libraries, processors = syscalls.library_path(), str(config["processors"])
    os.environ.clear()
    os.environ.update(
        libraries,
        PATH=config["path"],
        USER="user",
        LOGNAME="user",
        LANG="C.UTF-8",
        MPLBACKEND="Agg",
        **dict.fromkeys(("HOME", "TMPDIR"), "/tmp"),
        **loading.cache_folders(loading.SHARED_MEMORY),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        **dict.fromkeys(("GOMAXPROCS", "PYTHON_CPU_COUNT", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), processors),
        JE_ARROW_MALLOC_CONF="background_thread:false",  # pyarrow, which pandas loads if it is installed
        PYTHONDONTWRITEBYTECODE="1",
        OPENSSL_CONF="/dev/null",  # Node and git end if they may not read the system's settings
        GIT_CONFIG_NOSYSTEM="1",
        **config["variables"],
    )


def _count_processors(processors: int) -> None:
    """Have Python report no more processors than programs may use: before 3.13 it has no variable for that."""
    for name in ("cpu_count", "process_cpu_count"):
        if (getattr(os, name, lambda: 0)() or 0) > processors:
            setattr(os, name, lambda: processors)


def _hardening(config: Mapping[str, Any], jailed: jail.Jailed, cgroups: ChildCgroups | None) -> Hardening:
    namespaces = config["level"] == "namespaces"
    network, limits = config["network"], config["limits"]
    ruleset = None
    if abi():
        readable, listed = ["/"], list[str]()
        if not namespaces:
            readable, listed = around(config["read_only"], config["hidden"])
            readable += [path for path in jail.MACHINE_FACTS if os.path.exists(path)]
        ruleset = Ruleset(
            readable,
            [f"/dev/{name}" for name in (*jail.DEVICES, *(("tty",) if namespaces else ()))],
            [os.path.dirname(fork_mounts.BASE)] if namespaces else (),
            listed,
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
            processes=not namespaces,
        )
    return Hardening(
        namespaces=namespaces,
        # Before its ABI 6, Landlock does not keep abstract sockets apart, and a network does.
        own_network=network == "loopback" or (namespaces and network == "off" and abi() < SCOPED_SINCE),
        loopback=network == "loopback",
        fresh_proc=namespaces and jailed.fresh_proc,
        landlock=ruleset,
        filter=child_filter,
        network=network != "off",
        first_uid=users.FIRST_INSIDE if namespaces and config["first_uid"] else config["first_uid"],
        disk_mb=limits["disk_mb"],
        inodes=limits["inodes"],
        file_mb=limits["file_mb"],
        processes=limits["processes"],
        open_files=limits["open_files"],
        data_pages=0,  # known once the libraries are loaded
        proc=jailed.host_proc,
        # No other forks of a session; the kernel has that option since 5.8.
        proc_options=_ONLY_OWN if namespaces and jailed.fresh_proc and _may_mount("proc", _ONLY_OWN) else None,
        terminals=namespaces and _may_mount("devpts", TERMINALS),
        below_tmp=tuple(path for path in jail.outermost(config["read_only"]) if path.startswith("/tmp/")),
        folders=tuple(config["folders"]),
        image=bool(config["image"]),
        groups=() if namespaces else tuple(group_folders(cgroups)),
    )


def _may_mount(kind: str, options: str) -> bool:
    try:
        syscalls.mount(kind, "/w", kind, syscalls.MS_NOSUID, options)
    except OSError:
        return False
    syscalls.detach("/w")
    return True


def _filter_calls(*, namespaces: bool) -> None:
    """Forbid this process, and so its children, the system calls that neither ever needs."""
    if seccomp.supported():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(seccomp.outer_filter(needs=seccomp.OUTER_NEEDS if namespaces else ()))
