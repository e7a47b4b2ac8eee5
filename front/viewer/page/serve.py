"""`serve_page`: the page over HTTP, for runs too large for a file, and for those that go on (see docs/viewer.md)."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from aiohttp import web

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, ToolgymError
from toolgym.tools.serving.config import ServerSpec, ServingConfig, is_loopback
from toolgym.viewer.page.payload import details, figures, plain_number, report
from toolgym.viewer.page.write import about, skeleton
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.tokens import TokenTexts

PAUSE = 1.0
"""Seconds between two looks at whether the files have grown."""

DEADLINE = 60.0
"""Seconds for the answer to a request."""

log = logging.getLogger("toolgym.viewer.page")


class ViewerConfig(ServingConfig):
    """The address of the page, and the token that it needs where others can reach it."""

    spec: ClassVar[ServerSpec] = ServerSpec("view", "viewer", "")
    workers: int = 1
    max_concurrency: int = 1


async def serve_page(
    index: RunIndex,
    *,
    host: str = "127.0.0.1",
    port: int = 8090,
    tokenizer: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the page of a run until it is cancelled; rows that are added to the run appear in it.

    Args:
        index: is read by it alone from now on.
        host: address to listen on. One that others can reach needs a token, in the environment variable
            TOOLGYM_VIEW_TOKEN: open the page by `http://HOST:PORT/?token=TOKEN`.
        port: TCP port; 0: any free one.
        tokenizer: see `TokenTexts`.
        announce: is called with the page's address when it can be opened.

    Raises:
        ConfigError: the host needs a token, or the port is taken.
    """
    token = os.environ.get(ViewerConfig.spec.token_variable) or None
    config = ViewerConfig.load(flags={"host": host, "port": port, "token": token})
    server = PageServer(index, TokenTexts(index.path, tokenizer), config.secret)
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    reading = asyncio.create_task(server.read())
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): name another --port") from error
        announce(f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}/")
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await runner.cleanup()


class PageServer:
    """Answers requests about one index, which `read` reads on."""

    def __init__(self, index: RunIndex, texts: TokenTexts, token: str | None) -> None:
        self._index, self._texts, self._token = index, texts, token
        self._reading = True
        self._page = skeleton(about(index, texts) | {"served": True}, "'self'").replace(b"{{data}}", b"")

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._show)
        app.router.add_get("/row/{number:\\d+}", self._row)
        for handler in (self._rows, self._columns, self._find, self._report):
            app.router.add_get(handler.__name__.replace("_", "/"), handler)
        return app

    async def read(self) -> None:
        """Read the index, and on as its files grow, until cancelled."""
        looked = False
        while True:
            try:
                self._reading = await in_thread(self._index.read, 0.2)
                if self._index.rows and not looked:  # the first look imports the env, for all that follow
                    looked = True
                    await in_thread(self._whole, self._index.rows[0])
            except (OSError, ConfigError) as error:
                log.warning("cannot read the run on: %s", error)
                self._reading = False
            await asyncio.sleep(0 if self._reading else PAUSE)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let in who may see the run, within the deadline. Without a token the page's name must be this machine's, as
        another site's page may have a name of its own that leads here."""
        try:
            shown = request.query.get("token")
            if self._token is None:
                if not is_loopback((request.url.host or "").strip("[]")):
                    return _problem(403, "without a token the page is only served as localhost")
            elif not self._may(
                shown or request.cookies.get("toolgym-view") or request.headers.get("Authorization", "")[7:]
            ):
                return _problem(401, "open the page with ?token=..., the token of TOOLGYM_VIEW_TOKEN")
            elif shown is not None:
                response = web.HTTPFound("/")
                response.set_cookie("toolgym-view", shown, httponly=True, samesite="Strict")
                raise response
            async with asyncio.timeout(DEADLINE):
                return await handler(request)
        except TimeoutError:
            return _problem(503, f"there is no answer after {DEADLINE:g} seconds: narrow the filter by figures")
        except ToolgymError as error:
            return _problem(400, str(error))
        except OSError as error:
            return _problem(404, f"the run's file cannot be read: {error}")
        except ValueError as error:
            return _problem(400, f"not a number: {error}")

    def _may(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self._token or "").encode())

    async def _show(self, request: web.Request) -> web.Response:
        return web.Response(body=self._page, content_type="text/html", charset="utf-8")

    async def _columns(self, request: web.Request) -> web.Response:
        rows = self._index.rows[int(request.query.get("since", 0)) :]
        stops = list(dict.fromkeys(row.stop for row in rows))
        places = {stop: place for place, stop in enumerate(stops)}
        columns = {
            "reward": [plain_number(row.reward) for row in rows],
            "stop": [places[row.stop] for row in rows],
            "bad": [row.failed or bool(row.problems) for row in rows],
        }
        return web.json_response(columns | {"stops": stops, "reading": self._reading})

    async def _rows(self, request: web.Request) -> web.Response:
        rows = self._index.rows
        if "numbers" in request.query:
            chosen = [int(number) for number in request.query["numbers"].split(",")]
            return web.json_response({"total": len(rows), "rows": [figures(rows[n]) for n in chosen if n < len(rows)]})
        offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", 100))
        numbers = await in_thread(self._select, request.query.get("query", ""))
        answer = {"total": len(numbers), "rows": [figures(rows[number]) for number in numbers[offset : offset + limit]]}
        return web.json_response(answer | ({"numbers": numbers.tolist()} if "all" in request.query else {}))

    async def _row(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        if number >= len(self._index):
            return _problem(404, f"there are {len(self._index)} rows")
        return web.json_response(await in_thread(self._whole, self._index.rows[number]))

    def _whole(self, row: Row) -> dict[str, Any]:
        group = self._index.group(row)
        by_number = details(self._index, group, {row.number})
        ids = by_number[row.number].ids if self._texts.known else []
        return {
            "row": figures(row),
            "line": self._index.line(row).decode(errors="replace").rstrip("\r\n"),
            "detail": by_number[row.number].to_json(),
            "members": [(figures(each), by_number[each.number].to_json()) for each in group],
            "texts": {token: self._texts.text(token) for token in ids},
        }

    async def _find(self, request: web.Request) -> web.Response:
        name = request.query.get("id", "")
        number = self._index.by_id.get(name, int(name) if name.isdecimal() else -1)
        return web.json_response({"number": number if number < len(self._index) else -1})

    async def _report(self, request: web.Request) -> web.Response:
        return web.json_response(await in_thread(report, self._index))

    def _select(self, text: str) -> array[int]:
        """Return the numbers of the rows that a query selects, in its order."""
        query = Query.parse(text)
        return array("Q", [row.number for row in query.ordered(list(query.select(self._index)))])


def _problem(status: int, detail: str) -> web.Response:
    return web.json_response({"detail": detail}, status=status)
