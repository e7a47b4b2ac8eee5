"""Languages: how programs of each are compiled and run. The names are SandboxFusion's."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.sandbox.local.host import packages
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.toolchains import importable
from toolgym.tools.sandbox.local.kernel.jail import SYSTEM_PATHS
from toolgym.tools.sandbox.local.protocol.messages import Program
from toolgym.tools.sandbox.names import OptionError, unused_stem

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin:/usr/lib/go/bin"

COMPILER_MB = 512
"""MiB that a compiler may use at least: C++'s standard library takes more than many programs may use."""

CODE_MB = 256
"""MiB of address space beside the memory of a native program: its code and libraries."""


@dataclass(frozen=True)
class Language:
    """One language.

    In commands, variables and names of files, `{heap}` and `{start}` are the most and the first memory of a garbage
    collector in MiB, and `{stack}` is the stack of a thread in MiB. `{processors}` is the number that the program may
    use. `{main}` is `main`, or another word if a file of the caller has that name. `{main_class}` is the program's main
    class or object, or `Main`. `{jars}`, `{go_module}` and `{node_project}` are of `packages`.

    Attributes:
        needs: programs that must be installed, or other files by their full names.
        alone: instead of both commands, one that compiles and runs in a single process, if no more are allowed.
        level: the weakest isolation level that it runs at: `landlock`; `uid` if it takes several processes; or
            `namespaces` if it does not start without a /proc.
        env: variables for the commands.
        begins: text that is put in front of a program without it, and behind its first lines that match `head`.
        named_by_class: whether the file has the name of the program's public class, if it has one.
        makes: names of files that the commands put beside it.
        modules: modules that the sandbox's interpreter must have.
        native: whether its programs use the stack of their process, and no more address space than they need.
    """

    name: str
    source: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    level: str = "landlock"
    env: tuple[tuple[str, str], ...] = ()
    begins: str = ""
    head: str = ""
    named_by_class: bool = False
    makes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    native: bool = False

    def lacks(self, python: str = sys.executable) -> tuple[str, ...]:
        """Return phrases for the programs and modules that it lacks; `python` is the sandbox's interpreter."""
        programs = tuple(phrase for need in self.needs if (phrase := _lacks(need)))
        present = importable(python, self.modules) if self.modules else frozenset()
        modules = tuple(f"the module {name} of {python}" for name in self.modules if name not in present)
        return programs + modules

    @property
    def available(self) -> bool:
        """Whether a sandbox with this interpreter can see all that it needs."""
        return not self.lacks()

    def possible(self, level: str) -> bool:
        least = "uid" if self.compile and not self.alone and self.level == "landlock" else self.level
        return [*Level].index(Level(level)) <= [*Level].index(Level(least))

    def request(
        self,
        code: str,
        memory_mb: int,
        level: str,
        processors: int = 1,
        files: Mapping[str, bytes] = MappingProxyType({}),
        folder: str | None = None,
        limits_stack: bool = False,
    ) -> Program:
        """Return the program's part of a request.

        A compiler gets `COMPILER_MB` even if the program may use less. The stack of a native program may grow as far as
        its memory, as in contests, unless the caller `limits_stack` itself.

        Args:
            code: the program.
            memory_mb: MiB that it may use.
            level: the isolation level.
            processors: how many it may use.
            files: files beside it.
            folder: the folder of packages.
            limits_stack: whether the caller sees to the stack.

        Raises:
            OptionError: one of the files has the name that the language wants for the program itself.
        """
        source = self.source
        if self.named_by_class and (public := _PUBLIC_CLASS.search(code)):
            source = public[1] + os.path.splitext(source)[1]
        if self.begins.strip() not in code:
            head = re.match(self.head, code)
            at = head.end() if head else 0
            code = code[:at] + self.begins + code[at:]
        encoded = code.encode("utf-8", "surrogatepass")
        if files.get(source, encoded) != encoded:
            why = f"the file {source!r} has the name that {self.name} wants for the program itself; give it another"
            raise OptionError(why, "files", source)
        stem = unused_stem((source, *self.makes), files)
        names = {
            "go_module": packages.go_module(folder),
            "node_project": packages.node_project(folder),
            "jars": packages.jars(folder),
            "main": stem,
            "main_class": _main_class(code),
        }
        run, compiler = (self.alone, ()) if level == "landlock" and self.alone else (self.run, self.compile)
        argv = [_fitted(word, names, memory_mb, processors) for word in run]
        compile_mb = max(memory_mb, COMPILER_MB) if compiler else memory_mb
        limits = [f"ulimit -d {memory_mb << 10} || exit"] if compile_mb > memory_mb else []
        if self.native and not limits_stack:
            limits.append(f"ulimit -s unlimited && ulimit -v {memory_mb + CODE_MB << 10} || :")
        if limits:
            argv = ["sh", "-c", f'{{ {"; ".join(limits)}; }} 2>/dev/null; exec "$@"', "sh", *argv]
        return {
            "code": code,
            "source": source.replace("{main}", stem),
            "argv": argv,
            "compile": [_fitted(word, names, compile_mb, processors) for word in compiler],
            "compile_memory_mb": compile_mb,
            "env": {name: _fitted(value, names, memory_mb, processors) for name, value in self.env},
        }


