"""Programs that try to block the broker, which all children share, and results so large that they could."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import time

import pytest

from tests.tools.sandbox.witness import TELL, beside_a_witness, gone, marking
from toolgym.tools.errors import SandboxFileError
from toolgym.tools.sandbox.base import CellError, ExecutionStatus
from toolgym.tools.sandbox.local import LocalSandbox, probe
from toolgym.tools.sandbox.local.protocol import answer_codec, frames

LEVELS = tuple(probe()["levels"])
FORKING = [level for level in LEVELS if level != "landlock"]
KILLED = ExecutionStatus.KILLED

needs_namespaces = pytest.mark.skipif("namespaces" not in LEVELS, reason="no namespaces here")

LINGER = """
import socket, struct
def unread():
    door = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(door.getsockname())
    far = door.accept()[0]
    near.setblocking(False)
    try:
        while True:
            near.send(b"x" * 65536)
    except BlockingIOError:
        pass
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    return near, far
"""
"""Makes connections whose closing waits ten minutes for a reader; the program holds both ends, and never reads."""

SENT = {
    "for nothing": "send_fds(control, [b'.'], fds)",
    "with a message": "send_fds(control, [b'\\x0f\\0\\0\\0{\"begins\":true}'], fds)",
    "until the queue is full": "\n    [send_fds(control, [b'\\x0f'], fds) for _ in range(40)]",
}


@needs_namespaces
@pytest.mark.parametrize("kind", ["run", "session"])
@pytest.mark.parametrize("sent", SENT)
async def test_files_that_are_slow_to_close_block_no_other_program(sent, kind):
    attack = f"""{LINGER}
import time
from socket import send_fds
control = socket.socket(fileno=3)
control.setblocking(False)
pairs = [unread() for _ in range(2)]
fds = [one.fileno() for pair in (pairs[0], pairs[1][::-1]) for one in pair]
try:
    {SENT[sent]}
except OSError:
    pass
for pair in pairs:
    for one in pair:
        one.close()
