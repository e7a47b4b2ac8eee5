"""Load, limits and rude clients: what one does harms no other, and none waits without end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import time

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.actors import until
from toolgym.tools.serving.admission import BusyError, Gate

HELLO = {"code": "print('hello')", "language": "python"}


def sleeping(seconds, **fields):
    return {"code": f"import time; time.sleep({seconds})", "language": "python", **fields}


def sleeping_for_long():
    return sleeping(600, run_timeout=600)


async def post(http, service, body, **kwargs):
    async with http.post(f"{service.url}/run_code", json=body, **kwargs) as response:
        return response.status, dict(response.headers), await response.json()


async def read_all(reader, timeout=60.0):
    """What a server sends until it closes; b"" also when it cuts the connection."""
    try:
        return await asyncio.wait_for(reader.read(), timeout)
    except ConnectionError:
        return b""


@pytest.fixture
async def dial():
    """Opens bare connections, and closes them in the end."""
    writers = []

    async def open_one(service, **kwargs):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port, **kwargs)
        writers.append(writer)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def metric(http, service, name, **labels):
    """The sum of the samples of that name with those labels; each has the number of its worker."""
    async with http.get(f"{service.url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = [sample for family in families for sample in family.samples if sample.name == f"toolgym_sandbox_{name}"]
    assert all(sample.labels["worker"] == "0" for sample in samples)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


async def test_full_is_told_and_the_queue_is_served_in_order(serve, http):
    service = await serve(max_concurrency=1, max_queue=2)
    first = asyncio.create_task(post(http, service, sleeping_for_long()))
    await until(lambda: service.app.gate.running == 1)
    waiting = [asyncio.create_task(post(http, service, HELLO)) for _ in range(2)]
    await until(lambda: service.app.gate.waiting == 2)
    status, headers, body = await post(http, service, HELLO)
    assert (status, int(headers["Retry-After"]) >= 1) == (429, True)
    assert "1 running and 2 waiting" in body["detail"]
    first.cancel()
    assert [(await one)[2]["run_result"]["stdout"] for one in waiting] == ["hello\n"] * 2
    assert (await post(http, service, HELLO))[0] == 200
    assert await metric(http, service, "requests_total", endpoint="/run_code", code="429") == 1
    assert await metric(http, service, "requests_total", endpoint="/run_code", code="200") == 3


async def test_the_wait_is_bounded_and_does_not_count_as_run_time(serve, http):
    service = await serve(max_concurrency=1)
    for seconds in (1, 20):  # the second time for a busy machine, which may need so long for the program
        first = asyncio.create_task(post(http, service, sleeping(seconds, run_timeout=60)))
        await until(lambda: service.app.gate.running == 1)
        # It waits for longer than it may run.
        status, _, body = await post(http, service, {**HELLO, "run_timeout": 0.8 * seconds})
        await first
        if body["status"] == "Success":
            break
    assert (status, body["status"]) == (200, "Success")
    service = await serve(max_concurrency=1, queue_timeout=1)
    first = asyncio.create_task(post(http, service, sleeping_for_long()))
    await until(lambda: service.app.gate.running == 1)
    began = time.monotonic()
    status, headers, _ = await post(http, service, HELLO)
    assert (status, "Retry-After" in headers, 1 <= time.monotonic() - began < 60) == (429, True, True)
    first.cancel()


async def test_programs_that_sleep_hold_slots_and_no_processors(serve, http):
    service = await serve(max_concurrency=20, max_computing=1)
    gate = service.app.gate
    sleeping = [asyncio.create_task(post(http, service, sleeping_for_long())) for _ in range(19)]
    await until(lambda: gate.running == 19)
    assert (await post(http, service, HELLO))[0] == 200  # a slot and the processor's place are free
    sleeping.append(asyncio.create_task(post(http, service, sleeping_for_long())))
    await until(lambda: gate.running == 20)
    sleeping.append(asyncio.create_task(post(http, service, sleeping_for_long())))
    await until(lambda: gate.waiting == 1)  # for a slot, of which sleepers need one each
    for task in sleeping:
        task.cancel()
    await until(lambda: (gate.running, gate.waiting) == (0, 0))
    assert service.app.sandbox.cpu_slots.computing.in_use == 0


async def test_programs_cells_and_commands_that_compute_wait_for_each_other(serve, http):
    service = await serve(max_concurrency=20, max_computing=1, queue_timeout=60)
    gate = service.app.gate
    async with http.post(f"{service.url}/sessions") as response:
        session = f"{service.url}/sessions/{(await response.json())['id']}"
    spin = "import time; began = time.time(); end = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
    code = f"{spin}print(began, time.time())"

    async def run():
        return (await post(http, service, {"code": code, "language": "python"}))[2]["run_result"]["stdout"]

    async def ask(path, body):
        async with http.post(f"{session}/{path}", json=body) as response:
            return (await response.json())["stdout"]

    for _ in range(4):  # on a busy machine a program that begins may wait for so long that it seems to sleep
        cell, command = ask("cells", {"code": code}), ask("exec", {"argv": ["python3", "-c", code]})
        jobs = [asyncio.create_task(one) for one in (run(), cell, command, run())]
        most = 0
        while not all(job.done() for job in jobs):
            most = max(most, gate.running)
            await asyncio.sleep(0.005)
        spans = sorted(tuple(map(float, job.result().split())) for job in jobs)
        apart = all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        if apart and most == 1:
            break
    assert apart, spans
    assert most == 1


async def test_the_wait_for_a_processor_is_bounded_too(serve, http):
    service = await serve(max_concurrency=20, max_computing=1, queue_timeout=0.5)
    spinning = asyncio.create_task(post(http, service, {**HELLO, "code": "while True: pass", "run_timeout": 600}))
    await until(lambda: service.app.gate.running == 1)
    for _ in range(4):  # on a busy machine a program that begins may wait for so long that it seems to sleep
        status, headers, _ = await post(http, service, HELLO)
        if status == 429:
            break
    assert (status, "Retry-After" in headers) == (429, True)
    spinning.cancel()
    await until(lambda: service.app.gate.running == 0)
    assert (await post(http, service, HELLO))[0] == 200


async def test_a_client_that_goes_away_ends_its_program_and_its_wait(serve, http):
    service = await serve(max_concurrency=1)
    first = asyncio.create_task(post(http, service, sleeping_for_long()))
    await until(lambda: service.app.gate.running == 1)
    second = asyncio.create_task(post(http, service, HELLO))
    await until(lambda: service.app.gate.waiting == 1)
    second.cancel()
    await until(lambda: service.app.gate.waiting == 0)
    first.cancel()
    await until(lambda: service.app.gate.running == 0)
    assert (await post(http, service, HELLO))[0] == 200  # and the place is free
    async with asyncio.timeout(60):
        while await metric(http, service, "disconnects_total") != 2:
            await asyncio.sleep(0.02)


async def test_too_long_a_body(serve, http):
    service = await serve(body_limit_mb=0.01)
    long = {**HELLO, "stdin": "x" * 20_000}
    assert (await post(http, service, long))[0] == 413
    data = json.dumps(long).encode()

    async def chunks():  # no Content-Length
        for at in range(0, len(data), 5000):
            yield data[at : at + 5000]

    async with http.post(f"{service.url}/run_code", data=chunks()) as response:
        assert response.status == 413
    async with http.post(  # small on the wire only
        f"{service.url}/run_code", data=gzip.compress(data), headers={"Content-Encoding": "gzip"}
    ) as response:
        assert response.status == 413
    assert (await post(http, service, HELLO))[0] == 200


async def test_all_bodies_together_are_bounded(serve, http, dial):
    service = await serve(bodies_limit_mb=0.1)
    slow, answers = [], []
    for _ in range(4):
        reader, writer = await dial(service)
        writer.write(b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + b" " * 30000)
        slow.append(writer)
        answers.append(asyncio.create_task(reader.readline()))
    # Three of them are held once there is no room for the fourth.
    done, held = await asyncio.wait(answers, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result().split()[1] for one in done] == [b"429"]
    status, headers, _ = await post(http, service, {**HELLO, "stdin": "x" * 40_000})
    assert (status, "Retry-After" in headers) == (429, True)
    for writer in slow:
        writer.close()
    await until(lambda: service.app.in_flight == 0)
    await asyncio.wait(held)
    assert (await post(http, service, {**HELLO, "stdin": "x" * 40_000}))[0] == 200


async def test_slow_clients_hold_nothing(serve, http, dial):
    service = await serve(read_timeout=0.5, write_timeout=0.5, keepalive_timeout=0.5, max_concurrency=1)

    async def patient(ask):
        """A busy machine may itself be slower than these deadlines, and then it asks again."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    return await ask()

    async def hello():
        status, _, _ = await post(http, service, HELLO)
        if status == 408:
            raise aiohttp.ClientError("the body came too slowly")
        assert status == 200

    async def disconnects():
        return await metric(http, service, "disconnects_total")

    silent, _ = await dial(service)
    half, writer = await dial(service)
    writer.write(b"POST /run_code HTTP/1.1\r\nHos")
    slow, writer = await dial(service)
    writer.write(b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await patient(hello)
    assert await read_all(silent) == b""
    assert await read_all(half) == b""
    assert (await read_all(slow)).startswith(b"HTTP/1.1 408")
    before = await patient(disconnects)
    deaf, writer = await dial(service, limit=1024)
    body = json.dumps({"code": "print('x' * 900_000)", "language": "python"}).encode()
    for _ in range(30):  # far more than the kernel's buffers hold
        writer.write(b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    end = time.monotonic() + 60
    while await patient(disconnects) == before:
        await patient(hello)
        assert time.monotonic() < end
    assert len(await read_all(deaf)) < 25_000_000


async def test_what_is_no_request_is_told_and_fills_no_log(serve, http, dial, caplog):
    service = await serve()
    packed = b"POST /run_code HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    for sent, status in (
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"GARBAGE\r\n\r\n", b"400"),
        (packed, b"400"),
    ):
        reader, writer = await dial(service)
        writer.write(sent)
        assert (await asyncio.wait_for(reader.readline(), 60)).split()[1] == status
        writer.transport.abort()
    # A client that goes away while its answer is on its way.
    for _ in range(10):
        _, writer = await dial(service)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        await asyncio.sleep(0)
        writer.transport.abort()
    assert (await post(http, service, HELLO))[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_expect_continue(serve, dial):
    service = await serve()
    reader, writer = await dial(service)
    body = json.dumps(HELLO).encode()
    head = b"POST /run_code HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 100")
    writer.write(body)
    assert b"hello" in await read_all(reader)
    writer.close()


