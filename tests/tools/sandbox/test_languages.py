"""Programs in every language that is installed here, in the sandbox's own isolation."""

from __future__ import annotations

import resource
import shutil

import pytest

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import ExecutionStatus, LocalSandbox, SharedSandbox
from toolgym.tools.sandbox.local.host import languages
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.languages import LANGUAGES

HELLO = {
    "bash": 'read x; echo "hello $x"',
    "c": '#include <stdio.h>\nint main(){char x[9];scanf("%8s",x);printf("hello %s\\n",x);return 0;}',
    "cpp": '#include <iostream>\nint main(){std::string x;std::cin>>x;std::cout<<"hello "<<x<<std::endl;}',
    "nodejs": 'console.log("hello " + require("fs").readFileSync(0, "utf8").trim())',
    "js": 'console.log("hello " + require("fs").readFileSync(0, "utf8").trim())',
    "java": (
        "import java.util.*; public class Main { public static void main(String[] a) "
        '{ System.out.println("hello " + new Scanner(System.in).next()); } }'
    ),
    "go": 'package main\nimport "fmt"\nfunc main() { var x string; fmt.Scan(&x); fmt.Println("hello", x) }',
    "perl": 'my $x = <STDIN>; chomp $x; print "hello $x\\n";',
    "ruby": 'puts "hello #{gets.strip}"',
    "lua": 'print("hello " .. io.read())',
    "php": '<?php echo "hello ", trim(fgets(STDIN)), "\\n";',
    "R": 'x <- readLines(file("stdin"), n=1); cat("hello", x, "\\n", sep=c(" ", "", ""))',
    "rust": (
        "use std::io; fn main(){let mut x=String::new(); io::stdin().read_line(&mut x).unwrap(); "
        'println!("hello {}", x.trim());}'
    ),
    "csharp": 'class P { static void Main() { System.Console.WriteLine("hello " + System.Console.ReadLine()); } }',
    "scala": (
        'object Hello { def main(args: Array[String]): Unit = { println("hello " + scala.io.StdIn.readLine()) } }'
    ),
    "racket": '#lang racket/base\n(printf "hello ~a\\n" (read-line))',
    "D_ut": 'import std.stdio; void main() { write("hello ", readln()); }',
    "typescript": "const x: string = require('fs').readFileSync(0, 'utf8'); console.log('hello ' + x.trim())",
    "sql": "select 'hello world';",
    "verilog": 'module tb; initial $display("hello world"); endmodule',
}
BROKEN = {
    "c": "int main( { return 0; }",
    "cpp": "int main( { return 0; }",
    "go": "package main\nfunc main() {",
    "rust": "fn main( {",
}


PATIENT = 280.0
"""Seconds that a compiler gets, and as many for the program: Go's compiles its whole library each time."""


@pytest.fixture
async def sandbox():
    async with SharedSandbox() as made:
        yield made


def installed(*names, marks=()):
    return [
        pytest.param(
            name,
            marks=[
                *marks,
                pytest.mark.skipif(not LANGUAGES[name].available, reason=f"{name} is not installed here"),
            ],
        )
        for name in names
    ]


@pytest.mark.parametrize(
    "name", [*installed(*(name for name in HELLO if name != "scala")), *installed("scala", marks=[pytest.mark.long])]
)
async def test_hello(sandbox, name):
    result = await sandbox.run(HELLO[name], language=name, stdin="world\n", timeout=PATIENT, memory_mb=2048)
    assert (result.status, result.stdout) == (ExecutionStatus.OK, "hello world\n"), result
    assert (result.compile is not None) == bool(LANGUAGES[name].compile)


