"""The formats of data sets that the evaluation endpoints serve, by the names of SandboxFusion's classes.

| format | rows |
| --- | --- |
| `HumanEvalDataset` | HumanEval's own, and MultiPL-E's (`prompt`, `tests`, `language`) |
| `MBPPDataset` | `id` or `task_id`, `content` or `text`, `test_list`, `labels.test_setup_code` |
| `CommonOJDataset` | `id`, `content`, `test`: a list of `{"input": {"stdin"}, "output": {"stdout"}}`; `labels` |
| `AutoEvalDataset` | `id`, `content`, `test`: `{"code", "asset"}`; `labels` with `programming_language` |

`test`, `labels` and `asset` may be JSON texts.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolgym.tools.errors import ConfigError
from toolgym.tools.integrations.sandbox_fusion.messages import (
    EvalResult,
    EvalTestCase,
    EvaluationConfig,
    Prompt,
    SubmitRequest,
)
from toolgym.tools.judge.cases import AssertTest, StdioTest, Test, Verdict, VerdictStatus
from toolgym.tools.judge.comparing import TOLERANCE
from toolgym.tools.judge.extraction import Extracted, extract_program
from toolgym.tools.judge.judge import Judge
from toolgym.tools.judge.rows.columns import check_names
from toolgym.tools.judge.rows.functions import mbpp_tests, prompt_helpers
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from toolgym.tools.sandbox.protocol.fusion import RunCodeResponse
from toolgym.tools.serving.json_bodies import problem
from toolgym.tools.serving.transport import RequestRefusedError

TIMEOUT = 20.0
EXTRACTION_TIMEOUT = 10.0
_DRIVER = """
import dataclasses, json, re, sys
@dataclasses.dataclass
class CodeBlock:
    priority: int
    code: str
    language: str = ""
completion = sys.stdin.read()
_blocks = []
def submit_code_blocks(blocks):
    _blocks.extend([int(one.priority), str(one.code), str(one.language)] for one in blocks)
def extract_fenced_code(text):
    found = re.findall(r"```([^\\n]*)\\n(.*?)\\n\\s*```", text, re.S)
    return [CodeBlock(30, code, tag.strip().lower()) for tag, code in found]
