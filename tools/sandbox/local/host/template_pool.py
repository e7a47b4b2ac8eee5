"""`TemplatePool`: the template processes of a local sandbox. It chooses one for a request, and starts another one."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, SandboxClosedError, SandboxUnavailableError
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local.host import languages, packages
from toolgym.tools.sandbox.local.host.isolation import Isolation, Level, missing
from toolgym.tools.sandbox.local.host.resources import reported_processors
from toolgym.tools.sandbox.local.host.template_process import TemplateLostError, TemplateProcess, runtime_paths
from toolgym.tools.sandbox.local.host.toolchains import importable
from toolgym.tools.sandbox.local.kernel import cgroup, folders, jail, users
from toolgym.tools.sandbox.options import Network

WARM_CODE = {
    "sympy": (
        "import sympy; x = sympy.Symbol('x'); sympy.factor(x**2 - 1); sympy.solve(x**2 - 2, x); "
        "sympy.simplify(sympy.sin(x)**2 + sympy.cos(x)**2); str(sympy.expand((x + 1)**3)); sympy.integrate(x, x); del x"
    ),
    "numpy": "import numpy; numpy.arange(8).reshape(2, 4) @ numpy.ones((4, 2)); str(numpy.array([1.5]))",
    "matplotlib.pyplot": (  # no text is drawn: open fonts would not outlive the fork
        "import matplotlib.backends.backend_agg, matplotlib.font_manager as fonts, matplotlib.pyplot as plots; "
        "fonts.findfont('DejaVu Sans'); plots.plot([1, 2]); plots.close('all')"
    ),
    "pandas": "import pandas; str(pandas.DataFrame({'a': [1, 1], 'b': [2, 3]}).groupby('a').sum())",
}
"""Small computations that fill the libraries' caches before the fork."""

OnPreloadError = Literal["fail", "warn", "ignore"]


@dataclass(frozen=True)
class Preload:
    """Modules that template processes load before they fork children.

    Attributes:
        modules: names of the modules.
        on_error: what happens if a module is not installed, raises an exception, or starts a thread. `fail` raises
            SandboxUnavailableError. `warn` and `ignore` do without it, with or without a line in the log; programs can
            still try to import it.

    Raises ConfigError for other values.
    """

    modules: Sequence[str]
    on_error: OnPreloadError = "warn"

    def __post_init__(self) -> None:
        if isinstance(self.modules, str):
            raise ConfigError(f"preload must be a list of modules, got {self.modules!r}")
        if self.on_error not in get_args(OnPreloadError):
            raise ConfigError(f"on_error must be 'fail', 'warn' or 'ignore', got {self.on_error!r}")
        object.__setattr__(self, "modules", tuple(self.modules))


MOST_TEMPLATES = 16
"""Template processes of each kind by default: they fork thousands of children a second."""

CROWDED = 4
"""Requests of one template at which another one is started, up to the limit."""

SESSIONS_EACH = 8
"""Open sessions that count as one request: they stay with their template, and end with it."""

_log = logging.getLogger("toolgym.tools.sandbox")

_logged: set[str] = set()


