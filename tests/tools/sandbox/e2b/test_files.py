"""Files of a sandbox: by calls, by HTTP, by signed addresses, and watched."""

from __future__ import annotations

import base64
import hashlib
import io
import time

import aiohttp
import pytest


async def test_files_by_their_bodies(box):
    ((row),) = await box.write("d/a.bin", bytes(range(256)) * 4)
    assert row == {"name": "a.bin", "type": "file", "path": "/home/user/d/a.bin"}
    assert await box.read("~/d/a.bin") == bytes(range(256)) * 4
    assert await box.read("/home/user/d/a.bin", 206, Range="bytes=254-257") == b"\xfe\xff\x00\x01"
    assert await box.read("d/a.bin", 206, Range="bytes=-2") == b"\xfe\xff"
    await box.read("d/a.bin", 416, Range="bytes=9999-")
    assert "does not exist" in (await box.read("none", 404))["message"]
    assert "is a directory" in (await box.read("d", 400))["message"]
    assert (await box.run("sha256sum < d/a.bin"))[0].split()[0] == hashlib.sha256(bytes(range(256)) * 4).hexdigest()


async def test_large_and_empty_files(box):
    large = hashlib.sha256(b"x").digest() * 200_000
    await box.write("large", io.BytesIO(large))
    assert await box.read("large") == large
    assert await box.read("large", 206, Range="bytes=5000000-") == large[5_000_000:]
    await box.write("empty", b"")
    assert await box.read("empty") == b""
    assert b"MemTotal" in await box.read("/proc/meminfo")
    refused = await box.write("too large", io.BytesIO(bytes(65 << 20)), expect=413)
    assert "64 MiB" in str(refused)


async def test_a_form_has_files_by_their_names(box):
    form = aiohttp.FormData(quote_fields=False)
    for name, data in [("m1", b"one"), ("e/ü 2", b"\r\n--two\r\n")]:
        form.add_field("file", data, filename=name)
    rows = await box.client.ask("POST", "/files", data=form, headers=box.headers)
    assert [row["path"] for row in rows] == ["/home/user/m1", "/home/user/e/ü 2"]
    assert await box.read("e/ü 2") == b"\r\n--two\r\n"
    await box.client.ask("POST", "/files", 400, data=b"x", headers=box.headers | {"Content-Type": "text/plain"})


async def test_metadata_stays_with_its_file_until_it_is_overwritten(box):
    ((row),) = await box.write("a", b"1", headers={"X-Metadata-Origin": "here"})
    assert row["metadata"] == {"origin": "here"}
    assert (await box.rpc("Stat", path="a"))["entry"]["metadata"] == {"origin": "here"}
    await box.write("a", b"2")
    assert "metadata" not in (await box.rpc("Stat", path="a"))["entry"]


async def test_entries_say_what_a_file_is(box):
    await box.run("echo abc > f; chmod 600 f; mkdir d; ln -s f to-file; ln -s d to-folder; ln -s none lost; ln -s l l")
    entries = {row["name"]: row for row in (await box.rpc("ListDir", path="."))["entries"]}
    kinds = {name: row["type"].removeprefix("FILE_TYPE_") for name, row in entries.items()}
    assert kinds == {
        "d": "DIRECTORY", "f": "FILE", "to-file": "FILE", "to-folder": "DIRECTORY", "lost": "SYMLINK", "l": "SYMLINK"
    }  # fmt: skip
    entry = entries["f"]
    assert (entry["size"], entry["mode"], entry["permissions"]) == ("4", 0o600, "-rw-------")
    assert (entry["owner"], entry["group"], entry["path"]) == ("user", "user", "/home/user/f")
    assert entries["to-file"]["symlinkTarget"] == "/home/user/f"
    assert abs(time.time() - time.mktime(time.strptime(entry["modifiedTime"][:19], "%Y-%m-%dT%H:%M:%S"))) < 100_000
    assert (await box.rpc("ListDir", 400, path="l"))["code"] == "failed_precondition"
    assert (await box.rpc("ListDir", 400, path="f"))["code"] == "invalid_argument"
    assert (await box.rpc("ListDir", 404, path="none"))["code"] == "not_found"


async def test_folders_are_made_moved_listed_and_removed(box):
    await box.rpc("MakeDir", path="a/b")
    assert (await box.rpc("MakeDir", 409, path="a/b"))["code"] == "already_exists"
    await box.write("a/b/f", b"1")
    assert (await box.rpc("MakeDir", 400, path="a/b/f"))["code"] == "invalid_argument"
    moved = await box.rpc("Move", source="a", destination="x/y")
    assert moved["entry"]["path"] == "/home/user/x/y"
    deep = await box.rpc("ListDir", path="/home/user", depth=4)
    assert [row["path"] for row in deep["entries"]] == [f"/home/user/x{rest}" for rest in ("", "/y", "/y/b", "/y/b/f")]
    await box.rpc("ListDir", 400, path=".", depth=-1)
    await box.rpc("Remove", path="x")
    await box.rpc("Remove", path="x")  # envd: none is no error
    assert (await box.rpc("Stat", 404, path="x"))["code"] == "not_found"
    assert (await box.rpc("MakeDir", 403, path="/usr/x"))["code"] == "permission_denied"
    await box.rpc("Stat", 400, path="")
    await box.rpc("Stat", 400, path="a\0b")


