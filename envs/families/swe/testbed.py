"""Repositories that lie in their images, as SWE-bench's do in /testbed: their files, and their programs' variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, cast
from weakref import WeakKeyDictionary

from toolgym.envs.families.swe.patch import patched_names
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.tree import Node, link
from toolgym.envs.families.swe.verdict import CONFIGS
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import Sandbox, Session
from toolgym.tools.sandbox.files import FileInfo
from toolgym.tools.sessions.tool_scope import tool_scope

_KNOWN: WeakKeyDictionary[Sandbox, dict[tuple[str, str], dict[str, str]]] = WeakKeyDictionary()
"""Variables that a session of an image has after a command, by image and command, for as long as the sandbox lives."""

_MOST = 1024
"""Images of a sandbox whose variables are kept, some kilobytes each; the oldest give way."""


async def activated(sandbox: Sandbox, options: Mapping[str, Any], activate: str, timeout: float) -> dict[str, str]:
    """Return the variables that a bash in the image has after a command. Raises ConfigError if that fails there."""
    known, key = _KNOWN.setdefault(sandbox, {}), (options["image"], activate)
    if key not in known:
        with tool_scope(None):
            session = await sandbox.session(**cast(Any, options))
        try:
            command = f"{{ {activate}\n}} >&2 && exec env -0"
            run = await session.exec(["bash", "--noprofile", "--norc", "-c", command], timeout=timeout)
        finally:
            await shielded(session.close())
        if not run.ok:
            raise ConfigError(f"activate={activate!r} fails in {options['image']}: {run.message}{run.stderr[-500:]}")
        while len(known) >= _MOST:
            del known[next(iter(known))]
        known[key] = dict(pair.split("=", 1) for pair in run.stdout.split("\0") if "=" in pair)
    return {**known[key], **(options.get("env") or {})}


async def completed(
    task: RepositoryTask, session: Session, folder: str, files: Mapping[str, FileInfo]
) -> RepositoryTask:
    """Return the task with the files of its image: all names, and the contents that its tests and patches need."""
    words = {word for test in (*task.fail_to_pass, *task.pass_to_pass) for word in re.findall(r"\w+", test)}
    needed = {*CONFIGS, *patched_names(task.test_patch), *patched_names(task.gold_patch)}
    read = [file for name, file in files.items() if name in needed or PurePosixPath(name).stem in words]
    contents = await session.read_files(folder, [file for file in read if file.kind == "file"])
    tree = {name: link(file.target) for name, file in files.items() if file.target is not None}
    for name, file in files.items():
        if file.kind == "file":
            tree[name] = Node(contents.get(name, b""), 0o755 if file.mode & 0o100 else 0o644)
    return task.completed(tree)
