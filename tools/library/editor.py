"""`EditorTool`: the model reads and edits files with `view`, `create`, `str_replace`, `insert` and `undo_edit`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import posixpath
import re
from collections.abc import Mapping
from typing import Any

import pydantic

from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, SandboxFileError, SandboxFileNotFoundError, SandboxNotADirectoryError
from toolgym.tools.library.outcome import cut_middle
from toolgym.tools.library.sandbox_tool import SandboxToolSession, WorkspaceTool
from toolgym.tools.sandbox.base import Session
from toolgym.tools.schema import ToolSchema
from toolgym.tools.sessions.episode_session import EpisodeSession
from toolgym.tools.sessions.workspace import WorkspaceOptions
from toolgym.tools.stateful import ToolSession

CONTEXT = 4
MAX_ENTRIES = 500
UNDO = 100
LOST = "[The session was lost before; files of earlier calls are gone]\n"
COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")


class EditorConfig(WorkspaceOptions):
    """Options of `EditorTool`, beside those of `WorkspaceOptions`."""

    timeout: float = pydantic.Field(default=60.0, gt=0)
    """Wall seconds for one call."""
    max_output_chars: int = pydantic.Field(default=30_000, ge=64)
    """Characters that the model sees of one call; the middle of more is cut."""


class _MistakeError(Exception):
    """A mistake of the model, which reads the text."""


class _Editor(SandboxToolSession):
    def __init__(self, tool: EditorTool, session: EpisodeSession) -> None:
        super().__init__(session)
        self._tool = tool
        self._working = asyncio.Lock()  # the calls of one turn come at the same time
        self._before: list[tuple[str, bytes | None]] = []  # files as they were before each change, the last one at last

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        timeout = float(execute_kwargs.get("timeout", self._tool.options.timeout))
        return await with_deadline(self._execute(parameters), timeout)

    async def fork(self) -> ToolSession:
        async with self._working:
            twin = _Editor(self._tool, await self._session.fork())
            twin._before = [*self._before]
            return twin

    async def _execute(self, parameters: dict[str, Any]) -> ToolResult:
        async with self._working:
            session, lost = await self._session.get()
            if lost:
                self._before.clear()
            try:
                text, status = await self._carry_out(session, parameters), "ok"
            except _MistakeError as error:
                text, status = f"[{error}]", "error"
            except (SandboxFileNotFoundError, SandboxNotADirectoryError):
                text, status = f"[There is no file {parameters['path']}]", "error"
            except (SandboxFileError, ConfigError) as error:  # a name that cannot be one, a full disk
                text, status = f"[{error}]", "error"
        text = cut_middle(text, self._tool.options.max_output_chars)
        return ToolResult(f"{LOST if lost else ''}{text}", 0.0, {"status": status})

    async def _carry_out(self, session: Session, parameters: dict[str, Any]) -> str:
        name = parameters["path"]
        path = posixpath.normpath(posixpath.join(self._tool.options.folder, name)) if name else ""
        if not path:
            raise _MistakeError("Give the path of a file")
        command = parameters["command"]
        if command == "view":
            return await _view(session, path, name, parameters.get("view_range"))
        if command == "create":
            data = _encoded(_argument(parameters, "file_text"))
            before = None
            with contextlib.suppress(SandboxFileNotFoundError):
                before = await session.read_file(path)
            await self._write(session, path, before, data)
            return f"{'Created' if before is None else 'Replaced'} {name}: {len(_lines(data.decode()))} lines."
        if command == "undo_edit":
            return await self._undo(session, path, name)
        old = await session.read_file(path)
        text = _decoded(name, old)
        windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
        edit = _replace if command == "str_replace" else _insert
        new, first, last = edit(name, text.replace("\r\n", "\n") if windows else text, parameters)
        await self._write(session, path, old, _encoded(new.replace("\n", "\r\n") if windows else new))
        return f"Changed {name}:\n{_numbered(new, max(1, first - CONTEXT), last + CONTEXT)}"

    async def _write(self, session: Session, path: str, before: bytes | None, data: bytes) -> None:
        await session.write_file(path, data)
        self._before = [*self._before, (path, before)][-UNDO:]

    async def _undo(self, session: Session, path: str, name: str) -> str:
        place = next((at for at in reversed(range(len(self._before))) if self._before[at][0] == path), None)
        if place is None:
            raise _MistakeError(f"There is no change of {name} to undo")
        before = self._before[place][1]
        if before is None:
            await session.remove(path)
        else:
            await session.write_file(path, before)
        del self._before[place]
        if before is None:
            return f"Undone: {name} was created, and is removed again."
        return f"Undone: {name} is as it was before the last change."


class EditorTool(WorkspaceTool[EditorConfig]):
    """Lets the model read and edit text files, by the commands that models know from other such editors.

    `view` shows a file with numbers of lines, or a folder two levels deep; `create` writes a whole file; `str_replace`
    replaces a text that stands in the file exactly once; `insert` puts a text behind a line; `undo_edit` takes the last
    change of a file back. Relative paths are those of `folder`. A command that cannot be carried out is an observation.
    The metrics of a call are `status`. A fork has the same files, and can undo the same changes. Options are those of
    `EditorConfig`; see `WorkspaceTool`.
    """

    label = "editor"
    options_type = EditorConfig
    default_schema = ToolSchema(
        name="editor",
        description=(
            "View, create and edit text files. `view` shows a file with line numbers, or lists a folder; `create` "
            "writes a whole file; `str_replace` replaces a text that occurs exactly once; `insert` puts a text behind "
            "a line; `undo_edit` takes the last change of a file back."
        ),
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "enum": list(COMMANDS)},
                "path": {"type": "string", "description": "The file or folder."},
                "view_range": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "description": "For view: the first and the last line to show; -1 is the end of the file.",
                },
                "file_text": {"type": "string", "description": "For create: the whole content."},
                "old_str": {"type": "string", "description": "For str_replace: the text to replace, to the letter."},
                "new_str": {
                    "type": "string",
                    "description": "For str_replace: what takes its place. Default: nothing.",
                },
                "insert_line": {"type": "integer", "description": "For insert: behind this line; 0 is the beginning."},
                "insert_text": {"type": "string", "description": "For insert: the lines to put there."},
            },
            "required": ["command", "path"],
        },
    )

    def begin(self, session: EpisodeSession) -> ToolSession:
        return _Editor(self, session)


# ---------------------------------------------------------------------- view


async def _view(session: Session, path: str, name: str, view_range: list[int] | None) -> str:
    kind = (await session.stat(path)).kind
    if kind == "link":  # what it leads to decides
        try:
            await session.list(path)
            kind = "folder"
        except SandboxNotADirectoryError:
            kind = "file"
    if kind == "folder":
        if view_range is not None:
            raise _MistakeError(f"{name} is a folder: leave view_range out")
        return await _view_folder(session, path, name)
    text = _decoded(name, await session.read_file(path)).replace("\r\n", "\n")
    total = len(_lines(text))
    if view_range is None:
        return _numbered(text, 1, total) if text else f"[{name} is empty]"
    if len(view_range) != 2:
        raise _MistakeError(f"view_range must be two numbers, the first and the last line, got {view_range}")
    first, last = view_range[0], total if view_range[1] == -1 else view_range[1]
    if not 1 <= first <= max(total, 1) or last < first:
        raise _MistakeError(f"view_range {view_range} is not in {name}, which has {total} lines")
    return _numbered(text, first, last)


async def _view_folder(session: Session, path: str, name: str) -> str:
    names: list[str] = []
    for entry in await session.list(path):
        if entry.name.startswith("."):
            continue
        names.append(f"{entry.name}/" if entry.kind == "folder" else entry.name)
        if entry.kind == "folder" and len(names) <= MAX_ENTRIES:
            try:
                below = [item for item in await session.list(f"{path}/{entry.name}") if not item.name.startswith(".")]
            except SandboxFileError:  # closed to the model, or gone meanwhile
                names[-1] += " [cannot be read]"
                continue
            names += [f"{entry.name}/{item.name}{'/' if item.kind == 'folder' else ''}" for item in below]
    left_out = f"\n[{len(names) - MAX_ENTRIES} more]" if len(names) > MAX_ENTRIES else ""
    return f"{name}, two levels deep, without hidden files:\n" + "\n".join(names[:MAX_ENTRIES]) + left_out


def _numbered(text: str, first: int, last: int) -> str:
    lines = enumerate(_lines(text)[first - 1 : last], start=first)
    return "\n".join(f"{number:6}\t{line.removesuffix(chr(10))}" for number, line in lines)


def _lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline="\n"))  # `str.splitlines` would also break at other characters


# ---------------------------------------------------------------------- changes


def _replace(name: str, text: str, parameters: Mapping[str, Any]) -> tuple[str, int, int]:
    old, new = _argument(parameters, "old_str"), parameters.get("new_str") or ""
    if not old:
        raise _MistakeError("old_str is empty: give the text to replace, or use the command insert")
    if old == new:
        raise _MistakeError("old_str and new_str are the same")
    count = text.count(old)
    if count == 0:
        raise _MistakeError(f"Nothing was changed: old_str does not occur in {name}. View it, and copy to the letter")
    if count > 1:
        matches = itertools.islice(re.finditer(re.escape(old), text), 10)
        places = ", ".join(str(text.count("\n", 0, match.start()) + 1) for match in matches)
        raise _MistakeError(
            f"Nothing was changed: old_str occurs {count} times in {name}, in lines {places}"
            f"{', ...' if count > 10 else ''}. Give more of "
            "the lines around it, so that it occurs once"
        )
    at = text.index(old)
    first = text.count("\n", 0, at) + 1
    return text[:at] + new + text[at + len(old) :], first, first + new.count("\n")


def _insert(name: str, text: str, parameters: Mapping[str, Any]) -> tuple[str, int, int]:
    added, behind = _argument(parameters, "insert_text"), parameters.get("insert_line")
    lines = _lines(text)
    total = len(lines)
    if behind is None or not 0 <= behind <= total:
        raise _MistakeError(f"insert_line must be a line of {name}, from 0 to {total}, got {behind}")
    if behind and not lines[behind - 1].endswith("\n"):
        lines[behind - 1] += "\n"
    added = added if added.endswith("\n") or behind == total else f"{added}\n"
    return "".join([*lines[:behind], added, *lines[behind:]]), behind + 1, behind + max(1, len(_lines(added)))


def _argument(parameters: Mapping[str, Any], name: str) -> str:
    value = parameters.get(name)
    if value is None:
        raise _MistakeError(f"The command {parameters['command']} needs the argument {name!r}")
    return str(value)


def _decoded(name: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _MistakeError(f"{name} is no text in UTF-8, which is all that this editor can read") from None
    if "\0" in text:
        raise _MistakeError(f"{name} is a binary file")
    return text


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _MistakeError("The text holds characters that are no Unicode") from None
