"""Programs in every language that is installed here, in the sandbox's own isolation."""

from __future__ import annotations

import pytest

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import ExecutionStatus, LocalSandbox
from toolgym.tools.sandbox.local.languages import LANGUAGES

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
}
BROKEN = {
    "c": "int main( { return 0; }",
    "cpp": "int main( { return 0; }",
    "go": "package main\nfunc main() {",
    "rust": "fn main( {",
}


@pytest.fixture
async def sandbox():
    async with LocalSandbox() as made:
        yield made


def installed(*names):
    return [
        pytest.param(
            name, marks=pytest.mark.skipif(not LANGUAGES[name].available, reason=f"{name} is not installed here")
        )
        for name in names
    ]


@pytest.mark.parametrize("name", installed(*HELLO))
async def test_hello(sandbox, name):
    result = await sandbox.run(HELLO[name], language=name, stdin="world\n", timeout=60, memory_mb=2048)
    assert (result.status, result.stdout) == (ExecutionStatus.OK, "hello world\n"), result
    assert (result.compile is not None) == bool(LANGUAGES[name].compile)


@pytest.mark.parametrize("name", installed(*BROKEN))
async def test_a_program_that_does_not_compile(sandbox, name):
    result = await sandbox.run(BROKEN[name], language=name, timeout=60, memory_mb=2048)
    assert result.status is ExecutionStatus.COMPILE_ERROR
    assert result.return_code != 0
    assert result.stderr or result.stdout
    assert result.compile is not None


async def test_exit_codes_signals_and_deadlines_of_commands(sandbox):
    assert (await sandbox.run("exit 7", language="bash")).return_code == 7
    killed = await sandbox.run("kill -SEGV $$", language="bash")
    assert (killed.status, killed.return_code) == (ExecutionStatus.KILLED, -11)
    late = await sandbox.run("echo begun; sleep 60", language="bash", timeout=1)
    assert (late.status, late.stdout) == (ExecutionStatus.TIMEOUT, "begun\n")


async def test_what_cannot_be_run_is_told(sandbox):
    with pytest.raises(ConfigError, match="did you mean 'python'"):
        await sandbox.run("1", language="pyton")
    absent = next(name for name, language in LANGUAGES.items() if not language.available)
    with pytest.raises(ConfigError, match="not installed"):
        await sandbox.run("1", language=absent)


@pytest.mark.parametrize("name", installed("java", "nodejs", "perl", "ruby", "lua"))
async def test_where_no_processes_may_be_started(name):
    try:
        made = LocalSandbox(preload=[], level="landlock")
    except SandboxError as error:
        pytest.skip(str(error))
    async with made as sandbox:
        result = await sandbox.run(HELLO[name], language=name, stdin="world\n", timeout=60, memory_mb=2048)
    assert (result.status, result.stdout, result.compile) == (ExecutionStatus.OK, "hello world\n", None), result
