"""The matrix of E2B's SDKs against `toolgym serve sandbox --e2b served`: matrix.py [--write] [VERSION ...]

Makes a virtual environment below `.trainers/e2b` for each pair of `pairs.txt`, starts a server, and runs
`operations.py` with each, sync and async. Prints what does not work; ends with status 1 if that is not what docs/e2b.md
has. With `--write`, the table there is written.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/e2b.md"
PLACE = ROOT / ".trainers/e2b"
BEGIN, END = "<!-- matrix: scripts/e2b/matrix.py --write -->\n", "<!-- end of the matrix -->"
SHARED = 4
"""Operations with the same error that are counted and not named."""

BIN = Path(sys.executable).parent


def pairs() -> list[tuple[str, str, bool]]:
    lines = (Path(__file__).parent / "pairs.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [(row[0], row[1], "forced" in row) for row in rows]


def environment(sdk: str, interpreter: str, forced: bool) -> Path:
    """Return the Python of an environment with a pair of versions."""
    folder = PLACE / f"{sdk}-{interpreter}"
    python = folder / "bin/python"
    if not python.exists():

        def uv(*arguments: str) -> None:
            subprocess.run([BIN / "uv", *arguments], check=True)

        uv("venv", "--quiet", "--python", os.environ.get("E2B_PYTHON", sys.executable), str(folder))
        install = ["pip", "install", "--quiet", "--python", str(python)]
        uv(*install, f"e2b=={sdk}", "attrs")
        uv(*install, *(["--no-deps"] if forced else []), f"e2b-code-interpreter=={interpreter}")
    return python


def outcomes(python: Path, kind: str, url: str) -> list[dict[str, str]]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    settings = {"E2B_API_KEY": f"e2b_{'0' * 40}", "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    command = [python, str(Path(__file__).parent / "operations.py"), kind]
    done = subprocess.run(command, env=known | settings, capture_output=True, text=True, timeout=600, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        raise SystemExit(f"{python}: {done.stderr[-2000:]}")
    return rows


def main() -> int:
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    command = [BIN / "toolgym", "serve", "sandbox", "--e2b", "served", "--port", "0", "--workers", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    table = ["| e2b | e2b-code-interpreter | sync | async | what does not work |", "| --- | --- | --- | --- | --- |"]
    try:
        assert server.stdout is not None
        match = re.search(r"http://\S+", server.stdout.readline())
        if match is None:
            raise SystemExit("the server did not start")
        for sdk, interpreter, forced in pairs():
            if wanted and sdk not in wanted:
                continue
            python, cells, bad = environment(sdk, interpreter, forced), [], {}
            for kind in ("sync", "async"):
                rows = outcomes(python, kind, match[0])
                cells.append(f"{sum(row['outcome'] == 'ok' for row in rows)} / {len(rows)}")
                for row in rows:
                    if row["outcome"] != "ok":
                        bad[row["name"]] = row["detail"]
                        print(f"{sdk} {kind}: {row['name']} {row['outcome']}: {row['detail']}")
            shared = Counter(bad.values())
            names = ", ".join(f"`{name}`" for name, detail in bad.items() if shared[detail] < SHARED)
            names += "".join(f", {n} with `{detail}`" for detail, n in shared.items() if n >= SHARED)
            names = names.removeprefix(", ")
            row = f"| {sdk} | {interpreter}{' (forced)' if forced else ''} | {' | '.join(cells)} | {names or '–'} |"
            table.append(row)
            print(row, flush=True)
    finally:
        server.terminate()
        server.wait(60)
    if wanted:
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