exec(compile(LOGIC, "<custom_extract_logic>", "exec"))
print("\\n" + WORD + json.dumps(_blocks))
"""
"""Runs a client's logic with SandboxFusion's names."""

Row = Mapping[str, Any]

_MULTIPLE = {
    "py": "python", "sh": "bash", "js": "nodejs", "ts": "typescript", "rs": "rust", "rb": "ruby", "pl": "perl",
    "cs": "csharp", "jl": "julia", "kt": "kotlin_script", "d": "D_ut", "r": "R", "rkt": "racket", "go": "go_test",
}  # fmt: skip


class CodeDataset(ABC):
    @abstractmethod
    def prompt(self, row: Row, config: EvaluationConfig) -> Prompt: ...

    @abstractmethod
    async def submit(self, row: Row, request: SubmitRequest, sandbox: Sandbox) -> EvalResult: ...


def row_id(row: Row) -> int | str:
    for name in ("id", "task_id", "name"):
        if isinstance(row.get(name), int | str):
            return row[name]  # type: ignore[no-any-return]
    raise RequestRefusedError(400, "a row needs an 'id', a 'task_id' or a 'name'", reason="bad_row")


# ---------------------------------------------------------------------- the formats


class HumanEval(CodeDataset):
    """`HumanEvalDataset`. With `extra.is_freeform` a model is asked for a whole function in a fence."""

    def prompt(self, row: Row, config: EvaluationConfig) -> Prompt:
        text = _column(row, "prompt")
        if config.extra.get("is_freeform"):
            text = (
                f"```{_language(row)}\n{text.rstrip()}\n```\n\nWrite out the complete code of this in a fenced block."
            )
        hidden = ("prompt", "test", "tests", "canonical_solution")
        labels = {name: value for name, value in row.items() if name not in hidden}
        return Prompt(id=row_id(row), prompt=text, labels=labels)

    async def submit(self, row: Row, request: SubmitRequest, sandbox: Sandbox) -> EvalResult:
        _check_columns(row, _HUMANEVAL_COLUMNS)
        language, prompt = _language(row), _column(row, "prompt")
        if request.config.extra.get("is_freeform"):
            extracted = await _extract(sandbox, request, language)
            program = extracted.code
        else:
            extracted = Extracted(_until_stop(request.completion, row, language), "heuristic")
            program = f"{prompt}{extracted.code}"
        code = row.get("tests") or _column(row, "test")
        if language == "python" and "entry_point" in row:
            helpers = prompt_helpers(prompt, row["entry_point"])
            code = f"{code}\n\ncheck({row['entry_point']})\n"
            test = AssertTest(code, setup=helpers, helpers=helpers, entry_points=(row["entry_point"],))
            return await _judged(sandbox, request, "python", extracted, program, [test], code)
        return await _exit_status(sandbox, request, language, extracted, f"{program}\n{code}", test_code=code)


class Mbpp(CodeDataset):
    """`MBPPDataset`. Each assertion is a test of its own."""

    def prompt(self, row: Row, config: EvaluationConfig) -> Prompt:
        if config.is_fewshot:
            raise RequestRefusedError(400, "this server has no few-shot prompts of MBPP", reason="unsupported")
        column = next((name for name in ("content", "text", "prompt") if row.get(name)), "content")
        text, tests = _column(row, column), "\n".join(_assertions(row))
        ask = f"You are an expert Python programmer, and here is your task: {text}"
        return Prompt(
            id=row_id(row), prompt=f"{ask} Your code should pass these tests:\n\n{tests}", labels=_labels(row)
        )

    async def submit(self, row: Row, request: SubmitRequest, sandbox: Sandbox) -> EvalResult:
        _check_columns(row, _MBPP_COLUMNS)
        extracted = await _extract(sandbox, request, "python")
        assertions = _assertions(row)
        if row.get("test"):  # MBPP+ has the most tests there
            assertions.append(_column(row, "test"))
        tests = mbpp_tests({**row, **_labels(row)}, assertions)
        return await _judged(sandbox, request, "python", extracted, extracted.code, tests, "\n".join(assertions))


class CommonOJ(CodeDataset):
    """`CommonOJDataset`: programs of any language that read and print.

    `extra.run_all_cases`: also behind a failure; `extra.ignore_case`: letters may differ in case.
    """

    def prompt(self, row: Row, config: EvaluationConfig) -> Prompt:
        language = config.language or "any language"
        ask = f"Write a complete program in {language}. It reads standard input and prints to standard output."
        return Prompt(id=row_id(row), prompt=f"{_column(row, 'content')}\n\n{ask}", labels=_labels(row))

    async def submit(self, row: Row, request: SubmitRequest, sandbox: Sandbox) -> EvalResult:
        language = request.config.language
        if language is None:
            raise RequestRefusedError(400, "config.language must be given for CommonOJDataset", reason="bad_config")
        _check_columns(row, _OJ_COLUMNS)
        cases = _json(row, "test", list)
        try:
            for case in cases:
                for part, known in (
                    (case, ("input", "output")),
                    (case["input"], ("stdin",)),
                    (case["output"], ("stdout",)),
                ):
                    _check_columns(part, known, "a test")
            ignore_case = bool(request.config.extra.get("ignore_case"))
            tests = [
                StdioTest(case["input"]["stdin"], case["output"]["stdout"], TOLERANCE, ignore_case) for case in cases
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise _bad_row("test", 'a list of {"input": {"stdin"}, "output": {"stdout"}}') from error
        extracted = await _extract(sandbox, request, language)
        return await _judged(sandbox, request, language, extracted, extracted.code, tests, None)


class AutoEval(CodeDataset):
    """`AutoEvalDataset`: a program and test code in one file; it is accepted if that ends with 0 and at its end.

    Program and tests share a process, so that a program can cheat here; the other formats are safe from that.
    """

    def prompt(self, row: Row, config: EvaluationConfig) -> Prompt:
        labels, question = _labels(row), _column(row, "content")
        context = config.extra.get("context", labels.get("context")) or ""
        fewshot = (config.extra.get("fewshot", labels.get("fewshot")) or "") if config.is_fewshot else ""
        if config.is_fewshot and not fewshot:
            raise RequestRefusedError(400, f"row {row_id(row)!r} has no 'fewshot' in its labels", reason="bad_row")
        template = config.extra.get("prompt_template", labels.get("prompt_template"))
        if template:
            fields = {"question": question, "fewshot": fewshot, "context": context, "locale": config.locale}
            text = string.Template(str(template)).safe_substitute(fields)
        elif context or fewshot:
            marks = ("问题：", "答案：") if config.locale == "zh" else ("Question:", "Answer:")
            parts = [*filter(None, (context, "-" * 16 if context and fewshot else "", fewshot))]
            text = "\n\n".join([*parts, f"{marks[0]}{question}", f"{marks[1]}\n"])
        else:
            text = question
        return Prompt(id=row_id(row), prompt=text, labels=labels)

    async def submit(self, row: Row, request: SubmitRequest, sandbox: Sandbox) -> EvalResult:
        labels, test = _labels(row), _json(row, "test", dict)
        language = labels.get("programming_language")
        code = test.get("code")
        if not isinstance(language, str) or not isinstance(code, str):
            raise _bad_row("test", '{"code"}, and labels with programming_language')
        if language == "java":
            raise RequestRefusedError(400, "AutoEvalDataset's rows in Java are not judged here", reason="unsupported")
        extracted = await _extract(sandbox, request, language)
        program = extracted.code.partition("if __name__ ==")[0] if language == "python" else extracted.code
        if request.config.extra.get("repr_code"):
            program = repr(program)
        before, mark, behind = code.partition("#<INSERT>")
        full = f"{before}{program}{behind}" if mark else f"{program}\n{code}"
        runs = str(labels.get("execution_language", language))
        files = _assets(test.get("asset"))
        return await _exit_status(sandbox, request, runs, extracted, full, test_code=code, files=files)


FORMATS: dict[str, CodeDataset] = {
    "HumanEvalDataset": HumanEval(),
    "MBPPDataset": Mbpp(),
    "CommonOJDataset": CommonOJ(),
    "AutoEvalDataset": AutoEval(),
}


def format_of(row: Row) -> str | None:
    if "prompt" in row and ("entry_point" in row or "tests" in row):
        return "HumanEvalDataset"
    if "test_list" in row:
        return "MBPPDataset"
    test = row.get("test")
    if isinstance(test, str):
        try:
            test = json.loads(test)
        except (ValueError, RecursionError):
            return None
    if isinstance(test, list):
        return "CommonOJDataset"
    return "AutoEvalDataset" if isinstance(test, dict) else None


# ---------------------------------------------------------------------- judging


async def _custom_program(sandbox: Sandbox, logic: str, completion: str, language: str) -> str | None:
    """Return the program that a client's logic finds: of the blocks with the highest priority the first one in the
    language, or else the first one; None if it submits none."""
    word = secrets.token_hex(16)
    code = f"LOGIC = {logic!r}\nWORD = {word!r}\n{_DRIVER}"
    run = await sandbox.run(code, stdin=completion, timeout=EXTRACTION_TIMEOUT)
    lines = [line for line in run.stdout.split("\n") if line.startswith(word)]
    if not lines:
        problem_text = run.stderr.strip().split("\n")[-1] or run.message or run.status.value
        raise problem(("config", "custom_extract_logic"), f"it did not end well: {problem_text[:300]}")
    blocks = json.loads(lines[-1].removeprefix(word))
    best = [block for block in blocks if block[0] == max(other[0] for other in blocks)]
    chosen = [block for block in best if block[2] == language] or best
    return str(chosen[0][1]) if chosen else None


async def _extract(sandbox: Sandbox, request: SubmitRequest, language: str) -> Extracted:
    logic = request.config.custom_extract_logic
    if logic is not None:
        code = await _custom_program(sandbox, logic, request.completion, language)
        if code is not None:
            return Extracted(code, "fenced")
    return extract_program(request.completion, language, which="first")


async def _judged(
    sandbox: Sandbox,
    request: SubmitRequest,
    language: str,
    extracted: Extracted,
    program: str,
    tests: Sequence[Test],
    test_code: str | None,
) -> EvalResult:
    config = request.config
    judge = Judge(
        sandbox,
        language=language,
        timeout=config.run_timeout or TIMEOUT,
        compile_timeout=config.compile_timeout,
        stop_at_failure=not config.extra.get("run_all_cases"),
    )
    verdicts = await judge.judge(program, tests)
    for number, verdict in enumerate(verdicts, start=1):
        if verdict.status is VerdictStatus.NOT_JUDGEABLE:
            raise RequestRefusedError(
                400, f"test {number} of the row cannot be judged: {verdict.detail}", reason="not_judgeable"
            )
    judged = [(verdict, test) for verdict, test in zip(verdicts, tests, strict=True) if verdict.run is not None]
    outcomes = [
        EvalTestCase(passed=verdict.passed, exec_info=RunCodeResponse.of(_shown(verdict, test)), test_info=_info(test))
        for verdict, test in judged
    ]
    accepted = all(verdict.passed for verdict in verdicts)
    return _result(request, extracted, program, test_code, outcomes, accepted=accepted)


def _shown(verdict: Verdict, test: Test) -> ExecutionResult:
    """The run as a client sees it: for assertions without what the judge's own process printed."""
    assert verdict.run is not None
    if isinstance(test, StdioTest):
        return verdict.run
    error = "\n".join(filter(None, (verdict.run.stderr.rstrip(), verdict.detail)))
    shown = replace(verdict.run, stdout="", stderr=error)
    if verdict.run.ok and verdict.status is not VerdictStatus.PASSED:
        return replace(shown, status=ExecutionStatus.ERROR, return_code=1)
    return shown


