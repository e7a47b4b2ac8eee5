"""A page in a real Chromium, driven over the DevTools protocol, with what it asked for and what it complained of."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DEADLINE = 60.0
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
}


class Page:
    """One tab. `requests` are the addresses that it asked for, `complaints` errors of its scripts."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._socket, self._number, self._session = socket, 0, ""
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        async for message in self._socket:
            value = json.loads(message.data)
            answer = self._answers.pop(value.get("id"), None)
            if answer is not None and not answer.done():
                answer.set_result(value)
            method, params = value.get("method", ""), value.get("params", {})
            if method == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            elif method == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:600])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"])[:600])
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send_str(json.dumps(message))
        value = await asyncio.wait_for(answer, DEADLINE)
        assert "error" not in value, f"{method}: {value['error']}"
        result: dict[str, Any] = value["result"]
        return result

    async def attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.size(1280, 800)

    async def open(self, address: str) -> None:
        """Go to an address, and wait until the page has drawn its list."""
        await self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.complaints.clear()
        await self.call("Page.navigate", url=address)
        await self.until("document.body?.dataset.ready === '1'")

    async def size(self, width: int, height: int, mobile: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def prefer(self, scheme: str) -> None:
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def eval(self, expression: str) -> Any:
        result = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, replMode=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true. Raises AssertionError after the deadline."""
        end = asyncio.get_running_loop().time() + DEADLINE / 2
        while not await self.eval(f"Boolean({expression})"):
            assert asyncio.get_running_loop().time() < end, f"never true: {expression}; {self.complaints}"
            await asyncio.sleep(0.02)

    async def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    async def click(self, selector: str) -> None:
        """Click in the middle of the first element that a selector finds, as a person does."""
        place = await self.eval(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    async def text(self, selector: str) -> str:
        return str(await self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def filter(self, query: str) -> list[str]:
        """Type a query; return the ids of the rows that it selects, in their order."""
        await self.eval(f"$('filter').value = {json.dumps(query)}; $('filter').dispatchEvent(new Event('input'))")
        await self.until(f"query === {json.dumps(query.strip())} && !document.body.classList.contains('busy')")
        return list(await self.eval("order.map((at) => run.row(at)?.id ?? at)"))

    async def screenshot(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Page]:
    """A tab of a Chromium of its own, which ends with the block."""
    assert CHROMIUM is not None
    folder = tempfile.mkdtemp(prefix="toolgym-chromium-")
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE):
            while not (port := Path(folder, "DevToolsActivePort")).exists() or not port.read_text().count("\n"):
                await asyncio.sleep(0.02)
        number, path = port.read_text().split("\n")[:2]
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(f"ws://127.0.0.1:{number}{path}", max_msg_size=0) as socket,
        ):
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            try:
                await page.attach()
                yield page
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)
