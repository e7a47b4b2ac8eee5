"""Execute these notebooks, each in a fresh kernel and an empty folder, and compare.

    python notebooks/execute.py           all of them; words behind it choose some: `... 01 05`
    python notebooks/execute.py --write   put the new outputs into the notebooks
    python notebooks/execute.py --check   execute nothing, look at the outputs that are stored

A notebook is wrong where a cell raises, where a cell gives another kind of output than the one
that it is stored with, and where stored outputs are not fit to be read (`faults`). Texts that
differ are only named: sampling depends on the last bits of a processor. `--write` leaves
outputs as they are that differ in nothing but times, ids and ports.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent
CELL_TIMEOUT = 300
"""Seconds for one cell."""
MAX_BYTES = 300_000
"""Bytes of a notebook with its outputs."""

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait must not keep tools from a processor
    "PYTHONWARNINGS": "ignore:IProgress not found,ignore::FutureWarning",
    "TQDM_DISABLE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""For the kernels: stored outputs have neither bars nor advice of other libraries."""

VARIES = re.compile(
    r"\d+(?:\.\d+)?(?= ?(?:ms|s|seconds|MiB|MB)\b)"  # times and memory
    r"|\b[0-9a-f]{12,}\b"  # ids
    r"|(?<=127\.0\.0\.1:)\d+"  # ports
    r"|Python 3\.\d+(?: with [\w, -]+)?(?=\. Limits: )"  # packages in the description of a tool
    r"| +"  # columns that shift with them
)
PATHS = re.compile(
    r"(?<![\w.:/])/(?:home|root|Users|work|tmp|usr|opt|var|private|mnt|data)/[^\s'\"<>]*|site-packages"
)
WARNINGS = re.compile(r"\b\w*Warning: ")


def faults(notebook: Any, size: int) -> list[str]:
    """Say what is wrong with a notebook as it is stored; `size` is in bytes."""
    wrong = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    first, last = notebook.cells[0], notebook.cells[-1]
    if (
        first.cell_type != "markdown"
        or not first.source.startswith("# ")
        or "You will learn" not in first.source
    ):
        wrong.append("the first cell must have a title and say `You will learn ...`")
    if last.cell_type != "markdown" or not last.source.startswith("## Where to go on"):
        wrong.append("the last cell must be `## Where to go on`")
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        wrong.append("cells were not executed in their order: `make notebooks-write` does it")
    if size > MAX_BYTES:
        wrong.append(
            f"it has {size} bytes, and {MAX_BYTES} are allowed: show less, or smaller pictures"
        )
    for number, cell in enumerate(code, start=1):
        for output in cell.outputs:
            text = _text(output)
            if output.output_type == "error":
                wrong.append(f"cell {number} raised {output.ename}: {output.evalue}")
            if output.get("name") == "stderr" or WARNINGS.search(text):
                wrong.append(f"cell {number} has a warning: {text[:200]!r}")
            if "\x1b" in text:
                wrong.append(f"cell {number} has codes for a terminal's colours: {text[:50]!r}")
            if path := PATHS.search(text):
                wrong.append(f"cell {number} shows a path of this machine: {path[0]!r}")
    if not any(cell.outputs for cell in code):
        wrong.append("it has no outputs")
    return wrong


def execute(notebook: Any) -> Any:
    """Return a copy with the outputs that it gives now. Raises CellExecutionError."""
    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory() as folder:  # a notebook must run from any folder
        client = NotebookClient(
            fresh,
            timeout=CELL_TIMEOUT,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],
        )
        client.execute(env={**os.environ, **ENVIRONMENT})
    fresh.metadata = notebook.metadata  # the kernel's version of Python is of no interest
    return fresh


def differences(stored: Any, fresh: Any) -> tuple[list[int], list[int]]:
    """Return numbers of the code cells with outputs of other kinds, and with other texts."""
    kinds, texts = [], []
    for number, (old, new) in enumerate(zip(_code(stored), _code(fresh), strict=True), start=1):
        if [_kind(output) for output in old.outputs] != [
            _kind(output) for output in new.outputs
        ]:
            kinds.append(number)
        elif [_unvaried(output) for output in old.outputs] != [
            _unvaried(output) for output in new.outputs
        ]:
            texts.append(number)
    return kinds, texts


def keep_unchanged(stored: Any, fresh: Any) -> None:
    """Give cells of `fresh` their stored outputs back, if they say the same."""
    kinds, texts = differences(stored, fresh)
    for number, (old, new) in enumerate(zip(_code(stored), _code(fresh), strict=True), start=1):
        if number not in kinds and number not in texts:
            new.outputs = old.outputs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", help="beginnings of the names of notebooks; all without any"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--write", action="store_true", help="put the new outputs into the notebooks"
    )
    what.add_argument("--check", action="store_true", help="execute nothing")
    options = parser.parse_args()
    paths = [
        path
        for path in sorted(FOLDER.glob("*.ipynb"))
        if path.name.startswith(tuple(options.names) or "")
    ]
    if not paths:
        parser.error(f"no notebook of {FOLDER.name}/ begins with {' or '.join(options.names)}")
    wrong = [
        fault
        for path in paths
        for fault in _run(path, write=options.write, check=options.check)
    ]
    print("\n".join(wrong) or f"{len(paths)} notebooks are as they should be")
    return bool(wrong)


def _run(path: Path, *, write: bool, check: bool) -> list[str]:
    stored = nbformat.read(path, as_version=4)
    wrong: list[str] = []
    if not check:
        started = time.monotonic()
        try:
            fresh = execute(stored)
        except CellExecutionError as error:
            return [f"{path.name}: {error}"]
        kinds, texts = differences(stored, fresh)
        took = f"{path.name}: {len(stored.cells)} cells in {time.monotonic() - started:.0f} s"
        if write:
            keep_unchanged(stored, fresh)
            nbformat.write(fresh, path)
            stored = fresh
        else:
            wrong += [
                f"{path.name}: cell {number} gave other outputs than those it is stored with"
                for number in kinds
            ]
        print(
            took + (f"; other texts in cell {', '.join(map(str, texts))}" if texts else ""),
            flush=True,
        )
    return [*wrong, *(f"{path.name}: {fault}" for fault in faults(stored, path.stat().st_size))]


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _kind(output: Any) -> tuple[str, ...]:
    return (output.output_type, output.get("name", ""), *sorted(output.get("data", ())))


def _text(output: Any) -> str:
    texts = [text for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join([output.get("text", ""), *texts])


def _unvaried(output: Any) -> tuple[str, ...]:
    pictures = (
        data for kind, data in output.get("data", {}).items() if kind.startswith("image/")
    )
    return (VARIES.sub("#", _text(output)), *pictures)


if __name__ == "__main__":
    sys.exit(main())
