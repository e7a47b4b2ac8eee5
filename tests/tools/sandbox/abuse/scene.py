"""The host's side of one abuse: a victim process, listeners, files, secrets; and what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ALIAS = "127.77.7.7"
"""Stands in for a cloud's metadata address: another address, but one that cannot leave this machine."""

ENVIRONMENT_SECRET = "TOOLGYM_ABUSE_SECRET"
"""The environment variable of the host that no program may see; the runner sets it."""

_VICTIM = """\
import os, sys, time
held = bytearray(os.environ["VICTIM_SECRET"].encode())
print(hex(id(held)), flush=True)
time.sleep(600)
"""


@dataclass
class Scene:
    """What a program may find on the host. Each part is made when its name turns up in the code."""

    mark: str = field(default_factory=lambda: f"ab-{secrets.token_hex(5)}")
    secret: str = field(default_factory=lambda: f"sec{secrets.token_hex(12)}")
    connections: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._folder: Path | None = None
        self._victim: subprocess.Popen[bytes] | None = None
        self._servers: list[asyncio.Server] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._before: dict[str, tuple[object, ...]] = {}
        self._victim_before: tuple[object, ...] = ()

    async def fill(self, code: str) -> str:
        """The code with every `@name@` replaced."""
        for name in dict.fromkeys(re.findall(r"@([a-z_]+)@", code)):
            code = code.replace(f"@{name}@", str(await getattr(self, f"_make_{name}")()))
        return code

    def check(self) -> str:
        """What the program did to the host, or nothing."""
        said = []
        if self.connections:
            said.append(f"{self.connections} connections or datagrams reached the host's sockets")
        if self._folder is not None and self._shape() != self._before:
            said.append(f"files of the host changed: {_difference(self._before, self._shape())}")
        if self._victim is not None:
            if self._victim.poll() is not None:
                said.append(f"a process of the host died: {self._victim.returncode}")
            elif self._victim_shape() != self._victim_before:
                said.append(f"a process of the host was changed: {self._victim_before} -> {self._victim_shape()}")
        return "; ".join(said)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for transport in self._transports:
            transport.close()
        if self._victim is not None:
            with contextlib.suppress(ProcessLookupError):
                self._victim.kill()
            await asyncio.to_thread(self._victim.wait)
            if self._victim.stdout is not None:
                self._victim.stdout.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        for _ in range(200):  # a hole costs a test, not the machine
            left = await asyncio.to_thread(marked, self.mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # The dead count too: until they are reaped they take places that the next program needs.
            if not left and not await asyncio.to_thread(marked, self.mark, dead=True):
                break
            await asyncio.sleep(0.01)

    # The parts.

    async def _make_mark(self) -> str:
        return self.mark

    async def _make_neighbour_secret(self) -> str:
        return self.secret

    async def _make_images(self) -> str:
        """The folder of unpacked images."""
        return os.environ["TOOLGYM_IMAGES"]

    async def _make_outside(self) -> Path:
        """A folder of the host that everybody may write."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="toolgym-abuse-"))
            (self._folder / "secret.txt").write_text(self.secret)
            (self._folder / "canary.txt").write_text("sings")
            for path in self._folder.iterdir():
                path.chmod(0o666)
            self._folder.chmod(0o777)
            self._before = self._shape()
        return self._folder

    async def _make_victim(self) -> int:
        """A process of the host, of the same user, that holds a secret."""
        if self._victim is None:
            self._victim = subprocess.Popen(
                [sys.executable, "-I", "-c", _VICTIM, self.secret],
                env={"VICTIM_SECRET": self.secret},
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert self._victim.stdout is not None
            await asyncio.to_thread(self._victim.stdout.readline)
            self._victim_before = self._victim_shape()
        return self._victim.pid

    async def _make_port(self) -> int:
        """A TCP port on 127.0.0.1, with a listener."""
        return await self._listen("127.0.0.1")

    async def _make_alias(self) -> str:
        return f"{ALIAS}:{await self._listen(ALIAS)}"

    async def _make_port_six(self) -> int:
        try:
            return await self._listen("::1")
        except OSError:
            return 1  # no IPv6 on this machine

    async def _make_udp(self) -> int:
        scene = self

        class Receiver(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, address: object) -> None:
                scene.connections += 1

        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
        self._transports.append(transport)
        return int(transport.get_extra_info("sockname")[1])

    async def _make_abstract(self) -> str:
        """An abstract UNIX socket, without its leading NUL."""
        name = f"{self.mark}-abstract"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{name}")
        self._servers.append(await asyncio.start_unix_server(self._accept, sock=listener))
        return name

    async def _make_unix(self) -> Path:
        """A UNIX socket with a path."""
        folder = await self._make_outside()
        path = folder / "socket"
        self._servers.append(await asyncio.start_unix_server(self._accept, path))
        path.chmod(0o777)
        self._before = self._shape()
        return path

    async def _listen(self, address: str) -> int:
        server = await asyncio.start_server(self._accept, address, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"hello\n")
        writer.close()

    def _shape(self) -> dict[str, tuple[object, ...]]:
        assert self._folder is not None
        shape: dict[str, tuple[object, ...]] = {}
        for path in [self._folder, *sorted(self._folder.rglob("*"))]:
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            # A folder's own times change with its entries, which are compared themselves.
            times = () if path.is_dir() else (info.st_mtime_ns,)
            shape[path.name] = (oct(info.st_mode), info.st_uid, info.st_nlink, content, *times)
        return shape

    def _victim_shape(self) -> tuple[object, ...]:
        assert self._victim is not None
        process = Path(f"/proc/{self._victim.pid}")
        stat = (process / "stat").read_text().rpartition(")")[2].split()
        state = "stopped" if stat[0] in "Tt" else "runs"
        return state, stat[16], (process / "limits").read_text(), sorted(os.sched_getaffinity(self._victim.pid))


def marked(mark: str, *, dead: bool = False) -> list[int]:
    """The processes of this machine whose name is `mark`: those that live, or with `dead` those that are zombies.

    The newest are looked at first: where there are many processes, one that lives for milliseconds would be gone.
    """
    found = []
    for entry in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            name = text[text.index("(") + 1 : text.rindex(")")]
            if name == mark and (text.rpartition(")")[2].split()[0] in "ZX") == dead:
                found.append(entry)
    return found


def _difference(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> str:
    return ", ".join(
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
