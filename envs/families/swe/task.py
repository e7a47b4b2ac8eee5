"""`RepositoryTask`: a repository, what is wrong with it, and the tests that say whether it was repaired."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from toolgym.envs.families.swe.patch import PatchError, apply_patch, patched_names
from toolgym.envs.families.swe.tree import Node, Tree, changed, read_repository, without_history
from toolgym.envs.tasks.loading import records
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.task import Task
from toolgym.envs.tasks.verdicts import known_faults
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.rows.columns import check_names, names
from toolgym.tools.message import user
from toolgym.tools.sandbox.names import check_files

EMBEDDED = Path(__file__).with_name("data") / "swe.jsonl"

SOURCE = "toolgym/swe"
ROW_KEY = "repository_task"
IMAGE_KEYS = ("image", "docker_image", "image_name")

TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")
"""Names of files that belong to the tests in any folder."""

PROMPT = """\
The folder `{folder}` holds a repository. Repair what the following report describes.

{problem}

Change the files in the folder. Its tests run with `{command}` there. Hidden tests decide whether the repair is right; \
changes to existing tests do not count. Say in a turn without tool calls that you are done."""


_COLUMNS = names(
    "instance_id, problem_statement, files, test_files, test_command, fail_to_pass, pass_to_pass, FAIL_TO_PASS, "
    "PASS_TO_PASS, gold_patch, patch, executable, links, image, docker_image, image_name, test_patch, repository, "
    "repo, base_commit, environment_setup_commit, hints_text, created_at, version, difficulty, license_name"
)
"""Columns that are read, and those of SWE-bench that are labels."""

_MORE_WORDS = names(
    "cmd, command, commands, dockerfile, env, environment, install, interface, parser, requirements, script"
)
"""Words in the name of a column that belongs to the problem, or that says how tests run."""


@dataclass(frozen=True)
class RepositoryTask:
    """A repository to repair.

    Attributes:
        instance_id: unique in its source.
        problem_statement: the report that the policy reads.
        files: the repository before, by relative names; text is kept as its UTF-8 bytes.
        test_files: hidden tests, likewise. They are put in place only for scoring, and replace files of their names.
        test_command: the tests' command in the repository: `python -m unittest ...`, `pytest ...`, or any other command
            with `{test}` in it, which is run for each test and exits with 0 if that passes.
        fail_to_pass: ids of tests that fail before and pass once repaired, as the test runner names them.
        pass_to_pass: ids of tests that pass before and must go on to.
        gold_patch: the known solution, a unified diff; empty: none is known.
        executable: names of the files that are programs.
        links: symbolic links of the repository, from name to target.
        image: name of the image that its programs and tests run in; empty: the machine's own system. Rows call it
            `image`, `docker_image` or `image_name`. If it holds the repository too, there are no `files`.
        test_patch: hidden tests as a diff of files that the image holds.

    Raises ConfigError, which names the value, if one cannot be used.
    """

    instance_id: str
    problem_statement: str
    files: Mapping[str, str | bytes]
    test_files: Mapping[str, str | bytes]
    test_command: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    gold_patch: str = ""
    executable: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    test_patch: str = ""

    def __post_init__(self) -> None:
        for name in ("instance_id", "problem_statement", "test_command"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{name} of a repository task must be a text that is not empty, got {value!r}")
        for name in ("files", "test_files"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(data, str | bytes) for data in value.values()):
                raise ConfigError(
                    f"{name} of {self.instance_id!r} must map names to text or bytes, got {_short(value)}"
                )
            check_files([*value, *(self.links if name == "files" else ())])
            object.__setattr__(self, name, {key: _bytes(data) for key, data in value.items()})
        if not self.files and not self.image:
            raise ConfigError(f"{self.instance_id!r} has no files, and names no image that holds them")
        for name in ("fail_to_pass", "pass_to_pass"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(test, str) and test for test in value):
                raise ConfigError(f"{name} of {self.instance_id!r} must be a tuple of test ids, got {_short(value)}")
        if not self.fail_to_pass:
            raise ConfigError(f"{self.instance_id!r} has no fail_to_pass tests, so that no change would earn a reward")
        both = sorted({*self.fail_to_pass} & {*self.pass_to_pass})
        if both:
            raise ConfigError(f"{self.instance_id!r}: the test {both[0]!r} is both in fail_to_pass and in pass_to_pass")

    @cached_property
    def tree(self) -> Tree:
        nodes = {
            name: Node(_bytes(data), 0o755 if name in self.executable else 0o644) for name, data in self.files.items()
        }
        links = {name: Node(target.encode(), 0o777, link=True) for name, target in self.links.items()}
        return without_history({**nodes, **links})

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the whole row."""
        row = json.dumps(self.to_row(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(row.encode("utf-8", "surrogatepass")).hexdigest()

    def completed(self, tree: Tree) -> RepositoryTask:
        """Return the task with the files that its image holds. Those that no test or patch needs may be empty."""
        tests = _tests({"test_files": self.test_files, "test_patch": self.test_patch}, tree)
        return replace(self, **_parts(tree), test_files=tests, test_patch="")

    @property
    def hidden(self) -> Tree:
        return {name: Node(_bytes(data)) for name, data in self.test_files.items()}

    def gold_files(self) -> dict[str, bytes | None]:
        """Return the files that the gold patch changes, as they are with it; None: it deletes the file."""
        if not self.gold_patch:
            raise ConfigError(f"{self.instance_id!r} has no gold_patch")
        try:
            patched = apply_patch(self.tree.get, self.gold_patch)
        except PatchError as error:
            raise ConfigError(f"{self.instance_id!r}: gold_patch does not apply: {error}") from error
        return {name: None if node is None else node.data for name, node in patched.items()}

    def is_test(self, name: str) -> bool:
        """Whether a file belongs to the tests, so that the policy's changes of it do not count.

        These are the hidden tests, the folders called `test` or `tests` that they lie in, `conftest.py`, and files with
        names of tests. A file that the gold patch changes is none of them, unless it is a hidden test itself.
        """
        if name in self.test_files:
            return True
        if name in self._gold_names:
            return False
        last = name.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(last, pattern) for pattern in TEST_FILES) or any(
            name.startswith(f"{folder}/") for folder in _test_folders(self.test_files)
        )

    @cached_property
    def _gold_names(self) -> set[str]:
        try:
            return patched_names(self.gold_patch) if self.gold_patch else set()
        except PatchError as error:
            raise ConfigError(f"{self.instance_id!r}: gold_patch cannot be read: {error}") from error

    # ------------------------------------------------------------------ rows

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, folder: str | Path = ".") -> RepositoryTask:
        """Read a row of JSON.

        The names are those of the attributes, or those of SWE-bench: `FAIL_TO_PASS` and `PASS_TO_PASS` (lists, or lists
        as JSON texts), `patch`, and `test_patch` (a diff) in place of `test_files`. Files are texts, or `{"base64":
        ...}`. In place of `files`, `repository` may name a folder or a tar archive, relative to `folder`; or neither is
        there, and the repository is the image's.

        Raises ConfigError if the row has another shape or its `test_patch` does not apply, UnknownNameError if there is
        no such repository.
        """
        if not isinstance(row, Mapping):
            raise ConfigError(f"a row of a repository task must be a mapping, got {_short(row)}")
        what = f"the repository task {row.get('instance_id')!r}"
        check_names(row, _COLUMNS, what, _MORE_WORDS, way_out="Remove the column if it does not matter")
        id, image = row.get("instance_id"), next((str(row[key]) for key in IMAGE_KEYS if row.get(key)), "")
        of_image = bool(image) and not row.get("files") and "repository" not in row
        if not of_image and ("files" in row) == ("repository" in row):
            raise ConfigError(f"{id!r}: give either 'files' or 'repository' (a folder or tar archive), or an image")
        if of_image or "files" in row:
            files, programs = _files(row, "files"), frozenset(row.get("executable") or ())
            parts: dict[str, Any] = {"files": files, "executable": programs, "links": dict(row.get("links") or {})}
            tree = {name: Node(data) for name, data in files.items()}
        else:
            tree = read_repository(Path(folder) / str(row["repository"]))
            parts = _parts(tree)
        return cls(
            instance_id=cast(str, id),
            problem_statement=cast(str, row.get("problem_statement")),
            test_files=_files(row, "test_files") if of_image else _tests(row, tree),
            test_command=cast(str, row.get("test_command")),
            fail_to_pass=_ids(row, "fail_to_pass"),
            pass_to_pass=_ids(row, "pass_to_pass"),
            gold_patch=row.get("gold_patch") or row.get("patch") or "",
            image=image,
            **parts,
            test_patch=(row.get("test_patch") or "") if of_image else "",
        )

    def to_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "instance_id": self.instance_id,
            "problem_statement": self.problem_statement,
            "files": {name: _json(data) for name, data in self.files.items()},
            "test_files": {name: _json(data) for name, data in self.test_files.items()},
            "test_command": self.test_command,
            "fail_to_pass": list(self.fail_to_pass),
            "pass_to_pass": list(self.pass_to_pass),
            "gold_patch": self.gold_patch,
        }
        if self.test_patch:
            row["test_patch"] = self.test_patch
        if self.executable:
            row["executable"] = sorted(self.executable)
        if self.links:
            row["links"] = dict(self.links)
        if self.image:
            row["image"] = self.image
        return row

    def to_task(self, folder: str = "repo") -> Task:
        """Return the task of an env. Its row holds the hidden tests and the solution, and no policy reads it."""
        text = PROMPT.format(folder=folder, problem=self.problem_statement.strip(), command=self.test_command)
        extra = {"index": self.instance_id, ROW_KEY: self.to_row()}
        return Task.from_row(verl_row(SOURCE, [user(text)], self.instance_id, extra))

    @classmethod
    def from_task(cls, task: Task, *, folder: str | Path = ".") -> RepositoryTask:
        """Read the task that a row in verl's shape holds as `extra_info.repository_task`, a mapping or a JSON text."""
        row = task.extra_info.get(ROW_KEY)
        if row is None:
            raise ConfigError(
                f"the task {task.id!r} has no extra_info[{ROW_KEY!r}], the row of a RepositoryTask; a file of "
                "such rows goes to the env as it is: tasks=FILE"
            )
        if isinstance(row, str):
            row = _loads(row, f"extra_info[{ROW_KEY!r}] of {task.id!r}")
        # Arrow fills what a row does not have with None, when it unites rows.
        return cls.from_row({name: value for name, value in row.items() if value is not None}, folder=folder)


