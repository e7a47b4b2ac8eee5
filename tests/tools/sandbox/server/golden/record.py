"""Asks a server with SandboxFusion's API for all cases and writes what it answers.

    python tests/tools/sandbox/server/golden/record.py http://127.0.0.1:8089 OUT.json --about commit=469de08

`sandboxfusion.json` was made so, on a quiet machine: SandboxFusion reads a program's output once, without waiting, and
may lose it under load. Every case is asked `--times` times, and one whose answers differ is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[5]))

from tests.tools.sandbox.server.golden.catalog import CASES
from tests.tools.sandbox.server.golden.play import Answer, ask

VERSIONS = (
    "import json, platform, subprocess\n"
    "def first(*argv):\n"
    "    try:\n"
    "        done = subprocess.run(argv, capture_output=True, text=True)\n"
    "    except OSError:\n"
    "        return 'not installed'\n"
    "    return ((done.stdout or done.stderr).strip().splitlines() or [''])[0]\n"
    "said = {'python': platform.python_version()}\n"
    "for name, flag in (('bash', '--version'), ('g++', '--version'), ('node', '--version'), ('go', 'version'),\n"
    "                   ('javac', '-version'), ('perl', '-e print $^V'), ('ruby', '--version'), ('lua', '-v')):\n"
    "    said[name] = first(name, *flag.split(' ', 1))\n"
    "import importlib.metadata as m\n"
    "for name in ('ipykernel', 'ipython', 'numpy', 'pandas', 'sympy', 'pytest'):\n"
    "    try:\n"
    "        said[name] = m.version(name)\n"
    "    except m.PackageNotFoundError:\n"
    "        said[name] = 'not installed'\n"
    "print(json.dumps(said))\n"
)
"""Tells what a server's programs are run by."""


async def record(url: str, only: str, times: int) -> tuple[dict[str, Any], dict[str, Answer], list[str]]:
    """Ask for every case whose name holds `only`.

    Returns:
        versions, the answers by case, and the names of those that differ from time to time.
    """
    answers: dict[str, Answer] = {}
    unstable = []
    connector = aiohttp.TCPConnector(force_close=True)  # after some errors SandboxFusion hangs up
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        body = {"code": VERSIONS, "language": "python"}
        async with session.post(f"{url}/run_code", json=body) as response:
            versions = json.loads((await response.json())["run_result"]["stdout"])
        for name, case in CASES.items():
            if only not in name:
                continue
            answers[name] = await ask(session, url, case)
            for _ in range(times - 1):
                if await ask(session, url, case) != answers[name]:
                    unstable.append(name)
                    break
    return versions, answers, unstable


def main() -> int:
    """Record; 1 where answers differed from time to time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this; the others stay as they are in OUT")
    parser.add_argument("--times", type=int, default=2, help="how often each case is asked")
    parser.add_argument("--about", action="append", default=[], metavar="NAME=VALUE", help="goes into the head")
    options = parser.parse_args()
    versions, answers, unstable = asyncio.run(record(options.url.rstrip("/"), options.only, options.times))
    head = dict(item.split("=", 1) for item in options.about) | {"versions": versions}
    if options.only and options.out.exists():
        before = json.loads(options.out.read_text())
        head = before["head"] | head
        answers = {name: (before["cases"] | answers)[name] for name in CASES if name in before["cases"] | answers}
    options.out.write_text(json.dumps({"head": head, "cases": answers}, indent=1) + "\n")
    print(f"{len(answers)} answers in {options.out}")
    for name in unstable:
        print(f"differs from time to time: {name}", file=sys.stderr)
    return 1 if unstable else 0


if __name__ == "__main__":
    sys.exit(main())
