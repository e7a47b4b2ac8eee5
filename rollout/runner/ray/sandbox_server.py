"""`toolgym serve sandbox` as a program that ends with the process that started it.

Its settings, a JSON object, are the first line of standard input. At the end of standard input, which comes when the
other process ends, it stops as at SIGTERM.
"""

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