def load_repository_tasks(source: str | Path | Iterable[Mapping[str, Any]] | None = None) -> list[RepositoryTask]:
    """Read tasks of a file of JSON Lines, or of rows (see `RepositoryTask.from_row`), or the embedded ones.

    Tasks that `toolgym validate` found broken, by the verdicts beside the file, are left out with a warning.
    """
    source = EMBEDDED if source is None else source
    path = Path(source) if isinstance(source, str | Path) else None
    folder = Path() if path is None else path.absolute().parent
    faults = known_faults(path) if path is not None else {}
    tasks: dict[str, RepositoryTask] = {}
    for where, _, row in records(source):
        if isinstance(row, Mapping) and str(row.get("instance_id")) in faults:
            continue
        try:
            task = RepositoryTask.from_row(cast(Any, row), folder=folder)
        except ConfigError as error:
            raise type(error)(f"{where}: {error}") from error
        if task.instance_id in tasks:
            raise ConfigError(f"{where}: there is another task with the instance_id {task.instance_id!r}")
        tasks[task.instance_id] = task
    if not tasks:
        left_out = f" but the {len(faults)} that its verdicts refuse" if faults else ""
        raise ConfigError(f"{'the rows hold' if path is None else f'{path} holds'} no tasks{left_out}")
    return [*tasks.values()]


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: it is no JSON: {error}") from error


