"""Server-sent events in the form of the Open Reward Standard: a call's id, signs of life, and its result in chunks.

A client that loses its connection asks for the same call again by its id. The form is that of openreward 0.1.167
(`environments/reconnect.py`, and `api/_session/http.py`, which reads it).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from toolgym.tools.serving.transport import within

PING = 10.0
"""Seconds between two signs of life; clients wait for 30."""

CHUNK = 4096

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def stream(
    request: web.BaseRequest, events: AsyncGenerator[tuple[str, str]], write_timeout: float
) -> web.StreamResponse:
    """Send events as they come; one without a name is a sign of life. Raises ConnectionError: the client is gone."""
    response = web.StreamResponse(headers=HEADERS)
    try:
        await within(write_timeout, response.prepare(request))
        async with aclosing(events):
            async for event, data in events:
                text = f"event: {event}\ndata: {data}\n\n" if event else ": ping\n\n"
                await within(write_timeout, response.write(text.encode()))
        await within(write_timeout, response.write_eof())
    except ConnectionError:
        if request.transport is not None:
            request.transport.abort()
        raise
    return response


async def events_of(name: str, task: asyncio.Task[Any]) -> AsyncGenerator[tuple[str, str]]:
    """Give the events of a call: its id, and once it has ended its result as JSON, or the text of its error."""
    yield "task_id", name
    while not task.done():
        await asyncio.wait({task}, timeout=PING)
        if not task.done():
            yield "", ""
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        yield "error", " ".join(str(error).split()) or "the session was closed"
        return
    for event, chunk in chunks(task.result()):
        yield event, chunk


def chunks(result: Any) -> list[tuple[str, str]]:
    """Return a result as events: `chunk`s, and the `end`.

    Clients drop blanks at the beginning of an event's data. In this JSON a blank can only stand inside of a string, and
    an escape means the same there.
    """
    text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    parts = [f"\\u0020{part[1:]}" if part.startswith(" ") else part for part in parts]
    return [("chunk", part) for part in parts[:-1]] + [("end", parts[-1])]
