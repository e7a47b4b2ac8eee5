"""The page over HTTP: its answers, a run that goes on, and who may see it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil

import aiohttp
import pytest

from tests.front.viewer.page.runs import DEMO, LINES, changed, odd_run, write_run
from toolgym.tools.errors import ConfigError
from toolgym.viewer.page.payload import COLUMNS
from toolgym.viewer.page.serve import serve_page
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import RunIndex

pytestmark = pytest.mark.asyncio(loop_scope="package")


@contextlib.asynccontextmanager
async def served(path, **options):
    """The address of a run's page."""
    address = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_page(RunIndex(path), port=0, announce=address.set_result, **options))
    try:
        await asyncio.wait([task, address], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield address.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConfigError):
            await task


async def get(address, status=200, **options):
    async with aiohttp.ClientSession() as client, client.get(address, allow_redirects=False, **options) as response:
        assert response.status == status, await response.text()
        return await response.json() if "json" in response.content_type else await response.text()


async def until_read(address, count):
    async with asyncio.timeout(30):
        while (await get(f"{address}rows?limit=0"))["total"] < count:
            await asyncio.sleep(0.05)


async def test_rows_are_found_whole_and_by_query(tmp_path):
    folder = odd_run(tmp_path)
    index = RunIndex(folder).read_all()
    async with served(folder) as address:
        await until_read(address, len(index))
        for query in ("failed", "apples sort:-tokens", "", "unreadable"):
            numbers = [row.number for row in Query.parse(query).ordered(list(Query.parse(query).select(index)))]
            answer = await get(f"{address}rows", params={"query": query, "all": 1, "offset": 1, "limit": 3})
            assert (answer["total"], answer["numbers"]) == (len(numbers), numbers)
            assert [row[COLUMNS.index("number")] for row in answer["rows"]] == numbers[1:4]
        whole = await get(f"{address}row/1")
        assert json.loads(whole["line"]) == LINES[1]
        assert [round(extra["advantage"], 3) for _, extra in whole["members"]] == [-0.866, -0.866, 0.866, 0.866]
        assert (await get(f"{address}row/{len(index) - 1}"))["line"] == "[1, 2]"
        assert (await get(f"{address}find", params={"id": LINES[7]["id"]})) == {"number": 7}
        assert (await get(f"{address}find?id=none")) == {"number": -1}
        columns = await get(f"{address}columns?since=40")
        assert len(columns["reward"]) == len(index) - 40
        assert columns["reward"][-1] is None


async def test_what_is_wrong_is_a_line_that_says_so(tmp_path):
    async with served(write_run(tmp_path, LINES[0])) as address:
        await until_read(address, 1)
        assert "did you mean 'reward'" in (await get(f"{address}rows?query=rewrd<1", 400))["detail"]
        assert "number" in (await get(f"{address}rows?offset=x", 400))["detail"]
        assert (await get(f"{address}row/5", 404))["detail"] == "there are 1 rows"
        port = address.rsplit(":", 1)[1].strip("/")
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*name another --port"):
            await serve_page(RunIndex(tmp_path), port=int(port))


async def test_other_machines_need_a_token(tmp_path, monkeypatch):
    folder = write_run(tmp_path, LINES[0])
    with pytest.raises(ConfigError, match="TOOLGYM_VIEW_TOKEN"):
        await serve_page(RunIndex(folder), host="0.0.0.0")
    async with served(folder) as address:
        evil = {"Host": "evil.example"}  # a name of another site that leads here
        assert "localhost" in (await get(f"{address}rows", 403, headers=evil))["detail"]
    monkeypatch.setenv("TOOLGYM_VIEW_TOKEN", "secret")
    async with served(folder, host="0.0.0.0") as address:
        address = address.replace("0.0.0.0", "127.0.0.1")
        await get(address, 401)
        await get(f"{address}?token=wrong", 401)
        await get(f"{address}rows", 401, cookies={"toolgym-view": "wrong"})
        await get(f"{address}rows", headers={"Authorization": "Bearer secret"})
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as client, client.get(f"{address}?token=secret") as response:
            assert (response.status, response.url.query_string) == (200, "")
            assert "data-run" in await response.text()


async def test_the_page_follows_a_run_that_goes_on(page, tmp_path):
    run = write_run(tmp_path, *LINES[:20])
    async with served(run) as address:
        await page.open(address)
        await page.until("order.length === 20 && document.querySelector('#row-0 .badge')")
        assert "live" in await page.text("#count")
        await page.press("j", "Enter")
        await page.until("document.querySelector('#panel .message')")
        assert LINES[0]["messages"][1]["content"] in await page.text("#panel")
        with (run / "1.jsonl").open("a") as file:
            file.write(json.dumps(changed(20, id="new", score=0.5)) + "\n" + json.dumps(LINES[21])[:100])
        await page.until("order.length === 21")
        assert await page.filter("reward=0.5") == [20] or await page.eval("order") == [20]
        await page.until("document.querySelector('#row-0 .badge')")
        await page.eval("location.hash = '#row=new&view=tokens'")
        await page.until("document.querySelector('.token')")
        assert await page.text(".token") == "<|im_start|>"
        await page.filter("rewrd<1")
        assert "did you mean" in await page.text("#filter-error")
        assert all(request.startswith(address) for request in page.requests)
        [refused] = page.complaints  # Chromium's line about the answer to that query
        assert "400" in refused
        page.complaints.clear()
        await page.call("Page.navigate", url="about:blank")


async def test_a_file_that_vanishes_is_a_line_in_the_log_and_the_rest_is_served(tmp_path, caplog):
    run = write_run(tmp_path / "run", LINES[0])
    shutil.copy(DEMO / "1.jsonl", run / "2.jsonl")
    async with served(run) as address:
        await until_read(address, 1 + sum(line["step"] == 1 for line in LINES))
        (run / "2.jsonl").unlink()
        async with asyncio.timeout(10):
            while "cannot read the run on" not in caplog.text:
                await asyncio.sleep(0.1)
        assert json.loads((await get(f"{address}row/0"))["line"]) == LINES[0]
        assert "No such file" in (await get(f"{address}row/1", 404))["detail"]