time.sleep(20)
"""
    async with beside_a_witness("namespaces", network="loopback") as sandbox:
        if kind == "run":
            assert (await sandbox.run(attack, timeout=10)).status is KILLED
        else:
            session = await sandbox.session()
            assert (await session.run_cell(attack, timeout=10)).status is KILLED
            await session.close()


INTERRUPTED = """
import os, signal, socket, struct, sys, time
from toolgym.tools.sandbox.local.broker.reactor import Reactor
exec(sys.argv[1])
near, far = unread()
reactor = Reactor()
ours, theirs = socket.socketpair()
reactor.watch(ours.fileno(), lambda: (ours.recv(1), near.close()))
theirs.send(b".")
print(reactor.turn(None), near.fileno())
began = time.monotonic()
print(reactor.turn(0.2), time.monotonic() - began >= 0.2)  # what waits for others is not interrupted
"""


def test_what_the_kernel_takes_long_over_is_interrupted():
    command = [sys.executable, "-c", INTERRUPTED, LINGER]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (seen.stdout, seen.stderr) == ("True -1\nFalse True\n", "")


@pytest.mark.parametrize("level", LEVELS)
async def test_no_program_that_says_it_was_compiled_gets_more_time(level):
    """Otherwise its deadline would begin anew each time, until the template process counts as stuck."""
    attack = f"{TELL}\nwhile True:\n    tell(b'{{\"compiled\": 0}}')\n    time.sleep(0.2)"
    async with beside_a_witness(level) as sandbox:
        assert (await sandbox.run(attack, timeout=20)).status is KILLED


FLOODS = {
    "messages": "while True: os.write(3, b'\\x0f\\0\\0\\0{\"begins\":true}' * 3000)",
    "an answer": "os.write(3, struct.pack('<I', 1 << 31 | 1 << 26))\n    while True: os.write(3, bytes(60000))",
    "nothing known": "while True: os.write(3, bytes(60000))",
}


@pytest.mark.parametrize("level", FORKING)
@pytest.mark.parametrize("flood", FLOODS)
async def test_the_last_words_of_a_program_have_an_end(level, flood):
    """Other processes may go on writing to its socket after its end."""
    attack = f"{TELL}\nif os.fork() == 0:\n    {FLOODS[flood]}\ntime.sleep(0.05)\nos._exit(3)"
    async with beside_a_witness(level) as sandbox:
        assert (await sandbox.run(attack, timeout=30)).status in (KILLED, ExecutionStatus.ERROR)
        session = await sandbox.session()
        result = await session.run_cell(attack, timeout=30)
        assert (result.status, result.alive) == (KILLED, False)


async def test_what_a_session_says_unasked_is_no_answer():
    """Nor is it an answer to another request: each request takes one answer, of its own kind."""
    async with beside_a_witness(None) as sandbox:
        for said in ("tell(b'{\"ready\": true}')", "tell(b'{\"done\": true}')"):
            session = await sandbox.session()
            await session.run_cell(f"{TELL}\n{said}\ntime.sleep(20)", timeout=10)
            assert not (await session.run_cell("1")).alive
            await session.close()
        mark = f"unasked{os.getpid()}"
        unasked = f"{marking(mark)}{TELL}\nimport threading\nthreading.Timer(0.2, lambda: answer(b'{{}}')).start()"
        session = await sandbox.session(idle="run")  # a thread that pauses says nothing
        assert (await session.run_cell(unasked)).alive
        await gone(mark)
        assert (await session.run_cell("1")).status is KILLED


# ---------------------------------------------------------------------- large results


def test_an_answer_is_passed_on_unparsed(monkeypatch):
    """The broker parses short messages only, whatever a child sends."""
    parsed = []

    def loads(data):
        parsed.append(len(data))
        return json.JSONDecoder().decode(data.decode())

    monkeypatch.setattr(
        frames.json, "loads", lambda data: parsed.append(len(data)) or json.JSONDecoder().decode(data.decode())
    )
    decoder = frames.ChildDecoder()
    packed = answer_codec.pack({"result": "x" * (40 << 20), "error": None, "why": "", "display": []})
    stream = frames.encode({"a": 1}) + frames.encode_answer(packed) + frames.encode({"b": 2})
    heard = [one for at in range(0, len(stream), 60_000) for one in decoder.feed(stream[at : at + 60_000])]
    assert heard[0] == {"a": 1}
    assert heard[-1] == {"b": 2}
    assert b"".join(part.data for part in heard[1:-1]) == packed
    assert [part.last for part in heard[1:-1]] == [False] * (len(heard) - 3) + [True]
    assert parsed == [7, 7]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (struct.pack("<I", frames.MAX_NOTE + 1), "more than"),
        (struct.pack("<I", 1 << 31), "answer of 0 bytes"),
        (struct.pack("<I", 1 << 31 | frames.MAX_ANSWER + 1), "answer of"),
        (struct.pack("<I", 2) + b"[]", "not a JSON object"),
        (struct.pack("<I", 2) + b"\xff\xfe", "."),
    ],
)
def test_frames_of_children_are_limited(frame, why):
    with pytest.raises(ValueError, match=why):
        list(frames.ChildDecoder().feed(frame))


def test_answers_survive_their_way():
    answer = {
        "result": "é\ud800" * 1000,
        "error": {"name": "E", "value": "v" * 5000, "traceback": ["a\n" * 500, "b"]},
        "why": "",
        "display": [{"text/plain": "p", "text/html": "," * 10**6, "x": {"y": [1, "z"]}}, {"data": "d" * 999}],
    }
    kept = json.dumps(answer)
    assert answer_codec.unpack(answer_codec.pack(answer)) == answer
    assert json.dumps(answer) == kept, "packing leaves what it is given as it is"
    assert answer_codec.unpack(answer_codec.pack({"data": bytes(range(256))})) == {"data": bytes(range(256))}


def packed(head: bytes, data: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("<I", len(head) if size is None else size) + head + data


DEEP = b'{"a":' + b"[" * answer_codec.MAX_DEPTH + b"]" * answer_codec.MAX_DEPTH + b"}"
FORGED = {
    "nothing": b"",
    "a head beyond its end": packed(b"{}", size=3),
    "a head that is too long": packed(b" " * answer_codec.MAX_HEAD + b"{}"),
    "too many parts": packed(b'{"a":[' + b"1," * answer_codec.MAX_PARTS + b"1]}"),
    "too many layers": packed(DEEP),
    "a list": packed(b"[1]"),
    "more than there is": packed(b'{"places":[["a",9]]}', b"12345678"),
    "less than nothing": packed(b'{"places":[["a",-1]]}'),
    "a place that is not": packed(b'{"places":[["a","b",1]]}', b"x"),
    "a place in a text": packed(b'{"a":"b","places":[["a",0,1]]}', b"x"),
    "a place in a number": packed(b'{"a":1,"places":[["a",0,1]]}', b"x"),
    "a place that is no place": packed(b'{"places":[[[],1]]}', b"x"),
    "places that are none": packed(b'{"places":7}'),
    "a text that is none": packed(b'{"places":[["a",1]]}', b"\xff"),
    "an infinite size": packed(b'{"places":[["a",Infinity]]}'),
    "half a size": packed(b'{"places":[["a",0.5]]}', b"x"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_answers_are_recognised(name):
    with pytest.raises(ValueError, match="."):
        answer_codec.unpack(FORGED[name])


def test_the_worst_answers_are_short_work():
    """What the host parses is bounded; this prints what the worst cases cost."""
    commas, size = answer_codec.MAX_PARTS - 10, answer_codec.MAX_HEAD - 20
    worst = {
        "keys": b"{" + b",".join(b'"%x":1' % n for n in range(commas)) + b"}",
        "lists": b'{"a":[' + b"[]," * (commas // 2) + b"1]}",
        "digits": b'{"a":[' + (b"9" * 4300 + b",") * (size // 4301) + b"1]}",
        "spaces": b'{"a":' + b" " * (size - 10) + b"1}",
        "places": b'{"places":[' + b'["a",0],' * (commas // 3 - 1) + b'["a",0]]}',
    }
    for name, head in worst.items():
        began = time.perf_counter()
        answer_codec.unpack(packed(head))
        print(name, f"{(time.perf_counter() - began) * 1000:.0f} ms")
        with pytest.raises(ValueError, match="too"):
            answer_codec.unpack(packed(head[:-1] + b" " * answer_codec.MAX_HEAD + head[-1:]))


@pytest.mark.parametrize("name", FORGED)
async def test_forged_answers_end_their_session(name):
    async with beside_a_witness(None) as sandbox:
        session = await sandbox.session()
        code = f"{TELL}\nbody = open('body', 'rb').read()\n"
        code += "os.write(3, struct.pack('<I', 1 << 31 | len(body)) + body) if len(body) < 999 else [os.write(3, part) "
        code += "for part in (struct.pack('<I', 1 << 31 | len(body)), body)]\ntime.sleep(20)"
        await session.write_file("body", FORGED[name])
        result = await session.run_cell(code, timeout=10)
        assert (result.status, result.alive, session.alive) == (KILLED, False, False)
        assert (await session.run_cell("1")).status is ExecutionStatus.SANDBOX_ERROR  # the caller knows that it is gone


async def test_large_files_come_and_go():
    size = 20 * 10**6 + 1
    async with beside_a_witness(None) as sandbox, await sandbox.session() as session:
        made = await session.run_cell(
            f"import hashlib, random\ndata = random.Random(1).randbytes(1000) * {size // 1000} + b'x'\n"
            "open('large', 'wb').write(data)\nhashlib.sha256(data).hexdigest()"
        )
        data = await session.read_file("large")
        assert len(data) == size
        assert repr(hashlib.sha256(data).hexdigest()) == made.result
        await session.write_file("back/again", data)
        look = await session.run_cell(
            "import filecmp, os\nfilecmp.cmp('large', 'back/again', False), os.remove('large')"
        )
        assert look.result == "(True, None)"
        await session.write_file("back/again", b"short")
        assert await session.read_file("back/again") == b"short"
        await session.run_cell("os.symlink('/dev/zero', 'endless')")
        with pytest.raises(SandboxFileError, match="not a regular file"):
            await session.read_file("endless")
        await session.write_file("exact", bytes(8 << 20))
        assert await session.read_file("exact") == bytes(8 << 20)


@pytest.mark.parametrize("level", LEVELS)
async def test_large_files_of_a_run_are_fetched(level):
    code = "for n in range(3):\n    open(f'{n}', 'wb').write(bytes([n]) * (20_000_001 + n))\n"
    code += "open('empty', 'w').close()\nwith open('sparse', 'wb') as file: file.truncate(33 << 20)"
    async with beside_a_witness(level) as sandbox:
        names = ["2", "absent", "0", "empty", "1", "sparse", "0"]
        result = await sandbox.run(code, fetch_files=names)
        assert result.ok
        assert {name: (len(data), data[:1]) for name, data in result.files.items()} == {
            "2": (20_000_003, b"\2"), "0": (20_000_001, b"\0"), "empty": (0, b""), "1": (20_000_002, b"\1"),
            "sparse": (33 << 20, b"\0"),
        }  # fmt: skip


SHOW = """
class Rich:
    def __init__(self, **forms): self.forms = forms
    def _repr_mimebundle_(self, **_): return {name.replace('_', '/'): data for name, data in self.forms.items()}
    def __repr__(self): return 'rich'