def _files(row: Mapping[str, Any], name: str) -> dict[str, bytes]:
    value = row.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name!r} must map names to texts, got {_short(value)}")
    files = {}
    for key, data in value.items():
        if isinstance(data, Mapping) and isinstance(data.get("base64"), str):
            try:
                data = base64.b64decode(data["base64"], validate=True)
            except ValueError as error:
                raise ConfigError(f"{name}[{key!r}] is no base64: {error}") from error
        if data is None:
            continue  # Arrow fills the names of other rows with None
        if not isinstance(data, str | bytes):
            raise ConfigError(f"{name}[{key!r}] must be a text or {{'base64': ...}}, got {_short(data)}")
        files[key] = _bytes(data)
    return files


def _parts(tree: Tree) -> dict[str, Any]:
    plain = {name: node for name, node in tree.items() if not node.link}
    return {
        "files": {name: node.data for name, node in plain.items()},
        "executable": frozenset(name for name, node in plain.items() if node.mode & 0o100),
        "links": {name: node.data.decode("utf-8", "surrogateescape") for name, node in tree.items() if node.link},
    }


def _tests(row: Mapping[str, Any], tree: Tree) -> dict[str, bytes]:
    diff = row.get("test_patch")
    if not diff:
        return _files(row, "test_files")
    if row.get("test_files"):
        raise ConfigError("give either 'test_files' or 'test_patch', not both")
    try:
        patched = apply_patch(tree.get, diff)
    except PatchError as error:
        raise ConfigError(f"'test_patch' does not apply: {error}") from error
    after = changed(tree, patched)
    return {name: after[name].data for name in patched if name in after}


def _ids(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = row.get(name, row.get(name.upper()))
    if isinstance(value, str):
        value = _loads(value, f"{name!r}")
    return tuple(value or ()) if isinstance(value, Sequence | None) else cast(Any, value)


def _test_folders(names: Iterable[str]) -> set[str]:
    folders = set()
    for name in names:
        parts = name.split("/")[:-1]
        folders |= {"/".join(parts[: at + 1]) for at, part in enumerate(parts) if part in ("test", "tests")}
    return folders


def _bytes(data: str | bytes) -> bytes:
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)


def _json(data: str | bytes) -> str | dict[str, str]:
    if isinstance(data, bytes):
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    return data


def _short(value: object) -> str:
    return shorten(repr(value), 120)
