"""`RepositoryWorkspace`: a repository in a sandbox session, where a policy works on it; and the verdict on its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Self, cast

from toolgym.envs.families.swe.patch import PatchError, apply_patch, patched_names
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.testbed import activated, completed
from toolgym.envs.families.swe.tree import Changes, Node, Tree, changes, is_left_out, link, pack, unpack
from toolgym.envs.families.swe.verdict import (
    SLACK,
    TestReport,
    failing_tests,
    judge,
    no_verdict,
    report_of,
    repository_to_judge,
)
from toolgym.tools.closeable import AsyncCloseable, closed_on_error
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import (
    ConfigError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotADirectoryError,
    error_text,
)
from toolgym.tools.sandbox.base import ExecResult, Sandbox, Session
from toolgym.tools.sandbox.files import FileInfo, FileRow, stays_inside
from toolgym.tools.sandbox.names import OptionError, check_name
from toolgym.tools.sessions.tool_scope import tool_scope

FOLDER = "repo"
OPEN_TIMEOUT = 120.0
TEST_TIMEOUT = 300.0

LEAST = 10.0
"""Seconds that tests which must fail get at least, if the others took nearly all of the time."""

SMALL = 8 * 1024 * 1024
"""Bytes of a repository that is read whole for a snapshot. Files of a larger one with the same size and time of change
count as unchanged; two changes within one tick of the clock look like one.
"""

_GIT = """\
rm -rf .git
command -v git >/dev/null || exit 0
export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
git -c init.defaultBranch=main init -q --template= --separate-git-dir="$PWD/../.repo.git" . &&
git config user.name user && git config user.email user@localhost && git config core.fileMode true &&
git config commit.gpgSign false && git config gc.auto 0 && git add -A $1 &&
git commit -q --allow-empty -m 'The beginning'
"""
"""Makes a history of one commit: the repository before. One that an image brings may know what became of it, and its
ignored files, which were built there, are many."""


class RepositoryWorkspace(AsyncCloseable):
    """A repository in a session of a sandbox. One call at a time. The policy may have forged all in the session."""

    def __init__(
        self,
        task: RepositoryTask,
        sandbox: Sandbox,
        session: Session,
        times: Mapping[str, FileInfo],
        options: Mapping[str, Any],
        testbed: str = "",
    ) -> None:
        self.task, self.session = task, session
        self._sandbox, self._times, self._options = sandbox, times, options
        self._testbed, self._folder = testbed, testbed or FOLDER

    @classmethod
    async def open(
        cls,
        task: RepositoryTask,
        sandbox: Sandbox,
        *,
        snapshot: bytes | None = None,
        session_options: Mapping[str, Any] | None = None,
        testbed: str = "",
        activate: str = "",
    ) -> Self:
        """Open a session with the repository, or with a `snapshot` of it. With Git, it has a history of one commit.

        A task without files has them in the folder `testbed` of its image. `activate` is a bash command whose variables
        all programs get.

        Raises ConfigError if the snapshot or an option cannot be used, SandboxError or DeadlineError if there is no
        session.
        """
        options = dict(session_options or {})
        if bool(testbed) == bool(task.files):
            raise ConfigError(f"{task.instance_id!r}: testbed='/testbed' is for rows whose image has the files alone")

        async def opening() -> Self:
            if activate:
                options["env"] = await activated(sandbox, options, activate, OPEN_TIMEOUT)
            session = await _open(sandbox, task.tree, options, testbed)
            async with _closed_on_error(session):
                await _begin_history(session, testbed or FOLDER)
                times = {file.name: file for file in await session.walk(testbed or FOLDER) if _is_kept(file.name)}
                whole = await completed(task, session, testbed, times) if testbed else task
                workspace = cls(whole, sandbox, session, times, options, testbed)
                if snapshot is not None:
                    await workspace._apply(unpack(snapshot))
            return workspace

        return await with_deadline(opening(), OPEN_TIMEOUT)

    async def exec(self, command: str | Sequence[str], timeout: float = 60.0) -> ExecResult:
        return await self.session.exec(command, cwd=self._folder, timeout=timeout)

    async def apply_patch(self, diff: str) -> str:
        """Apply a unified diff, all of it or nothing. Returns a message for the policy."""
        try:
            read = {name: await self._node(name) for name in patched_names(diff)}
            patched = apply_patch(read.get, diff)
            await self._apply(patched)
        except PatchError as error:
            return f"The patch was not applied: {error}"
        except SandboxFileError as error:
            return f"The patch could not be written: {error}"
        verbs = {
            name: "deleted" if node is None else "changed" if read.get(name) else "created"
            for name, node in patched.items()
        }
        return "The patch was applied:\n" + "\n".join(f"{verb} {name}" for name, verb in sorted(verbs.items()))

    async def run_tests(self, timeout: float = TEST_TIMEOUT) -> TestReport:
        """Run the hidden tests on the repository as it is now, in a session of their own.

        Only the files of the repository that are no tests come along from the policy's session. Tests that passed run
        once more so that they must fail. `docs/envs/swe_dev.md` lists the attacks that this verdict withstands.
        """
        try:
            work = await with_deadline(self.changes(), OPEN_TIMEOUT)
            return await with_deadline(self._judge(work, timeout), OPEN_TIMEOUT + timeout + 2 * LEAST + SLACK)
        except SandboxFileError as error:  # the policy made it so
            return report_of(self.task, {}, error_text(error), 0.0)
        except (SandboxError, DeadlineError) as error:
            return no_verdict(self.task, error_text(error))

    async def _judge(self, work: Changes, timeout: float) -> TestReport:
        tree = repository_to_judge(self.task, work)
        report = await self._run(tree, timeout)
        if not report.f2p_count or report.p2p_count < report.p2p_total:
            return report  # it is worth nothing, forged or not
        left = timeout - report.seconds
        failing = await self._run_failing(tree, report.passed, left)
        if failing.infra_error is not None:
            return failing
        if failing.passed:  # also beside the first repository: then it is a test that nothing can fail
            first = repository_to_judge(self.task, {})
            untouched = await self._run_failing(first, failing.passed, left - failing.seconds)
            if untouched.infra_error is not None:
                return untouched
            if untouched.passed == failing.passed:
                return report
        if failing.passed or failing.tampered:
            return report_of(self.task, {}, report.output, report.seconds, tampered=True)
        return report

    async def _run_failing(self, tree: Tree, tests: set[str], timeout: float) -> TestReport:
        """Run the tests so that they must fail, and report only those of `tests` that can be made to."""
        changed, must_fail = await in_thread(failing_tests, self.task, tree, tests)
        report = await self._run(changed, max(timeout, LEAST))
        return replace(report, outcomes={test: how for test, how in report.outcomes.items() if test in must_fail})

    async def _run(self, tree: Tree, timeout: float) -> TestReport:
        with tool_scope(None):  # of its own, also where the tools of an episode share one
            session = await _open(self._sandbox, tree, self._options, self._testbed)
        try:
            if self._testbed:  # a fresh one is there
                gone = await session.exec(["rm", "-rf", ".git"], cwd=self._testbed, timeout=OPEN_TIMEOUT)
                if not gone.ok:
                    raise SandboxError(f"the history of the image stays: {gone.message}{gone.stderr[:500]}")
                there = type(self)(self.task, self._sandbox, session, {}, {}, self._testbed)
                await there._apply(changes(self.task.tree, tree))
            return await judge(self.task, session, self._folder, tree, timeout)
        finally:
            await shielded(session.close())

    async def changes(self) -> Changes:
        """Return the changes since the beginning, without compiled Python, Git's own files and names that are no text.

        Raises SandboxFileError if the folder cannot be listed, SandboxError if the session is gone.
        """
        before = self.task.tree
        try:
            files = await self.session.walk(self._folder)
        except SandboxFileNotFoundError:
            files = []
        files = [file for file in files if _is_kept(file.name)]
        whole = not self._testbed and sum(file.size for file in files if file.kind == "file") <= SMALL
        after: Tree = {}
        doubtful: list[FileInfo] = []
        for file in files:
            if file.kind == "link" and file.target is not None:
                after[file.name] = link(file.target)
            elif file.kind == "file" and file.name in before and not whole and self._times.get(file.name) == file:
                after[file.name] = before[file.name]
            elif file.kind == "file":
                doubtful.append(file)
        contents = await self.session.read_files(self._folder, doubtful)
        for file in doubtful:
            if file.name in contents:
                after[file.name] = Node(contents[file.name], 0o755 if file.mode & 0o100 else 0o644)
        return changes(before, after)

    async def snapshot(self) -> bytes:
        """Return the changes since the repository's beginning, as a tar.gz; `open` goes on from it."""
        return pack(await with_deadline(self.changes(), OPEN_TIMEOUT))

    async def fork(self) -> RepositoryWorkspace:
        session = await self.session.fork()
        return type(self)(self.task, self._sandbox, session, self._times, self._options, self._testbed)

    async def close(self) -> None:
        await shielded(self.session.close())

    async def _node(self, name: str) -> Node | None:
        place = f"{self._folder}/{name}"
        try:
            file = await self.session.stat(place)
            if file.kind == "link":
                return link(file.target or "")
            return Node(await self.session.read_file(place), 0o755 if file.mode & 0o100 else 0o644)
        except (SandboxFileNotFoundError, SandboxNotADirectoryError):
            return None

    async def _is_in_the_way(self, name: str, node: Node) -> bool:
        try:
            file = await self.session.stat(f"{self._folder}/{name}")
            return node.link or file.kind != "file"
        except (SandboxFileNotFoundError, SandboxNotADirectoryError):
            return False

    async def _apply(self, work: Changes) -> None:
        for name in [name for name, node in work.items() if node is None]:
            if await self.session.exists(f"{self._folder}/{name}"):
                await self.session.remove(f"{self._folder}/{name}")
        new = {name: node for name, node in work.items() if node is not None}
        for name, node in new.items():
            if await self._is_in_the_way(name, node):
                await self.session.remove(f"{self._folder}/{name}", recursive=True)
        await self.session.write_rows(self._folder, *_rows(new))