"""


async def test_rich_output_may_be_large():
    async with beside_a_witness(None) as sandbox, await sandbox.session() as session:
        await session.run_cell(SHOW)
        large = "Rich(text_html='<p>é,</p>' * 4_000_000, image_png=b'x' * 3_000_000)"
        cell = await session.run_cell(large, timeout=200)
        assert cell.status is ExecutionStatus.OK
        (shown,) = cell.display
        assert shown["text/html"] == "<p>é,</p>" * 4_000_000
        assert len(shown["image/png"]) == 4_000_000
        cell = await session.run_cell("for n in range(3000): display(Rich(text_html='a, b, c ' * 100))")
        assert len(cell.display) == 3000
        cell = await session.run_cell("Rich(application_json={'a': [1, {'b': None}], 'c': list(range(10_000))})")
        assert cell.display[0]["application/json"]["c"][-1] == 9999


LEFT_OUT = {
    "not JSON": ("Rich(application_json={'a': object()}, text_html='h')", "its application/json, which is not JSON"),
    "a circle": ("x = []; x.append(x); Rich(application_json=x, text_html='h')", "which is not JSON"),
    "deep": ("x = []\nfor _ in range(10**5): x = [x]\nRich(application_json=x, text_html='h')", "which is not JSON"),
    "parts": ("Rich(application_json=list(range(10**5)), text_html='h')", "which has too many parts"),
    "size": ("Rich(application_json={'a': 'x' * (2 << 20)}, text_html='h')", "which is too large"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
async def test_rich_output_that_cannot_go_is_named(name):
    code, why = LEFT_OUT[name]
    async with beside_a_witness(None) as sandbox, await sandbox.session() as session:
        await session.run_cell(SHOW)
        cell = await session.run_cell(code)
        assert (cell.status, cell.result) == (ExecutionStatus.OK, "rich")
        assert why in cell.display[0]["text/plain"]
        assert cell.display[0]["text/html"] == "h"


async def test_far_too_much_rich_output_is_named_and_the_rest_kept():
    async with beside_a_witness(None) as sandbox, await sandbox.session(memory_mb=2000) as session:
        await session.run_cell(SHOW)
        for code in ("Rich(text_html='x' * (65 << 20))", "for _ in range(40_000): display(Rich(text_html='h'))\n1 / 0"):
            cell = await session.run_cell(code, timeout=200)
            assert cell.alive
            assert "left out" in cell.display[0]["text/plain"]
            assert len(cell.display) == 1
        assert isinstance(cell.error, CellError)
        assert cell.error.name == "ZeroDivisionError"
        long = await session.run_cell("raise ValueError('x' * 10**6)")
        assert long.error is not None
        assert long.error.value.endswith("[934464 characters cut]")
        assert (await session.run_cell("1")).result == "1"


async def test_a_sandbox_of_one_template_answers_others_while_it_fetches():
    """Files are read in steps, and short requests are answered in between."""
    code = "for n in range(6):\n    with open(f'{n}', 'wb') as file: file.truncate(32 << 20)"
    async with LocalSandbox(preload=[], templates=1) as sandbox, await sandbox.session() as session:
        order = []

        async def fetch():
            result = await sandbox.run(code, fetch_files=[f"{n}" for n in range(6)])
            order.append("files")
            assert [len(data) for data in result.files.values()] == [32 << 20] * 6

        async def ask():
            for _ in range(5):
                await session.run_cell("import time; time.sleep(0.02)")
            order.append("cells")

        await asyncio.gather(fetch(), ask())
        assert sorted(order) == ["cells", "files"]


def test_a_socket_is_closed_without_its_queue():
    """The tests above rely on this: the kernel flags a message whose descriptors are not taken."""
    near, far = socket.socketpair()
    with near, far:
        socket.send_fds(far, [b"."], [far.fileno()])
        assert near.recvmsg(10)[2] & socket.MSG_CTRUNC
