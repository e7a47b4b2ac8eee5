"""Execute every notebook of this folder from a fresh kernel, and fail when a cell fails.

Run as `python notebooks/execute.py`; `--write` also stores the outputs in the notebooks.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELL_TIMEOUT = 300
"""Seconds for one cell."""


def main() -> None:
    write = "--write" in sys.argv[1:]
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        started = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=CELL_TIMEOUT, resources={"metadata": {"path": path.parent}}).execute()
        if write:
            nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
