"""Programs in other languages."""

from __future__ import annotations

import io
import zipfile

from tests.tools.sandbox.server.golden.case import b64, run

BASH = [
    run("hello", "echo hello", "bash"),
    run("both_streams", "echo out; echo err >&2; printf 'no newline'", "bash"),
    run("empty", "", "bash"),
    run("exit_3", "echo a; exit 3; echo b", "bash"),
    run("exit_256", "exit 256", "bash"),
    run("last_command_fails", "echo x; false", "bash"),
    run("set_e", "set -e\nfalse\necho unseen", "bash"),
    run("not_found", "no_such_command_here --x", "bash"),
    run("syntax_error", "if true; then\necho x", "bash"),
    run("unset_variable", "set -u\necho $NOT_SET_AT_ALL", "bash"),
    run("arguments", "echo $#; basename $0 | grep -c '\\.sh$'", "bash"),
    run("folder", '[ "$(pwd)" = "$(dirname "$(realpath "$0")")" ] && echo same', "bash"),
    run("stdin", 'read a b; echo "$b $a"; cat', "bash", stdin="1 2\nrest\n"),
    run("stdin_at_end", "read x || echo end", "bash"),
    run("unicode", "echo 'Grüße 世界'; s=日本; echo ${#s}", "bash"),
    run("here_document", "cat <<X\na $((2*21))\nX", "bash"),
    run("arrays", "a=(x y z); echo ${a[1]} ${#a[@]}", "bash"),
    run("pipes", "set -o pipefail; seq 1 100 | head -3; false | true; echo $?", "bash"),
    run("killed", "kill -9 $$", "bash"),
    run("terminated", "kill $$; echo on", "bash"),
    run("trap", "trap 'echo bye' EXIT; exit 4", "bash"),
    run("background", "sleep 30 >/dev/null 2>&1 & echo started", "bash"),
    run("wait", "(sleep 0.1; echo child) & wait; echo done", "bash"),
    run("too_long", "echo so far; sleep 30", "bash", run_timeout=0.5),
    run("5000_lines", "seq 1 5000", "bash"),
    run(
        "files", "cat in; mkdir -p o/p; cp in o/p/copy", "bash", files={"in": b64("given\n")}, fetch_files=["o/p/copy"]
    ),
    run("given_script", "bash lib.sh && . ./lib.sh", "bash", files={"lib.sh": b64("echo lib")}),
    run("listing", "ls -a | wc -l", "bash"),
    run("closed_stdout", "exec >&-; echo x", "bash"),
    run("tools", "echo b a | tr ' ' '\\n' | sort | sed 's/a/A/' | awk '{print NR\":\"$0}' | grep A", "bash"),
    run("interactive", "case $- in *i*) echo yes;; *) echo no;; esac; shopt -q login_shell || echo plain", "bash"),
    run("crlf", "echo a\r\necho b\r\n", "bash"),
]

_INCLUDE = "#include <iostream>\n#include <string>\nusing namespace std;\n"

CPP = [
    run("hello", _INCLUDE + 'int main() { cout << "hello" << endl; }', "cpp"),
    run(
        "stdin",
        _INCLUDE + "int main() { int n, s = 0, x; cin >> n; while (n--) { cin >> x; s += x; } cout << s; }",
        "cpp",
        stdin="3\n1 2 3\n",
    ),
    run("returns_3", "int main() { return 3; }", "cpp"),
    run("compile_error", "int main() {\n    return x;\n}", "cpp"),
    run("no_main", "int f() { return 1; }", "cpp", gist="some"),
    run("warning_is_fine", "int f() { }\nint main() { return 0; }", "cpp"),
    run("aborts", "#include <cstdlib>\nint main() { abort(); }", "cpp"),
    run(
        "uncaught",
        _INCLUDE + '#include <stdexcept>\nint main() { cout << "a" << endl; throw runtime_error("boom"); }',
        "cpp",
        gist="exact",
    ),
    run("assertion", "#include <cassert>\nint main() { int x = 1; assert(x == 2); }", "cpp", gist="some"),
    run("segfault", "int main() { volatile int *p = nullptr; *p = 1; }", "cpp"),
    run(
        "too_long",
        _INCLUDE + 'int main() { cout << "so far" << endl; for (volatile long i = 0;; i = i + 1); }',
        "cpp",
        run_timeout=0.5,
    ),
    run("no_compile_time", "int main() { }", "cpp", compile_timeout=0),
    run(
        "file_included",
        '#include "mine.h"\nint main() { return VALUE; }',
        "cpp",
        files={"mine.h": b64("#define VALUE 5\n")},
    ),
    run(
        "c++17",
        _INCLUDE
        + (
            "#include <optional>\nint main() { if (optional<int> o = 4; o) cout << *o; auto [a, b] = pair(1, 2); "
            "cout << a + b; }"
        ),
        "cpp",
    ),
    run(
        "threads",
        _INCLUDE + '#include <thread>\nint main() { thread t([] { cout << "t" << endl; }); t.join(); }',
        "cpp",
    ),
    run("fetched", _INCLUDE + '#include <fstream>\nint main() { ofstream("o") << "out"; }', "cpp", fetch_files=["o"]),
    run("empty", "", "cpp", gist="some"),
]

