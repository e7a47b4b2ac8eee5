"""Real SGLang servers for the tests: the tiny policy on this machine's CPU, or whatever `TOOLGYM_SGLANG_URL` names."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from tests.processes import end_with_the_tests
from toolgym.rollout.models.tiny import tiny_policy_path

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("TOOLGYM_SGLANG_VENV", ROOT / ".sglang-venv")) / "bin" / "python"
GIVEN = [url for url in os.environ.get("TOOLGYM_SGLANG_URL", "").split(",") if url]
REQUIRED = os.environ.get("TOOLGYM_REQUIRE_SGLANG") == "1"
READY_SECONDS = 480.0
"""Most seconds until a server answers; 25 to 50 where the machine does nothing else."""
END_SECONDS = 60.0


def need_venv() -> None:
    """Skip where SGLang is not installed; fail where it must be."""
    if PYTHON.exists():
        return
    missing = f"there is no SGLang at {PYTHON}: run `make sglang-cpu`, or set TOOLGYM_SGLANG_URL"
    if REQUIRED:
        pytest.fail(missing)
    pytest.skip(missing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Process:
    """A program that serves HTTP, with all its children in one process group."""

    url: str
    program: subprocess.Popen[bytes]
    log: IO[bytes]

    @classmethod
    def start(cls, port: int, *words: str) -> Process:
        log = tempfile.NamedTemporaryFile(prefix="toolgym-sglang-", suffix=".log")  # noqa: SIM115 - until `end`
        program = subprocess.Popen(
            [str(PYTHON), *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_the_tests,  # SGLang's own processes end with this one in the same way
        )
        return cls(f"http://127.0.0.1:{port}", program, log)

    def wait_ready(self, path: str = "/health") -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(self.url + path, timeout=5) as answer,
            ):
                if answer.status == 200:
                    return
            if self.program.poll() is not None or time.monotonic() > deadline:
                said = Path(self.log.name).read_text(errors="replace")[-3000:]
                self.end()
                pytest.fail(f"{self.url} did not become ready; it said: {said}")
            time.sleep(0.3)

    def kill(self) -> None:
        """Kill the whole group at once, as a machine that fails does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.program.pid, signal.SIGKILL)
        self.program.wait(END_SECONDS)

    def end(self) -> None:
        self.kill()
        self.log.close()


@dataclass
class Farm:
    """Two servers and a router, each started when it is first asked for, and ended with the tests."""

    servers: dict[int, Process] = field(default_factory=dict)
    others: list[Process] = field(default_factory=list)
    router_process: Process | None = None

    @property
    def python(self) -> Path:
        """The interpreter beside which SGLang is installed."""
        return PYTHON

    @property
    def environment(self) -> dict[str, str]:
        """What SGLang needs on a CPU."""
        settings = runpy.run_path(str(ROOT / "scripts" / "sglang_cpu" / "serve.py"))["ENVIRONMENT"]
        return dict(settings)

    @staticmethod
    def need_venv() -> None:
        need_venv()

    def urls(self, count: int) -> list[str]:
        """The urls of `count` servers that are ready."""
        if GIVEN:
            if len(GIVEN) < count:
                pytest.skip(f"TOOLGYM_SGLANG_URL names {len(GIVEN)} server, this needs {count} (with commas between)")
            return GIVEN[:count]
        need_venv()
        for number in range(count):
            if number not in self.servers:
                self.servers[number] = self._launch()
        for number in range(count):
            self.servers[number].wait_ready()
        return [self.servers[number].url for number in range(count)]

    def router(self) -> str:
        """The url of a router in front of two servers."""
        need_venv()
        workers = self.urls(2)
        if self.router_process is None:
            port = free_port()
            self.router_process = Process.start(
                port,
                *("-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)),
                *("--worker-urls", *workers, "--policy", "manual", "--disable-retries"),
                *("--prometheus-port", str(free_port())),
            )
            self.router_process.wait_ready("/workers")
            self._wait_for_workers(self.router_process.url, 2)
        return self.router_process.url

    def victim(self) -> tuple[Process, Process]:
        """The second server, to be killed, and the router that knows it; later calls start new ones."""
        if GIVEN:
            pytest.skip("the servers of TOOLGYM_SGLANG_URL are not ours to kill")
        self.router()
        router, self.router_process = self.router_process, None
        assert router is not None
        return self.servers.pop(1), router

    def server_of(self, model: Path, *options: str) -> str:
        """The url of a new server on this machine with a model of the test's own."""
        need_venv()
        self.others.append(self._launch(model, *options))
        self.others[-1].wait_ready()
        return self.others[-1].url

    def end(self) -> None:
        for process in (self.router_process, *self.servers.values(), *self.others):
            if process is not None:
                process.end()

    def _launch(self, model: Path | None = None, *options: str) -> Process:
        port = free_port()
        return Process.start(
            port,
            str(ROOT / "scripts" / "sglang_cpu" / "serve.py"),
            *("--model-path", str(model or tiny_policy_path()), "--host", "127.0.0.1", "--port", str(port), *options),
        )

    @staticmethod
    def _wait_for_workers(url: str, count: int) -> None:
        deadline = time.monotonic() + 240
        while True:
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(url + "/workers", timeout=5) as answer,
            ):
                if answer.read().count(b'"is_healthy":true') == count:
                    return
            assert time.monotonic() < deadline, "the router did not find its workers"
            time.sleep(0.2)