_PUBLIC_CLASS = re.compile(
    r"\bpublic\s+(?:(?:static|final|abstract|sealed|strictfp)\s+)*(?:class|interface|enum|record)\s+(\w+)"
)
_SCALA_APP = re.compile(r"\bobject\s+(\w+)\s+extends\s[^{]*\bApp\b")
_SCALA_OBJECT = re.compile(r"\bobject\s+(\w+)")
_SCALA_PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;?\s*$", re.MULTILINE)


def _main_class(code: str) -> str:
    """Return the Scala object that a program begins with: an `App`, or the one around `def main`."""
    if app := _SCALA_APP.search(code):
        name = app[1]
    else:
        before, main, _ = code.partition("def main(")
        objects = _SCALA_OBJECT.findall(before if main else code)
        name = objects[-1 if main else 0] if objects else "Main"
    package = _SCALA_PACKAGE.search(code)
    return f"{package[1]}.{name}" if package else name


def _fitted(text: str, names: Mapping[str, str], memory_mb: int, processors: int) -> str:
    """Fill in the names and numbers of a word."""
    heap = max(16, memory_mb * 3 // 5)
    stack = max(1, min(16, memory_mb // 64))
    numbers = {"heap": heap, "start": heap // 4, "stack": stack, "processors": processors}
    for name, value in {**names, **numbers}.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _lacks(need: str) -> str:
    """Return the fault of a program that is needed; empty if a sandbox can see it."""
    path = need if os.path.isabs(need) else shutil.which(need, path=SEARCH_PATH)
    if path is None or not os.path.exists(path):
        return need
    real = os.path.realpath(path)
    if any(real == seen or real.startswith(f"{seen}/") for seen in map(os.path.realpath, SYSTEM_PATHS)):
        return ""
    return f"{need} (which is {real}, where a sandbox cannot see it; install it below /usr)"


_JARS = "/usr/local/share/java"
"""A folder of archives for all Java programs, such as `javatuples`, which some benchmarks need."""

_CLASSES = ("-cp", f".:*:{_JARS}/*{{jars}}")
"""The working folder, archives beside the program, those that are installed, and packages."""

_JAVA_FLAGS = (
    "-Xmx{heap}m", "-Xms{start}m", "-Xss{stack}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-XX:ActiveProcessorCount={processors}",
)  # fmt: skip
_JAVA_OPTS = (("JAVA_OPTS", " ".join(_JAVA_FLAGS)),)
"""For the scripts that start Scala and Kotlin: by themselves they take 256 MiB, and compile at half the speed."""
_JAVAC_FLAGS = tuple(f"-J{flag}" for flag in _JAVA_FLAGS)

_JUNIT = "/usr/share/java/junit-platform-console-standalone.jar"  # of Debian's package `junit5`


_CRYPTO = ("-Wl,--as-needed", "-lcrypto", "-lssl") if glob.glob("/usr/lib/*/libcrypto.so") else ()
"""OpenSSL, if it is installed: some benchmarks' C++ programs need it."""


def _shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


_GO_ENV = (("GOFLAGS", "-p=4"),)

_GO_FOLDER = ".{main}-go"


def _go(command: str) -> tuple[str, ...]:
    """Make a command of Go's, with another folder for temporary files: it ignores a `go.mod` in that.

    Since Go 1.20 the standard library is compiled for each program, which takes ten seconds, unless one
    `GODEBUG=installgoroot=all go install std` has put it into Go's own folder.
    """
    folder = _GO_FOLDER
    return _shell(f'{{go_module}}mkdir -p {folder} && TMPDIR="$PWD/{folder}" GODEBUG=installgoroot=all exec {command}')


_CSHARP = """cat >.{main}-assertions.cs <<X
class FailedAssertion : System.Diagnostics.DefaultTraceListener {
    public override void Fail(string message, string detail) {
        System.Console.Out.Flush();
        System.Console.Error.WriteLine("Assertion failed. " + message + " " + detail);
        System.Console.Error.WriteLine(System.Environment.StackTrace);
        System.Environment.Exit(134);
    }
}
X
cat >{main}.exe.config <<X
<configuration><system.diagnostics><trace><listeners>
<clear/><add name="assertions" type="FailedAssertion, {main}"/>
</listeners></trace></system.diagnostics></configuration>
X
exec mcs -nowarn:105 -d:DEBUG -out:{main}.exe {main}.cs .{main}-assertions.cs"""
"""Mono by itself goes on after an assertion that failed; .NET ends the program, with this code."""

_USINGS = "".join(
    f"using System{name}; " for name in ("", ".Collections.Generic", ".IO", ".Linq", ".Threading", ".Threading.Tasks")
)
"""Namespaces that .NET's projects use without naming them. A program that names them too gets warning 105."""

_CSHARP_HEAD = r"(?:[ \t]*(?:#.*|//.*|extern alias .*)?\r?\n)*"
"""Blank lines, directives and comments: nothing may precede a `#define`."""


def _typescript() -> tuple[str, ...]:
    """Run Node with the loader of `tsx`; `tsx` itself needs a socket, which not every level allows."""
    loader = os.path.join(os.path.dirname(os.path.realpath(shutil.which("tsx", path=SEARCH_PATH) or "")), "loader.mjs")
    return ("node", "--import", loader, "{main}.ts") if os.path.exists(loader) else ("tsx", "{main}.ts")


def _first(*names: str) -> str:
    """Return the first program that is installed."""
    return next((name for name in names if shutil.which(name, path=SEARCH_PATH)), names[0])


_D = _first("dmd", "ldmd2", "gdmd")


def _compiled(
    name: str, source: str, *compile: str, needs: tuple[str, ...] = (), makes: tuple[str, ...] = ("{main}",)
) -> Language:
    return Language(name, source, ("./{main}",), compile, (*compile[:1], *needs), makes=makes, native=True)


_TABLE = (
    Language("bash", "{main}.sh", ("bash", "{main}.sh"), needs=("bash",)),
    _compiled("cpp", "{main}.cpp", "g++", "-std=c++17", "-O1", "{main}.cpp", "-o", "{main}", *_CRYPTO),
    _compiled("c", "{main}.c", "gcc", "-O1", "{main}.c", "-o", "{main}", "-lm"),
    Language("nodejs", "{main}.js", ("node", "{main}.js"), needs=("node",)),
    Language("js", "{main}.js", ("node", "{main}.js"), needs=("node",)),
    Language("typescript", "{main}.ts", _typescript(), needs=("tsx", "node"), level="uid"),
    Language(
        "go",
        "{main}.go",
        ("./{main}",),
        _go("go build -o {main} {main}.go"),
        ("go",),
        env=_GO_ENV,
        makes=("{main}", _GO_FOLDER),
    ),
    Language(
        "java",
        "Main.java",
        ("java", *_JAVA_FLAGS, "-ea", *_CLASSES, "Main"),
        ("javac", *_JAVAC_FLAGS, *_CLASSES, "Main.java"),
        ("java", "javac"),
        ("java", *_JAVA_FLAGS, "-ea", *_CLASSES, "Main.java"),
    ),
    _compiled("rust", "{main}.rs", "rustc", "-o", "{main}", "{main}.rs", needs=("cc",)),
    Language("perl", "{main}.pl", ("perl", "{main}.pl"), needs=("perl",)),
    Language("ruby", "{main}.rb", ("ruby", "{main}.rb"), needs=("ruby",)),
    Language("lua", "{main}.lua", ("lua", "{main}.lua"), needs=("lua",)),
    Language("php", "{main}.php", ("php", "-f", "{main}.php"), needs=("php",), begins="<?php "),
    Language("R", "{main}.R", ("Rscript", "{main}.R"), needs=("Rscript",), level="uid"),
    Language(
        "csharp",
        "{main}.cs",
        ("mono", "{main}.exe"),
        _shell(_CSHARP),
        ("mcs", "mono"),
        level="namespaces",
        env=(("MONO_GC_PARAMS", "max-heap-size={heap}m"),),  # or, out of memory, it ends with code 0
        begins=_USINGS,
        head=_CSHARP_HEAD,
        makes=("{main}.exe", "{main}.exe.config", ".{main}-assertions.cs"),
    ),
    Language(
        "scala",
        "Main.scala",
        ("scala", *_CLASSES, "{main_class}"),
        ("scalac", *_JAVAC_FLAGS, *_CLASSES, "Main.scala"),
        needs=("scala", "scalac", "java"),
        level="uid",
        env=_JAVA_OPTS,
    ),
    Language("julia", "{main}.jl", ("julia", "{main}.jl"), needs=("julia",)),
    Language(
        "kotlin_script", "{main}.kts", ("kotlin", "{main}.kts"), needs=("kotlin", "java"), level="uid", env=_JAVA_OPTS
    ),
    _compiled("swift", "{main}.swift", "swiftc", "{main}.swift", "-o", "{main}"),
    Language("racket", "{main}.rkt", ("racket", "{main}.rkt"), needs=("racket",)),
    _compiled(
        "D_ut", "{main}.d", _D, "-unittest", "{main}.d", "-of={main}", needs=("cc",), makes=("{main}", "{main}.o")
    ),
    Language(
        "verilog",
        "{main}.sv",
        ("vvp", "-n", "{main}.vvp"),
        ("iverilog", "-g2012", "-o", "{main}.vvp", "{main}.sv"),
        ("iverilog", "vvp"),
        makes=("{main}.vvp",),
    ),
    Language("lean", "{main}.lean", ("lean", "{main}.lean"), needs=("lean",)),
    Language("pytest", "test_{main}.py", ("python", "-m", "pytest", "-q", "test_{main}.py"), modules=("pytest",)),
    Language(
        "go_test",
        "{main}_test.go",
        _go("go test {main}_test.go"),
        needs=("go",),
        level="uid",
        env=_GO_ENV,
        makes=(_GO_FOLDER,),
    ),
    Language(
        "junit",
        "MainTest.java",
        ("java", *_JAVA_FLAGS, "-ea", "-jar", _JUNIT, "--class-path", ".:*", "--scan-class-path", "--disable-banner"),
        _shell(f"exec javac {' '.join(_JAVAC_FLAGS)} -cp '{_CLASSES[1]}:{_JUNIT}' *.java"),
        ("java", "javac", _JUNIT),
        named_by_class=True,
    ),
    Language(
        "jest",
        "{main}.test.ts",
        _shell(
            "{node_project}[ -e package.json ] || echo {} >package.json; "
            "exec jest --runInBand --no-cache {main}.test.ts"
        ),
        needs=("jest", "node"),
        level="uid",
    ),
    Language("sql", "{main}.sql", ("sqlite3", ":memory:", ".read {main}.sql"), needs=("sqlite3",)),
)
LANGUAGES = {language.name: language for language in _TABLE}
"""Every language but Python, which the template runs itself."""


def find(name: str, python: str = sys.executable) -> Language | None:
    """Return the language of that name, for a sandbox with an interpreter; None for Python.

    Raises UnknownNameError with the nearest name, or ConfigError if something that it needs is not installed.
    """
    if name == "python":
        return None
    language = LANGUAGES.get(name)
    if language is None:
        known = ["python", *LANGUAGES]
        raise UnknownNameError(f"unknown language {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}.")
    if absent := ", ".join(language.lacks(python)):
        where = "" if language.modules else f" in {SEARCH_PATH}"
        raise ConfigError(f"language {name!r} needs {absent}: not installed on this machine{where}")
    return language
