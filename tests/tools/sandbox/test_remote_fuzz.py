"""Whatever bytes a server sends, a call ends with a result or a `ConfigError`: no other exception, no hang."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.sandbox.stand_ins import CELL, RAN, SESSION, TOOLGYM, StandIn, answer
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.http.client import CallError, GarbledError
from toolgym.tools.http.session import HttpResponse
from toolgym.tools.sandbox import RemoteSandbox, Retries
from toolgym.tools.sandbox.base import CellResult, ExecutionResult
from toolgym.tools.sandbox.remote import response_parsing

TEXT = st.text(st.characters(), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def changed(good):
    """A good answer with some of its fields replaced."""
    return st.dictionaries(st.sampled_from(sorted(good)), JSON, max_size=3).map(lambda bad: good | bad)


RUN = changed(RAN["run_result"]).map(lambda bad: RAN | {"run_result": bad})
LIKELY = (
    changed(RAN)
    | RUN
    | changed(SESSION)
    | changed(CELL | {"result": "1", "display": [], "error": None, "duration": 1.0, "alive": True})
)
BODIES = st.binary(max_size=40) | (JSON | LIKELY).map(lambda data: json.dumps(data).encode())
READERS = [
    response_parsing.read_run_code,
    response_parsing.read_sessions,
    response_parsing.read_cell,
    response_parsing.read_exec,
    response_parsing.read_content,
    response_parsing.read_nothing,
]


@pytest.mark.parametrize("read", READERS)
@given(body=BODIES, status=st.sampled_from([200, 200, 200, 201, 204, 404, 422, 500]))
def test_reading(read, body, status):
    try:
        found = read(HttpResponse(status, {}, body))
    except (GarbledError, CallError):
        return
    except ConfigError:
        if status == 422:
            return
        raise
    if isinstance(found, ExecutionResult | CellResult):
        assert found.duration * 0 == 0, "a number of seconds that is one"
        json.dumps([found.stdout, found.stderr, found.message])


ONCE = Retries(attempts=1, connect_timeout=30, attempt_margin=30, patience=30)
HEADS = st.sampled_from(
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 429 X\r\nRetry-After: 1\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 999999 X\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 302 X\r\nLocation: \xff\r\nConnection: close\r\n\r\n",
    ]
)


@given(raw=st.tuples(HEADS, st.binary(max_size=60)).map(b"".join))
def test_raw_bytes_on_the_wire(raw):
    async def all_of_it():
        async with (
            StandIn(answer(SESSION, 201), raw, about=TOOLGYM) as server,
            RemoteSandbox(server.url, retries=ONCE) as sandbox,
        ):
            session = await sandbox.session()
            async with asyncio.timeout(120):
                ran = await sandbox.run("1", timeout=0.1)
                cell = await session.run_cell("1", timeout=0.1)
                assert {ran.status.value, cell.status.value} == {"sandbox_error"}
                with pytest.raises(SandboxError):
                    await session.fork()
            server.answers = [answer(b"", 204)]

    asyncio.run(all_of_it())