@dataclass(eq=False, kw_only=True)
class TemplatePool:
    """Bare template processes, and full ones with libraries loaded. Belongs to one event loop, see `loop`."""

    level: Level
    network: Network
    limits: Limits
    python: str
    preload: Preload
    packages: str | None
    folders: tuple[str, ...]
    image: str = ""
    count: int
    warm: int

    def __post_init__(self) -> None:
        self._kinds: dict[str, list[TemplateProcess | None]]
        self._kinds = {kind: [None] * self.count for kind in ("bare", "full")}
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._starting: Counter[tuple[str, int]] = Counter()
        self._turn = itertools.count()
        self._pattern = _names_pattern(self.preload.modules)
        self._installed: tuple[str, ...] | None = None
        self._paths: tuple[str, ...] = ()
        self._work = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closed = False
        self._layers: Mapping[str, Any] = {}

    @property
    def isolation(self) -> Isolation | None:
        """The isolation in force; None before a template has started."""
        layers = self._layers
        if not layers:
            return None
        controllers = (layers["cgroup"] or {}).get("controllers", ())
        return Isolation(
            level=self.level,
            landlock=int(layers["landlock"]),
            seccomp=bool(layers["seccomp"]),
            fresh_proc=bool(layers["fresh_proc"]),
            network=self.network,
            cgroup=f"v{layers['cgroup']['version']}" if controllers else None,
            controllers=tuple(controllers),
            missing=tuple(missing(self.level, layers, self.network)),
        )

    @property
    def _templates(self) -> list[TemplateProcess]:
        return [template for kind in self._kinds.values() for template in kind if template is not None]

    @property
    def idle(self) -> bool:
        """Whether no template has anything to do, or will have soon."""
        busy = any(template.busy or template.sessions for template in self._templates)
        return not busy and not any(self._starting.values())

    @property
    def process_ids(self) -> list[int]:
        return [template.pid for template in self._templates if template.alive]

    async def start(self, *, full: bool) -> None:
        """Start the first bare template; and with `full` the first full one, if there are modules for it."""
        await self._get("bare", 0)
        if full and self.preload.modules:
            await self._get("full", 0)

    async def for_code(self, code: str | None) -> TemplateProcess:
        """Return a template for code, a full one if the code names a module of it or is not known (None).

        Raises SandboxUnavailableError if it cannot be started, and SandboxClosedError.
        """
        full = bool(self.preload.modules) if code is None else self._pattern.search(code) is not None
        return await self._get("full" if full else "bare")

    async def look(self) -> float:
        looking = [template.look() for template in self._templates if template.alive]
        total = 0.0
        for seconds in await asyncio.gather(*looking, return_exceptions=True):
            if not isinstance(seconds, BaseException):
                total += seconds
            elif not isinstance(seconds, TemplateLostError):
                raise seconds
        return total

    async def close(self) -> None:
        self.closed = True
        for lock in list(self._locks.values()):
            async with lock:
                pass  # a template that was just starting is there now, and is closed with the others
        await asyncio.gather(*(template.close() for template in self._templates))
        for kind in self._kinds.values():
            kind[:] = [None] * len(kind)
        if self._work:
            folders.remove(self._work)
            self._work = ""

    async def _get(self, kind: str, index: int | None = None) -> TemplateProcess:
        """Return a living template of that kind, the one with the least to do; a dead one is replaced first."""
        loop = asyncio.get_running_loop()
        if self.closed:
            raise SandboxClosedError("the sandbox is closed")
        if self.loop is None:
            self.loop = loop
        elif self.loop is not loop:
            raise SandboxClosedError("a LocalSandbox belongs to one event loop; use a SharedSandbox for several")
        row = self._kinds[kind]
        if index is None:
            start = next(self._turn) % len(row)
            order = [*range(start, len(row)), *range(start)]
            index = min(order, key=lambda at: self._load(kind, at))
        template = row[index]
        if template is not None and template.alive:
            return template
        self._starting[kind, index] += 1
        try:
            async with self._locks.setdefault((kind, index), asyncio.Lock()):
                template = row[index]
                if template is not None and template.alive:
                    return template
                if self.closed:
                    raise SandboxClosedError("the sandbox is closed")
                if template is not None:
                    _log.warning("a template process ended and is replaced")
                    await template.close()
                template = row[index] = await self._start(kind)
                return template
        finally:
            self._starting[kind, index] -= 1

    def _load(self, kind: str, index: int) -> int:
        """Return a template's work; for an absent one, the work that justifies starting it."""
        template = self._kinds[kind][index]
        if template is None or not template.alive:
            return CROWDED + self._starting[kind, index]
        return template.busy + template.sessions // SESSIONS_EACH

    async def _start(self, kind: str) -> TemplateProcess:
        if self._installed is None:
            self._paths = await in_thread(runtime_paths, self.python)
            modules = await in_thread(importable, self.python, self.preload.modules)
            self._installed = tuple(name for name in self.preload.modules if name in modules)
            self._note_missing([name for name in self.preload.modules if name not in modules])
        if self.level is not Level.NAMESPACES:
            await in_thread(folders.sweep)
        if self.level is not Level.NAMESPACES and not self._work:
            # Without awaiting: two templates that start at once would make two folders, and one would be left behind.
            self._work = _work_folder()
        preload = list(self._installed) if kind == "full" else []
        another = self.level is Level.NAMESPACES and jail.becomes_another()
        # The files of an image have one user, who must be the children's.
        own_users = self.level is Level.UID or (another and not self.image and users.pool())
        config = {
            "level": self.level.value,
            "network": self.network,
            "limits": asdict(self.limits),
            "read_only": world(self._paths, self.packages),
            "folders": list(self.folders),
            "image": self.image,
            "hidden": [OWN_TASKS],
            "variables": packages.variables(self.packages),
            "preload": preload,
            "on_preload_error": self.preload.on_error,
            "warm_code": {name: WARM_CODE[name] for name in preload if name in WARM_CODE},
            "path": f"{os.path.dirname(self.python)}:{languages.SEARCH_PATH}",
            "processors": reported_processors(self.limits),
            "warm": self.warm,
            "work": tempfile.mkdtemp(dir=self._work) if self._work else "",
            "first_uid": users.take() if own_users else 0,
        }
        if config["work"]:
            os.chmod(str(config["work"]), 0o711)
        parent, why = await in_thread(cgroup.find)
        if self.limits.cores is not None and (parent is None or "cpu" not in parent.folders):
            raise SandboxUnavailableError(
                f"limits.cores={self.limits.cores} needs a control group with the cpu controller, and none can be "
                f"made here ({why or 'that controller is not passed on'}); leave it at None"
            )
        # A template of root becomes another user, and makes its children's groups itself.
        owner = users.SANDBOX_UID if another else None
        make_group = functools.partial(cgroup.ControlGroup, parent, owner) if parent is not None else None
        template = TemplateProcess(self.python, config, make_group)
        await template.start()
        self._layers = template.layers
        text = f"sandbox isolation: {self.level.value}"
        if text not in _logged:
            _logged.add(text)
            _log.info("%s (%s)", text, self.isolation)
        absent = template.layers["absent"]
        if absent and absent not in _logged and self.preload.on_error == "warn":
            _logged.add(absent)
            _log.warning("the sandbox's Python %r cannot import, so programs go without: %s", self.python, absent)
        return template

    def _note_missing(self, names: Sequence[str]) -> None:
        """Log the modules that are not installed, or raise SandboxUnavailableError, as `Preload.on_error` says."""
        if names and self.preload.on_error == "fail":
            raise SandboxUnavailableError(
                f"the sandbox's interpreter {self.python!r} does not have the modules to preload: {', '.join(names)}; "
                "install them, leave them out of preload, or set on_error='warn'"
            )
        if names and self.preload.on_error == "warn":
            _log.info("not installed, so not preloaded in the sandbox: %s", ", ".join(names))


