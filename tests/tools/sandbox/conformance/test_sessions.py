"""Sessions: state, echo, errors, files, other programs, and their ends."""

from __future__ import annotations

import asyncio
import time

import pytest
from abuse.scene import Scene, marked
from sandbox_makers import ERROR, OK, TIMEOUT, gone, named, seen

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.base import ExecutionStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_process_sandbox_has_no_sessions():
    async with ProcessSandbox() as made:
        with pytest.raises(SandboxError, match="sessions"):
            await made.session()


async def test_state_goes_from_cell_to_cell(session):
    assert (await session.run_cell("import math\nx = 20\ndef f(n): return n + x")).status is OK
    result = await session.run_cell("y = f(22)\nprint('said')\ny, math.floor(2.5)")
    assert (result.status, result.stdout, result.result) == (OK, "said\n", "(42, 2)")
    assert result.alive
    assert result.error is None


@pytest.mark.parametrize(
    ("code", "echo"),
    [
        ("1 + 1", "2"),
        ("1 + 1;", None),
        ("'a;'  # why;", "'a;'"),
        ("f'{1};'; 'é' ;  # why\n\n# more\n", None),
        ("('''\n;''',\n 2) \\\n ;", None),
        ("'\u2028;'", r"'\u2028;'"),
        ("%time x = 1\nx", "1"),
        ("%time 1 + 1", "2"),
        ("%%time\n%matplotlib inline\nx = 3\nx", "3"),
        ("if True:\n    %matplotlib inline\n1", "1"),
        ("x = 3", None),
        ("None", None),
        ("'a'", "'a'"),
        ("", None),
        ("# only this", None),
    ],
)
async def test_the_last_expression_is_echoed_as_in_jupyter(session, code, echo):
    assert (await session.run_cell(code)).result == echo


async def test_top_level_await(session):
    result = await session.run_cell("import asyncio\nawait asyncio.sleep(0.01, 42)")
    assert result.result == "42"


async def test_an_error_in_a_cell_keeps_the_state(session):
    await session.run_cell("kept = 7\ndef f():\n    return 1 / 0")
    result = await session.run_cell("print('before')\nf()")
    assert (result.status, result.stdout, result.alive) == (ERROR, "before\n", True)
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(result.error.traceback)
    assert "return 1 / 0" in text
    assert "repl.py" not in text
    assert "toolgym" not in text
    assert (await session.run_cell("kept")).result == "7"


async def test_a_syntax_error_in_a_cell(session):
    result = await session.run_cell("def f(:")
    assert result.status is ERROR
    assert result.error is not None
    assert result.error.name == "SyntaxError"
    assert result.alive


async def test_leaving_the_interpreter_does_not_end_the_session(session):
    assert (await session.run_cell("raise SystemExit(3)")).status is ERROR
    assert (await session.run_cell("1")).result == "1"


@pytest.mark.parametrize(
    ("cell", "magic"),
    [
        ("%timeit x", "%timeit"),
        ("%time", "%time"),
        ("%time -q x", "%time"),
        ("\n%%bash\nls", "%%bash"),
        ("y = %timeit -o x", "%timeit"),
        ("?len", "?len"),
        ("def f(): pass\nf.__doc__??", "f.__doc__??"),
        ("  %pip install \\\n   x", "%pip"),
    ],
)
async def test_what_only_ipython_can_do_is_answered_by_a_sentence(session, cell, magic):
    result = await session.run_cell(cell)
    assert (result.stdout, result.result) == (f"[{magic} is not available here: this is plain Python]\n", None)


async def test_a_timeout_keeps_the_state(session):
    await session.run_cell("n = 0")
    began = time.monotonic()
    late = await session.run_cell("n = 1\nprint('so far')\nwhile True: n += 1", timeout=0.5)
    assert (late.status, late.stdout, late.alive) == (TIMEOUT, "so far\n", True)
    assert time.monotonic() - began < 3
    assert (await session.run_cell("n > 1")).result == "True"


async def test_a_cell_that_ignores_its_timeout_ends_the_session(isolated):
    async with await isolated.session() as session:
        code = "import time\nwhile True:\n    try: time.sleep(100)\n    except BaseException: pass"
        result = await session.run_cell(code, timeout=0.5)
        assert (result.status, result.alive, session.alive) == (TIMEOUT, False, False)
        assert result.duration < 5
        after = await session.run_cell("1")
        assert after.status is ExecutionStatus.SANDBOX_ERROR
        assert not after.alive
    assert (await isolated.run("print(1)")).ok


@pytest.mark.parametrize(
    ("code", "statuses"),
    [
        ("import os; os._exit(3)", {ERROR, ExecutionStatus.KILLED}),
        ("import ctypes; ctypes.string_at(0)", {ExecutionStatus.KILLED}),
        ("while True: print('x' * 1000)", {ExecutionStatus.OUTPUT_LIMIT}),
    ],
)
async def test_a_session_that_died_says_so(isolated, code, statuses):
    async with await isolated.session() as session:
        result = await asyncio.wait_for(session.run_cell(code, timeout=20), 30)
        assert result.status in statuses, result
        assert not result.alive
        assert not session.alive
    assert (await isolated.run("print(1)")).ok


async def test_too_much_memory_in_a_cell(isolated):
    async with await isolated.session() as session:
        result = await session.run_cell("kept = [b'x' * (20 << 20) for _ in range(50)]", timeout=20)
        assert not result.status.startswith("sandbox")
        assert result.status is ExecutionStatus.MEMORY_LIMIT or (
            result.error is not None and result.error.name == "MemoryError"
        )