def signature(box, path, operation="read", user="", expires=None):
    parts = [path, operation, user, box.headers["X-Access-Token"], *([] if expires is None else [str(expires)])]
    digest = hashlib.sha256(":".join(parts).encode()).digest()
    return "v1_" + base64.b64encode(digest).decode().rstrip("=")


async def test_a_signed_address_opens_one_file(client, box):
    await box.write("a", b"signed")
    await box.write("b", b"other")
    params = {"path": "a", "signature": signature(box, "a")}
    assert await client.ask("GET", "/files", params=params) == b"signed"  # it names no sandbox
    assert await client.ask("GET", "/files", params=params, headers={"E2b-Sandbox-Id": box.name}) == b"signed"
    for wrong in ({"path": "b"}, {"username": "user"}, {"signature": "v1_x"}, {"signature": "é"}):
        assert (await client.ask("GET", "/files", 401, params=params | wrong))["message"] == "invalid signature"
    assert (await client.ask("POST", "/files", 401, params=params, data=b"x"))["code"] == 401
    written = {"path": "c", "signature": signature(box, "c", "write"), "username": ""}
    await client.ask("POST", "/files", params=written, data=b"new", headers={"Content-Type": "text/plain"})
    assert await box.read("c") == b"new"
    for seconds, status in [(100, 200), (-100, 401)]:
        expires = int(time.time()) + seconds
        signed = {"path": "a", "signature": signature(box, "a", expires=expires), "signature_expiration": expires}
        answer = await client.ask("GET", "/files", status, params=signed)
    assert answer == {"code": 401, "message": "signature is already expired"}


async def events_of(box, name):
    return [(row["name"], row["type"]) for row in (await box.rpc("GetWatcherEvents", watcherId=name))["events"]]


async def test_a_watch_says_what_happened_in_order(box):
    await box.rpc("MakeDir", path="w")
    name = (await box.rpc("CreateWatcher", path="w", recursive=False))["watcherId"]
    await box.write("w/n", b"1")
    assert await events_of(box, name) == [("n", f"EVENT_TYPE_{kind}") for kind in ("CREATE", "WRITE", "CHMOD")]
    await box.rpc("Move", source="w/n", destination="w/m")
    await box.rpc("Remove", path="w/m")
    kinds = [("n", "EVENT_TYPE_RENAME"), ("m", "EVENT_TYPE_CREATE"), ("m", "EVENT_TYPE_REMOVE")]
    assert await events_of(box, name) == kinds
    assert await events_of(box, name) == []
    await box.rpc("RemoveWatcher", watcherId=name)
    await box.rpc("GetWatcherEvents", 404, watcherId=name)
    await box.rpc("CreateWatcher", 404, path="none", recursive=False)


async def test_a_watch_can_be_a_stream_of_all_below(box):
    await box.rpc("MakeDir", path="w/in")
    async with box.streaming("WatchDir", path="w", recursive=True, includeEntry=True) as stream:
        assert await anext(stream) == (0, {"start": {}})
        await box.write("w/in/deep/f", b"1")
        seen = {}
        while "in/deep/f" not in seen and "in/deep" not in seen:
            _, message = await anext(stream)
            seen[message["filesystem"]["name"]] = message["filesystem"]
    assert seen["in/deep"]["type"] == "EVENT_TYPE_CREATE"
    assert seen["in/deep"]["entry"]["path"] == "/home/user/w/in/deep"


@pytest.mark.parametrize("command", ["pkill -9 -f audit-nothing; kill -9 {pid}", "kill -STOP {pid}; kill -9 {pid}"])
async def test_a_program_that_ends_the_files_program_harms_nobody_else(box, command):
    await box.write("a", b"1")
    out, _, _ = await box.run("grep -l file_agent /proc/[0-9]*/cmdline; grep -lz 'EVENT_TYPE' /proc/[0-9]*/cmdline")
    pids = {line.split("/")[2] for line in out.splitlines()} - {"self"}
    for pid in pids:
        await box.run(command.format(pid=pid))
    async with box.client.http.get(f"{box.client.url}/files", params={"path": "a"}, headers=box.headers) as response:
        assert response.status in (200, 500)
    assert await box.read("a") == b"1"