OWN_TASKS = str(Path(__file__).resolve().parents[4] / "envs")
"""The library's own tasks, with answers and hidden tests: programs find an empty folder there."""


def world(runtime: Sequence[str], packages: str | None) -> list[str]:
    """Return the files and folders of this machine that programs see."""
    return [*jail.SYSTEM_PATHS, *runtime, *([packages] if packages else ())]


def _work_folder() -> str:
    try:
        return folders.make()
    except OSError as error:
        raise SandboxUnavailableError(
            "at this level programs work in a folder of the host, and none can be made: mount a tmpfs at /tmp, "
            f"or name a folder that may be written to in TMPDIR ({error})"
        ) from error


def absolute(python: str) -> str:
    """Return the interpreter's path, links kept: a template process has another folder and no PATH."""
    path = shutil.which(python)
    if path is None:
        raise SandboxUnavailableError(
            f"the sandbox's interpreter {str(python)!r} cannot be run: there is no such program; give its path"
        )
    return os.path.abspath(path)


def enterable(python: str, level: str | None, require: str | None) -> Level:
    """Return `uid` if other users can enter the interpreter's folders, as that level needs; else `landlock`."""
    closed = [
        str(folder)
        for path in runtime_paths(python)
        for folder in [Path(path), *Path(path).parents]
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH
    ]
    if not closed:
        return Level.UID
    if level is not None or (require is not None and Level(require) is not Level.LANDLOCK):
        raise SandboxUnavailableError(
            f"at the level 'uid' programs run as other users, who cannot enter {closed[0]!r} to reach the interpreter "
            f"{python!r}; give a world-readable one in python=, or accept the level 'landlock'"
        )
    return Level.LANDLOCK


def _names_pattern(preload: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of code that names a preloaded module, or one that usually brings it."""
    names = {name.partition(".")[0] for name in preload}
    friends = {"numpy": ("np", "matplotlib", "sklearn"), "pandas": ("pd",), "scipy": ("sklearn",)}
    words = sorted({*names, *(friend for name in names for friend in friends.get(name, ()))})
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b" if words else r"(?!)")
