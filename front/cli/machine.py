"""The offers of this machine: isolation, languages, a GPU."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from typing import Any

from rich.markup import escape
from rich.table import Table

from toolgym.tools.errors import SandboxError
from toolgym.version import __version__

SLOW = frozenset({"go", "go_test", "kotlin_script", "scala"})
"""Languages that are not tried, because their compilers take more than 5 seconds for any program."""


async def examine() -> dict[str, Any]:
    from toolgym.tools.sandbox.local import LocalSandbox
    from toolgym.tools.sandbox.local.host.isolation import probe
    from toolgym.tools.sandbox.local.host.languages import LANGUAGES

    isolation: dict[str, Any] | None = None
    trouble = ""
    lacking = {name: absent for name, language in LANGUAGES.items() if (absent := language.lacks())}
    installed = set(LANGUAGES) - set(lacking)
    usable, broken = installed, dict[str, str]()
    try:
        async with LocalSandbox(preload=(), templates=1) as sandbox:
            await sandbox.start()
            host = sandbox.isolation
            isolation = {
                "level": host.level.value,
                "landlock_abi": host.landlock,
                "seccomp": host.seccomp,
                "own_proc": host.fresh_proc,
                "cgroup": host.cgroup,
                "controllers": list(host.controllers),
                "missing": list(host.missing),
            }
            ran = await sandbox.run("print(6 * 7)", timeout=10)
            if ran.stdout != "42\n":
                isolation, trouble = None, f"a test program ended with {ran.status}: {ran.message or ran.stderr}"
            usable = {name for name in installed if LANGUAGES[name].possible(host.level)}
            tried = sorted(usable - SLOW)
            faults = await asyncio.gather(*(sandbox.toolchains.fault(name) for name in tried))
            broken = {name: fault for name, fault in zip(tried, faults, strict=True) if fault}
    except SandboxError as error:
        trouble = str(error)
    return {
        "toolgym": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "machine": probe(),
        "isolation": isolation,
        "trouble": trouble,
        "languages": ["python", *sorted(usable - set(broken))],
        "languages_not_working": broken,
        "languages_not_at_this_level": sorted(installed - usable),
        "languages_not_installed": {name: ", ".join(absent) for name, absent in sorted(lacking.items())},
        "gpu": os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None,
        "terminal": {"encoding": sys.stdout.encoding, "kind": os.environ.get("TERM", "")},
    }


def table_of(findings: dict[str, Any]) -> Table:
    table = Table(title=f"toolgym {findings['toolgym']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("system", f"{findings['system']}, Python {findings['python']}")
    isolation = findings["isolation"]
    if isolation:
        landlock = f"Landlock ABI {isolation['landlock_abi']}" if isolation["landlock_abi"] else "no Landlock"
        seccomp = "seccomp" if isolation["seccomp"] else "no seccomp"
        groups = f"control groups {isolation['cgroup']} ({', '.join(isolation['controllers'])})"
        groups = groups if isolation["cgroup"] else "no control groups"
        table.add_row("isolation", f"{isolation['level']}, {landlock}, {seccomp}, {groups}")
        for sentence in isolation["missing"]:
            table.add_row("", f"[yellow]{sentence}[/yellow]")
    else:
        table.add_row("isolation", f"[red]none: {findings['trouble']}[/red]")
    table.add_row("levels offered", ", ".join(findings["machine"]["levels"]) or "none")
    table.add_row("languages", ", ".join(findings["languages"]))
    for name, fault in findings["languages_not_working"].items():
        table.add_row("", f"[yellow]{name} does not work here: {escape(fault)}[/yellow]")
    table.add_row("not at this level", ", ".join(findings["languages_not_at_this_level"]) or "none")
    table.add_row("GPU", "NVIDIA's driver is there" if findings["gpu"] else "none")
    return table
