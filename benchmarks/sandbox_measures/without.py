"""What single tricks of the sandbox save: CPU time per run with and without each, in one process, in turns.

    python benchmarks/sandbox.py --without TRICK,... [--level LEVEL] [--quick]

It counts user and system time of the template processes and all their children, so that other programs on the machine
matter little. A ratio of 1.2 says that a run costs 20 % more without the trick; the quartiles are over the pairs.
`pass` runs `pass` from the bare template process; `stack` imports the preloaded libraries; `session` opens a session,
runs a cell and closes it, both from the full one.

Ratios on two cores that other work kept busy (Linux 6.18, Python 3.11, numpy, sympy and pandas; 11 pairs of 120, and 25
of 200 for the pages):

| without | pass | stack | session |
| --- | --- | --- | --- |
| first-process | 1.37 | 1.39 | 1.42 |
| syscall-batch | 1.14 | 1.13 | 1.11 |
| pinned-pages | 1.10 | 1.08 | 1.05 |
| huge-pages | 1.01 | 1.27 | 1.19 |
| recursion-depth | 0.98 | 1.01 | 1.00 |
| preload | | 77 | 0.67 |

`recursion-depth` is there for what programs see, and not for speed: without it, `sys._getframe().f_back` leads into the
sandbox, tracebacks of stacks and warnings name its files, and eleven of the 1,000 nested calls are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sandbox_measures.processes import cpu_seconds
from sandbox_measures.samples import STACK, STACK_CODE, percentile, show

from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local.host import template_process

TRICKS = {
    "first-process": "from toolgym.tools.sandbox.local.zygote import first_process as m; m._INSTRUCTIONS.clear()",
    "pinned-pages": "from toolgym.tools.sandbox.local.zygote import fork_pages as m; m.pin = lambda _: None",
    "huge-pages": "from toolgym.tools.sandbox.local.zygote import fork_pages as m; m.collapse = lambda *_: set()",
    "syscall-batch": """
from toolgym.tools.sandbox.local.kernel.harden import Hardening as m
def late(prepare):
    class Late:
        def __init__(self, *args): self.args = args
        def run(self):
            for batch in prepare(*self.args): batch.run()
    return Late
drop, batches = late(lambda self, drop=m.drop_capabilities: [drop(self)]), late(m.batches)
m.drop_capabilities, m.batches = lambda self: drop(self), lambda *args: [batches(*args)]
""",
    "recursion-depth": "from toolgym.tools.sandbox.local.child import recursion_depth as m; m._known = lambda: False",
    "preload": "",
}
"""Code that a template process runs before it starts, to do without one trick: see `--without`.

Without the batch of system calls, each child puts its list of calls together itself, in Python. `preload` is an option
of `LocalSandbox`, and needs no code.
"""

WORKLOADS = ("pass", "stack", "session")


@contextlib.contextmanager
def template_code(code: str) -> Iterator[None]:
    """Inside the block, template processes run some code before they start."""
    before = template_process._BOOT
    template_process._BOOT = before.replace("startup.main(", f"{code}\nstartup.main(")
    assert before != template_process._BOOT, "template processes start in another way now"
    try:
        yield
    finally:
        template_process._BOOT = before


async def workload(sandbox: LocalSandbox, name: str, count: int) -> float:
    """Do something `count` times, one after another. Returns milliseconds of CPU time for each."""
    before = cpu_seconds(sandbox.template_ids)
    for _ in range(count):
        if name == "session":
            async with await sandbox.session() as session:
                right = (await session.run_cell("x = 1\nx")).result == "1"
        else:
            right = (await sandbox.run("pass" if name == "pass" else STACK_CODE)).ok
        if not right:
            raise SystemExit(f"a wrong answer in the workload {name!r}")
    return (cpu_seconds(sandbox.template_ids) - before) / count * 1e3


async def measure_without(trick: str, count: int, pairs: int, level: str | None) -> None:
    """Print what one trick saves: CPU time with and without it, in turns, so that a busy machine slows both."""
    plain_options: dict[str, Any] = {"level": level, "preload": STACK, "templates": 1}
    async with contextlib.AsyncExitStack() as stack:
        whole = await stack.enter_async_context(LocalSandbox(**plain_options))
        options = {**plain_options, "preload": ()} if trick == "preload" else plain_options
        with template_code(TRICKS[trick]):
            less = await stack.enter_async_context(LocalSandbox(**options))
            await less.start(full=True)
        await whole.start(full=True)
        for sandbox in (less, whole):
            for name in WORKLOADS:
                await workload(sandbox, name, 8)
        for name in WORKLOADS:
            if trick == "preload" and name == "pass":
                continue
            each = max(10, count // (20 if trick == "preload" else 1))
            pairs_here = [(await workload(whole, name, each), await workload(less, name, each)) for _ in range(pairs)]
            ratios = [without / with_it for with_it, without in pairs_here]
            show([
                trick, name,
                f"{percentile([one for one, _ in pairs_here], 0.5):.3f}",
                f"{percentile([one for _, one in pairs_here], 0.5):.3f}",
                f"{percentile(ratios, 0.5):.3f}", f"{percentile(ratios, 0.25):.3f} – {percentile(ratios, 0.75):.3f}",
                f"{pairs} × {each}",
            ])  # fmt: skip


async def run_without(tricks: list[str], *, level: str | None, quick: bool) -> None:
    """Print the table for these tricks."""
    unknown = [trick for trick in tricks if trick not in TRICKS]
    if unknown:
        raise SystemExit(f"--without knows {', '.join(TRICKS)}; got {', '.join(unknown)}")
    show(["without", "workload", "CPU ms with", "CPU ms without", "ratio", "quartiles", "pairs × times"])
    show(["---"] * 7)
    for trick in tricks:
        await measure_without(trick, 60 if quick else 200, 3 if quick else 25, level)
