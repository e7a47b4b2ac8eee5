"""Files that a caller gives a program and fetches from it: none is lost, and none that does not fit is taken."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox import LocalSandbox, ProcessSandbox
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.names import OptionError

LEVELS = [level for level in probe()["levels"] if level != "uid"]  # which wants an interpreter of all users
SMALL = Limits(file_mb=2, disk_mb=4, inodes=100)

SHOWS = {
    "bash": ("main.sh", "cat main.sh"),
    "nodejs": ("main.js", "process.stdout.write(require('fs').readFileSync('main.js'))"),
    "perl": ("main.pl", "open F, 'main.pl'; print <F>"),
    "ruby": ("main.rb", "print File.read('main.rb')"),
    "lua": ("main.lua", "io.write(io.open('main.lua'):read('*a'))"),
    "pytest": ("test_main.py", "def test(): assert open('test_main.py').read() == 'theirs'"),
    "c": ("main", '#include <stdlib.h>\nint main() { return system("cat main"); }'),
}
"""Programs that print a file with the name that they or their parts usually have."""


def installed(name):
    marks = [pytest.mark.skipif(not LANGUAGES[name].available, reason=f"no {name} here")]
    return pytest.param(name, marks=marks if name == "bash" else [*marks, pytest.mark.matrix])


@pytest.mark.parametrize("language", [*map(installed, SHOWS)])
async def test_a_file_keeps_its_name_in_each_language(language):
    name, code = SHOWS[language]
    async with LocalSandbox(preload=()) as sandbox:
        result = await sandbox.run(code, language=language, files={name: b"theirs"}, fetch_files=[name], timeout=280)
    assert result.ok, result
    assert language == "pytest" or result.stdout == "theirs"
    assert dict(result.files) == {name: b"theirs"}


@pytest.mark.skipif(not LANGUAGES["bash"].available, reason="no bash here")
async def test_names_are_tried_until_one_is_unused():
    files = {"main.sh": b"0", "main_1.sh/x": b"1"}
    for sandbox in (LocalSandbox(preload=()), ProcessSandbox()):
        async with sandbox:
            result = await sandbox.run("echo $0; cat main.sh main_1.sh/x", language="bash", files=files)
            assert result.stdout == "main_2.sh\n01"


def test_a_language_that_wants_its_own_name_says_so():
    java = LANGUAGES["java"]
    with pytest.raises(OptionError, match=r"'Main.java' has the name that java wants"):
        java.request("class Main {}", 256, "namespaces", files={"Main.java": b""})
    same = java.request("class Main {}", 256, "namespaces", files={"Main.java": b"class Main {}"})
    assert same["source"] == "Main.java"


@pytest.mark.parametrize("level", LEVELS)
async def test_a_python_program_under_another_name_is_whole(level):
    code = """
import inspect, linecache, os, sys, traceback
def f(): return 1 / 0
def main():
    print(os.path.basename(__file__), [os.path.basename(sys.argv[0])], sys.orig_argv[1:], inspect.getsource(f), end="")
    os.chdir("/")
    try: f()
    except ZeroDivisionError: traceback.print_exc()
if __name__ == "__main__":
    main()
"""
    async with LocalSandbox(level=level, preload=()) as sandbox:
        result = await sandbox.run(code, files={"main.py": b""})
    assert result.stdout == "main_1.py ['main_1.py'] ['main_1.py'] def f(): return 1 / 0\n"
    assert 'main_1.py", line 3, in f\n    def f(): return 1 / 0\n' in result.stderr


async def test_a_program_under_another_name_can_be_started_again():
    code = """
import multiprocessing, subprocess, sys
def double(n): return 2 * n
if __name__ == "__main__":
    if "again" in sys.argv: raise SystemExit("again")
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(double, [21]))
    print(subprocess.run([sys.executable, __file__, "again"], capture_output=True, text=True).stderr, end="")
    print(subprocess.run([sys.executable, "main.py"], capture_output=True, text=True).stdout, end="")
