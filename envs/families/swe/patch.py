"""`apply_patch`: files after a unified diff, as `git diff` and `diff -u` write it.

It is stricter than `patch` and more lenient than `git apply`: the context must be there to the letter, but its place
and the line counts in a hunk's header may be wrong, as models often get them wrong. (The library `unidiff` refuses such
counts, and applies nothing.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from toolgym.envs.families.swe.tree import Changes, Node
from toolgym.tools.errors import ToolgymError
from toolgym.tools.sandbox.names import OptionError, check_name

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_MODE = re.compile(r"(?:new file mode|new mode) 100(\d{3})")


MAX_DIGITS = 9
"""Digits of a line number."""

MAX_COMPARED = 2_000_000
"""Lines that are compared to find the places of a file's hunks. Lines that are all the same would make it quadratic."""


class PatchError(ToolgymError, ValueError):
    """A diff cannot be applied. Says which file and where; the policy reads it."""


@dataclass
class _Hunk:
    """A change of a file: the old lines and the new ones, each with its line end."""

    start: int
    old: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)


@dataclass
class _FilePatch:
    old: str | None = None
    new: str | None = None
    mode: int | None = None
    copies: bool = False
    hunks: list[_Hunk] = field(default_factory=list)


def patched_names(diff: str | bytes) -> set[str]:
    return {name for file in _parse(diff) for name in (file.old, file.new) if name is not None}


def apply_patch(read: Callable[[str], Node | None], diff: str | bytes) -> Changes:
    """Return the files as a diff changes them: all of it, or an error. `read` gives a file, or None.

    The diff has Git's extended headers or not. Names begin with `a/` and `b/`, or are plain.
    """
    changes: Changes = {}

    def current(name: str) -> Node | None:
        return changes[name] if name in changes else read(name)

    for file in _parse(diff):
        old = None if file.old is None else current(file.old)
        if file.old is not None and old is None:
            raise PatchError(f"{file.old}: there is no such file")
        if old is not None and old.link:
            raise PatchError(f"{file.old}: it is a symbolic link, which a patch cannot change")
        if file.new is not None and file.new != file.old and current(file.new) is not None:
            raise PatchError(f"{file.new}: the file exists already")
        data = _patched(file.new or file.old or "", b"" if old is None else old.data, file.hunks)
        if file.old is not None and file.old != file.new and not file.copies:
            changes[file.old] = None
        if file.new is not None:
            changes[file.new] = Node(data, file.mode or (0o644 if old is None else old.mode))
    return changes


def _patched(name: str, data: bytes, hunks: Sequence[_Hunk]) -> bytes:
    lines = _split(data)
    done: list[bytes] = []
    at = shift = 0
    search = _Search(name, lines)
    for number, hunk in enumerate(hunks, start=1):
        place = search.find(hunk.old, at, max(at, hunk.start + shift))
        if place is None:
            raise PatchError(
                f"{name}: hunk {number} of {len(hunks)} does not apply: the lines that it expects around line "
                f"{hunk.start + 1} are not there"
            )
        done += [*lines[at:place], *hunk.new]
        at, shift = place + len(hunk.old), place - hunk.start
    return b"".join([*done, *lines[at:]])