WHOLE = {
    "bash and its neighbours": (
        "bash",
        """
set -euo pipefail
trap 'echo bye $?' EXIT
sort <<X | awk '{print NR, $1}' | sed 's/2/two/' | tee copy
b
a
X
mkfifo line; echo through >line & cat line; wait
echo out >/dev/stdout; (exit 3) || echo $?
python3 - <<X
import sys; print(sys.getdefaultencoding())
X
tar c copy | tar t; cat <(echo <(true) | wc -l); [ -w "$HOME" ] && [ -w "$(mktemp)" ] && false
""",
        {},
        (1, "1 a\ntwo b\nthrough\nout\n3\nutf-8\ncopy\n1\nbye 1\n"),
    ),
    "git": (
        "bash",
        """
git init -q r; cd r; git config user.name a; git config user.email a@b; echo 1 >f; git add f; git commit -qm one
echo 2 >>f; git diff --shortstat | cat; git log --format=%s
""",
        {},
        (0, " 1 file changed, 1 insertion(+)\none\n"),
    ),
    "a small limit is not the compiler's": (
        "cpp",
        "#include <regex>\n#include <iostream>\nint main() { std::cout << std::string(1, '1'); }",
        {"memory_mb": 48},
        (0, "1"),
    ),
    "but it is the program's": (
        "c",
        "#include <stdlib.h>\n#include <string.h>\nint main() { char *p = malloc(100 << 20); return p ? 0 : 4; }",
        {"memory_mb": 48},
        (4, ""),
    ),
    "a module of Go's": (
        "go",
        'package main\nimport "example.com/m/twice"\nfunc main() { print(twice.Of(21)); panic("end") }',
        {
            "files": {
                "go.mod": b"module example.com/m\n\ngo 1.18\n",
                "twice/twice.go": b"package twice\nfunc Of(x int) int { return 2 * x }\n",
            }
        },
        (2, ""),
    ),
    "Java in little memory": (
        "java",
        "public class Main { static int f(int n) { return n == 0 ? 0 : 1 + f(n - 1); } "
        "public static void main(String[] a) { System.out.print(f(9000)); } }",
        {"memory_mb": 256},
        (0, "9000"),
    ),
    "Ruby's temporary files": (
        "ruby",
        'require "tempfile"; Tempfile.create("x") { |f| puts File.dirname(f.path) == ENV["TMPDIR"] }; exit 3',
        {},
        (3, "true\n"),
    ),
    "Node's modules": (
        "nodejs",
        "import { f } from './lib.mjs'; import os from 'os'; console.log(f(), process.env.NODE_PATH.split(':')[0])",
        {"files": {"package.json": b'{"type": "module"}', "lib.mjs": b"export const f = () => 7"}},
        (0, "7 /usr/local/lib/node_modules\n"),
    ),
    "PHP without its tag": ("php", "echo strlen(str_repeat('a', 150 << 20)) >> 20; exit(3);", {}, (3, "150")),
    "R's own packages": ("R", "cat(sd(c(1, 3)), '\\n'); quit(status = 4)", {}, (4, "1.414214 \n")),
    "an assertion in C#": (
        "csharp",
        'class P { static void Main() { System.Diagnostics.Debug.Assert(1 == 2, "no"); } }',
        {},
        (134, ""),
    ),
    "what C# uses without saying so": (
        "csharp",
        "#define LOUD\n// all of these\nusing System.Linq;\nclass P { static void Main() {\n#if LOUD\n"
        'Console.WriteLine(new List<int> { 1, 2 }.Sum() + Path.Combine("a", "b"));\n#endif\n} }',
        {},
        (0, "3a/b\n"),
    ),
    "JUnit": (
        "junit",
        "import org.junit.jupiter.api.*; public class Sum { @Test void f() { Assertions.assertEquals(2, 1 + 1); } }",
        {},
        None,
    ),
    "Jest": (
        "jest",
        "test('f', () => expect(require('./f')).toBe(2))",
        {"files": {"f.js": b"module.exports = 2"}},
        None,
    ),
}
"""A language, its program, what else to say, and code and output; None: it ends well."""


def programs(*names):
    def there(name):
        return LANGUAGES[WHOLE[name][0]].available and (
            name != "git" or shutil.which("git", path=languages.SEARCH_PATH)
        )

    return [pytest.param(name, marks=pytest.mark.skipif(not there(name), reason="not installed")) for name in names]


