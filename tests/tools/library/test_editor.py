"""`EditorTool`: its commands, and what the model reads of its mistakes."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import pytest_asyncio

from toolgym.testing import ToolSuite
from toolgym.tools import EditorTool, Workspace
from toolgym.tools.errors import SandboxFileError, SandboxUnsupportedError
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.local import probe

FORKS = "namespaces" in probe()["levels"]


class TestEditor(ToolSuite):
    arguments = MappingProxyType({"command": "create", "path": "a.txt", "file_text": "x\n"})
    forks = FORKS

    @pytest.fixture
    def tool(self):
        return EditorTool()


class Editing:
    """One episode of an editor."""

    def __init__(self, tool, instance):
        self.tool, self.instance = tool, instance

    async def __call__(self, command, path, **rest):
        return (await self.tool.execute(self.instance, {"command": command, "path": path, **rest})).text

    async def file(self, path):
        session = await self.tool.session_of(self.instance).sandbox_session()
        return await session.read_file(path)

    async def write(self, path, data):
        session = await self.tool.session_of(self.instance).sandbox_session()
        await session.write_file(path, data)


@pytest_asyncio.fixture
async def edit():
    tool = EditorTool({"max_output_chars": 2000})
    yield Editing(tool, await tool.create())
    await tool.close()


TEXT = "one\ntwo\nthree\ntwo\nfive\n"


async def test_a_file_is_created_and_viewed_with_numbers(edit):
    assert await edit("create", "a/b.txt", file_text=TEXT) == "Created a/b.txt: 5 lines."
    assert await edit("view", "a/b.txt") == "     1\tone\n     2\ttwo\n     3\tthree\n     4\ttwo\n     5\tfive"
    assert await edit("view", "a/b.txt", view_range=[4, -1]) == "     4\ttwo\n     5\tfive"
    assert await edit("view", "a/b.txt", view_range=[2, 2]) == "     2\ttwo"
    assert await edit("create", "a/b.txt", file_text="") == "Replaced a/b.txt: 0 lines."
    assert await edit("view", "a/b.txt") == "[a/b.txt is empty]"


async def test_a_folder_is_listed_two_levels_deep(edit):
    for name in ("a/b/c.txt", "a/x.txt", "top.txt", ".hidden"):
        await edit("create", name, file_text="")
    assert await edit("view", ".") == ". two levels".replace(". two", "., two") + (
        " deep, without hidden files:\na/\na/b/\na/x.txt\ntop.txt"
    )
    assert "is a folder: leave view_range out" in await edit("view", "a", view_range=[1, 2])


async def test_a_text_that_occurs_once_is_replaced(edit):
    await edit("create", "a.txt", file_text=TEXT)
    said = await edit("str_replace", "a.txt", old_str="three\ntwo", new_str="3\n4")
    assert said == "Changed a.txt:\n     1\tone\n     2\ttwo\n     3\t3\n     4\t4\n     5\tfive"
    await edit("str_replace", "a.txt", old_str="five\n")
    assert await edit.file("a.txt") == b"one\ntwo\n3\n4\n"


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ({"old_str": "two", "new_str": "x"}, "occurs 2 times in a.txt, in lines 2, 4"),
        ({"old_str": "four", "new_str": "x"}, "does not occur in a.txt"),
        ({"old_str": "", "new_str": "x"}, "old_str is empty"),
        ({"old_str": "one", "new_str": "one"}, "are the same"),
        ({"new_str": "x"}, "needs the argument 'old_str'"),
    ],
)
async def test_another_text_is_not_replaced(edit, rest, problem):
    await edit("create", "a.txt", file_text=TEXT)
    assert problem in await edit("str_replace", "a.txt", **rest)
    assert await edit.file("a.txt") == TEXT.encode()


@pytest.mark.parametrize(
    ("line", "expected"),
    [(0, "new\none\ntwo"), (1, "one\nnew\ntwo"), (2, "one\ntwo\nnew")],
)
async def test_lines_are_inserted_behind_a_line(edit, line, expected):
    await edit("create", "a.txt", file_text="one\ntwo")
    assert (await edit("insert", "a.txt", insert_line=line, insert_text="new")).startswith("Changed a.txt:")
    assert (await edit.file("a.txt")).decode() == expected


async def test_a_line_that_is_not_there_is_no_place_to_insert(edit):
    await edit("create", "a.txt", file_text="one\n")
    for line in (-1, 2, None):
        rest = {} if line is None else {"insert_line": line}
        assert "from 0 to 1" in await edit("insert", "a.txt", insert_text="new", **rest)
    for view_range in ([0, 1], [2, 3], [1], [2, 1]):
        assert "view_range" in await edit("view", "a.txt", view_range=view_range)


async def test_changes_are_undone_one_by_one(edit):
    await edit("create", "a.txt", file_text="1\n")
    await edit("str_replace", "a.txt", old_str="1", new_str="2")
    await edit("create", "b.txt", file_text="b\n")
    await edit("insert", "a.txt", insert_line=1, insert_text="3")
    await edit("undo_edit", "a.txt")
    assert await edit.file("a.txt") == b"2\n"
    await edit("undo_edit", "a.txt")
    assert await edit.file("a.txt") == b"1\n"
    assert await edit("undo_edit", "a.txt") == "Undone: a.txt was created, and is removed again."
    assert await edit("view", "a.txt") == "[There is no file a.txt]"
    assert "no change of a.txt to undo" in await edit("undo_edit", "a.txt")
    assert await edit.file("b.txt") == b"b\n"


async def test_lines_that_end_as_on_windows_stay_so(edit):
    await edit.write("w.txt", b"one\r\ntwo\r\n")
    await edit("str_replace", "w.txt", old_str="one\ntwo", new_str="1\n2")
    await edit("insert", "w.txt", insert_line=2, insert_text="3")
    assert await edit.file("w.txt") == b"1\r\n2\r\n3"
    assert await edit("view", "w.txt") == "     1\t1\n     2\t2\n     3\t3"


async def test_what_cannot_be_edited_is_said(edit):
    await edit.write("binary", b"a\0b")
    await edit.write("latin", b"\xe9")
    assert await edit("view", "binary") == "[binary is a binary file]"
    assert "no text in UTF-8" in await edit("view", "latin")
    assert await edit("str_replace", "none.txt", old_str="a", new_str="b") == "[There is no file none.txt]"
    assert await edit("view", "binary/x") == "[There is no file binary/x]"
    assert "needs the argument 'file_text'" in await edit("create", "x")
    assert "no Unicode" in await edit("create", "x", file_text="\ud800")
    assert "Give the path" in await edit("view", "")
    assert (await edit("create", "a\0b", file_text="")).startswith("[")
    assert (await edit("view", "x" * 300)).startswith("[")
    assert (await edit("str_replace", "/", old_str="a", new_str="b")).startswith("[")


async def test_a_long_file_is_cut_in_the_middle(edit):
    await edit("create", "a.txt", file_text="line\n" * 2000)
    text = await edit("view", "a.txt")
    assert "characters cut" in text
    assert text.endswith("  2000\tline")


async def test_relative_paths_are_those_of_the_folder():
    async with Workspace() as workspace:
        tool = EditorTool({"folder": "work"}, sandbox=workspace)
        edit = Editing(tool, await tool.create())
        await edit("create", "a.txt", file_text="x")
        await edit("create", "../b.txt", file_text="y")
        assert (await edit.file("work/a.txt"), await edit.file("b.txt")) == (b"x", b"y")
        await tool.close()


def test_a_sandbox_without_sessions_is_refused():
    with pytest.raises(SandboxUnsupportedError, match="no sessions"):
        EditorTool(sandbox=ProcessSandbox())


async def test_a_folder_that_cannot_be_read_does_not_hide_the_others(edit):
    await edit("create", "closed/a.txt", file_text="x")
    await edit("create", "open/b.txt", file_text="x")
    session = await edit.tool.session_of(edit.instance).sandbox_session()
    listed = session.list

    async def refuse(path="."):
        if path.endswith("closed"):
            raise SandboxFileError("Permission denied")
        return await listed(path)

    session.list = refuse
    assert (await edit("view", ".")).splitlines()[1:] == ["closed/ [cannot be read]", "open/", "open/b.txt"]


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\nc\r\nd\r\n", "c\nd", "C\nD", b"a\r\nb\nC\r\nD\r\n"),
        (b"a\nb\nc\r\nd\r\ne\n", "b\nc\nd", "B\nX\nY\nD", b"a\nB\nX\r\nY\r\nD\r\ne\n"),
        (b"a\r\nb\nc", "b", "B\nX", b"a\r\nB\nX\nc"),
        (b"a\r\nb\nc", "a\r\nb", "A\r\nB", b"A\r\nB\nc"),
        (b"a\nb\r\nc", "\nc", "\nC\n", b"a\nb\r\nC\r\n"),
        (b"a\r\nb\nc", "c", "C\nD", b"a\r\nb\nC\nD"),
        (b"\xef\xbb\xbfa\r\nb\n", "a\nb", "A\nB", b"\xef\xbb\xbfA\r\nB\n"),
        (b"a\nb\n", "a\nb", "A\r\nB", b"A\r\nB\n"),
    ],
)
async def test_lines_with_mixed_ends_are_replaced_as_they_are_shown(edit, before, old, new, after):
    await edit.write("f", before)
    assert (await edit("view", "f")).startswith("     1\ta\n     2\tb")
    assert (await edit("str_replace", "f", old_str=old, new_str=new)).startswith("Changed f")
    assert await edit.file("f") == after


async def test_a_text_that_is_shown_twice_is_not_replaced(edit):
    await edit.write("f", b"a\nb\na\r\nb\n")
    assert "occurs 2 times in f, in lines 1, 3" in await edit("str_replace", "f", old_str="a\nb", new_str="c")


async def test_inserted_lines_end_as_their_neighbours(edit):
    await edit.write("f", b"\xef\xbb\xbfa\r\nb\nc")
    for line, text in ((3, "3"), (2, "2"), (1, "1"), (0, "0")):
        await edit("insert", "f", insert_line=line, insert_text=text)
    assert await edit.file("f") == b"\xef\xbb\xbf0\r\na\r\n1\r\nb\n2\nc\n3"


async def test_undo_keeps_what_others_have_written_since(edit):
    await edit.write("f", b"one\ntwo\nthree\nfour\n")
    await edit("str_replace", "f", old_str="two", new_str="2")
    await edit("str_replace", "f", old_str="three", new_str="3")
    await edit.write("f", b"first\none\n2\n3\nfour\n")
    said = await edit("undo_edit", "f")
    assert said == "Undone: the last change of f. What others have changed in it since is kept."
    assert await edit.file("f") == b"first\none\n2\nthree\nfour\n"
    await edit.write("f", b"first\none\n22\nthree\nfour\nfive\n")
    assert (await edit("undo_edit", "f")).startswith("[Nothing was undone: others have changed f since")
    assert await edit.file("f") == b"first\none\n22\nthree\nfour\nfive\n"
    await edit.write("f", b"one\n2\nthree\nfour\nlast\n")
    assert "is kept" in await edit("undo_edit", "f")
    assert await edit.file("f") == b"one\ntwo\nthree\nfour\nlast\n"


async def test_a_created_file_that_others_changed_is_not_removed(edit):
    await edit("create", "f", file_text="x\n")
    await edit.write("f", b"x\ny\n")
    assert "was created here, but others have changed it since" in await edit("undo_edit", "f")
    assert await edit.file("f") == b"x\ny\n"
    await edit.write("f", b"x\n")
    assert (await edit("undo_edit", "f")).endswith("is removed again.")
    assert await edit("undo_edit", "f") == "[There is no change of f to undo]"