def _info(test: Test) -> dict[str, Any] | None:
    if isinstance(test, StdioTest):
        return {"input": {"stdin": test.stdin}, "output": {"stdout": test.expected}}
    return {"code": test.code} if isinstance(test, AssertTest) else None


async def _exit_status(
    sandbox: Sandbox,
    request: SubmitRequest,
    language: str,
    extracted: Extracted,
    code: str,
    *,
    test_code: str,
    files: Mapping[str, bytes] | None = None,
) -> EvalResult:
    """Run a program with its tests behind it. It passes with exit status 0; in Python only if its end is reached."""
    word = ""
    full = code
    if language == "python":
        word = secrets.token_hex(16)
        full = f"{code}\nprint({word!r})\n"
    timeouts = {"timeout": request.config.run_timeout or TIMEOUT, "compile_timeout": request.config.compile_timeout}
    run = await sandbox.run(full, language=language, files=files or {}, **timeouts)  # type: ignore[arg-type]
    passed = run.ok and word in run.stdout
    info = RunCodeResponse.of(replace(run, stdout=run.stdout.replace(f"{word}\n", "") if word else run.stdout))
    tests = [EvalTestCase(passed=passed, exec_info=info)]
    return _result(request, extracted, code, test_code, tests, accepted=passed)


def _result(
    request: SubmitRequest,
    extracted: Extracted,
    program: str,
    test_code: str | None,
    tests: list[EvalTestCase],
    *,
    accepted: bool,
) -> EvalResult:
    return EvalResult(
        id=request.id,
        accepted=accepted,
        extracted_code=extracted.code,
        full_code=program,
        test_code=test_code,
        tests=tests,
        extracted_type=extracted.kind,
    )


