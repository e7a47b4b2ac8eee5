"""The rows of the tasks that come with the library, read from a folder `data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")
"""The folder of the embedded tasks, one file of JSON Lines for each env."""


def embedded_rows(name: str, folder: Path = DATA) -> list[dict[str, Any]]:
    """Return the rows of the file `NAME.jsonl` of a folder of embedded data, in their order."""
    with open(folder / f"{name}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
