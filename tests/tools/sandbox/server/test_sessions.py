"""`/sessions`: state that stays from call to call."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors import until


async def call(http, method, url, expect=200, **kwargs):
    async with http.request(method, url, **kwargs) as response:
        assert response.status == expect, await response.text()
        return await (response.json() if response.content_type == "application/json" else response.read())


async def opened(http, url, **fields):
    made = await call(http, "POST", f"{url}/sessions", 201, json=fields)
    return f"{url}/sessions/{made['id']}"


async def cell(http, session, code, **fields):
    return await call(http, "POST", f"{session}/cells", json={"code": code, **fields})


async def test_a_life(shared_url, http):
    session = await opened(http, shared_url, files={"given": "aGVsbG8="})
    assert (await cell(http, session, "x = open('given').read()"))["status"] == "ok"
    shown = await cell(http, session, "print(1)\nx")
    assert (shown["stdout"], shown["result"], shown["alive"]) == ("1\n", "'hello'", True)
    failed = await cell(http, session, "1/0")
    assert (failed["status"], failed["error"]["name"], failed["alive"]) == ("error", "ZeroDivisionError", True)
    info = await call(http, "GET", session)
    assert (info["alive"], info["cells"], info["idle"] >= 0) == (True, 3, True)
    await call(http, "DELETE", session, 204)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cells"), ("POST", "/fork"), ("GET", "/files/x")):
        gone = await call(http, method, session + path, 404, json={"code": "1"})
        assert "no session" in gone["detail"]


async def test_files_and_programs(shared_url, http):
    session = await opened(http, shared_url)
    data = bytes(range(256)) * 100
    await call(http, "PUT", f"{session}/files/a/%C3%A4%20b", 204, data=data)
    assert (await cell(http, session, "len(open('a/ä b', 'rb').read())"))["result"] == "25600"
    assert await call(http, "GET", f"{session}/files/a/%C3%A4%20b") == data
    ran = await call(http, "POST", f"{session}/exec", json={"argv": ["sh", "-c", "cat; ls a; exit 3"], "stdin": "in "})
    assert (ran["status"], ran["return_code"], ran["stdout"]) == ("error", 3, "in ä b\n")
    await call(http, "GET", f"{session}/files/absent", 404)
    for name in ("..%2Fx", "a%00b", "%FF", ""):
        wrong = await call(http, "PUT", f"{session}/files/{name}", 422, data=b"")
        assert wrong["detail"][0]["loc"] == ["path", "name"]
    await call(http, "DELETE", session, 204)


async def test_what_is_no_regular_file_is_neither_read_nor_written(shared_url, http):
    session = await opened(http, shared_url)
    await cell(
        http, session, "import os, socket; os.mkfifo('f'); socket.socket(socket.AF_UNIX).bind('s'); os.mkdir('d')"
    )
    for name, reason, said in (
        ("f", "file", "not a regular file"),
        ("s", "file", "not a regular file"),
        ("d", "is_folder", "Is a directory"),
    ):
        for method, rest in (("GET", {}), ("PUT", {"data": b"1"})):
            wrong = await call(http, method, f"{session}/files/{name}", 409, **rest)
            assert (wrong["reason"], said in wrong["detail"]) == (reason, True)
    assert (await cell(http, session, "1"))["result"] == "1"
    await call(http, "DELETE", session, 204)


@pytest.mark.parametrize("words", [["sleep", "60"], None])
async def test_a_call_that_is_cancelled_as_it_begins_does_not_end_the_session(serve, http, words):
    sandbox = (await serve()).app.sandbox
    async with await sandbox.session() as session:
        await session.run_cell("x = 7")
        for after in (0, 0, 0, 0, 0, 0, 0.002, 0.004):
            coroutine = session.exec(words) if words else session.run_cell("import time; time.sleep(60)")
            task = asyncio.create_task(coroutine)
            await asyncio.sleep(after)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (await session.run_cell("x")).result == "7"


async def test_a_fork_is_independent(shared_url, http):
    session = await opened(http, shared_url)
    await cell(http, session, "x = [1]; open('f', 'w').write('old')")
    made = await call(http, "POST", f"{session}/fork", 201)
    fork = f"{shared_url}/sessions/{made['id']}"
    assert made["cells"] == 1
    await cell(http, fork, "x.append(2); open('f', 'w').write('new')")
    assert (await cell(http, session, "x, open('f').read()"))["result"] == "([1], 'old')"
    assert (await cell(http, fork, "x, open('f').read()"))["result"] == "([1, 2], 'new')"
    await call(http, "DELETE", session, 204)
    assert (await cell(http, fork, "x"))["result"] == "[1, 2]"
    await call(http, "DELETE", fork, 204)


async def test_a_timeout_keeps_the_state_and_a_death_ends_the_session(shared_url, http):
    for seconds in (0.4, 10):  # the second time for a busy machine, which may not have begun with it
        session = await opened(http, shared_url, recover=False)
        late = await cell(http, session, "x = 1\nprint('so far')\nimport time; time.sleep(60)", timeout=seconds)
        if late["stdout"]:
            break
    assert (late["status"], late["stdout"], late["alive"]) == ("timeout", "so far\n", True)
    assert (await cell(http, session, "x"))["result"] == "1"
    dead = await cell(http, session, "import os; os._exit(1)")
    assert dead["alive"] is False
    await call(http, "GET", session, 404)


@pytest.mark.parametrize(
    ("path", "body", "loc"),
    [
        ("/cells", {}, ["body", "code"]),
        ("/cells", {"code": "1", "timeout": 0}, ["body", "timeout"]),
        ("/cells", {"code": "1", "timeout": 1e9}, ["body", "timeout"]),
        ("/exec", {"argv": []}, ["body", "argv"]),
        ("/exec", {"argv": ["a\0b"]}, ["body", "argv"]),
        ("/exec", {"argv": ""}, ["body", "argv"]),
        ("/exec", {"argv": ["ls"], "cwd": "../x"}, ["body", "cwd"]),
        ("/exec", {"argv": ["ls"], "env": {"": "x"}}, ["body", "env", ""]),
        ("/exec", {"argv": ["ls"], "stdin_base64": "?"}, ["body", "stdin_base64"]),
        ("/processes", {"argv": ["ls"], "pty": [0, 1]}, ["body", "pty"]),
        ("/processes/x", {"signal": 65}, ["body", "signal"]),
        ("/processes/x", {"wait": 1e9}, ["body", "wait"]),
        ("/files", {"action": "list", "path": "../x"}, ["body", "path"]),
        ("/files", {"action": "move", "path": "x"}, ["body", "to"]),
    ],
)
async def test_bad_calls_name_the_field(shared_url, http, path, body, loc):
    session = await opened(http, shared_url)
    wrong = await call(http, "POST", session + path, 422, json=body)
    assert wrong["detail"][0]["loc"] == loc
    await call(http, "DELETE", session, 204)


async def test_bad_openings_name_the_field(shared_url, http):
    for fields, loc in (
        ({"memory_limit_MB": 10**9}, ["body", "memory_limit_MB"]),
        ({"files": {"../x": ""}}, ["body", "files", "../x"]),
    ):
        wrong = await call(http, "POST", f"{shared_url}/sessions", 422, json=fields)
        assert wrong["detail"][0]["loc"] == loc


async def test_odd_cells(shared_url, http):
    session = await opened(http, shared_url)
    assert (await cell(http, session, "'\\ud800'"))["result"] == "'\\ud800'"
    assert (await cell(http, session, "x = '\ud800'"))["status"] == "error"
    odd = await cell(http, session, "class A:\n    def __repr__(self): return '\\udc80'\nA()")
    assert odd["result"] == "\\udc80"
    assert (await cell(http, session, "raise Exception('\\ud800')"))["error"]["value"] == "\\ud800"
    await call(http, "DELETE", session, 204)


async def test_calls_of_one_session_take_turns_and_hold_no_more_than_one_place(serve, http):
    service = await serve(max_concurrency=2)
    session = await opened(http, service.url)
    await call(http, "POST", f"{session}/exec", json={"argv": ["true"]})  # the first one takes its turn as cells do
    await cell(http, session, "import os, time; seen = []")
    waits = "while not os.path.exists('go'): time.sleep(0.01)\n"
    tasks = []
    for n in range(5):
        code = f"{waits}seen.append({n}); len(seen)"
        tasks.append(asyncio.create_task(cell(http, session, code, timeout=60)))
        await until(lambda: service.app.in_flight == len(tasks) and service.app.gate.running == 1)
    async with http.post(f"{service.url}/run_code", json={"code": "1", "language": "python"}) as response:
        assert response.status == 200  # there was a place for others
    await call(http, "POST", f"{session}/exec", json={"argv": ["touch", "go"]})
    assert [(await task)["result"] for task in tasks] == ["1", "2", "3", "4", "5"]


async def test_as_many_as_may_be(serve, http):
    service = await serve(max_sessions=2)
    first = await opened(http, service.url)
    await opened(http, service.url)
    async with http.post(f"{service.url}/sessions") as response:
        assert (response.status, "Retry-After" in response.headers) == (429, True)
    await call(http, "POST", f"{first}/fork", 429)
    await call(http, "DELETE", first, 204)
    await opened(http, service.url)


async def test_checkpoints_count_as_sessions(serve, http):
    service = await serve(max_sessions=3)
    session = await opened(http, service.url)
    await cell(http, session, "x = 1")
    await call(http, "PUT", f"{session}/checkpoints/a", 204)
    assert (await call(http, "GET", f"{service.url}/health"))["sessions"] == 2
    refused = await call(http, "POST", f"{session}/fork", 429, json={"checkpoint": "a", "n": 2})
    assert "at most 3 sessions" in refused["detail"]
    await opened(http, service.url)
    await call(http, "PUT", f"{session}/checkpoints/b", 429)
    await call(http, "DELETE", session, 204)
    assert (await call(http, "GET", f"{service.url}/health"))["sessions"] == 1
    assert service.app.sandbox.open_sessions == 1


async def test_a_session_that_died_is_kept_for_its_checkpoints(serve, http):
    service = await serve()
    session = await opened(http, service.url, recover=False)
    await cell(http, session, "x = 7")
    await call(http, "PUT", f"{session}/checkpoints/a", 204)
    assert (await cell(http, session, "import os; os._exit(1)"))["alive"] is False
    fork = await call(http, "POST", f"{session}/fork", 201, json={"checkpoint": "a"})
    assert (await cell(http, f"{service.url}/sessions/{fork['id']}", "x"))["result"] == "7"
    await call(http, "DELETE", f"{session}/checkpoints/a", 204)
    await call(http, "GET", session, 404)
    assert service.app.sandbox.open_sessions == 1


async def test_forks_whose_maker_goes_away_are_closed(serve, http):
    service = await serve()
    session = await opened(http, service.url)
    asking = asyncio.create_task(http.post(f"{session}/fork", json={"n": 20}))
    async with asyncio.timeout(60):
        while not service.app.gate.running:
            await asyncio.sleep(0.001)
    asking.cancel()
    await asyncio.wait({asking})
    await until(lambda: service.app.sandbox.open_sessions == 1 and not service.app.gate.running)
    assert (await cell(http, session, "1 + 1"))["result"] == "2"


async def test_idle_sessions_are_closed_and_busy_ones_are_not(serve, http):
    service = await serve(session_idle_timeout=0.6)
    busy = await opened(http, service.url)

    async def work():
        answer = await cell(http, busy, "import time; time.sleep(1.5); 'done'")
        await call(http, "GET", busy)
        return answer["result"]

    working = asyncio.create_task(work())
    idle = await opened(http, service.url)
    async with asyncio.timeout(60):
        while True:
            async with http.get(idle) as response:
                if response.status == 404:
                    break
            await asyncio.sleep(0.05)
    await until(lambda: service.app.sandbox.open_sessions <= 1)  # the sandbox has freed it too
    assert await working == "'done'"


async def test_a_client_that_goes_away_stops_its_cell(serve, http):
    service = await serve()
    session = await opened(http, service.url)
    task = asyncio.create_task(cell(http, session, "import time; time.sleep(600)", timeout=600))
    await until(lambda: service.app.gate.running == 1)
    task.cancel()
    await until(lambda: not service.app.gate.running)


async def test_deleting_a_busy_session_ends_its_cell(serve, http):
    service = await serve()
    session = await opened(http, service.url)
    task = asyncio.create_task(cell(http, session, "import time; time.sleep(600)", timeout=600))
    await until(lambda: service.app.gate.running == 1)
    await call(http, "DELETE", session, 204)
    answer = await asyncio.wait_for(task, 60)
    assert answer["alive"] is False