"""
    async with LocalSandbox(preload=()) as sandbox:
        result = await sandbox.run(code, files={"main.py": b"print('theirs')"})
    assert (result.stdout, result.stderr) == ("[42]\nagain\ntheirs\n", "")


async def test_a_session_leaves_a_file_called_main_alone():
    async with LocalSandbox(preload=()) as sandbox, await sandbox.session(files={"main.py": b"x = 1"}) as session:
        assert (await session.run_cell("import main; main.x, open('main.py').read()")).result == "(1, 'x = 1')"


@pytest.mark.parametrize("level", LEVELS)
async def test_standard_input_takes_no_name(level):
    files = {".stdin": b"theirs"}
    async with LocalSandbox(level=level, preload=()) as sandbox:
        first, second = await asyncio.gather(
            sandbox.run("print(input(), open('.stdin').read())", stdin="typed", files=files),
            sandbox.run("print(input(), open('.stdin/x').read())", stdin="typed", files={".stdin/x": b"theirs"}),
        )
    assert (first.stdout, second.stdout) == ("typed theirs\n", "typed theirs\n")


@pytest.mark.parametrize("level", LEVELS)
async def test_files_that_do_not_fit_are_the_callers_mistake(level):
    mib = bytes(1 << 20)
    cases = (
        ({"files": {"a": 2 * mib, "big": 2 * mib + b"x"}}, "'big' has 2097153 bytes, and Limits.file_mb is 2", "big"),
        ({"files": {str(n): mib for n in range(5)}}, "Limits.disk_mb is 4", "files"),
        ({"files": {"a": 2 * mib, "b": mib}, "stdin": "x" * (1 << 20)}, "Limits.disk_mb is 4", "files"),
        ({"files": {f"{n}/x": b"" for n in range(50)}}, "Limits.inodes is 100", "files"),
        ({"stdin": "x" * (2 << 20) + "x"}, "stdin has 2097153 bytes", "stdin"),
    )
    async with LocalSandbox(level=level, preload=(), limits=SMALL) as sandbox:
        templates = sandbox.template_ids
        for options, said, field in cases:
            with pytest.raises(OptionError, match=said) as raised:
                await sandbox.run("1", **options)
            assert field in raised.value.field
            if options.keys() == {"files"}:
                with pytest.raises(ConfigError, match=said):
                    await sandbox.session(**options)
        with pytest.raises(OptionError, match="code has"):
            await sandbox.run("#" + "x" * (2 << 20))
        assert sandbox.template_ids == templates, "a template process was started for it"
        full = {"a": 2 * mib, "b": mib, "c": bytes((1 << 20) - 4096)}
        result = await sandbox.run("print(1)", files=full)
        assert (result.status, result.stdout) == ("ok", "1\n")
        if level == "namespaces":
            result = await sandbox.run("open('d', 'wb').write(bytes(9000))", files=full)
            assert result.status == "disk_limit"


HOLES = """
WRITTEN = {"empty": [], "ends": [0, (32 << 20) - 1], "odd": [5000, 9000, 20001], "full": range(32 << 10)}
for name, places in WRITTEN.items():
    with open(name, "wb") as file:
        for at in places: file.seek(at), file.write(b"x")
        file.truncate(32 << 20 if name in ("empty", "ends") else 32 << 10)
"""


@pytest.mark.parametrize("level", LEVELS)
async def test_a_downloaded_folder_takes_no_more_disk_than_in_the_session(level, tmp_path):
    async with LocalSandbox(level=level, preload=()) as sandbox, await sandbox.session(hint="") as session:
        assert (await session.run_cell(HOLES)).status == "ok"
        await session.download_folder(".", tmp_path)
        for path in tmp_path.iterdir():
            assert path.read_bytes() == await session.read_file(path.name)
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) < 512 << 10


@pytest.mark.parametrize("level", LEVELS)
async def test_what_is_too_large_to_be_fetched_is_told(level):
    code = "for n in range(3):\n    with open(f'{n}', 'wb') as file: file.truncate(96 << 20)"
    limits = Limits(file_mb=96, disk_mb=512)
    async with LocalSandbox(level=level, preload=(), limits=limits) as sandbox:
        result = await sandbox.run(code, fetch_files=[str(n) for n in range(3)])
    assert {name: len(data) for name, data in result.files.items()} == dict.fromkeys("01", 96 << 20)
    assert result.ok
    assert result.message.startswith("not fetched: '2' has 100663296 bytes")