async def run_whole(sandbox, name):
    language, code, more, expected = WHOLE[name]
    result = await sandbox.run(code, language=language, **({"timeout": PATIENT, "memory_mb": 2048} | more))
    assert (result.return_code, result.stdout) == (expected or (0, result.stdout)), result


@pytest.mark.parametrize("name", programs(*WHOLE))
async def test_whole_programs(sandbox, name):
    await run_whole(sandbox, name)


@pytest.fixture
async def uid_sandbox():
    for python in (None, "/usr/bin/python3"):
        try:
            made = LocalSandbox(preload=[], level="uid", python=python)
        except SandboxError as error:
            why = str(error)
        else:
            async with made:
                yield made
            return
    pytest.skip(why)


@pytest.mark.parametrize(
    "name", programs("bash and its neighbours", "git", "a module of Go's", "Ruby's temporary files")
)
async def test_whole_programs_as_another_user(uid_sandbox, name):
    await run_whole(uid_sandbox, name)


@pytest.mark.parametrize("name", installed("cpp"))
async def test_what_a_compiler_used_is_not_the_programs(sandbox, name):
    result = await sandbox.run("#include <regex>\nint main() { return 0; }", language=name, timeout=PATIENT)
    assert result.ok, result
    assert result.cpu_seconds < 0.2
    assert result.memory_bytes < 32 << 20


@pytest.mark.parametrize("name", installed(*BROKEN))
async def test_a_program_that_does_not_compile(sandbox, name):
    result = await sandbox.run(BROKEN[name], language=name, timeout=PATIENT, memory_mb=2048)
    assert result.status is ExecutionStatus.COMPILE_ERROR
    assert result.return_code != 0
    assert result.stderr or result.stdout
    assert result.compile is not None


async def test_exit_codes_signals_and_deadlines_of_commands(sandbox):
    assert (await sandbox.run("exit 7", language="bash")).return_code == 7
    killed = await sandbox.run("kill -SEGV $$", language="bash")
    assert (killed.status, killed.return_code) == (ExecutionStatus.KILLED, -11)
    for seconds in (1, 5, 20):  # a busy machine takes a while to begin
        late = await sandbox.run("echo begun; sleep 100", language="bash", timeout=seconds)
        if late.stdout:
            break
    assert (late.status, late.stdout) == (ExecutionStatus.TIMEOUT, "begun\n")


DEEP = r"""
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
volatile long sum;
static void visit(long left) { volatile char frame[200]; frame[0] = 1; if (left) visit(left - 1); sum += frame[0]; }
static void *work(void *x) { char *block = malloc(1 << 20); block[0] = 1; return block; }
int main(int count, char **words) {
    pthread_t threads[16];
    for (int n = 0; n < 16; n++) if (pthread_create(threads + n, 0, work, 0)) return 3;
    for (int n = 0; n < 16; n++) pthread_join(threads[n], 0);
    long depth; if (scanf("%ld", &depth) != 1) return 4;
    visit(depth); printf("%ld\n", sum);
}
"""


@pytest.mark.parametrize("name", installed("c"))
async def test_a_native_program_may_use_its_memory_as_stack(sandbox, name):
    deep = await sandbox.run(DEEP, language=name, stdin="300000\n", timeout=60)
    assert (deep.status, deep.stdout) == (ExecutionStatus.OK, "300001\n"), deep
    endless = await sandbox.run(DEEP, language=name, stdin="100000000\n", timeout=60, memory_mb=256)
    assert endless.status in (ExecutionStatus.KILLED, ExecutionStatus.MEMORY_LIMIT)


