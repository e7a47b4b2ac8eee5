"""`CodeJudgeEnv`: write a program; hidden tests decide."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from toolgym.envs.base import Action
from toolgym.envs.library.embedded import DATA
from toolgym.envs.rewards.unit_tests import UnitTests
from toolgym.envs.tasks.loading import records
from toolgym.envs.tasks.prepare.programs import program_extra, program_question, read_problem, tests_kwargs
from toolgym.envs.tasks.prepare.readers import UnusableRecordError
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge import Problem, read_tests
from toolgym.tools.judge.languages import answer_request, fence_tag
from toolgym.tools.judge.rows.cases_json import write_test
from toolgym.tools.judge.run_tests import RunTestsTool
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import assistant, tool_call, user

EMBEDDED = DATA / "code_judge.jsonl"

logger = logging.getLogger(__name__)


class CodeJudgeEnv(ToolEnv):
    """An env whose policy writes programs, on which hidden tests decide: the last fenced block of the turn without a
    call.

    Args:
        tasks: rows of a code data set, as a file or as mappings (see `code_tasks`), or tasks whose ground truth
            `toolgym.tools.judge.read_tests` reads. Default: the embedded tasks.
        language: language of the programs, as the sandbox names it, for example `cpp`, `java`, `go` or `nodejs`. The
            tests must be programs that read and print. Default: the language that a row says, else Python.
        ignore_columns: columns of rows that may be overlooked, see `code_tasks`.
        reward: `all`: 1 if all hidden tests pass, else 0; `fraction`: the fraction of them that pass.
        test_timeout: seconds that a program may compute on one test whose row does not say its limit.
        tolerance: how much numbers may differ; see `toolgym.tools.judge.StdioTest`. None: as the tests' data set has
            it.
        tool_config: options of both tools and of the runs of hidden tests, see `toolgym.tools.CodeInterpreterConfig`.
        env_kwargs: the other arguments of `ToolEnv`.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | Iterable[Mapping[str, Any]] | str | Path | None = None,
        *,
        language: str | None = None,
        ignore_columns: Collection[str] = (),
        reward: Literal["all", "fraction"] = "all",
        test_timeout: float = 10.0,
        tolerance: float | None = None,
        tool_config: Mapping[str, Any] | None = None,
        **env_kwargs: Any,
    ) -> None:
        config = dict(tool_config or {})
        options = {**config, "default_timeout": test_timeout}
        run_tests = RunTestsTool(options, tolerance=tolerance, language=language or "python")
        tools: list[BaseTool] = [CodeInterpreterTool(config), run_tests]
        scorer = UnitTests(
            run_tests.sandbox, reward=reward, timeout=test_timeout, tolerance=tolerance, language=language
        )
        env_kwargs.setdefault("scorer", scorer)
        env_kwargs.setdefault("score_timeout", scorer.score_timeout)
        source = _source(EMBEDDED if tasks is None else tasks, language, ignore_columns)
        super().__init__(tools, source, owns_tools=tools, **env_kwargs)

    def prepare(self, task: Task) -> Task:
        try:
            read_tests(task.ground_truth)
        except ConfigError as error:
            raise ConfigError(f"the ground truth of the task {task.id!r} holds no tests: {error}") from error
        return task

    def gold_actions(self) -> list[Action] | None:
        extra = {} if self.task is None else self.task.extra_info
        solution = extra.get("solution")
        if not solution:
            return None
        tag = fence_tag(extra.get("language") or "python")
        return [assistant("", [tool_call("run_tests", {"code": solution})]), assistant(f"```{tag}\n{solution}\n```")]


def code_tasks(
    source: str | Path | Iterable[Mapping[str, Any]],
    *,
    language: str | None = None,
    ignore_columns: Collection[str] = (),
) -> TaskList:
    """Return the tasks of a data set of programs: rows as their authors publish them, in a file or as mappings.

    Rows that are known not to be tasks, for example because they have no tests, are left out, and the log says how many
    for which reason.

    Args:
        source: the file, or the rows.
        language: language of the programs, as the sandbox names it. Default: the language that a row says, else Python.
        ignore_columns: columns that may be overlooked, although their names or contents are those of tests or limits.
            Default: such a column is an error.

    Raises:
        UnknownNameError: there is no such file.
        ConfigError: a row cannot be used, or none is a task; names the row.
    """
    folder = Path(source).parent if isinstance(source, str | Path) else None
    tasks, left_out = [], Counter[str]()
    for where, number, row in records(source):
        try:
            problem = read_problem(row, folder=folder, language=language, ignore=ignore_columns)
        except UnusableRecordError as error:
            left_out[str(error)] += 1
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        else:
            tasks.append(_task(problem, number))
    for reason, count in left_out.items():
        logger.warning("Left out %d of %d rows: each %s.", count, len(tasks) + left_out.total(), reason)
    if not tasks:
        raise ConfigError(f"expected rows of programs, and there are none in {shorten(repr(source))}")
    return TaskList(tasks)


def _source(tasks: Any, language: str | None, ignore_columns: Collection[str]) -> TaskSource:
    if isinstance(tasks, TaskSource):
        return tasks
    if isinstance(tasks, str | Path):
        return code_tasks(tasks, language=language, ignore_columns=ignore_columns)
    rows = tasks if isinstance(tasks, Sequence) else list(tasks)
    if rows and isinstance(rows[0], Task):
        return TaskList(rows)
    return code_tasks(rows, language=language, ignore_columns=ignore_columns)


def _task(problem: Problem, number: int) -> Task:
    question = f"{program_question(problem)}\n\n{answer_request(problem.language)}"
    extra = {
        **program_extra(problem),
        "index": problem.id or str(number),
        "tools_kwargs": tests_kwargs(problem.visible, problem.language),
    }
    return Task.from_row(verl_row(problem.source, [user(question)], list(map(write_test, problem.hidden)), extra))
