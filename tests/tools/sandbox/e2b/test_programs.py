"""Programs of a sandbox over Connect streams: output, input, signals, terminals, and streams that end early."""

from __future__ import annotations

import asyncio
import base64
import json

import aiohttp
import pytest

from tests.tools.sandbox.e2b.conftest import FRAME


def b64(text):
    return base64.b64encode(text.encode()).decode()


async def started(stream):
    _, message = await anext(stream)
    return message["event"]["start"]["pid"]


async def test_a_command_streams_its_output_and_its_end(box):
    out, err, end = await box.run("echo hello; echo oops >&2; exit 3", envs={"A": "1"}, cwd="/tmp")
    assert (out, err) == ("hello\n", "oops\n")
    assert end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    rows = await box.events("Start", process={"cmd": "/bin/true"}, stdin=False)
    assert rows[-1] == (2, {})
    assert rows[-2] == (0, {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}})


async def test_output_comes_while_the_command_runs(box):
    command = {"cmd": "/bin/bash", "args": ["-c", "echo first; read line; echo $line"]}
    async with box.streaming("Start", process=command, stdin=True) as stream:
        pid = await started(stream)
        _, message = await anext(stream)
        assert message == {"event": {"data": {"stdout": b64("first\n")}}}
        await box.rpc("SendInput", process={"pid": pid}, input={"stdin": b64("second\n")})
        _, message = await anext(stream)
        assert message == {"event": {"data": {"stdout": b64("second\n")}}}


@pytest.mark.long
async def test_much_output_arrives_whole(box):
    out, err, end = await box.run("seq 1 3000000")  # faster than it is read
    assert err == ""
    assert out == "".join(f"{n}\n" for n in range(1, 3_000_001))
    assert end["exitCode"] == 0


@pytest.mark.parametrize("config", [{"cwd": "/nope"}, {"cmd": "/bin/nope", "args": []}])
async def test_what_cannot_be_started_says_why(box, config):
    rows = await box.events("Start", process={"cmd": "/bin/pwd", **config}, stdin=False)
    ((flag, message),) = rows
    assert flag == 2
    assert message["error"]["code"] == "invalid_argument"
    assert "/nope" in message["error"]["message"] or "/bin/nope" in message["error"]["message"]


async def test_the_deadline_of_a_start_kills_also_when_the_client_is_gone(box):
    async with box.streaming("Start", process={"cmd": "sleep", "args": ["60"]}, timeout_ms=400) as stream:
        pid = await started(stream)
    assert [row["pid"] for row in (await box.rpc("List"))["processes"]] == [pid]
    for _ in range(100):
        if not (await box.rpc("List"))["processes"]:
            break
        await asyncio.sleep(0.05)
    assert (await box.rpc("List"))["processes"] == []
    rows = await box.events("Start", process={"cmd": "sleep", "args": ["60"]}, timeout_ms=300)
    assert rows[-1][1]["error"]["code"] == "deadline_exceeded"


async def test_a_client_that_goes_leaves_its_program_running(box):
    process = {"cmd": "bash", "args": ["-c", "read line; echo got $line"]}
    async with box.streaming("Start", process=process, tag="mine") as stream:
        pid = await started(stream)
    async with box.streaming("Connect", process={"tag": "mine"}) as stream:
        assert await started(stream) == pid
        await box.rpc("SendInput", process={"pid": pid}, input={"stdin": b64("x\n")})
        events = [message["event"] async for flag, message in stream if flag == 0]
    assert events[0] == {"data": {"stdout": b64("got x\n")}}
    assert events[-1]["end"]["exitCode"] == 0
    late = await box.events("Connect", process={"pid": pid})
    assert late[1][1]["event"]["end"]["exitCode"] == 0  # the end is kept for those who come late


async def test_signals_and_what_is_gone(box):
    async with box.streaming("Start", process={"cmd": "sleep", "args": ["60"]}) as stream:
        pid = await started(stream)
        await box.rpc("SendSignal", process={"pid": pid}, signal="SIGNAL_SIGKILL")
        events = [message async for _, message in stream]
    assert events[0]["event"]["end"]["status"] == "signal: killed"
    assert events[0]["event"]["end"]["exitCode"] == -1
    refused = await box.rpc("SendSignal", 404, process={"pid": pid}, signal="SIGNAL_SIGKILL")
    assert refused["code"] == "not_found"
    await box.rpc("SendSignal", 404, process={"pid": 99999}, signal="SIGNAL_SIGTERM")
    await box.rpc("SendSignal", 400, process={"pid": pid}, signal="SIGNAL_UNSPECIFIED")