NODE = [
    run("hello", "console.log('hello', [1, 2], {a: 1})", "nodejs"),
    run("both_streams", "console.log('out'); console.error('err')", "nodejs"),
    run("throws", "console.log('a');\nthrow new Error('boom')", "nodejs"),
    run("type_error", "const x = undefined;\nx.y", "nodejs"),
    run("syntax_error", "let x = ;", "nodejs"),
    run("exit_4", "process.exit(4)", "nodejs"),
    run("exit_code", "process.exitCode = 5", "nodejs"),
    run("stdin", "console.log(require('fs').readFileSync(0, 'utf8').split('\\n').length)", "nodejs", stdin="a\nb\n"),
    run(
        "stdin_lines",
        (
            "const r = require('readline').createInterface({input: process.stdin});\n"
            "r.on('line', l => console.log('<' + l + '>'))"
        ),
        "nodejs",
        stdin="a\nb\n",
    ),
    run("async", "setTimeout(() => console.log('later'), 50); Promise.resolve(1).then(console.log)", "nodejs"),
    run("rejection", "Promise.reject(new Error('nope'))", "nodejs"),
    run(
        "arguments",
        "console.log(process.argv.length, process.cwd() === __dirname, __filename.endsWith('.js'))",
        "nodejs",
    ),
    run("unicode", "console.log('Grüße 🌍'.length)", "nodejs"),
    run("module", "console.log(require('./lib').f(2))", "nodejs", files={"lib.js": b64("exports.f = x => x * 21")}),
    run("fetched", "require('fs').writeFileSync('o', 'out')", "nodejs", fetch_files=["o"]),
    run("too_long", "console.log('so far'); for (;;);", "nodejs", run_timeout=2),
    run("assertion", "require('assert').strictEqual(1, 2)", "nodejs"),
    run("webassembly", "console.log(typeof WebAssembly)", "nodejs"),
]

_GO = 'package main\n\nimport "fmt"\n\n'

GO = [
    run("hello", _GO + 'func main() { fmt.Println("hello", []int{1, 2}) }', "go"),
    run("stdin", _GO + "func main() { var a, b int; fmt.Scan(&a, &b); fmt.Print(a + b) }", "go", stdin="40 2"),
    run("compile_error", _GO + "func main() { fmt.Println(x) }", "go"),
    run("unused", 'package main\n\nimport "os"\n\nfunc main() { }', "go"),
    run("panics", _GO + 'func main() { fmt.Println("a"); panic("boom") }', "go"),
    run("exit_3", 'package main\n\nimport "os"\n\nfunc main() { os.Exit(3) }', "go"),
    run("too_long", _GO + 'func main() { fmt.Println("so far"); for {} }', "go", run_timeout=0.5),
]

_MAIN = "public class Main {\n    public static void main(String[] args) {\n        %s\n    }\n}\n"


