"""Sessions whose root is an image that is made here, of a shell, this Python, and traps in a layer of their own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.tools.sandbox.abuse.program import LIMITS
from tests.tools.sandbox.image_maker import Entry, docker_save, layer, shell_layer, special
from toolgym.tools.errors import SandboxFileError
from toolgym.tools.sandbox.base import ExecutionResult
from toolgym.tools.sandbox.local import LocalSandbox

CATEGORIES = ("secrets", "writes", "leftovers", "escapes", "roots")
"""What a root might change."""

LEFT_OUT = ("writes/runtime",)
"""In an image the whole root is the program's own to change."""

_NOT_NEEDED = {"site-packages", "test", "__pycache__", "ensurepip", "idlelib", "lib2to3", "tkinter", "pydoc_data"}


def python_layer() -> bytes:
    """This Python and its standard library, at their own places."""
    binary, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    files = [
        path for path in library.rglob("*") if path.suffix in (".py", ".so") and _NOT_NEEDED.isdisjoint(path.parts)
    ]
    command = ["ldd", binary, *library.glob("lib-dynload/*.so")]
    linked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    files += map(Path, sorted({*re.findall(r"(/\S+) \(0x", linked)}))
    entries: list[Entry] = [(str(path), path.read_bytes(), 0o755) for path in [binary, *files]]
    return layer([*entries, special("usr/bin/python3", tarfile.SYMTYPE, str(binary))])


def trap_layer() -> bytes:
    attributes = tarfile.TarInfo("traps/attributes")
    attributes.type, attributes.mode = tarfile.DIRTYPE, 0o777
    names = ("security.capability", "user.overlay.opaque", "user.overlay.redirect", "trusted.overlay.opaque")
    attributes.pax_headers = {f"SCHILY.xattr.{name}": "y" for name in names}
    memory, disk = special("traps/memory", tarfile.CHRTYPE), special("traps/disk", tarfile.BLKTYPE)
    (memory.devmajor, memory.devminor), (disk.devmajor, disk.devminor) = (1, 1), (254, 0)
    links = {"up": "../../../../../../..", "first": "/proc/1/root", "machine": "/.toolgym/image/below/../../.."}
    return layer(
        [
            ("traps/root-shell", Path("/bin/bash").read_bytes(), 0o6755),
            attributes,
            memory,
            disk,
            special("traps/whiteout", tarfile.CHRTYPE),
            special("traps/pipe", tarfile.FIFOTYPE),
            *(special(f"traps/{name}", tarfile.SYMTYPE, target) for name, target in links.items()),
            *(special(name, tarfile.SYMTYPE, "/etc") for name in (".toolgym", "proc", "dev", "tmp")),
            ("large", bytes(LIMITS.disk_mb + 1 << 20)),
        ]
    )


def make(path: Path) -> Path:
    return docker_save(path, [shell_layer(), python_layer(), trap_layer()], {"Env": ["PATH=/usr/bin"]})


class InImage:
    """A sandbox of which each run is a program in a new session, started by the image's own Python."""

    def __init__(self, sandbox: LocalSandbox, image: Path) -> None:
        self._sandbox, self._image = sandbox, image
        self.close = sandbox.close

    def __getattr__(self, name: str) -> object:
        return getattr(self._sandbox, name)

    async def run(
        self,
        code: str,
        *,
        timeout: float = 30.0,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
    ) -> ExecutionResult:
        await self._sandbox.start()
        async with await self._sandbox.session(image=str(self._image), files=files or {}) as session:
            done = await session.exec(["python3", "-c", code], stdin=stdin, timeout=timeout)
            found = {}
            for name in fetch_files:
                with contextlib.suppress(SandboxFileError):
                    found[name] = await session.read_file(name)
            return replace(done, files=found)