async def test_input_ends_when_it_is_closed_and_is_refused_where_there_is_none(box):
    async with box.streaming("Start", process={"cmd": "cat"}, stdin=True) as stream:
        pid = await started(stream)
        frames = [{"start": {"process": {"pid": pid}}}]
        frames += [{"data": {"input": {"stdin": b64(text)}}} for text in ("a", "b\n")]

        async def body():
            for message in frames:
                data = json.dumps(message).encode()
                yield FRAME.pack(0, len(data)) + data
                await asyncio.sleep(0.05)

        answer = await box.client.ask("POST", "/process.Process/StreamInput", data=body(), headers=box.headers)
        assert answer == FRAME.pack(0, 2) + b"{}" + FRAME.pack(2, 2) + b"{}"
        await box.rpc("CloseStdin", process={"pid": pid})
        out = [message["event"] async for flag, message in stream if flag == 0]
    text = b"".join(base64.b64decode(event["data"]["stdout"]) for event in out if "data" in event)
    assert text == b"ab\n"
    assert out[-1]["end"]["exitCode"] == 0
    async with box.streaming("Start", process={"cmd": "sleep", "args": ["9"]}, stdin=False) as stream:
        pid = await started(stream)
        refused = await box.rpc("SendInput", 400, process={"pid": pid}, input={"stdin": b64("x")})
        assert refused["code"] == "failed_precondition"


async def test_a_terminal_has_a_size_and_takes_keys(box):
    process = {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm-256color"}}
    async with box.streaming("Start", process=process, pty={"size": {"rows": 10, "cols": 60}}) as stream:
        pid = await started(stream)
        await box.rpc("Update", process={"pid": pid}, pty={"size": {"rows": 11, "cols": 61}})
        await box.rpc("SendInput", process={"pid": pid}, input={"pty": b64("stty size; exit\n")})
        events = [message["event"] async for flag, message in stream if flag == 0]
    shown = b"".join(base64.b64decode(event["data"]["pty"]) for event in events if "data" in event)
    assert b"11 61" in shown


async def test_the_end_of_a_sandbox_cuts_its_streams(client):
    box = await client.create()
    async with box.streaming("Start", process={"cmd": "sleep", "args": ["60"]}) as stream:
        await started(stream)
        await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)
        with pytest.raises(aiohttp.ClientPayloadError):
            [event async for event in stream]
    await client.ask("GET", "/health", 502, headers=box.headers)


async def test_a_silent_stream_says_that_it_lives(box):
    box.headers["Keepalive-Ping-Interval"] = "1"
    async with box.streaming("Start", process={"cmd": "sleep", "args": ["20"]}) as stream:
        await started(stream)
        assert (await anext(stream))[1] == {"event": {"keepalive": {}}}


async def test_there_is_one_user(box):
    box.headers["Authorization"] = "Basic " + b64("root:")
    refused = await box.rpc("List", 501)
    assert refused["code"] == "unimplemented"
    assert "'root'" in refused["message"]


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00\x00\x05{}", b"\x01\x00\x00\x00\x02{}", b"\x00\x00\x00\x00\x02[]"])
async def test_a_garbled_frame_is_refused(box, body):
    refused = await box.client.ask("POST", "/process.Process/Start", 400, data=body, headers=box.headers)
    assert refused["code"] == "invalid_argument"


async def test_a_follower_that_is_slow_gets_all_and_the_end_of_its_sandbox(client):
    box = await client.create()
    command = {"cmd": "bash", "args": ["-c", "head -c 20000000 /dev/zero; sleep 60"]}
    async with box.streaming("Start", process=command, stdin=False) as stream:
        await started(stream)
        await asyncio.sleep(1)  # it is far behind by now
        size = 0
        async for _, message in stream:
            size += len(base64.b64decode(message["event"]["data"]["stdout"]))
            if size == 20_000_000:
                break
        await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(stream)
