"""Servers for notebook 05: yours, the real SGLang on the CPU, or the tests' stand-in."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from toolgym.rollout import tiny_policy_path

ROOT = Path(__file__).resolve().parents[1]
SGLANG = Path(os.environ.get("TOOLGYM_SGLANG_VENV", ROOT / ".sglang-venv")) / "bin" / "python"
READY_SECONDS = 240.0
"""Most seconds until a server answers; the real one takes 25 to 50 on an idle machine."""

sys.path.append(str(ROOT))
from tests.processes import end_with_the_tests  # noqa: E402


@dataclass
class Servers:
    """Servers with the tiny policy; `close` ends those that were started here."""

    what: str
    urls: list[str] = field(default_factory=list)
    _programs: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = field(
        default_factory=dict
    )

    def start(self, python: str, *words: str) -> None:
        """Start a server, which is not ready yet; the words name a port by `PORT`."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        log = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`: the process writes to it as long as it lives
        process = subprocess.Popen(
            [python, *(port if word == "PORT" else word for word in words)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_the_tests,  # Linux ends it with this process, however that ends
        )
        self.urls.append(f"http://127.0.0.1:{port}")
        self._programs[self.urls[-1]] = process, log

    def wait(self) -> None:
        """Wait until all are ready. Raises RuntimeError with a log's end if one is not."""
        deadline = time.monotonic() + READY_SECONDS
        for url, (process, log) in self._programs.items():
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    text = log.read().decode(errors="replace")[-2000:]
                    self.close()
                    raise RuntimeError(
                        f"a server was not ready in {READY_SECONDS:.0f} s; its log ends: {text}"
                    )
                time.sleep(0.3)

    def kill(self, url: str) -> None:
        """Kill a server and its processes, as a failing machine does; yours is left alone."""
        if url in self._programs:
            process, _ = self._programs[url]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)

    def close(self) -> None:
        for url, (_, log) in self._programs.items():
            self.kill(url)
            log.close()
        self._programs.clear()


def start_servers(count: int) -> Servers:
    """Return `count` servers that are ready: see this file's first line for their order."""
    yours = [url for url in os.environ.get("TOOLGYM_SGLANG_URL", "").split(",") if url]
    if len(yours) >= count:
        return Servers(
            f"{count} servers of yours, which TOOLGYM_SGLANG_URL names", yours[:count]
        )
    policy = str(tiny_policy_path())
    if SGLANG.exists():
        servers = Servers(f"{count} servers of the real SGLang on this machine's CPU")
        words = (
            "scripts/sglang_cpu/serve.py",
            "--model-path",
            policy,
            "--host",
            "127.0.0.1",
            "--port",
            "PORT",
        )
        for _ in range(count):
            servers.start(str(SGLANG), *words)
    else:
        servers = Servers(f"{count} stand-ins of the tests, which speak SGLang's API")
        for _ in range(count):
            servers.start(
                sys.executable, "-m", "tests.rollout.engines.stand_in", policy, "PORT"
            )
    servers.wait()
    return servers


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