async def test_too_many_connections(serve, http, dial):
    service = await serve(max_connections=5)
    held = [await dial(service) for _ in range(5)]
    one_more, _ = await dial(service)
    assert await read_all(one_more) == b""
    for _, writer in held:
        writer.close()
    status = None
    async with asyncio.timeout(60):
        while status is None:  # until the server has seen that there is room
            with contextlib.suppress(aiohttp.ClientError):
                status, _, _ = await post(http, service, HELLO)
    assert status == 200


async def test_token(serve, http):
    service = await serve(token="open sesame".replace(" ", "-"))
    for header in ({}, {"Authorization": "Bearer open-sesamf"}, {"Authorization": "Basic open-sesame"},
                   {"Authorization": "Bearer "}, {"Authorization": "Bearer \u00e4"}):  # fmt: skip
        for path in ("/run_code", "/run_jupyter", "/sessions", "/sessions/w0-x/cells"):
            async with http.post(f"{service.url}{path}", json=HELLO, headers=header) as response:
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    async with http.get(f"{service.url}/metrics") as response:
        assert response.status == 401
    for path in ("/health", "/v1/ping"):
        async with http.get(f"{service.url}{path}") as response:
            assert response.status == 200
    for scheme in ("Bearer", "bearer"):
        assert (await post(http, service, HELLO, headers={"Authorization": f"{scheme} open-sesame"}))[0] == 200