def _split(data: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


class _Search:
    """The search for the lines of hunks in a file, which compares a limited number of lines."""

    def __init__(self, name: str, lines: list[bytes]) -> None:
        self._name, self._lines = name, lines
        self._compared = 0

    def find(self, wanted: list[bytes], least: int, guess: int) -> int | None:
        """Return the index nearest to `guess`, and not before `least`, at which the wanted lines stand."""
        lines, last = self._lines, len(self._lines) - len(wanted)
        if not wanted:
            return min(guess, len(lines))
        guess = max(least, min(guess, last))
        for distance in range(max(last - guess, guess - least) + 1):
            for place in (guess - distance, guess + distance):
                if least <= place <= last and self._stands(wanted, place):
                    return place
        return None

    def _stands(self, wanted: list[bytes], place: int) -> bool:
        self._compared += 1
        if self._lines[place] != wanted[0]:
            return False
        self._compared += len(wanted)
        if self._compared > MAX_COMPARED:
            raise PatchError(f"{self._name}: its hunks take too long to find; give other lines of context")
        return self._lines[place : place + len(wanted)] == wanted


# ---------------------------------------------------------------------- reading a diff


def _parse(diff: str | bytes) -> list[_FilePatch]:
    data = diff.encode("utf-8", "surrogateescape") if isinstance(diff, str) else diff
    lines = _split(data)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    files: list[_FilePatch] = []
    at = 0
    while at < len(lines):
        text = _text(lines[at])
        if text.startswith("diff --git "):
            file, at = _git_header(lines, at)
        elif _begins_a_file(lines, at):
            file = _FilePatch()
        elif _HUNK.match(text):
            raise PatchError(f"line {at + 1} of the diff: a hunk before any '--- ' and '+++ ' lines")
        else:
            at += 1
            continue
        at = _body(lines, at, file)
        files.append(file)
    if not files:
        raise PatchError("it is no unified diff: it has no '--- ' and '+++ ' lines")
    for file in files:
        _check(file)
    return files


def _git_header(lines: Sequence[bytes], at: int) -> tuple[_FilePatch, int]:
    file = _FilePatch()
    names = re.fullmatch(r"diff --git (\"?a/.+?\"?) (\"?b/.+\"?)", _text(lines[at]))
    if names:
        file.old, file.new = _name(names[1]), _name(names[2])
    at += 1
    while at < len(lines):
        text = _text(lines[at])
        if text.startswith(("--- ", "diff --git ", "@@ ")):
            break
        if text.startswith(("GIT binary patch", "Binary files ")):
            raise PatchError(f"{file.new or 'a file'}: binary patches are not supported")
        if text.startswith(("new file mode 120", "old mode 120")):
            raise PatchError(f"{file.new or 'a file'}: patches of symbolic links are not supported")
        if mode := _MODE.match(text):
            file.mode = int(mode[1], 8)
        if text.startswith("new file mode"):
            file.old = None
        elif text.startswith("deleted file mode"):
            file.new = None
        elif text.startswith(("rename from ", "copy from ")):
            file.old, file.copies = _plain(text.split(" from ", 1)[1]), text.startswith("copy")
        elif text.startswith(("rename to ", "copy to ")):
            file.new = _plain(text.split(" to ", 1)[1])
        elif not text.startswith(("index ", "similarity ", "dissimilarity ", "old mode", "new mode")) and text:
            break
        at += 1
    return file, at


def _body(lines: Sequence[bytes], at: int, file: _FilePatch) -> int:
    if at < len(lines) and _begins_a_file(lines, at):
        file.old, file.new = _name(_text(lines[at])[4:]), _name(_text(lines[at + 1])[4:])
        at += 2
    while at < len(lines) and (header := _HUNK.match(_text(lines[at]))):
        at = _hunk(lines, at + 1, file, header)
    return at


def _hunk(lines: Sequence[bytes], at: int, file: _FilePatch, header: re.Match[str]) -> int:
    if any(len(number or "") > MAX_DIGITS for number in header.groups()):
        raise PatchError(f"line {at} of the diff: a line number has more than {MAX_DIGITS} digits")
    counts = [int(header[place] or 1) if header[place] != "0" else 0 for place in (2, 4)]
    # A hunk without old lines stands behind the line that its header names.
    hunk = _Hunk(max(0, int(header[1]) - (1 if counts[0] else 0)))
    while at < len(lines):
        line = lines[at]
        complete = len(hunk.old) >= counts[0] and len(hunk.new) >= counts[1]
        if line.startswith(b"\\"):
            _drop_line_end(hunk, lines[at - 1])
        elif complete and _begins_a_file(lines, at):
            break
        elif line[:1] in (b" ", b"-", b"+"):
            if line[:1] != b"+":
                hunk.old.append(line[1:])
            if line[:1] != b"-":
                hunk.new.append(line[1:])
        elif line in (b"\n", b"\r\n") and not complete:  # an empty line of context whose space was lost
            hunk.old.append(line)
            hunk.new.append(line)
        else:
            break
        at += 1
    file.hunks.append(hunk)
    return at


def _begins_a_file(lines: Sequence[bytes], at: int) -> bool:
    return lines[at].startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ ")


def _drop_line_end(hunk: _Hunk, before: bytes) -> None:
    if before[:1] != b"+" and hunk.old:
        hunk.old[-1] = hunk.old[-1].removesuffix(b"\n")
    if before[:1] != b"-" and hunk.new:
        hunk.new[-1] = hunk.new[-1].removesuffix(b"\n")


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape").rstrip("\r\n")


def _plain(text: str) -> str:
    """Return a name without the quotes and escapes that Git puts around unusual ones."""
    if not (text.startswith('"') and text.endswith('"') and len(text) > 1):
        return text
    raw = b"".join(_unescaped(text[1:-1]))
    return raw.decode("utf-8", "surrogateescape")


def _unescaped(text: str) -> Iterator[bytes]:
    escapes = {"n": b"\n", "t": b"\t", "r": b"\r", '"': b'"', "\\": b"\\"}
    for part in re.findall(r"\\[0-7]{3}|\\.|[^\\]+", text):
        if part.startswith("\\"):
            yield bytes([int(part[1:], 8)]) if len(part) == 4 else escapes.get(part[1], part[1].encode())
        else:
            yield part.encode("utf-8", "surrogateescape")


def _name(text: str) -> str | None:
    name = _plain(text if text.startswith('"') else text.partition("\t")[0].rstrip())
    if name == "/dev/null":
        return None
    return name[2:] if name.startswith(("a/", "b/")) else name


def _check(file: _FilePatch) -> None:
    if file.old is None and file.new is None:
        raise PatchError("a file of the diff has no name")
    for name in (file.old, file.new):
        try:
            if name is not None:
                check_name(name)
        except OptionError as error:
            raise PatchError(str(error)) from None
        if name is not None and ".git" in name.split("/"):
            raise PatchError(f"{name}: a patch cannot change Git's own files")