async def test_limits_are_those_of_the_sandbox_and_not_of_the_shell(sandbox):
    code = "import resource as r, os; print(r.getrlimit(r.RLIMIT_STACK)[0] >> 20, r.getrlimit(r.RLIMIT_CORE)[0])"
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (16 << 20, before[1]))
    try:
        async with LocalSandbox(preload=(), templates=1, warm=0) as another:
            run = await another.run(f"{code}\nprint(oct(os.umask(0)), os.environ['LANG'])")
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)
    assert run.stdout == "8 1\n0o22 C.UTF-8\n"


async def test_what_cannot_be_run_is_an_error(sandbox):
    with pytest.raises(ConfigError, match="did you mean 'python'"):
        await sandbox.run("1", language="pyton")
    absent = next(name for name, language in LANGUAGES.items() if not language.available)
    with pytest.raises(ConfigError, match="not installed"):
        await sandbox.run("1", language=absent)


@pytest.mark.parametrize(
    "name", [*installed("java"), *installed("nodejs", "perl", "ruby", "lua", marks=[pytest.mark.matrix])]
)
async def test_where_no_processes_may_be_started(name):
    try:
        made = LocalSandbox(preload=[], level="landlock")
    except SandboxError as error:
        pytest.skip(str(error))
    async with made as sandbox:
        result = await sandbox.run(HELLO[name], language=name, stdin="world\n", timeout=PATIENT, memory_mb=2048)
    assert (result.status, result.stdout, result.compile) == (ExecutionStatus.OK, "hello world\n", None), result


def test_commands_follow_the_memory_and_the_level():
    java = LANGUAGES["java"]
    small, large = (java.request("", memory, "namespaces")["argv"] for memory in (1024, 4096))
    assert {"-Xmx614m", "-Xss16m"} <= set(small)
    assert {"-Xmx2457m", "-Xss16m"} <= set(large)
    tight = java.request("", 128, "namespaces")
    assert "-J-Xmx307m" in tight["compile"]
    assert tight["compile_memory_mb"] == 512
    alone = java.request("", 128, "landlock")
    assert (alone["compile"], alone["argv"][-1], alone["compile_memory_mb"]) == ([], "Main.java", 128)
    levels = {name: [at for at in Level if LANGUAGES[name].possible(at)] for name in LANGUAGES}
    assert levels["java"] == levels["bash"] == ["namespaces", "uid", "landlock"]
    assert levels["cpp"] == levels["typescript"] == levels["R"] == ["namespaces", "uid"]
    assert levels["csharp"] == ["namespaces"]


def test_what_a_program_is_put_into():
    php = LANGUAGES["php"]
    assert php.request("echo 1;", 64, "uid")["code"] == "<?php echo 1;"
    assert php.request("\n<?php echo 1;", 64, "uid")["code"] == "\n<?php echo 1;"
    junit = LANGUAGES["junit"]
    names = [
        junit.request(code, 64, "uid")["source"]
        for code in ("import x; public final class Sum {}", "class A {}", "public record P(int x) {}")
    ]
    assert names == ["Sum.java", "MainTest.java", "P.java"]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("object Hello { def main(args: Array[String]): Unit = () }", "Hello"),
        ("object Help { def f = 1 }\nobject Hello { def main(args: Array[String]) = () }", "Hello"),
        ("object Help { def f = 1 }\nobject Hello extends Help with App { println(1) }", "Hello"),
        ("package a.b\nobject Hello extends App {}", "a.b.Hello"),
        ("class Help", "Main"),
    ],
)
def test_the_main_object_of_scala(code, name):
    assert LANGUAGES["scala"].request(code, 64, "uid")["argv"][-1] == name


def test_a_compiler_that_a_sandbox_cannot_see(monkeypatch, tmp_path):
    (tmp_path / "swiftc").write_text("#!/bin/sh\n")
    (tmp_path / "swiftc").chmod(0o755)
    monkeypatch.setattr(languages, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs swiftc \(which is .*swiftc, where a sandbox cannot see it; install"):
        languages.find("swift")
    with pytest.raises(ConfigError, match="needs lean: not installed on this machine in "):
        languages.find("lean")
