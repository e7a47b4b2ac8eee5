"""`RunTestsTool`: the model sends a program, and reads which of its task's visible tests fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolgym.tools.base import ToolResult
from toolgym.tools.errors import SandboxError, shorten
from toolgym.tools.judge.cases import (
    AssertTest,
    CheckerTest,
    FunctionTest,
    InteractiveTest,
    StdioTest,
    Test,
    Verdict,
    check_tolerance,
)
from toolgym.tools.judge.judge import Judge
from toolgym.tools.judge.rows import read_tests
from toolgym.tools.library.code_interpreter import SANDBOX_FAILED, CodeInterpreterConfig
from toolgym.tools.library.sandbox_tool import SandboxTool
from toolgym.tools.sandbox.base import Sandbox
from toolgym.tools.schema import ToolSchema
from toolgym.tools.stateful import ToolSession

MOST_FAILURES = 3  # of one call
_CHARS = 400  # of one test, and of its failure


class RunTestsTool(SandboxTool[CodeInterpreterConfig]):
    """Runs the task's visible tests on the `code` that the model sends, and says which fail and how.

    A task's `create_kwargs` have `tests`: JSON for `toolgym.tools.judge.read_tests`, without hidden tests. They may
    have `language`: the language of the program, as the sandbox names it. Default: that of the tool.

    The options are those of `toolgym.tools.CodeInterpreterConfig`, with `default_timeout` for one test; `tolerance` is
    that of `read_tests`, and `language` that of the programs. The other arguments are those of `SandboxTool`.
    """

    label = "run_tests"
    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": ("tests", "language"),
        "execute_kwargs": (),
        "calc_reward_kwargs": (),
    }
    options_type = CodeInterpreterConfig
    default_schema = ToolSchema(
        name="run_tests",
        description="Run the example tests of the task on a program and return which of them fail.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The whole program."}},
            "required": ["code"],
        },
    )

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
        *,
        sandbox: Sandbox | None = None,
        tolerance: float | None = None,
        language: str = "python",
    ) -> None:
        check_tolerance(tolerance)
        super().__init__(config, tool_schema, sandbox=sandbox)
        self._tolerance, self._language = tolerance, language

    async def open(self, **create_kwargs: Any) -> ToolSession:
        """Begin an episode. Raises ConfigError if the tests cannot be read."""
        tests, language = create_kwargs.get("tests"), create_kwargs.get("language") or self._language
        return _Episode(self._judge(language), read_tests(tests, self._tolerance) if tests else ())

    def _judge(self, language: str) -> Judge:
        options = self.options
        memory = options.memory_limit_mb if options.memory_limit_mb > 0 else None
        return Judge(
            self.sandbox, language=language, timeout=options.default_timeout, memory_mb=memory, stop_at_failure=False
        )


class _Episode(ToolSession):
    def __init__(self, judge: Judge, tests: Sequence[Test]) -> None:
        self._judge, self._tests = judge, tests

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        if not self._tests:
            return ToolResult("[This task has no example tests]")
        try:
            verdicts = await self._judge.judge(parameters["code"], self._tests)
        except SandboxError as error:
            message = f"{type(error).__name__}: {error}"
            return ToolResult(SANDBOX_FAILED, 0.0, {"infra_failure": True, "error": message})
        passed = sum(verdict.passed for verdict in verdicts)
        failures = [
            _failure(number, test, verdict)
            for number, (test, verdict) in enumerate(zip(self._tests, verdicts, strict=True), start=1)
            if not verdict.passed
        ]
        text = [f"{passed} of {len(verdicts)} tests passed.", *failures[:MOST_FAILURES]]
        if len(failures) > MOST_FAILURES:
            text.append(f"[{len(failures) - MOST_FAILURES} more failures]")
        return ToolResult("\n\n".join(text), 0.0, {"passed": passed, "tests": len(verdicts)})

    async def fork(self) -> ToolSession:
        return _Episode(self._judge, self._tests)


def _failure(number: int, test: Test, verdict: Verdict) -> str:
    detail = verdict.detail.strip()
    if len(detail) > _CHARS:  # the end of a traceback says the most
        detail = f"...{detail[-_CHARS:]}"
    return f"Test {number}: {verdict.status.value}\n{shown(test)}\n{detail}"


def shown(test: Test, most: int = _CHARS) -> str:
    """Show a test to a reader, cut to `most` characters."""
    match test:
        case StdioTest() | CheckerTest() | InteractiveTest():
            return f"Input:\n{shorten(test.stdin.rstrip(), most)}"
        case FunctionTest():
            return shorten(f"{test.function}({', '.join(map(repr, test.call_args))})", most)
        case AssertTest():
            return shorten(test.code.strip(), most)


def example(test: Test, most: int = _CHARS) -> str:
    """Show a test with its expected value to a reader, each part cut to `most` characters."""
    text = shown(test, most)
    match test:
        case StdioTest():
            expected = test.expected if isinstance(test.expected, str) else test.expected[0]
            return f"{text}\nOutput:\n{shorten(expected.rstrip(), most)}"
        case CheckerTest() if test.expected:
            return f"{text}\nOutput (others may be right too):\n{shorten(test.expected.rstrip(), most)}"
        case FunctionTest():
            return f"{text} == {shorten(repr(test.expected), most)}"
        case _:
            return text