# ---------------------------------------------------------------------- rows


_IDS = ("id", "task_id", "name", "labels", "canonical_solution", "content", "prompt")
_HUMANEVAL_COLUMNS = (
    *_IDS, "entry_point", "test", "tests", "language", "stop_tokens", "doctests", "original", "prompt_terminology",
    "contract", "declaration", "example_test", "docstring",
)  # fmt: skip
_MBPP_COLUMNS = (
    *_IDS, "text", "code", "test_list", "test", "test_setup_code", "test_imports", "challenge_test_list", "source_file",
)  # fmt: skip
_OJ_COLUMNS = (*_IDS, "test")
"""Columns that a format reads, and those that are labels. SandboxFusion does not read `challenge_test_list` either."""


def _check_columns(row: Row, known: Sequence[str], what: str = "the row") -> None:
    """Refuse a row with a column that may hold tests or limits and that is not read."""
    try:
        check_names(row, known, what, way_out="Remove the column if it does not matter")
    except ConfigError as error:
        raise RequestRefusedError(400, str(error), reason="bad_row") from error


def _column(row: Row, name: str) -> str:
    if not isinstance(row.get(name), str):
        raise _bad_row(name, "a text")
    return row[name]  # type: ignore[no-any-return]


def _json(row: Row, name: str, kind: type) -> Any:
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _bad_row(name, f"JSON: {error}") from error
    if not isinstance(value, kind):
        raise _bad_row(name, "a list" if kind is list else "an object")
    return value


def _bad_row(name: str, wanted: str) -> RequestRefusedError:
    return RequestRefusedError(400, f"a row's {name!r} must be {wanted}", reason="bad_row")


def _labels(row: Row) -> dict[str, Any]:
    return dict(_json(row, "labels", dict)) if row.get("labels") else {}


def _assertions(row: Row) -> list[str]:
    assertions = _json(row, "test_list", list)
    if not assertions or not all(isinstance(assertion, str) for assertion in assertions):
        raise _bad_row("test_list", "a list of assertions")
    return list(assertions)


def _language(row: Row) -> str:
    name = str(row.get("language", "python")).partition(".")[0]
    return _MULTIPLE.get(name, name)


def _until_stop(completion: str, row: Row, language: str) -> str:
    """A completion up to where the function ends: at a stop word, and in Python at a line that is not indented."""
    stops = [re.escape(word) for word in row.get("stop_tokens") or () if isinstance(word, str) and word.strip()]
    if language == "python":
        stops.append(r"\n(?=[^\s#])")
    end = re.search("|".join(stops), completion) if stops else None
    return completion if end is None else completion[: end.start()] + "\n"


def _assets(assets: Any) -> dict[str, bytes]:
    if isinstance(assets, str):
        assets = _json({"asset": assets}, "asset", dict)
    try:
        return {name: base64.b64decode(data) for name, data in (assets or {}).items() if data is not None}
    except (AttributeError, TypeError, binascii.Error) as error:
        raise _bad_row("test.asset", f"base64 by names of files: {error}") from error
