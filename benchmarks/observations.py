"""Compare what a model can read of its programs, and in how many characters, with IPython and SandboxFusion's format.

    python benchmarks/observations.py [--only NAME ...] [--show] [--readers ours,stateless,ipython,fusion]

Runs the programs and endings of `toolgym.testing.observations`, and counts the marks that each observation shows.

- `ours`: `CodeInterpreterTool` on a `LocalSandbox`, with a session for each program.
- `stateless`: the same tool with `stateful: false`. A program's cells are joined to one program.
- `ipython`: a real ipykernel (`pip install ipykernel`). The text is what a notebook shows of each cell: escape
  sequences and carriage returns are carried out, and the middle of more than 4,096 characters is cut. A cell that is
  out of time is interrupted. If it still runs, its kernel is killed.
- `fusion`: the JSON of SandboxFusion's `/run_code` for the joined cells in a plain process, and no other confinement.

Programs that may harm the machine run in the confined readers only. Values and marks that a reader cannot show because
it has no cells, such as the value of a last expression, count as missing: the model cannot read them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from toolgym.testing.observations import ENDINGS, PROGRAMS, ObservedProgram, Summary
from toolgym.testing.observations.case import ObservedCell
from toolgym.testing.observations.scores import CellScore, Reader, score_programs, tool_reader
from toolgym.tools import CodeInterpreterTool
from toolgym.tools.library.outcome import cut_middle
from toolgym.tools.library.terminal import render_terminal
from toolgym.tools.sandbox import LocalSandbox, ProcessSandbox
from toolgym.tools.sandbox.protocol.fusion import RunCodeResponse

GRACE = 2.0
"""Seconds that an interrupted kernel has to end its cell."""

MAX_CHARS = 4096
"""Characters of one observation, as `CodeInterpreterTool` has it by default."""


def joined(program: ObservedProgram) -> ObservedProgram:
    """Join the cells of a program, for readers without sessions. The result has the marks of all cells."""
    marks: dict[str, str] = {}
    for cell in program.cells:
        for kind, pattern in cell.marks.items():
            if kind in marks and kind != "absent":
                marks[kind] = rf"(?:{marks[kind]})[\s\S]*(?:{pattern})"
            else:
                marks[kind] = pattern
    timeout = min(cell.timeout for cell in program.cells)
    code = "\n".join(cell.code for cell in program.cells)
    return ObservedProgram(program.name, (ObservedCell(code, marks, timeout),), program.needs, program.harmful)


@contextlib.asynccontextmanager
async def ipython_reader() -> AsyncIterator[Reader]:
    """Open a kernel, and read its messages as a notebook shows them."""
    from jupyter_client.manager import AsyncKernelManager

    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)

    async def read(code: str, timeout: float) -> str:
        if not await manager.is_alive():
            return "The kernel is dead"
        message_id = client.execute(code)
        parts: list[str] = []
        deadline, interrupted = time.monotonic() + timeout, False
        while True:
            try:
                message = await client.get_iopub_msg(timeout=0.2)
            except Exception:  # noqa: BLE001  the queue is empty
                if not await manager.is_alive():
                    parts.append("\nDeadKernelError: Kernel died")
                    break
                if time.monotonic() < deadline:
                    continue
                if interrupted:
                    await manager.shutdown_kernel(now=True)
                    parts.append("\nCellTimeoutError: the kernel was killed")
                    break
                await manager.interrupt_kernel()
                interrupted, deadline = True, time.monotonic() + GRACE
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                parts.append(content["text"])
            elif kind in ("display_data", "execute_result"):
                parts.append(content["data"].get("text/plain", "") + "\n")
            elif kind == "error":
                parts.append("\n".join(content["traceback"]) + "\n")
            elif kind == "status" and content["execution_state"] == "idle":
                break
        return cut_middle(render_terminal("".join(parts)), MAX_CHARS)

    try:
        yield read
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def fusion_reader(sandbox: ProcessSandbox) -> Callable[[], AbstractAsyncContextManager[Reader]]:
    @contextlib.asynccontextmanager
    async def open_reader() -> AsyncIterator[Reader]:
        async def read(code: str, timeout: float) -> str:
            result = await sandbox.run(code, timeout=timeout)
            fields = {"status", "message", "run_result"}
            ours = {"cpu_time", "memory_bytes", "reason", "stdout_truncated", "stderr_truncated", "limit"}
            text = RunCodeResponse.of(result).model_dump_json(include=fields, exclude={"run_result": ours})
            return cut_middle(text, MAX_CHARS)

        yield read

    return open_reader


async def measure(name: str, programs: Sequence[ObservedProgram]) -> list[CellScore]:
    if name in ("ours", "stateless"):
        async with LocalSandbox() as sandbox:
            tool = CodeInterpreterTool({"stateful": name == "ours"}, sandbox=sandbox)
            shown = programs if name == "ours" else [*map(joined, programs)]
            scores = await score_programs(shown, lambda: tool_reader(tool))
            await tool.close()
        return scores
    harmless = [program for program in programs if not program.harmful]
    if name == "ipython":
        return await score_programs(harmless, ipython_reader)
    return await score_programs([*map(joined, harmless)], fusion_reader(ProcessSandbox()))


def print_table(rows: dict[str, dict[str, list[CellScore]]]) -> None:
    """Print the marks and characters of each reader, and the ratio to the characters of `ours`."""
    print("| programs | reader | cells | marks shown | characters | of ours for the same |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for part, readers in rows.items():
        for name, scores in readers.items():
            names = {score.program for score in scores}
            same = Summary.of(score for score in readers.get("ours", []) if score.program in names)
            summary = Summary.of(scores)
            share = f"{summary.shown} of {summary.marks} ({100 * summary.shown / max(summary.marks, 1):.0f} %)"
            ratio = f"{summary.characters / same.characters:.2f}x" if same.characters else ""
            print(f"| {part} | {name} | {summary.cells} | {share} | {summary.characters:,} | {ratio} |")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words in the names of programs")
    parser.add_argument("--readers", default="ours,stateless,ipython,fusion")
    parser.add_argument("--show", action="store_true", help="print each text that lacks a mark")
    options = parser.parse_args()
    rows: dict[str, dict[str, list[CellScore]]] = {"programs": {}, "endings": {}}
    for part, programs in (("programs", PROGRAMS), ("endings", ENDINGS)):
        chosen = [program for program in programs if not options.only or any(w in program.name for w in options.only)]
        for name in options.readers.split(","):
            rows[part][name] = scores = await measure(name, chosen)
            for score in scores if options.show else []:
                if score.missing or options.only:
                    print(f"--- {name}: {score.program}, cell {score.index}, lacks {score.missing}\n{score.text}")
    print_table(rows)


if __name__ == "__main__":
    asyncio.run(main())
