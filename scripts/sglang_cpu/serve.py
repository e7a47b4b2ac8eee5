"""Start one SGLang server on a CPU. Every option goes to `sglang.launch_server`; the ones below are given already."""

from __future__ import annotations

import os
import sys
from pathlib import Path

OPTIONS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--dtype": "float32",
    "--context-length": "2048",
    # Otherwise it takes its share of all memory.
    "--max-total-tokens": "131072",
    "--max-running-requests": "128",
}
FLAGS = (
    "--disable-overlap-schedule",
    "--skip-server-warmup",
    "--sleep-on-idle",
    "--enable-metrics",
    "--enable-cache-report",
)
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # /health answers at once, and does not generate a token first.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # One thread: tiny matrices gain nothing from more.
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    """Become the server."""
    given = sys.argv[1:]
    options = [word for name, value in OPTIONS.items() if name not in given for word in (name, value)]
    flags = [flag for flag in FLAGS if flag not in given]
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", *given, *options, *flags]
    # This checkout's stand-ins, where the environment was installed from another version of it.
    site = str(Path(__file__).resolve().parent / "site")
    searched = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
    os.execve(sys.executable, command, {**os.environ, **ENVIRONMENT, "PYTHONPATH": searched})


if __name__ == "__main__":
    main()
