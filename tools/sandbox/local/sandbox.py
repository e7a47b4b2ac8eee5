"""`LocalSandbox`: fast and isolated execution on this machine."""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from toolgym.tools.deadline import shielded
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.rate_limit import LocalRateLimiter
from toolgym.tools.sandbox.base import (
    ExecutionResult,
    ExecutionStatus,
    Limits,
    Sandbox,
)
from toolgym.tools.sandbox.local import cgroup, folders, jail, languages, processors, users
from toolgym.tools.sandbox.local.isolation import Isolation, Level, choose, missing
from toolgym.tools.sandbox.local.session import START_SESSION, LocalSession
from toolgym.tools.sandbox.local.supervisor import GRACE, Supervisor, TemplateLost, runtime_paths
from toolgym.tools.sandbox.names import check_name, positive

PRELOAD = ("numpy", "sympy", "pandas", "scipy")
"""What the full template loads, as far as it is installed."""

WARM_CODE = {
    "sympy": (
        "import sympy; x = sympy.Symbol('x'); sympy.factor(x**2 - 1); sympy.solve(x**2 - 2, x); "
        "sympy.simplify(sympy.sin(x)**2 + sympy.cos(x)**2); str(sympy.expand((x + 1)**3)); sympy.integrate(x, x); del x"
    ),
    "numpy": "import numpy; numpy.arange(8).reshape(2, 4) @ numpy.ones((4, 2)); str(numpy.array([1.5]))",
    "pandas": "import pandas; str(pandas.DataFrame({'a': [1, 1], 'b': [2, 3]}).groupby('a').sum())",
}
"""Small computations that fill the libraries' caches before the fork."""

TRIES = 5
"""How often a run is sent when its template process is lost under it.

Where processes are killed at random, seven a second, one loss in thirty is followed by another one of the same run:
three tries were too few once in 30,000 executions."""

MOST_TEMPLATES = 16
"""Template processes of each kind, unless more are asked for: they fork thousands of children a second."""

CROWDED = 4
"""Requests that a template has at once when another one is started, if there may be more."""

SESSIONS_EACH = 8
"""Open sessions that count as one request: they stay with their template, and end with it."""

Network = Literal["off", "loopback", "host"]

_log = logging.getLogger("toolgym.tools.sandbox")

_SLOW = (
    "the sandbox's programs start a little slower than they could: io_uring is not allowed, or too little locked memory"
)
_said: set[str] = set()


