"""`toolgym doctor`: what this machine offers, and for each thing that it lacks the step that adds it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from toolgym.cli.machine import examine, table_of
from toolgym.tools.lazy import pip_install

TABLES = tomllib.loads(Path(__file__).with_name("remedies.toml").read_text(encoding="utf-8"))


class Remedy(NamedTuple):
    missing: str
    needed_for: str
    remedy: str


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for bug reports.")] = False) -> None:
    """Show what this machine offers, and how to add what it lacks. Exit status 1 when code cannot be isolated."""
    findings = asyncio.run(examine())
    findings["extras"] = {name: importlib.util.find_spec(row[0]) is not None for name, row in TABLES["extras"].items()}
    steps = [*_isolation(findings["machine"], findings["isolation"]), *_software(findings)]
    console = Console(highlight=False)
    if as_json:
        console.print_json(json.dumps({**findings, "remedies": [step._asdict() for step in steps]}))
    else:
        table = table_of(findings)
        table.add_row("extras", ", ".join(name for name, there in findings["extras"].items() if there) or "none")
        console.print(table)
        console.print("Missing, what it is for, and how to add it:" if steps else "Nothing is missing.")
        for step in steps:
            console.print(f"- {step.missing} ({step.needed_for}): {step.remedy}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if findings["isolation"] else 1)


def _isolation(machine: dict[str, Any], isolation: dict[str, Any] | None) -> Iterator[Remedy]:
    if machine["platform"] != "linux":
        yield Remedy("Linux", "isolation", "serve the sandbox on a Linux machine, and give the tools its sandbox_url")
    elif not machine["user_namespaces"]:
        step = "in a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        for name, (forbids, allows) in TABLES["settings"].items():
            path = Path("/proc/sys", name.replace(".", "/"))
            if path.is_file() and path.read_text(encoding="ascii").strip() == forbids:
                step = f"as root: sysctl -w {name}={allows}"
        yield Remedy("user namespaces", "the level namespaces", step)
    elif isolation is not None and not isolation["own_proc"]:
        yield Remedy("an unmasked /proc", "programs that read it", "docker run --security-opt systempaths=unconfined")
    if machine["platform"] == "linux" and not machine["landlock_abi"]:
        yield Remedy("Landlock", "isolation", "boot Linux 5.13 or newer with landlock in its parameter lsm=")
    if isolation is not None and not isolation["cgroup"]:
        scope = f"systemd-run {'' if machine['root'] else '--user '}--scope -p Delegate=yes toolgym ..."
        yield Remedy("control groups", "memory limits by the kernel", scope)


def _installation(need: str) -> str:
    """Return the command that installs what a language lacks, as `Language.lacks` names it."""
    if module := re.fullmatch(r"the module (\S+) of (.+)", need):
        return f"{module[2]} -m pip install {module[1]}"
    return str(TABLES["programs"].get(need, f"apt-get install {need}"))


def _software(findings: dict[str, Any]) -> Iterator[Remedy]:
    as_root = "" if findings["machine"]["root"] else "as root: "
    for name, there in findings["extras"].items():
        if not there:
            yield Remedy(f"extra {name}", TABLES["extras"][name][1], pip_install(name))
    if findings["gpu"] and findings["extras"]["rollout"] and importlib.metadata.version("torch").endswith("+cpu"):
        yield Remedy("a torch for the GPU", "--device cuda", f"{sys.executable} -m pip install --force-reinstall torch")
    if "utf" not in findings["terminal"]["encoding"].lower():
        yield Remedy("UTF-8 in the terminal", "tables, view", "export LANG=C.UTF-8")
    if findings["terminal"]["kind"] in ("", "dumb"):
        yield Remedy("colours in the terminal", "view", "export TERM=xterm-256color")
    for name, absent in findings["languages_not_installed"].items():
        hidden = "install it below /usr, where a sandbox sees it" if "(which is" in absent else ""
        packages = [_installation(need) for need in absent.split(", ")]
        steps = hidden or "; ".join(dict.fromkeys(packages))
        yield Remedy(absent, f"programs in {name}", steps if steps.startswith("see ") else as_root + steps)
