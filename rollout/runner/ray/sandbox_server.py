"""`toolgym serve sandbox` as a program that ends with the process that started it: at the end of standard input, of
which the first line is its settings, a JSON object."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading

from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.serving.supervisor import serve


def main() -> None:
    config = ServerConfig.load(flags=json.loads(sys.stdin.readline()))
    threading.Thread(target=_stop_at_the_end_of_input, daemon=True).start()
    asyncio.run(serve(config, lambda text: print(text, flush=True)))


def _stop_at_the_end_of_input() -> None:
    while sys.stdin.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