def _jar():
    """An archive that holds one text."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("said.txt"), "from the archive")
    return b64(data.getvalue())


JAVA = [
    run("hello", _MAIN % 'System.out.println("hello");', "java"),
    run(
        "stdin",
        "import java.util.*;\n"
        + _MAIN % "Scanner s = new Scanner(System.in); System.out.print(s.nextInt() + s.nextInt());",
        "java",
        stdin="40\n2\n",
    ),
    run("compile_error", _MAIN % "int x = y;", "java"),
    run("throws", _MAIN % 'System.out.println("a"); throw new IllegalStateException("boom");', "java"),
    run("exit_3", _MAIN % "System.exit(3);", "java"),
    run("assertion", _MAIN % 'assert 1 == 2 : "no"; System.out.println("unchecked");', "java"),
    run(
        "two_classes",
        "class Other { int f() { return 42; } }\n" + _MAIN % "System.out.println(new Other().f());",
        "java",
    ),
    run(
        "main_comes_second",
        _MAIN.replace("public class", "class") % "System.out.println(new Other().f());"
        + "class Other { int f() { return 42; } }\n",
        "java",
    ),
    run(
        "first_class_has_main_too",
        "class First { public static void main(String[] a) { System.out.println(1); } }\n"
        + _MAIN % "System.out.println(2);",
        "java",
    ),
    run(
        "other_class_file",
        _MAIN % "System.out.println(Given.VALUE);",
        "java",
        files={"Given.java": b64("class Given { static int VALUE = 7; }")},
    ),
    run(
        "archive_given",
        _MAIN.replace("args)", "args) throws Exception")
        % 'System.out.print(new String(Main.class.getResourceAsStream("/said.txt").readAllBytes()));',
        "java",
        files={"given.jar": _jar()},
    ),
    run("no_compile_time", _MAIN % "", "java", compile_timeout=0),
    run("too_long", _MAIN % 'System.out.println("so far"); while (true) { }', "java", run_timeout=3),
]

PERL = [
    run("hello", 'print "hello\\n";', "perl"),
    run("stdin", 'my @l = <STDIN>; print scalar(@l), " $l[1]";', "perl", stdin="a\nb\n"),
    run("dies", 'print "a\\n"; die "boom\\n";', "perl"),
    run("exit_3", "exit 3;", "perl"),
    run("syntax_error", "my $x = ;\n", "perl", gist="some"),
    run("strict", 'use strict;\n$x = 1;\nprint "unseen";', "perl", gist="first"),
    run("warns", "use warnings; my $x; print 'v' . $x;", "perl"),
    run("fetched", 'open(my $f, ">", "o"); print $f "out"; close $f;', "perl", fetch_files=["o"]),
]

RUBY = [
    run("hello", "puts 'hello', [1, 2].inspect", "ruby"),
    run("stdin", "puts gets.to_i + gets.to_i", "ruby", stdin="40\n2\n"),
    run("raises", "puts 1\nraise 'boom'", "ruby"),
    run("exit_3", "exit 3", "ruby"),
    run("syntax_error", "def f(\n", "ruby", gist="some"),
    run("name_error", "puts undefined_thing", "ruby", gist="some"),
    run("unicode", "puts '世界'.length", "ruby"),
    run("module", "require_relative 'lib'\nputs LIB", "ruby", files={"lib.rb": b64("LIB = 7")}),
    run("fetched", "File.write('o', 'out')", "ruby", fetch_files=["o"]),
]

LUA = [
    run("hello", "print('hello', 1 + 1)", "lua"),
    run("stdin", "print(io.read('*n') + io.read('*n'))", "lua", stdin="40 2"),
    run("error", "print(1)\nerror('boom')", "lua", gist="first"),
    run("exit_3", "os.exit(3)", "lua"),
    run("syntax_error", "x = = 1", "lua", gist="first"),
    run("arguments", "print(#arg, arg[0] ~= nil)", "lua"),
    run("module", "print(require('lib').v)", "lua", files={"lib.lua": b64("return {v = 7}")}),
    run("fetched", "local f = io.open('o', 'w'); f:write('out'); f:close()", "lua", fetch_files=["o"]),
]

PYTEST = [
    run("passes", "def test_a():\n    assert 1 + 1 == 2\n", "pytest"),
    run("fails", "def test_a():\n    assert 1 + 1 == 3\n\ndef test_b():\n    pass\n", "pytest"),
    run("nothing_to_test", "x = 1\n", "pytest"),
    run("import_fails", "import not_there_at_all\n", "pytest"),
    run(
        "tests_beside",
        "from lib import f\n\ndef test_f():\n    assert f() == 1\n",
        "pytest",
        files={"lib.py": b64("def f(): return 1\n")},
    ),
    run(
        "stdin_and_parameters",
        "import pytest\n\n@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_n(n):\n    assert n < 3\n",
        "pytest",
    ),
]

OTHER = [*BASH, *CPP, *NODE, *GO, *JAVA, *PERL, *RUBY, *LUA, *PYTEST]
