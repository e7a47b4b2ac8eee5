"""Run E2B's SDKs against `toolgym serve sandbox --e2b served`: matrix.py [--write] [VERSION ...]

Installs each pair of versions in `pairs.txt` below `.trainers/e2b`, starts a server, and runs `operations.py` (Python,
sync and async) or `operations.mjs` (JavaScript, if npm is installed) with each pair. Prints the operations that fail.
Ends with status 1 if the results differ from the table in docs/e2b.md. With `--write`, the table there is written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/e2b.md"
PLACE = ROOT / ".trainers/e2b"
BEGIN, END = "<!-- matrix: scripts/e2b/matrix.py --write -->\n", "<!-- end of the matrix -->"
SHARED = 4
"""Operations with the same error that are counted and not named."""

BIN = Path(sys.executable).parent


class Pair(NamedTuple):
    """Versions of the SDK and of its code interpreter, for Python (`py`) or JavaScript (`js`)."""

    language: str
    sdk: str
    interpreter: str
    forced: bool


def read_pairs() -> list[Pair]:
    lines = (Path(__file__).parent / "pairs.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [Pair(*row[:3], "forced" in row) for row in rows]


def install_python(pair: Pair) -> Path:
    """Return the Python of an environment with a pair of versions."""
    folder = PLACE / f"{pair.sdk}-{pair.interpreter}"
    python = folder / "bin/python"
    if not python.exists():

        def uv(*arguments: str) -> None:
            subprocess.run([BIN / "uv", *arguments], check=True)

        uv("venv", "--quiet", "--python", os.environ.get("E2B_PYTHON", sys.executable), str(folder))
        install = ["pip", "install", "--quiet", "--python", str(python)]
        uv(*install, f"e2b=={pair.sdk}", "attrs")
        uv(*install, *(["--no-deps"] if pair.forced else []), f"e2b-code-interpreter=={pair.interpreter}")
    return python


def install_javascript(pair: Pair) -> Path:
    """Return a folder whose node_modules have a pair of versions."""
    folder = PLACE / f"js-{pair.sdk}-{pair.interpreter}"
    if not (folder / "node_modules/e2b").exists():
        folder.mkdir(parents=True, exist_ok=True)
        packages = [f"e2b@{pair.sdk}", f"@e2b/code-interpreter@{pair.interpreter}"]
        options = ["--silent", "--no-fund", "--no-audit", "--prefix", str(folder)]
        subprocess.run(["npm", "install", *options, *packages], check=True)
    return folder


def commands_of(pair: Pair) -> list[list[str]]:
    """Return the commands that play the operations with a pair."""
    here = Path(__file__).parent
    if pair.language == "js":
        return [["node", str(here / "operations.mjs"), str(install_javascript(pair))]]
    python = str(install_python(pair))
    return [[python, str(here / "operations.py"), kind] for kind in ("sync", "async")]


def play_operations(command: list[str], url: str) -> list[dict[str, str]]:
    """Run a command against a server. Returns a row for each operation, with `name`, `outcome` and `detail`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    settings = {"E2B_API_KEY": f"e2b_{'0' * 40}", "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=600, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        raise SystemExit(f"{command}: {done.stderr[-2000:]}")
    return rows


def row_of_table(pair: Pair, url: str) -> str:
    """Play all operations with a pair. Returns its row of the table, and prints the operations that fail."""
    shares, failures = [], {}
    for command in commands_of(pair):
        rows = play_operations(command, url)
        shares.append(f"{sum(row['outcome'] == 'ok' for row in rows)} / {len(rows)}")
        for row in rows:
            if row["outcome"] != "ok":
                failures[row["name"]] = row["detail"]
                print(f"{pair.language} {pair.sdk}: {row['name']} {row['outcome']}: {row['detail']}")
    counts = Counter(failures.values())
    parts = [f"`{name}`" for name, detail in failures.items() if counts[detail] < SHARED]
    parts += [f"{count} with `{detail}`" for detail, count in counts.items() if count >= SHARED]
    language = {"py": "Python", "js": "JavaScript"}[pair.language]
    forced = " (forced)" if pair.forced else ""
    cells = [language, pair.sdk, f"{pair.interpreter}{forced}", ", ".join(shares), ", ".join(parts) or "–"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    versions = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    command = [BIN / "toolgym", "serve", "sandbox", "--e2b", "served", "--port", "0", "--workers", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    table = ["| SDK | e2b | code interpreter | operations that work | failures |", "| --- | --- | --- | --- | --- |"]
    has_npm = shutil.which("npm") is not None
    try:
        assert server.stdout is not None
        match = re.search(r"http://\S+", server.stdout.readline())
        if match is None:
            raise SystemExit("the server did not start")
        for pair in read_pairs():
            if (versions and pair.sdk not in versions) or (pair.language == "js" and not has_npm):
                continue
            table.append(row_of_table(pair, match[0]))
            print(table[-1], flush=True)
    finally:
        server.terminate()
        server.wait(60)
    if versions or not has_npm:
        return 0
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    text = "\n".join(table) + "\n"
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}", encoding="utf-8")
        return 0
    return int(rest.partition(END)[0] != text)


if __name__ == "__main__":
    sys.exit(main())