@pytest.mark.long
async def test_a_thousand_at_once(serve, http):
    service = await serve(queue_timeout=300)
    answers = await asyncio.gather(*(post(http, service, {**HELLO, "stdin": str(n)}) for n in range(1000)))
    assert {status for status, _, _ in answers} == {200}
    assert {body["run_result"]["stdout"] for _, _, body in answers} == {"hello\n"}


async def test_what_the_server_gets_wrong_is_500_and_harms_no_other(serve, http, monkeypatch, caplog):
    service = await serve()

    async def broken(*args, **kwargs):
        raise ZeroDivisionError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(service.app.sandbox, "execute", broken)
        status, _, body = await post(http, service, HELLO)
    assert (status, body["traceback"]) == (500, [])
    assert "a mistake" not in body["detail"]
    assert "a mistake" in caplog.text
    assert (await post(http, service, HELLO))[0] == 200


async def test_a_sandbox_that_fails_is_a_sandbox_error(serve, http):
    service = await serve()
    await service.app.sandbox.close()
    status, _, body = await post(http, service, HELLO)
    assert (status, body["status"], body["run_result"]["status"]) == (200, "SandboxError", "Error")
    async with http.post(f"{service.url}/run_jupyter", json={"cells": ["1"]}) as response:
        body = await response.json()
    assert (body["status"], body["driver"]["status"], body["cells"]) == ("SandboxError", "Error", [])
    async with http.post(f"{service.url}/sessions") as response:
        assert response.status == 503


async def test_metrics(serve, http):
    service = await serve()
    await post(http, service, HELLO)
    await post(http, service, sleeping(9, run_timeout=0.2))
    at = {"endpoint": "/run_code"}
    assert await metric(http, service, "executions_total", status="ok", **at) == 1
    assert await metric(http, service, "executions_total", status="timeout", **at) == 1
    assert await metric(http, service, "request_seconds_bucket", le="0.1", **at) <= 1  # how quick one is, is open
    assert 0.2 <= await metric(http, service, "request_seconds_sum", **at) < 60
    assert await metric(http, service, "request_seconds_bucket", le="+Inf", **at) == 2
    assert await metric(http, service, "queue_seconds_count") == 2
    for gauge, value in {"in_flight": 0, "running": 0, "queue_length": 0, "sessions": 0}.items():
        assert await metric(http, service, gauge) == value
    async with http.get(f"{service.url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = [line.split()[2] for line in (await response.text()).splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    assert len([name for name in families if name.startswith("toolgym_sandbox_")]) == 10
    assert "process_resident_memory_bytes" in families


async def test_a_gate_loses_no_slot_when_those_who_wait_give_up():
    gate = Gate(3, 50, 0.05)
    entered = 0

    async def visit(number):
        nonlocal entered
        try:
            async with gate.slot():
                entered += 1
                assert gate.running <= 3
                await asyncio.sleep(0.001 * (number % 7))
        except BusyError:
            pass

    for _ in range(20):
        tasks = [asyncio.create_task(visit(number)) for number in range(60)]
        await asyncio.sleep(0.003)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (gate.running, gate.waiting) == (0, 0)
    assert entered >= 60  # three in each round, however slow the machine is