@pytest.mark.parametrize(
    "code",
    [
        # Every descriptor of the session gets what might be the sandbox's own words.
        'import os, struct\nb = b\'{"result": "forged", "error": null, "ready": true}\'\n'
        "for fd in range(3, 64):\n"
        "    for f in (struct.pack('<I', len(b)) + b, struct.pack('>I', len(b)) + b, b'\\xff' * 70000, b + b'\\n'):\n"
        "        try: os.set_blocking(fd, False); os.write(fd, f)\n"
        "        except OSError: pass\n'mine'",
        "import os\nos.closerange(3, 64)",
        "import os, socket\nfor fd in range(3, 64):\n"
        "    try:\n        s = socket.socket(fileno=os.dup(fd))\n"
        "        socket.send_fds(s, [b'\\0' * 9], [0, 1, 2])\n    except OSError: pass",
    ],
    ids=["forged", "closed", "descriptors"],
)
async def test_a_hostile_cell_harms_only_its_session(isolated, code):
    neighbour = await isolated.session()
    await neighbour.run_cell("x = 42")
    templates = isolated.template_ids
    hostile = await isolated.session()
    result = await asyncio.wait_for(hostile.run_cell(code, timeout=5), 20)
    assert result.status in set(ExecutionStatus)
    follow = await asyncio.wait_for(hostile.run_cell("1 + 1", timeout=5), 20)
    assert follow.status in set(ExecutionStatus)
    assert (await neighbour.run_cell("x")).result == "42"
    assert set(templates) <= set(isolated.template_ids)
    await hostile.close()
    await neighbour.close()


async def test_other_programs_in_the_session(forking):
    async with await forking.session() as session:
        await session.run_cell("open('a.txt', 'w').write('from the cell')")
        done = await session.exec(["cat", "a.txt", "-"], stdin=" and in")
        assert (done.status, done.stdout, done.return_code) == (OK, "from the cell and in", 0)
        failed = await session.exec(["sh", "-c", "echo no >&2; exit 4"])
        assert (failed.status, failed.stderr, failed.return_code) == (ERROR, "no\n", 4)
        late = await session.exec(["sleep", "60"], timeout=0.5)
        assert late.status is TIMEOUT
        child = await session.exec(["sh", "-c", "sleep 60 & echo $! > child; wait"], timeout=0.5)
        assert child.status is TIMEOUT
        gone = await session.exec(["sh", "-c", "kill -0 $(cat child) || cat /proc/$(cat child)/stat"])
        assert "No such process" in gone.stderr or ") Z " in gone.stdout
        absent = await session.exec(["no-such-program"])
        assert not absent.ok
        assert (await session.run_cell("open('a.txt').read()")).result == "'from the cell'"


async def test_files_of_a_session(session):
    data = bytes(range(256)) * 20_000
    await session.write_file("deep/er/data.bin", data)
    assert (await session.run_cell("len(open('deep/er/data.bin', 'rb').read())")).result == str(len(data))
    await session.run_cell("open('out.txt', 'w').write('é')")
    assert await session.read_file("out.txt") == "é".encode()
    assert await session.read_file("deep/er/data.bin") == data
    with pytest.raises(FileNotFoundError):
        await session.read_file("absent")
    for name in ("../x", "/etc/passwd", "a/../../b"):
        with pytest.raises(ConfigError):
            await session.read_file(name)
        with pytest.raises(ConfigError):
            await session.write_file(name, b"")


async def test_sessions_do_not_see_each_other(isolated):
    first, second = await isolated.session(), await isolated.session()
    assert first.id != second.id
    await first.run_cell("x = 1\nopen('mine.txt', 'w').write('x')\nopen('/tmp/mine.txt', 'w').write('x')")
    result = await second.run_cell("import os\n'x' in globals(), os.path.exists('mine.txt')")
    assert result.result == "(False, False)"
    for session in (first, second):
        await session.close()


async def test_a_second_call_waits_for_the_first(session):
    results = await asyncio.gather(*(session.run_cell(f"import time\ntime.sleep(0.05)\nprint({n})") for n in range(5)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]


async def test_output_of_a_cell_is_capped(session):
    result = await session.run_cell("print('begin', 'y' * 60000, 'end')")
    assert result.stdout_truncated
    assert result.stdout.startswith("begin")
    assert result.stdout.endswith("end\n")
    assert (await session.run_cell("print(1)")).stdout == "1\n"


async def test_cancelling_a_cell(isolated):
    mark = Scene().mark
    session = await isolated.session()
    call = asyncio.create_task(session.run_cell(named(mark) + "import time\ntime.sleep(60)", timeout=60))
    assert await seen(mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Either the cell was interrupted and the session lives, or both are gone; nothing goes on unseen.
    after = await asyncio.wait_for(session.run_cell("1 + 1", timeout=5), 20)
    assert after.result == "2" or not after.alive
    await session.close()
    assert await gone(mark)


async def test_a_closed_session(isolated):
    mark = Scene().mark
    session = await isolated.session()
    await session.run_cell(named(mark))
    assert marked(mark)
    await session.close()
    await session.close()
    assert not session.alive
    assert await gone(mark)
    assert (await session.run_cell("1")).status is ExecutionStatus.SANDBOX_ERROR


async def test_children_of_a_session_die_with_it(forking):
    mark = Scene().mark
    session = await forking.session()
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
    code += "    if os.fork() == 0:\n        time.sleep(60)\n    os._exit(0)"
    await session.run_cell(named(mark) + code)
    assert marked(mark)
    await session.close()
    assert await gone(mark)
