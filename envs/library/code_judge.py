"""`CodeJudgeEnv`: write a program; hidden tests decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from toolgym.envs.base import Action
from toolgym.envs.library.embedded import DATA
from toolgym.envs.rewards.unit_tests import UnitTests
from toolgym.envs.tasks.loading import records
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge import Problem, problem_of, read_tests
from toolgym.tools.judge.run_tests import RunTestsTool, example
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import assistant, tool_call, user

EMBEDDED = DATA / "code_judge.jsonl"

ANSWER = "Answer with the whole program in one block that begins with ```python."


class CodeJudgeEnv(ToolEnv):
    """An env whose policy writes programs, on which hidden tests decide: the last fenced block of the turn without a
    call.

    Args:
        tasks: the rows of HumanEval, MBPP, LiveCodeBench, APPS or TACO, as a file or as mappings (see `code_tasks`); or
            tasks whose ground truth `toolgym.tools.judge.read_tests` reads. None: the embedded ones.
        reward: `all`: 1 if all hidden tests pass, else 0; `fraction`: the fraction of them that pass.
        test_timeout: seconds that a program may compute on one test.
        tolerance: how much numbers may differ; see `toolgym.tools.judge.StdioTest`. None: as the tests' data set has
            it.
        tool_config: options of both tools and of the runs of hidden tests, see `toolgym.tools.CodeInterpreterConfig`.
        env_kwargs: the other arguments of `ToolEnv`.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | Iterable[Mapping[str, Any]] | str | Path | None = None,
        *,
        reward: Literal["all", "fraction"] = "all",
        test_timeout: float = 10.0,
        tolerance: float | None = None,
        tool_config: Mapping[str, Any] | None = None,
        **env_kwargs: Any,
    ) -> None:
        config = dict(tool_config or {})
        run_tests = RunTestsTool({**config, "default_timeout": test_timeout}, tolerance=tolerance)
        tools: list[BaseTool] = [CodeInterpreterTool(config), run_tests]
        scorer = UnitTests(run_tests.sandbox, reward=reward, timeout=test_timeout, tolerance=tolerance)
        env_kwargs.setdefault("scorer", scorer)
        env_kwargs.setdefault("score_timeout", scorer.wall_timeout)
        source = _source(EMBEDDED if tasks is None else tasks)
        super().__init__(tools, source, owns_tools=tools, **env_kwargs)

    def prepare(self, task: Task) -> Task:
        try:
            read_tests(task.ground_truth)
        except ConfigError as error:
            raise ConfigError(f"the ground truth of the task {task.id!r} holds no tests: {error}") from error
        return task

    def gold_actions(self) -> list[Action] | None:
        solution = None if self.task is None else self.task.extra_info.get("solution")
        if not solution:
            return None
        return [assistant("", [tool_call("run_tests", {"code": solution})]), assistant(f"```python\n{solution}\n```")]


def code_tasks(source: str | Path | Iterable[Mapping[str, Any]]) -> TaskList:
    """Return the tasks of a data set of programs: rows as their authors publish them, in a file or as mappings.

    Raises `UnknownNameError` if there is no such file, and `ConfigError`, which names the row, if one cannot be used.
    """
    tasks = []
    for where, number, row in records(source):
        try:
            tasks.append(_task(problem_of(row), number))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    if not tasks:
        raise ConfigError(f"expected rows of programs, and there are none in {shorten(repr(source))}")
    return TaskList(tasks)


def _source(tasks: Any) -> TaskSource:
    if isinstance(tasks, TaskSource):
        return tasks
    if isinstance(tasks, str | Path):
        return code_tasks(tasks)
    rows = tasks if isinstance(tasks, Sequence) else list(tasks)
    return TaskList(rows) if rows and isinstance(rows[0], Task) else code_tasks(rows)


def _task(problem: Problem, number: int) -> Task:
    examples = "\n\n".join(example(test, 2000) for test in problem.visible)
    parts = [problem.prompt, f"Example tests:\n\n{examples}" if examples else "", ANSWER]
    kwargs = {"run_tests": {"create_kwargs": {"tests": [asdict(test) for test in problem.visible]}}}
    extra = {"index": problem.id or str(number), "solution": problem.solution, "tools_kwargs": kwargs}
    hidden = [asdict(test) for test in problem.hidden]
    return Task.from_row(verl_row(problem.source, [user("\n\n".join(filter(None, parts)))], hidden, extra))