class LocalSandbox(Sandbox):
    """Runs code in confined children of template processes.

    A *template process* has the interpreter and the scientific libraries loaded, and forks a child for each call, which
    takes milliseconds. There is a bare template for code that needs no library and a full one for code that does; which
    one a program gets is decided by the names in it, and a wrong guess only costs the import. Templates that die are
    replaced, and what they were asked is asked again.

    Belongs to the event loop that uses it first. For several loops see `SharedSandbox`.

    Args:
        require: weakest isolation level that is acceptable, see `Level`; None takes what the machine offers.
        level: exactly this level.
        limits: what one execution or session may use.
        network: `off`; `loopback`, a network of its own inside; or `host`.
        preload: modules of the full template; those that are not installed are left out with a line in the log.
        python: interpreter to run programs with, for example that of another virtual environment: a path, or a name to
            look up in PATH. Default: this one.
        max_running: executions and cells at once. Default: four per processor.
        templates: most template processes of each kind; the next is started when all there are have `CROWDED` requests
            each, or `SESSIONS_EACH` times as many sessions. Default: one per two processors, and at most
            `MOST_TEMPLATES`.
        warm: children that each template keeps ready.

    Raises:
        SandboxError: the machine cannot give the level.
        ConfigError: an argument is not known or out of range.
    """

    def __init__(
        self,
        *,
        require: str | None = None,
        level: str | None = None,
        limits: Limits | None = None,
        network: Network = "off",
        preload: Sequence[str] = PRELOAD,
        python: str | None = None,
        max_running: int | None = None,
        templates: int | None = None,
        warm: int = 2,
    ) -> None:
        if network not in ("off", "loopback", "host"):
            raise ConfigError(f"network must be 'off', 'loopback' or 'host', got {network!r}")
        self.limits = limits or Limits()
        self._level = choose(require, level)
        if network == "loopback" and self._level is not Level.NAMESPACES:
            raise SandboxError(f"network='loopback' needs the level 'namespaces', and this is {self._level.value!r}")
        self._network: Network = network
        self._python = _absolute(python) if python else sys.executable
        if self._level is Level.UID:
            self._level = _enterable(self._python, level, require)
        self._preload = tuple(preload)
        cores = processors.available()
        self._limiter = LocalRateLimiter(max_running or 4 * cores)
        self._warm = max(0, warm)
        count = templates or max(1, min(MOST_TEMPLATES, cores // 2))
        self._kinds = {"bare": [None] * count, "full": [None] * count}  # type: dict[str, list[Supervisor | None]]
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._starting: Counter[tuple[str, int]] = Counter()
        self._turn = itertools.count()
        self._pattern = _names_pattern(self._preload)
        self._installed: tuple[str, ...] | None = None
        self._paths: list[str] = []
        self._work = ""
        self._sessions: set[LocalSession] = set()
        self._held: Counter[Supervisor] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._layers: dict[str, Any] = {}

    @property
    def level(self) -> Level:
        """The isolation level in use."""
        return self._level

    @property
    def isolation(self) -> Isolation:
        """Exactly what is on. Known once a template has started; see `start`.

        Raises:
            SandboxError: called before.
        """
        if not self._layers:
            raise SandboxError(
                "the isolation is known once the sandbox has started; call `await sandbox.start()` first"
            )
        controllers = (self._layers["cgroup"] or {}).get("controllers", ())
        return Isolation(
            level=self._level,
            landlock=int(self._layers["landlock"]),
            seccomp=bool(self._layers["seccomp"]),
            fresh_proc=bool(self._layers["fresh_proc"]),
            network=self._network,
            cgroup=f"v{self._layers['cgroup']['version']}" if controllers else None,
            controllers=tuple(controllers),
            missing=tuple(missing(self._level, self._layers)),
        )

    @property
    def template_ids(self) -> list[int]:
        """Process ids of the template processes that run."""
        return [one.pid for kind in self._kinds.values() for one in kind if one is not None and one.alive]

    async def start(self, *, full: bool = False) -> None:
        """Start a bare template, so that the first call need not, and tell the isolation level once in the log.

        Args:
            full: start one with the preloaded modules as well.

        Raises:
            SandboxError: it does not start.
        """
        await self._template("bare", 0)
        if full and self._preload:
            await self._template("full", 0)

    # ------------------------------------------------------------------ running

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float = 30.0,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        compile_timeout: float | None = None,
    ) -> ExecutionResult:
        """See `Sandbox.run`.

        `compile_timeout` (seconds, default `timeout`) bounds the compiler of languages that have one.
        """
        found = languages.find(language)
        message: dict[str, Any] = {
            "op": "run",
            "code": code,
            "timeout": positive("timeout", timeout),
            "memory_mb": positive("memory_mb", memory_mb if memory_mb is not None else self.limits.memory_mb),
            "cpu_seconds": self.limits.cpu_seconds,
            "stdin": stdin,
            "files": _encode_files(files),
            "fetch": [check_name(name, absolute=True) for name in fetch_files],
            "env": _check_env(env),
        }
        if found is not None:
            if not found.possible(self._level):
                raise ConfigError(
                    f"language {language!r} cannot run at the level {self._level.value!r}, which allows "
                    + ("no more than one process" if self._level is Level.LANDLOCK else "no look into /proc")
                )
            wanted = found.request(code, message["memory_mb"], self._level, processors.told(self.limits))
            message |= {**wanted, "env": {**wanted["env"], **message["env"]}}
            message["compile_timeout"] = positive("compile_timeout", compile_timeout or timeout)
        kind = "full" if found is None and self._pattern.search(code) else "bare"
        if found is not None and found.name == "pytest":
            message["argv"] = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", found.source]
        patience = timeout + (message.get("compile_timeout", 0.0) if found is not None else 0.0) + GRACE
        async with self._limiter.permit():
            for _ in range(TRIES):
                template = await self._template(kind)
                try:
                    answer = await template.request(message, patience=patience)
                except TemplateLost:
                    continue
                return _execution_result(answer)
        return ExecutionResult(
            ExecutionStatus.SANDBOX_ERROR, message=f"the template process was lost {TRIES} times while running this"
        )

    async def session(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        memory_mb: int | None = None,
        hint: str | None = None,
    ) -> LocalSession:
        """Open a session.

        Args:
            files: files to put into its folder first, by relative name.
            env: further environment variables.
            memory_mb: instead of the limit's.
            hint: the code that will run in it, where all of it is known: a session for code that names none of the
                preloaded modules is a child of the bare template, which is quicker. A wrong guess only costs time.

        Raises:
            SandboxError: it cannot be opened.
        """
        name = uuid.uuid4().hex
        message: dict[str, Any] = {
            "op": "open",
            "session": name,
            "files": _encode_files(files),
            "env": _check_env(env),
            "memory_mb": positive("memory_mb", memory_mb if memory_mb is not None else self.limits.memory_mb),
            "timeout": START_SESSION,
        }
        why = ""
        for _ in range(TRIES):
            bare = not self._preload or (hint is not None and not self._pattern.search(hint))
            template = await self._template("bare" if bare else "full")
            try:
                answer = await template.request(message, patience=START_SESSION + GRACE)
            except TemplateLost:
                why = "the template process was lost"
                continue
            except asyncio.CancelledError:
                template.tell({"op": "close", "session": name})  # it may have been open already
                raise
            if answer["status"] == "ok":
                return self._adopt(LocalSession(self, template, name))
            why = answer.get("message") or answer["status"]
        raise SandboxError(f"a session cannot be opened: {why}")

    async def close(self) -> None:
        self._closed = True
        await shielded(self._close_all())  # half closed, it would leave processes unreaped and folders behind

    async def _close_all(self) -> None:
        for session in [*self._sessions]:
            session._end()
            self._forget(session)
        for lock in list(self._locks.values()):
            async with lock:
                pass  # what is just starting is there now, and is closed with the others
        running = [one for kind in self._kinds.values() for one in kind if one is not None]
        await asyncio.gather(*(one.close() for one in running))
        for kind in self._kinds.values():
            kind[:] = [None] * len(kind)
        if self._work:
            folders.remove(self._work)
            self._work = ""

    def abandon(self) -> None:
        """Kill everything at once, without a word to anybody: for the end of the interpreter."""
        self._closed = True
        for kind in self._kinds.values():
            for one in kind:
                if one is not None:
                    one.abandon()
        if self._work:
            folders.remove(self._work)

    def _adopt(self, session: LocalSession) -> LocalSession:
        self._sessions.add(session)
        self._held[session._template] += 1
        return session

    def _forget(self, session: LocalSession) -> None:
        """The session is no more. Forgetting it twice is fine."""
        if session in self._sessions:
            self._sessions.remove(session)
            self._held[session._template] -= 1
            if not self._held[session._template]:
                del self._held[session._template]  # it may have ended, and is not kept for this

    # ------------------------------------------------------------------ templates

    async def _template(self, kind: str, index: int | None = None) -> Supervisor:
        """A living template of that kind; a dead one is replaced first."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise SandboxError("a LocalSandbox belongs to one event loop; use a SharedSandbox for several")
        row = self._kinds[kind]
        if index is None:
            start = next(self._turn) % len(row)
            order = [*range(start, len(row)), *range(start)]
            index = min(order, key=lambda at: self._load(kind, at))
        found = row[index]
        if found is not None and found.alive:
            return found
        self._starting[kind, index] += 1
        try:
            async with self._locks.setdefault((kind, index), asyncio.Lock()):
                found = row[index]
                if found is not None and found.alive:
                    return found
                if self._closed:
                    raise SandboxError("the sandbox is closed")
                if found is not None:
                    _log.warning("a template process ended and is replaced")
                    await found.close()
                fresh = await self._start_template(kind)
                row[index] = fresh
                return fresh
        finally:
            self._starting[kind, index] -= 1

    def _load(self, kind: str, index: int) -> int:
        """How much a template has to do; one that is not there yet, how much there must be to start it."""
        found = self._kinds[kind][index]
        if found is None or not found.alive:
            return CROWDED + self._starting[kind, index]
        return found.busy + self._held[found] // SESSIONS_EACH

    async def _start_template(self, kind: str) -> Supervisor:
        if self._installed is None:
            self._paths = await asyncio.to_thread(runtime_paths, self._python)
            self._installed = await asyncio.to_thread(_installed, self._python, self._preload)
        if self._level is not Level.NAMESPACES:
            await asyncio.to_thread(folders.sweep)
        if self._level is not Level.NAMESPACES and not self._work:
            # Without awaiting: of two templates that start at once, one would make a folder that nobody removes.
            self._work = folders.make()
        preload = list(self._installed) if kind == "full" else []
        config = {
            "level": self._level.value,
            "network": self._network,
            "limits": asdict(self.limits),
            "read_only": [*jail.SYSTEM_PATHS, *self._paths],
            "preload": preload,
            "warm_code": "\n".join(WARM_CODE[name] for name in preload if name in WARM_CODE),
            "path": f"{os.path.dirname(self._python)}:{languages.SEARCH_PATH}",
            "processors": processors.told(self.limits),
            "warm": self._warm,
            "work": tempfile.mkdtemp(dir=self._work) if self._work else "",
            "first_uid": users.take() if self._level is Level.UID else 0,
        }
        if config["work"]:
            os.chmod(str(config["work"]), 0o711)
        place, why = await asyncio.to_thread(cgroup.find)
        if self.limits.cores is not None and (place is None or "cpu" not in place.folders):
            raise SandboxError(
                f"limits.cores={self.limits.cores} needs a control group with the cpu controller, and none can be made "
                f"here ({why or 'that controller is not passed on'}); leave it at None"
            )
        # The template of root is another user in there, and makes its children's groups itself.
        owner = users.SANDBOX_UID if self._level is Level.NAMESPACES and jail.becomes_another() else None
        make_group = functools.partial(cgroup.Group, place, owner) if place is not None else None
        template = Supervisor(self._python, config, make_group)
        await template.start()
        self._layers = template.layers
        text = f"sandbox isolation: {self._level.value}"
        if text not in _said:
            _said.add(text)
            _log.info("%s (%s)", text, self.isolation)
        if not template.layers["pinned"] and _SLOW not in _said:
            _said.add(_SLOW)
            _log.info(_SLOW)
        return template


def _absolute(python: str) -> str:
    """The interpreter's path, links kept, for a template process has another folder and no PATH."""
    found = shutil.which(python)
    if found is None:
        raise SandboxError(
            f"the sandbox's interpreter {str(python)!r} cannot be run: there is no such program; give its path"
        )
    return os.path.abspath(found)


def _enterable(python: str, level: str | None, require: str | None) -> Level:
    """Other users must be able to enter the interpreter's folders at the level `uid`; otherwise it is `landlock`."""
    closed = [
        str(folder)
        for path in runtime_paths(python)
        for folder in [Path(path), *Path(path).parents]
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH
    ]
    if not closed:
        return Level.UID
    if level is not None or (require is not None and Level(require) is not Level.LANDLOCK):
        raise SandboxError(
            f"at the level 'uid' programs run as other users, who cannot enter {closed[0]!r} to reach the interpreter "
            f"{python!r}; give a world-readable one in python=, or accept the level 'landlock'"
        )
    return Level.LANDLOCK


def _names_pattern(preload: Sequence[str]) -> re.Pattern[str]:
    """Matches code in which a preloaded module, or one that usually brings it, is named."""
    names = {name.partition(".")[0] for name in preload}
    friends = {"numpy": ("np", "matplotlib", "sklearn"), "pandas": ("pd",), "scipy": ("sklearn",)}
    words = sorted({*names, *(friend for name in names for friend in friends.get(name, ()))})
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b" if words else r"(?!)")


def _installed(python: str, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the modules that the interpreter can find."""
    import json
    import subprocess

    code = (
        "import importlib.util, json, sys\n"
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n.partition('.')[0])]))"
    )
    done = subprocess.run([python, "-I", "-c", code, *names], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SandboxError(f"the sandbox's interpreter {python!r} cannot be run: {done.stderr.strip()[-500:]}")
    found = tuple(json.loads(done.stdout))
    absent = [name for name in names if name not in found]
    if absent:
        _log.info("not installed, so not preloaded in the sandbox: %s", ", ".join(absent))
    return found


def _encode_files(files: Mapping[str, bytes] | None) -> dict[str, str]:
    return {check_name(name): base64.b64encode(data).decode() for name, data in (files or {}).items()}


def _check_env(env: Mapping[str, str] | None) -> dict[str, str]:
    for name, value in (env or {}).items():
        bad = not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name
        if bad or "\0" in name + value or name + value != (name + value).encode(errors="ignore").decode():
            raise ConfigError(f"an environment variable needs a name without '=' and a text, got {name!r}: {value!r}")
    return dict(env or {})


def _fetched(found: Sequence[tuple[str, int]], data: bytes) -> dict[str, bytes]:
    """Files by name, from their sizes and their contents one after another."""
    files, at = {}, 0
    for name, size in found:
        files[name] = data[at : at + size]
        at += size
    return files


def _execution_result(answer: Mapping[str, Any]) -> ExecutionResult:
    status = ExecutionStatus(answer["status"])
    code = answer.get("code")
    ended_itself = status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED)
    compiled = answer.get("compiled")
    compilation = None
    if compiled is not None:
        good = compiled["status"] == 0
        compilation = ExecutionResult(
            status=ExecutionStatus.OK if good else ExecutionStatus.ERROR,
            stdout=compiled["stdout"],
            stderr=compiled["stderr"],
            return_code=compiled["status"],
            duration=compiled["duration"],
            stdout_truncated=compiled["stdout_truncated"],
            stderr_truncated=compiled["stderr_truncated"],
        )
    if status is ExecutionStatus.COMPILE_ERROR and compilation is not None:
        return ExecutionResult(
            status=status,
            stdout=compilation.stdout,
            stderr=compilation.stderr,
            return_code=compilation.return_code,
            duration=compilation.duration,
            compile=compilation,
        )
    return ExecutionResult(
        status=status,
        stdout=answer.get("stdout", ""),
        stderr=answer.get("stderr", ""),
        return_code=code if ended_itself else None,
        duration=float(answer.get("duration", 0.0)),
        stdout_truncated=bool(answer.get("stdout_truncated")),
        stderr_truncated=bool(answer.get("stderr_truncated")),
        message=str(answer.get("message", "")),
        cpu_seconds=answer.get("cpu"),
        memory_bytes=answer.get("rss"),
        files=_fetched(answer.get("files") or (), answer.get("raw", b"")),
        compile=compilation,
    )
