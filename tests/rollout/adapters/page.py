"""The programs of docs/trainers.md that need their trainer: `py` there, in place of `python`."""

from __future__ import annotations

import re
from pathlib import Path


def program(section):
    """The program of a section, by its heading."""
    page = (Path(__file__).parents[3] / "docs/trainers.md").read_text(encoding="utf-8")
    [_, behind] = page.split(f"\n## {section}\n")
    [found] = re.findall(r"^```py\n(.*?)^```", behind.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return found
