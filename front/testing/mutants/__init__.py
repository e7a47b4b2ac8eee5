"""Mutants of known solutions, which a task's tests should tell from the solutions.

from toolgym.testing.mutants import surviving_mutants

survivors = await surviving_mutants(solution, tests)
print("\\n\\n".join(survivor.report() for survivor in survivors))
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from toolgym.testing.mutants.generate import Mutant as Mutant
from toolgym.testing.mutants.generate import mutants_of as mutants_of
from toolgym.testing.mutants.inputs import Call, calls_of, numbers_in, similar_calls, similar_stdin, stdin_of
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge import Judge
from toolgym.tools.judge.cases import FunctionTest, StdioTest, Test
from toolgym.tools.judge.comparing import same_output, same_value
from toolgym.tools.sandbox import Sandbox, SharedSandbox

INPUTS = 200
"""Inputs on which a mutant that passes the tests is compared with the known solution."""

AT_ONCE = 4
"""Programs that run in the sandbox at once."""

RUN_SECONDS = 20.0
"""Seconds for one run of a program on such inputs."""


@dataclass(frozen=True)
class Survivor:
    """A mutant that passes all tests, although it is wrong.

    Attributes:
        mutant: the program.
        input: an input on which it differs from the known solution, as text.
        expected: what the known solution gives for it.
        actual: what the mutant gives for it.
    """

    mutant: Mutant
    input: str
    expected: str
    actual: str

    def report(self) -> str:
        """Return the change and the input that shows that it is wrong, for a reader."""
        shown = (shorten(text.strip(), 300) for text in (self.input, self.expected, self.actual))
        return "{}\nfor {}: expected {}, got {}".format(self.mutant.diff, *shown)


async def surviving_mutants(
    program: str, tests: Sequence[Test], *, most: int | None = None, seed: int = 0, sandbox: Sandbox | None = None
) -> list[Survivor]:
    """Return the mutants of a Python program that pass its tests, although they differ from it on similar inputs.

    A mutant that passes the tests is compared with the program on inputs that are made from those of the tests: with
    numbers within the bounds that the tests have, and texts and lists of similar lengths. Inputs for which the program
    itself fails are left out. A mutant that never differs is taken to be equal to the program.

    Args:
        program: the known solution, which passes the tests.
        tests: the tests.
        most: mutants to try. Default: all.
        seed: of the sample of mutants, and of the inputs.
        sandbox: where programs run; it stays the caller's to close. Default: a sandbox of its own.

    Raises:
        ConfigError: the program is not Python, or does not pass the tests.
    """
    async with _opened(sandbox) as opened:
        judge = Judge(opened, stop_at_failure=True)
        verdicts = await judge.judge(program, tests)
        failed = next((verdict for verdict in verdicts if not verdict.passed), None)
        if failed is not None:
            raise ConfigError(f"the known solution does not pass its tests: {failed.status.value}: {failed.detail}")
        try:
            mutants = mutants_of(program, most=most, seed=seed)
        except SyntaxError as error:
            raise ConfigError(f"the known solution is not a Python program: {error}") from error
        passed = await _at_once([lambda mutant=mutant: _passes(judge, mutant, tests) for mutant in mutants])  # type: ignore[misc]
        passing = [mutant for mutant, passes in zip(mutants, passed, strict=True) if passes]
        compare = await comparison(program, tests, opened, seed=seed)
        survivors = await _at_once([lambda mutant=mutant: compare(mutant) for mutant in passing])  # type: ignore[misc]
        return [survivor for survivor in survivors if survivor is not None]


async def _passes(judge: Judge, mutant: Mutant, tests: Sequence[Test]) -> bool:
    return all(verdict.passed for verdict in await judge.judge(mutant.source, tests))


@asynccontextmanager
async def _opened(sandbox: Sandbox | None) -> AsyncIterator[Sandbox]:
    if sandbox is not None:
        yield sandbox
        return
    async with SharedSandbox(preload=()) as opened:
        yield opened


async def _at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def run(call: Callable[[], Any]) -> Any:
        async with limit:
            return await call()

    return list(await asyncio.gather(*map(run, calls)))


# ---------------------------------------------------------------------- comparing a mutant with the known solution


async def comparison(
    program: str, tests: Sequence[Test], sandbox: Sandbox, *, seed: int = 0, inputs: int = INPUTS
) -> Callable[[Mutant], Any]:
    """Return an async function that gives the `Survivor` of a mutant, or None if the mutant seems to be equal."""
    calls, stdin, hints = calls_of(tests), stdin_of(tests), numbers_in(program)
    rule = _rule(tests)
    if stdin:
        texts = [*dict.fromkeys(similar_stdin(stdin, inputs // 4, seed, hints))]
        expected = await _printed(program, texts, sandbox)

        async def compare_printed(mutant: Mutant) -> Survivor | None:
            actual = await _printed(mutant.source, texts, sandbox)
            return _difference(mutant, texts, expected, actual, lambda left, right: same_output(left, right, **rule))

        return compare_printed
    called = similar_calls(calls, inputs, seed, hints) if calls else []
    values = await _values(program, called, sandbox)
    shown = [f"{name}({', '.join(map(repr, args))})" for name, args in called]

    def same(actual: str, expected: str) -> bool:
        return same_value(json.loads(actual), json.loads(expected), **rule)

    async def compare_values(mutant: Mutant) -> Survivor | None:
        return _difference(mutant, shown, values, await _values(mutant.source, called, sandbox), same)

    return compare_values


def _rule(tests: Sequence[Test]) -> dict[str, Any]:
    """Return the rule by which the tests compare numbers."""
    test = next((test for test in tests if isinstance(test, StdioTest | FunctionTest)), None)
    return {} if test is None else {"tolerance": test.tolerance, "close": test.close}


def _difference(
    mutant: Mutant,
    inputs: Sequence[str],
    expected: Sequence[str | None],
    actual: Sequence[str | None],
    same: Callable[[str, str], bool],
) -> Survivor | None:
    for text, right, other in zip(inputs, expected, actual, strict=True):
        if right is not None and (other is None or not same(other, right)):
            return Survivor(mutant, text, right, "an error" if other is None else other)
    return None


async def _printed(program: str, inputs: Sequence[str], sandbox: Sandbox) -> list[str | None]:
    """Run a program on inputs. Return what it prints, or None for an input for which it fails."""

    async def run(stdin: str) -> str | None:
        result = await sandbox.run(program, stdin=stdin, timeout=RUN_SECONDS)
        return result.stdout.strip() if result.ok else None

    return await _at_once([lambda stdin=stdin: run(stdin) for stdin in inputs])  # type: ignore[misc]


_CALLER = """
import copy, json
def plain(value):
    if isinstance(value, (set, frozenset)):
        return ["set", sorted(map(repr, value))]
    if isinstance(value, dict):
        return ["dict", sorted([repr(key), plain(item)] for key, item in value.items())]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
namespace = {"__name__": "solution"}
exec(compile(PROGRAM, "solution.py", "exec"), namespace)
for name, args in CALLS:
    solution = namespace.get("Solution")
    try:
        function = getattr(solution(), name) if hasattr(solution, name) else namespace[name]
        result = json.dumps(plain(function(*copy.deepcopy(args))))
    except Exception:
        result = None
    print("\\n" + WORD + json.dumps(result), flush=True)
"""


async def _values(program: str, calls: Sequence[Call], sandbox: Sandbox) -> list[str | None]:
    """Call functions of a program in one run. Return their values, or None for a call that fails or never ends."""
    if not calls:
        return []
    word = secrets.token_hex(8)
    code = f"PROGRAM, WORD = {program!r}, {word!r}\nCALLS = {list(calls)!r}\n{_CALLER}"
    result = await sandbox.run(code, timeout=RUN_SECONDS, output_bytes=1 << 22)
    lines = [line.removeprefix(word) for line in result.stdout.split("\n") if line.startswith(word)]
    values: list[str | None] = [json.loads(line) for line in lines]
    return [*values, *[None] * (len(calls) - len(values))][: len(calls)]
