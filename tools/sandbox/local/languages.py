"""How programs of each language are compiled and run. The names are SandboxFusion's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        name: what a caller asks for.
        source: name of the file that holds the program.
        run: the command that runs it.
        compile: the command that compiles it first, where there is one.
        needs: programs that must be installed.
        alone: instead of both commands, one that compiles and runs in a single process, where no more are allowed.
    """

    name: str
    source: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        """Whether everything that it needs is installed where a sandbox can see it."""
        return all(shutil.which(program, path=SEARCH_PATH) for program in self.needs)


SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin:/usr/lib/go/bin"
"""Where programs are looked for, here and inside."""

_CLASSES = ("-cp", ".:*")
"""The working folder, and the archives that were given along with the program."""

_JAVA_FLAGS = ("-Xmx512m", "-Xss16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def _table(*languages: Language) -> dict[str, Language]:
    return {language.name: language for language in languages}


LANGUAGES = _table(
    Language("bash", "main.sh", ("bash", "main.sh"), needs=("bash",)),
    Language("cpp", "main.cpp", ("./main",), ("g++", "-std=c++17", "-O1", "main.cpp", "-o", "main"), ("g++",)),
    Language("c", "main.c", ("./main",), ("gcc", "-O1", "main.c", "-o", "main", "-lm"), ("gcc",)),
    Language("nodejs", "main.js", ("node", "main.js"), needs=("node",)),
    Language("js", "main.js", ("node", "main.js"), needs=("node",)),
    Language("typescript", "main.ts", ("tsx", "main.ts"), needs=("tsx",)),
    Language("go", "main.go", ("./main",), ("go", "build", "-o", "main", "main.go"), ("go",)),
    Language(
        "java",
        "Main.java",
        ("java", *_JAVA_FLAGS, "-ea", *_CLASSES, "Main"),
        ("javac", *(f"-J{flag}" for flag in _JAVA_FLAGS), *_CLASSES, "Main.java"),
        ("java", "javac"),
        ("java", *_JAVA_FLAGS, "-ea", *_CLASSES, "Main.java"),
    ),
    Language("rust", "main.rs", ("./main",), ("rustc", "-o", "main", "main.rs"), ("rustc",)),
    Language("perl", "main.pl", ("perl", "main.pl"), needs=("perl",)),
    Language("ruby", "main.rb", ("ruby", "main.rb"), needs=("ruby",)),
    Language("lua", "main.lua", ("lua", "main.lua"), needs=("lua",)),
    Language("php", "main.php", ("php", "-f", "main.php"), needs=("php",)),
    Language("R", "main.R", ("Rscript", "main.R"), needs=("Rscript",)),
    Language("csharp", "main.cs", ("mono", "main.exe"), ("mcs", "-out:main.exe", "main.cs"), ("mcs", "mono")),
    Language("scala", "Main.scala", ("scala", "Main.scala"), needs=("scala",)),
    Language("julia", "main.jl", ("julia", "main.jl"), needs=("julia",)),
    Language("kotlin_script", "main.kts", ("kotlin", "main.kts"), needs=("kotlin",)),
    Language("swift", "main.swift", ("./main",), ("swiftc", "main.swift", "-o", "main"), ("swiftc",)),
    Language("racket", "main.rkt", ("racket", "main.rkt"), needs=("racket",)),
    Language("D_ut", "main.d", ("./main",), ("dmd", "-unittest", "main.d", "-of=main"), ("dmd",)),
    Language(
        "verilog",
        "main.sv",
        ("vvp", "main.vvp"),
        ("iverilog", "-g2012", "-o", "main.vvp", "main.sv"),
        ("iverilog", "vvp"),
    ),
    Language("lean", "main.lean", ("lean", "main.lean"), needs=("lean",)),
    Language("pytest", "test_main.py", ("python", "-m", "pytest", "-q", "test_main.py")),
    Language("go_test", "main_test.go", ("go", "test", "main_test.go"), needs=("go",)),
    Language("junit", "MainTest.java", ("junit", "MainTest.java"), needs=("junit", "javac")),
    Language("jest", "main.test.js", ("jest", "main.test.js"), needs=("jest",)),
    Language("sql", "main.sql", ("sqlite3", ":memory:", ".read main.sql"), needs=("sqlite3",)),
)
"""Every language but Python, which the template runs itself."""


def find(name: str) -> Language | None:
    """The language of that name; None for Python.

    Raises:
        UnknownNameError: it is not known; names the nearest one.
        ConfigError: what it needs is not installed.
    """
    if name == "python":
        return None
    language = LANGUAGES.get(name)
    if language is None:
        known = ", ".join(["python", *LANGUAGES])
        raise UnknownNameError(
            f"unknown language {name!r}{nearest(name, ['python', *LANGUAGES]) or '.'} Known: {known}."
        )
    if not language.available:
        absent = [program for program in language.needs if not shutil.which(program, path=SEARCH_PATH)]
        raise ConfigError(f"language {name!r} needs {', '.join(absent)}, which is not installed on this machine")
    return language
