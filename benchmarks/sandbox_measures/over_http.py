"""What a server costs that speaks SandboxFusion's API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from sandbox_measures.samples import Sample, Scale, best_of, closed_loop

RUN_CODE = {
    "http-print": ("print(1+1)", "2", 8),
    "http-numpy": ("import numpy; print(numpy.arange(10).sum())", "45", 8),
    "http-sympy": ("import sympy; print(sympy.factor('x**2-1'))", "(x - 1)*(x + 1)", 8),
    "http-print-256": ("print(1+1)", "2", 256),
    "http-print-1000": ("print(1+1)", "2", 1000),
}
CELLS = ["a = 20", "a + 22", "print(a * 2)"]


async def measure_http(name: str, url: str, scale: Scale) -> Sample:
    limit = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as client:

        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            try:
                async with client.post(url.rstrip("/") + path, json=body) as response:
                    answer = await response.json()
                    return answer if response.status == 200 and isinstance(answer, dict) else {}
            except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError):
                return {}

        async def run_code() -> bool:
            code, expected, _ = RUN_CODE[name]
            answer = await post("/run_code", {"code": code, "language": "python"})
            return ((answer.get("run_result") or {}).get("stdout") or "").strip() == expected

        async def run_jupyter() -> bool:
            answer = await post("/run_jupyter", {"cells": CELLS})
            cells = answer.get("cells") or []
            return (
                len(cells) == 3
                and any(one.get("text/plain") == "42" for one in cells[1]["display"])
                and cells[2]["stdout"] == "40\n"
            )

        call = run_jupyter if name == "http-jupyter" else run_code
        at_once = RUN_CODE[name][2] if name in RUN_CODE else 8
        await closed_loop(call, 4, 8)
        count = max(scale.executions, 2 * at_once)
        return await best_of(lambda: closed_loop(call, at_once, count), scale.rounds)


@contextlib.asynccontextmanager
async def own_server() -> AsyncIterator[str]:
    """Our own server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "toolgym", "serve", "sandbox", "--port", str(port), stdout=asyncio.subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as client:
            for _ in range(300):
                if process.returncode is not None:
                    raise SystemExit(f"the server ended with code {process.returncode}; give --url instead")
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"{url}/health") as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
