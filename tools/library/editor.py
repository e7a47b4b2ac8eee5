"""`EditorTool`: the model reads and edits files with `view`, `create`, `str_replace`, `insert` and `undo_edit`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_MARK = "\ufeff"  # a byte order mark, which is not part of the first line
_ENDS = re.compile(r"\r?\n")
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
        self._changes: list[_Change] = []  # oldest first

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        timeout = float(execute_kwargs.get("timeout", self._tool.options.timeout))
        return await with_deadline(self._execute(parameters), timeout)

    async def fork(self) -> ToolSession:
        async with self._working:
            twin = _Editor(self._tool, await self._session.fork())
            twin._changes = [*self._changes]
            return twin

    async def _execute(self, parameters: dict[str, Any]) -> ToolResult:
        async with self._working:
            session, lost = await self._session.get()
            if lost:
                self._changes.clear()
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
        mark, text = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
        edit = _replace if command == "str_replace" else _insert
        new, first, last = edit(name, text, parameters)
        await self._write(session, path, old, _encoded(mark + new))
        return f"Changed {name}:\n{_numbered(_shown(new), max(1, first - CONTEXT), last + CONTEXT)}"

    async def _write(self, session: Session, path: str, before: bytes | None, data: bytes) -> None:
        await session.write_file(path, data)
        last = self._last_change(path)
        if last is not None and last.after == before:
            before = last.after  # the same object, which is stored once
        self._changes = [*self._changes, _Change(path, before, data)][-UNDO:]

    def _last_change(self, path: str) -> _Change | None:
        return next((change for change in reversed(self._changes) if change.path == path), None)

    async def _undo(self, session: Session, path: str, name: str) -> str:
        change = self._last_change(path)
        if change is None:
            raise _MistakeError(f"There is no change of {name} to undo")
        now = await session.read_file(path)
        if change.before is None:
            if now != change.after:
                raise _MistakeError(f"Nothing was undone: {name} was created here, but others have changed it since")
            await session.remove(path)
            text = f"Undone: {name} was created, and is removed again."
        else:
            undone = change.undo(now)
            if undone is None:
                raise _MistakeError(
                    f"Nothing was undone: others have changed {name} since, where the last change was made. View it, "
                    "and edit it"
                )
            await session.write_file(path, undone)
            text = f"Undone: {name} is as it was before the last change."
            if now != change.after:
                text = f"Undone: the last change of {name}. What others have changed in it since is kept."
        self._changes = [other for other in self._changes if other is not change]
        return text


@dataclass(frozen=True, eq=False)
class _Change:
    """A change of a file by this tool: its content before (None if there was no file) and after."""

    path: str
    before: bytes | None
    after: bytes

    def undo(self, now: bytes) -> bytes | None:
        """Return the content now without this change. None if others have changed the same part of the file."""
        before, after = self.before or b"", self.after
        if now == after:
            return before
        begin, end = _different(before, after)
        others_begin, others_end = _different(now, after)
        old = before[begin : len(before) - (len(after) - end)]
        if end <= others_begin:
            return now[:begin] + old + now[end:]
        if begin >= others_end:
            shift = len(now) - len(after)
            return now[: begin + shift] + old + now[end + shift :]
        return None


def _different(other: bytes, text: bytes) -> tuple[int, int]:
    """Return the begin and the end of the part of a text that another text does not share."""
    begin = _shared_length(other, text)
    most = min(len(other), len(text)) - begin
    end = _shared_length(other[len(other) - most :][::-1], text[len(text) - most :][::-1])
    return begin, len(text) - end


def _shared_length(left: bytes, right: bytes) -> int:
    """Return the length of the longest common prefix, by halving: comparing slices is faster than a loop."""
    low, high = 0, min(len(left), len(right))
    with memoryview(left) as first, memoryview(right) as second:
        while low < high:
            middle = (low + high + 1) // 2
            if first[low:middle] == second[low:middle]:
                low = middle
            else:
                high = middle - 1
    return low


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
    text = _shown(_decoded(name, await session.read_file(path)).removeprefix(_MARK))
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
    """Replace `old_str`, which is compared with the text as `view` shows it. New lines end as the lines that they
    replace, and all other lines keep their ends."""
    old, new = _argument(parameters, "old_str"), str(parameters.get("new_str") or "")
    shown = _shown(text)
    if len(shown) < len(text):
        old, new = _shown(old), _shown(new)
    if not old:
        raise _MistakeError("old_str is empty: give the text to replace, or use the command insert")
    if old == new:
        raise _MistakeError("old_str and new_str are the same")
    count = shown.count(old)
    if count == 0:
        raise _MistakeError(f"Nothing was changed: old_str does not occur in {name}. View it, and copy to the letter")
    if count > 1:
        matches = itertools.islice(re.finditer(re.escape(old), shown), 10)
        places = ", ".join(str(shown.count("\n", 0, match.start()) + 1) for match in matches)
        raise _MistakeError(
            f"Nothing was changed: old_str occurs {count} times in {name}, in lines {places}"
            f"{', ...' if count > 10 else ''}. Give more of "
            "the lines around it, so that it occurs once"
        )
    at = shown.index(old)
    begin, end = _place(text, shown, at), _place(text, shown, at + len(old))
    first = shown.count("\n", 0, at) + 1
    last = first + new.count("\n")
    if len(shown) < len(text):
        ends = _ENDS.findall(text[begin:end]) or [_end_near(text, begin)]
        new = _with_ends(new, ends)
    return text[:begin] + new + text[end:], first, last


def _insert(name: str, text: str, parameters: Mapping[str, Any]) -> tuple[str, int, int]:
    added, behind = _argument(parameters, "insert_text"), parameters.get("insert_line")
    lines = _lines(text)
    total = len(lines)
    if behind is None or not 0 <= behind <= total:
        raise _MistakeError(f"insert_line must be a line of {name}, from 0 to {total}, got {behind}")
    end = _end_near(text, len("".join(lines[: max(0, behind - 1)])))
    if behind and not lines[behind - 1].endswith("\n"):
        lines[behind - 1] += end
    added = added if added.endswith("\n") or behind == total else f"{added}\n"
    if "\r\n" in text:
        added = _with_ends(_shown(added), [end])
    return "".join([*lines[:behind], added, *lines[behind:]]), behind + 1, behind + max(1, len(_lines(added)))


def _shown(text: str) -> str:
    """Return a text as the model sees it: without the difference between line ends."""
    return text.replace("\r\n", "\n")


def _place(text: str, shown: str, at: int) -> int:
    """Return the index in a text of an index in the text as it is shown. The end of a line is one character there."""
    if len(shown) == len(text):
        return at
    lines = shown.count("\n", 0, at)
    begin = 0
    for _ in range(lines):
        begin = text.index("\n", begin) + 1
    return begin + at - (shown.rfind("\n", 0, at) + 1)


def _end_near(text: str, at: int) -> str:
    """Return the end of the line at an index, or of the line before if it is the last and has none."""
    match = _ENDS.search(text, at)
    ends = [match[0]] if match else _ENDS.findall(text)
    return ends[-1] if ends else "\n"


def _with_ends(text: str, ends: Sequence[str]) -> str:
    """Replace the line ends of a text, in order. The last of `ends` is also that of all further lines."""
    remaining = itertools.chain(ends, itertools.repeat(ends[-1]))
    return re.sub("\n", lambda _: next(remaining), text)


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
