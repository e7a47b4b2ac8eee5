"""Packages that an operator puts into one folder, and programs find."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.server.config import ServerConfig

HELLO = {
    "node/node_modules/greet/index.js": "module.exports = () => 'hello'",
    "perl/Greet.pm": "package Greet; sub hello { 'hello' } 1;",
    "perl/lib/perl5/Further.pm": "package Further; 1;",
    "ruby/greet.rb": "def greet; 'hello'; end",
    "lua/greet.lua": "return { hello = function() return 'hello' end }",
    "lua/further/init.lua": "return 1",
    "go/go.mod": "module example.org/programs\n\ngo 1.18\n\nrequire example.org/greet v1.0.0\n",
    "go/go.sum": "",
    "go/vendor/modules.txt": "# example.org/greet v1.0.0\n## explicit; go 1.18\nexample.org/greet\n",
    "go/vendor/example.org/greet/greet.go": 'package greet\n\nfunc Hello() string { return "hello" }\n',
}
PROGRAMS = {
    "nodejs": "console.log(require('greet')())",
    "perl": "use Greet; use Further; use List::Util; print Greet::hello(), qq(\\n);",
    "ruby": "require 'greet'; require 'json'; puts greet",
    "lua": "require('further'); print(require('greet').hello())",
}
OWN_TRANSFORM = {
    "node/package.json": "{}",
    "node/jest.config.js": "module.exports = { transform: { 'test.ts$': 'typeless' } }",
    "node/node_modules/typeless/index.js": (
        "exports.process = (code) => ({ code: code.replace(': number', '').replace(/import (.*) from '(.*)'/, "
        "\"const $1 = require('$2')\") })"
    ),
}
LEVELS = [level for level in probe()["levels"] if level != "uid"]


def installed(name, *marks):
    absent = pytest.mark.skipif(not LANGUAGES[name].available, reason=f"{name} is not installed here")
    return pytest.param(name, marks=[absent, *marks])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("packages")
    made.chmod(0o755)
    for name, text in HELLO.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("language", [installed(name) for name in PROGRAMS])
async def test_programs_find_packages(folder, level, language):
    async with LocalSandbox(level=level, packages=str(folder), preload=()) as sandbox:
        result = await sandbox.run(PROGRAMS[language], language=language)
        assert (result.stdout, result.stderr) == ("hello\n", ""), result
        code = f"import os\ntry: open({str(folder / 'perl/Greet.pm')!r}, 'a')\nexcept OSError: print('refused')"
        assert (await sandbox.run(code)).stdout == "refused\n"


@pytest.mark.long
@pytest.mark.parametrize("language", [installed("go"), installed("go_test")])
async def test_a_go_program_finds_packages_unless_it_has_a_module_of_its_own(folder, language):
    code = 'package main\n\nimport "example.org/greet"\n\nfunc main() { println(greet.Hello()) }\n'
    own = {"go.mod": b"module example.org/other\n\ngo 1.18\n"}
    if language == "go_test":
        code = 'package main\n\nimport (\n\t"example.org/greet"\n\t"testing"\n)\n\n'
        code += 'func TestHello(t *testing.T) {\n\tif greet.Hello() != "hello" {\n\t\tt.Fail()\n\t}\n}\n'
    async with LocalSandbox(packages=str(folder), preload=()) as sandbox:
        result = await sandbox.run(code, language=language, timeout=280, memory_mb=2048)
        assert result.ok, result
        other = await sandbox.run(code, language=language, timeout=280, memory_mb=2048, files=own)
        assert not other.ok


@pytest.mark.skipif(not LANGUAGES["jest"].available, reason="jest is not installed here")
@pytest.mark.long
async def test_jest_is_part_of_the_operators_project_unless_it_has_one_of_its_own(tmp_path):
    tmp_path.chmod(0o755)
    for name, text in (HELLO | OWN_TRANSFORM).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = "import greet from 'greet'\nconst n: number = 1\ntest('it', () => expect(greet() + n).toBe('hello1'))"
    async with LocalSandbox(packages=str(tmp_path), preload=()) as sandbox:
        result = await sandbox.run(code, language="jest", timeout=280, memory_mb=2048)
        assert result.ok, result
        assert "1 passed" in result.stderr
        own = {"package.json": b"{}"}
        assert not (await sandbox.run(code, language="jest", timeout=280, memory_mb=2048, files=own)).ok


@pytest.mark.skipif(not all(map(shutil.which, ("javac", "jar"))), reason="there is no Java here")
@pytest.mark.long
async def test_java_programs_find_archives(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "Greet.java").write_text(
        'package greet; public class Greet { public static String hello() { return "hello"; } }'
    )
    (tmp_path / "java").mkdir()
    for command in (["javac", "greet/Greet.java"], ["jar", "cf", "java/greet.jar", "greet/Greet.class"]):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=280)
    code = "class Main { public static void main(String[] a) { System.out.println(greet.Greet.hello()); } }"
    async with LocalSandbox(packages=str(tmp_path), preload=()) as sandbox:
        result = await sandbox.run(code, language="java", timeout=280, memory_mb=2048)
    assert result.stdout == "hello\n", result


async def test_programs_of_a_session_find_packages(folder):
    if not LANGUAGES["perl"].available:
        pytest.skip("perl is not installed here")
    async with LocalSandbox(packages=str(folder), preload=()) as sandbox, await sandbox.session() as session:
        assert (await session.exec(["perl", "-MGreet", "-e", "print Greet::hello()"])).stdout == "hello"


def test_the_folder_must_be_there(tmp_path):
    for bad in (str(tmp_path / "absent"), "/"):
        with pytest.raises(ConfigError, match="packages must be a folder"):
            LocalSandbox(packages=bad)
        with pytest.raises(ConfigError, match="packages must be a folder"):
            ServerConfig.load(flags={"packages": bad})
    if os.geteuid() == 0:
        with pytest.raises(ConfigError, match="readable for all users"):
            LocalSandbox(packages=str(tmp_path))
    tmp_path.chmod(0o755)
    assert ServerConfig.load(flags={"packages": str(tmp_path)}).packages == str(tmp_path)
