"""Toolchains: which interpreter has a module, and whether a language works where the programs of a sandbox run."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from toolgym.tools.errors import SandboxUnavailableError
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus
from toolgym.tools.sandbox.options import RunRequest

SAMPLES = {
    "bash": ":",
    "cpp": "#include <iostream>\nint main() {}",
    "c": "#include <stdio.h>\nint main(void) { return 0; }",
    "nodejs": "0",
    "js": "0",
    "typescript": "const x: number = 0;",
    "go": "package main\n\nfunc main() {}",
    "java": "public class Main { public static void main(String[] arguments) {} }",
    "rust": "fn main() {}",
    "perl": "1;",
    "ruby": "1",
    "lua": "return",
    "php": "<?php 1;",
    "R": "1",
    "csharp": "class Program { static void Main() {} }",
    "scala": "object Main { def main(arguments: Array[String]): Unit = () }",
    "julia": "1",
    "kotlin_script": "1",
    "swift": "print(1)",
    "racket": "#lang racket/base\n1",
    "D_ut": "void main() {}",
    "verilog": "module m; endmodule",
    "lean": "#eval 1",
    "pytest": "def test():\n    pass",
    "go_test": 'package main\n\nimport "testing"\n\nfunc TestNothing(t *testing.T) {}',
    "junit": "class MainTest { @org.junit.jupiter.api.Test void works() {} }",
    "jest": "test('works', () => {})",
    "sql": "select 1;",
}
"""By language, a program that ends well wherever the language works."""

SAMPLE_TIMEOUT = 60.0
"""Seconds for the compiler of a sample, and as many for the sample."""

_CONCLUSIVE = (ExecutionStatus.COMPILE_ERROR, ExecutionStatus.ERROR, ExecutionStatus.KILLED)
_MAX_REASON = 500

_modules: dict[str, set[str]] = defaultdict(set)


def importable(python: str, modules: Sequence[str]) -> frozenset[str]:
    """Return those of the modules that an interpreter has, started as template processes are.

    Modules that were found are remembered, and others are looked for again at the next call. Raises
    SandboxUnavailableError if the interpreter cannot be run.
    """
    if not _modules[python].issuperset(modules):
        code = (
            "import importlib.util, json, sys\n"
            "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n.partition('.')[0])]))"
        )
        command = [python, "-I", "-c", code, *modules]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "stderr", None) or str(error)
            raise SandboxUnavailableError(
                f"the sandbox's interpreter {python!r} cannot be run: {why.strip()[-_MAX_REASON:]}"
            ) from error
        _modules[python].update(json.loads(done.stdout))
    return frozenset(_modules[python].intersection(modules))


class _Sample(RunRequest):
    """A run of a sample, which is not followed by another one."""


class Toolchains:
    """The languages that were seen to work in a sandbox. `run` is the sandbox's `execute`, which calls `blame`.

    Programs that are installed may still lack a part, such as a linker or a header. A language therefore counts as
    working once a program of it ended well. Until then, a program that failed is followed by a program that must not
    fail.
    """

    def __init__(self, run: Callable[[RunRequest], Awaitable[ExecutionResult]]) -> None:
        self._run = run
        self._working: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    async def blame(self, request: RunRequest, result: ExecutionResult) -> None:
        """Raise SandboxUnavailableError if a program failed because its language does not work here."""
        language = request.language
        if isinstance(request, _Sample):
            return
        if result.ok:
            self._working.add(language)
        if language in self._working or result.status not in _CONCLUSIVE:
            return
        async with self._locks.setdefault(language, asyncio.Lock()):
            if language not in self._working and (fault := await self.fault(language)):
                raise SandboxUnavailableError(f"the language {language!r} does not work in this sandbox: {fault}")

    async def fault(self, language: str) -> str:
        """Run the language's sample. Return why it failed; nothing if it ended well or took too long."""
        request = _Sample(SAMPLES[language], language=language, timeout=SAMPLE_TIMEOUT, compile_timeout=SAMPLE_TIMEOUT)
        result = await self._run(request)
        if result.ok:
            self._working.add(language)
        if result.status not in _CONCLUSIVE:
            return ""
        words = (result.stderr or result.stdout).strip()[-_MAX_REASON:]
        return f"a program that does nothing ended with {result.status.value}: {words or result.message}"
