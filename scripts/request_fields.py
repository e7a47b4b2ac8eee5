"""The tables of request fields in docs/capture.md: request_fields.py [--write]

Fails if the page does not have them as the code does; with `--write` they are written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toolgym.rollout.capture.request_fields import TABLES, Treatment

PAGE = Path(__file__).parents[1] / "docs/capture.md"
BEGIN, END = "<!-- fields: scripts/request_fields.py --write -->\n", "<!-- end of the fields -->"
NAMES = {"chat": "Chat completions", "responses": "Responses", "messages": "Messages"}


def tables() -> str:
    """Return the tables as Markdown: a line for each treatment of each wire."""
    lines = ["| wire | treatment | fields |", "| --- | --- | --- |"]
    for wire, table in TABLES.items():
        for treatment in Treatment:
            names = sorted(name for name, entry in table.items() if entry.treatment is treatment)
            lines.append(f"| {NAMES[wire]} | {treatment} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--write" in sys.argv:
        PAGE.write_text(with_tables(text))
    elif with_tables(text) != text:
        sys.exit(f"{PAGE} has other tables of fields than the code: run scripts/request_fields.py --write")
