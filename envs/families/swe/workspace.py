"""`RepositoryWorkspace`: a repository in a sandbox session, where a policy works on it; and the verdict on its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Self, cast

from toolgym.envs.failure import policy_fault
from toolgym.envs.families.swe.altered.tests import AlterableTests, AlteredRun
from toolgym.envs.families.swe.patch import PatchError, apply_patch, patched_names
from toolgym.envs.families.swe.row_check import checked_reference, reference_changes
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.testbed import activated, completed
from toolgym.envs.families.swe.tree import Changes, Node, Tree, changes, is_left_out, link, pack, unpack
from toolgym.envs.families.swe.verdict import (
    SLACK,
    TestReport,
    judge,
    no_verdict,
    report_of,
    repository_to_judge,
)
from toolgym.tools.closeable import AsyncCloseable, closed_on_error
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, together, with_deadline
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
from toolgym.tools.sessions.session_check import broken_by_programs
from toolgym.tools.sessions.tool_scope import tool_scope
from toolgym.tools.sessions.workspace import Workspace

FOLDER = "repo"
OPEN_TIMEOUT = 120.0
TEST_TIMEOUT = 300.0

TRIES = 2
"""How often work is judged if a sandbox fails meanwhile, and how often a test that passed may fail again."""

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
        again, some of them altered so that they must fail. `docs/envs/swe_dev.md` lists the attacks that this verdict
        withstands. Each run of the tests may take `timeout` seconds.

        Raises BrokenRowError if the tests do not pass beside the known solution either.
        """
        try:
            work = await with_deadline(self.changes(), OPEN_TIMEOUT)
        except SandboxFileError as error:
            return self._broken(error)
        except (SandboxError, DeadlineError) as error:
            return await self._blamed(error, timeout)
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                return await with_deadline(self._judge(work, timeout), _patience(timeout))
            except SandboxFileError as error:  # the files do not fit into a session like the policy's
                return self._broken(error)
            except (SandboxError, DeadlineError) as error:
                failure = error
        assert failure is not None
        return await self._blamed(failure, timeout)

    def _broken(self, error: Exception) -> TestReport:
        return replace(report_of(self.task, {}, error_text(error), 0.0), broken_by_policy=True)

    async def _blamed(self, error: Exception, timeout: float) -> TestReport:
        """Find out whose fault it is that the work cannot be judged: run the tests without it, in a new session."""
        reason = error_text(error)
        if self.session.lost_to_sandbox:
            return no_verdict(self.task, reason)
        fault = await policy_fault(error, lambda: self._run_reference(timeout), reason, timeout=_patience(timeout))
        return no_verdict(self.task, reason) if fault is None else self._broken(error)

    async def broken_by_programs(self, error: Exception) -> bool:
        """Return whether programs in the session, or the files that they left, caused an error of the session."""
        if isinstance(error, SandboxFileError):
            return not self.session.lost_to_sandbox
        return await broken_by_programs(self.session, self._sandbox)

    async def _judge(self, work: Changes, timeout: float) -> TestReport:
        tree = repository_to_judge(self.task, work)
        report = await self._run(tree, timeout)
        if report.resolved_by_passing or report.tampered:
            reference: Mapping[str, str] = {}
        else:  # the tests, or the sandbox, may be at fault
            reference = await self._reference(timeout)
            report = report.counted(self.task, reference)
        if not report.f2p_count or report.p2p_count < report.p2p_total:
            return report  # it is worth nothing, forged or not
        return await self._without_forgeries(tree, report, reference, timeout)

    async def _without_forgeries(
        self, tree: Tree, report: TestReport, reference: Mapping[str, str], timeout: float
    ) -> TestReport:
        """Run the tests that passed again, some of them altered. A test counts if it passes as it is, and only so."""
        alterable = await in_thread(AlterableTests, self.task, tree, report.passed)
        failed: set[str] = set()
        for _ in range(TRIES):  # a test that fails now and then has another chance
            runs = alterable.runs()
            reports = await together([self._run(run.tree, timeout, run.tests) for run in runs])
            passed = [run.must_fail & altered.passed for run, altered in zip(runs, reports, strict=True)]
            tampered = any(altered.tampered for altered in reports)
            for run, tests in zip(runs, passed, strict=True):
                tampered = tampered or bool(tests and await self._must_fail(run, tree, tests, timeout))
            if tampered:
                return report_of(self.task, {}, report.output, report.seconds, tampered=True)
            failed = {
                test
                for run, altered in zip(runs, reports, strict=True)
                for test in {*run.tests} - run.must_fail - altered.passed
            }
            if not failed:
                return report
        outcomes = {**report.outcomes, **dict.fromkeys(failed, "failed")}
        return replace(report, outcomes=outcomes).counted(self.task, reference)

    async def _must_fail(self, run: AlteredRun, tree: Tree, tests: Set[str], timeout: float) -> bool:
        """Whether one of the altered tests fails beside the reference, as it must unless it swallows its failures."""
        altered = {name: node for name, node in run.tree.items() if node != tree.get(name)}
        first = {**repository_to_judge(self.task, reference_changes(self.task)), **altered}
        return bool(tests - (await self._run(first, timeout, sorted(tests))).passed)

    async def _reference(self, timeout: float) -> Mapping[str, str]:
        sandbox = self._sandbox.sandbox if isinstance(self._sandbox, Workspace) else self._sandbox
        key = f"{self.task.fingerprint} {self._options!r} {self._testbed} {timeout}"
        return (await checked_reference(self.task, sandbox, key, lambda: self._run_reference(timeout))).outcomes

    async def _run_reference(self, timeout: float) -> TestReport:
        return await self._run(repository_to_judge(self.task, reference_changes(self.task)), timeout)

    async def _run(self, tree: Tree, timeout: float, tests: Sequence[str] | None = None) -> TestReport:
        """Run tests in a new session. Raises SandboxError if that fails."""
        with tool_scope(None):  # of its own, also where the tools of an episode share one
            session = await _open(self._sandbox, tree, self._options, self._testbed)
        try:
            if self._testbed:  # a fresh one is there
                gone = await session.exec(["rm", "-rf", ".git"], cwd=self._testbed, timeout=OPEN_TIMEOUT)
                if not gone.ok:
                    raise SandboxError(f"the history of the image stays: {gone.message}{gone.stderr[:500]}")
                there = type(self)(self.task, self._sandbox, session, {}, {}, self._testbed)
                await there._apply(changes(self.task.tree, tree))
            report = await judge(self.task, session, self._folder, tree, timeout, tests=tests)
        finally:
            await shielded(session.close())
        if report.infra_error is not None:
            raise SandboxError(report.infra_error)
        return report

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


def _patience(timeout: float) -> float:
    """Seconds in which work is judged: with its tests, the reference's, altered tests and their control."""
    return 5 * (OPEN_TIMEOUT + timeout + SLACK)


def verdict_patience(timeout: float) -> float:
    """Return the seconds after which `RepositoryWorkspace.run_tests` has ended, whatever the policy did."""
    return OPEN_TIMEOUT + (TRIES + 1) * _patience(timeout)


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
