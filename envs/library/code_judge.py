"""`CodeJudgeEnv`: write a program; hidden tests decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from toolgym.envs.base import Action
from toolgym.envs.library.embedded import DATA
from toolgym.envs.rewards.unit_tests import UnitTests
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.judge import Problem, problem_of, read_rows, read_tests
from toolgym.tools.judge.run_tests import RunTestsTool, example
from toolgym.tools.library.code_interpreter import CodeInterpreterTool
from toolgym.tools.message import assistant, tool_call, user

EMBEDDED = DATA / "code_judge.jsonl"
"""The embedded tasks, in the format of APPS."""

ANSWER = "Answer with the whole program in one block that begins with ```python."
"""The end of the prompt of every task."""


class CodeJudgeEnv(ToolEnv):
    """An env whose policy writes programs.

    Args:
        tasks: where tasks come from: the rows of HumanEval, MBPP, LiveCodeBench, APPS or TACO, as a file or as mappings
            (see `code_tasks`); or tasks whose ground truth `toolgym.tools.judge.read_tests` reads. None: the embedded
            ones.
        reward: `all`: 1 where all hidden tests pass, else 0; `fraction`: the fraction of them that pass.
        test_timeout: wall seconds for one test.
        tolerance: how much numbers may differ, hidden and example tests alike; see `toolgym.tools.judge.StdioTest`.
            Default: as the judge of the tests' data set has it.
        tool_config: options of both tools, see `toolgym.tools.CodeInterpreterConfig`. They say where hidden tests run,
            too: each as a run of its own, after the policy's last turn.
        env_kwargs: the other arguments of `ToolEnv`.

    The program is the last fenced block of the turn that calls no tool.

    Example:
        >>> import asyncio, toolgym
        >>> async def main():
        ...     async with toolgym.make("CodeJudge-v0") as env:
        ...         await env.reset(seed=0)
        ...         for action in env.gold_actions():
        ...             result = await env.step(action)
        ...         return result.reward
        >>> asyncio.run(main())
        1.0
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
        source = _source(EMBEDDED if tasks is None else tasks)
        super().__init__(tools, source, owns_tools=tools, **env_kwargs)

    def prepare(self, task: Task) -> Task:
        try:
            read_tests(task.ground_truth)
        except ConfigError as error:
            raise ConfigError(f"the ground truth of the task {task.id!r} holds no tests: {error}") from error
        return task

    def gold_actions(self) -> list[Action] | None:
        """The data set's own solution, tried on the example tests first."""
        solution = None if self.task is None else self.task.extra_info.get("solution")
        if not solution:
            return None
        return [assistant("", [tool_call("run_tests", {"code": solution})]), assistant(f"```python\n{solution}\n```")]


def code_tasks(source: str | Path | Iterable[Mapping[str, Any]]) -> TaskList:
    """Return the tasks of a data set of programs.

    Args:
        source: rows as their authors publish them: a file (JSON Lines, a JSON list, gzipped or not, or Parquet), or
            mappings, such as a split of a Hugging Face data set. HumanEval, MBPP, LiveCodeBench, APPS and TACO are
            recognised by their columns; see `toolgym.tools.judge.rows`.

    Raises:
        UnknownNameError: there is no such file.
        ConfigError: a row cannot be used; names it.
    """
    is_file = isinstance(source, str | Path)
    rows = read_rows(source) if isinstance(source, str | Path) else source
    tasks = []
    for number, row in enumerate(rows, start=1):
        try:
            tasks.append(_task(problem_of(row), number))
        except ConfigError as error:
            where = f"{source}, row {number}" if is_file else f"row {number}"
            raise ConfigError(f"{where}: {error}") from error
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