def _is_kept(name: str) -> bool:
    try:
        return not is_left_out(check_name(name))
    except OptionError:
        return False


async def _open(sandbox: Sandbox, tree: Tree, options: Mapping[str, Any], testbed: str) -> Session:
    if testbed:
        return await sandbox.session(**cast(Any, options))
    plain = {f"{FOLDER}/{name}": node.data for name, node in tree.items() if not node.link}
    session = await sandbox.session(files=plain, **cast(Any, options))
    async with _closed_on_error(session):
        special = {name: node for name, node in tree.items() if node.link or node.mode != 0o644}
        if special:
            await session.write_rows(FOLDER, *_rows(special))
    return session


def _closed_on_error(session: Session) -> AbstractAsyncContextManager[None]:
    return closed_on_error(lambda: shielded(session.close()))


async def _begin_history(session: Session, folder: str) -> None:
    run = await session.exec(
        ["sh", "-c", _GIT, "sh", "-f" if folder == FOLDER else ""], cwd=folder, timeout=OPEN_TIMEOUT
    )
    if not run.ok:
        raise SandboxError(f"the repository's first commit failed: {run.message or run.stderr[-500:]}")


def _rows(nodes: Tree) -> tuple[list[FileRow], list[bytes]]:
    """Return rows that make the files and links, with the folders that they lie in; and the files' contents."""
    folders = {name[:at]: None for name in sorted(nodes) for at, char in enumerate(name) if char == "/"}
    rows = [FileRow(folder, "folder", 0o755, 0) for folder in folders]
    contents = []
    for name, node in sorted(nodes.items()):
        if node.link:
            target = node.data.decode("utf-8", "surrogateescape")
            if stays_inside(FileInfo(name, "link", 0, 0o777, 0.0, target)):
                rows.append(FileRow(name, "link", 0o777, target))
        else:
            rows.append(FileRow(name, "file", node.mode, len(node.data)))
            contents.append(node.data)
    return rows, contents
