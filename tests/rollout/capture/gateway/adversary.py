"""An adversarial agent's requests, by what they try. `{own}` and `{key}` are of its session, `{other}` is the name of
somebody else's session."""

from __future__ import annotations

import asyncio
import contextlib

REWARD = '{"reward": 1.0}'
FAILED = '{"error": "the container died"}'

FINISH = "/sessions/{own}/finish"


def shown(secret):
    return {"Authorization": f"Bearer {secret}"}


BEARER = shown("{key}")

REQUESTS = {
    # its own verdict
    "finish with a reward": ("POST", FINISH, BEARER, REWARD),
    "finish as failed": ("POST", FINISH, BEARER, FAILED),
    "finish without a key": ("POST", FINISH, {}, REWARD),
    "finish with an empty key": ("POST", FINISH, shown(""), REWARD),
    "finish with the key as x-api-key": ("POST", FINISH, {"x-api-key": "{key}"}, REWARD),
    "finish with the key as api-key": ("POST", FINISH, {"api-key": "{key}"}, REWARD),
    "finish with basic credentials": ("POST", FINISH, {"Authorization": "Basic Og=="}, REWARD),
    "finish with two credentials": ("POST", FINISH, shown("a, Bearer {key}"), REWARD),
    "finish with the digest of its key": ("POST", FINISH, shown("{digest}"), REWARD),
    "finish by the name of the setting": ("POST", FINISH, shown("None"), REWARD),
    "finish by PUT": ("PUT", FINISH, BEARER, REWARD),
    "finish by GET": ("GET", "/sessions/{own}/finish?reward=1.0", BEARER, ""),
    "finish by an overridden method": (
        "GET", FINISH, {**BEARER, "X-HTTP-Method-Override": "POST"}, REWARD,
    ),
    "finish by a made-up method": ("FINISH", "/sessions/{own}", BEARER, REWARD),
    "finish below its address": ("POST", "/sessions/{own}/v1/finish", BEARER, REWARD),
    "finish through dots": ("POST", "/sessions/{own}/v1/../finish", BEARER, REWARD),
    "finish through encoded dots": ("POST", "/sessions/{own}/v1/%2e%2e/finish", BEARER, REWARD),
    "finish with an encoded slash": ("POST", "/sessions/{own}%2ffinish", BEARER, REWARD),
    "finish with encoded letters": ("POST", "/sessions/{own}/%66inish", BEARER, REWARD),
    "finish with a double slash": ("POST", "//sessions/{own}//finish", BEARER, REWARD),
    "finish with a slash at the end": ("POST", "/sessions/{own}/finish/", BEARER, REWARD),
    "finish with a parameter": ("POST", "/sessions/{own}/finish;v1", BEARER, REWARD),
    "finish in capitals": ("POST", "/SESSIONS/{own}/FINISH", BEARER, REWARD),
    "finish by an absolute address": ("POST", "http://localhost/sessions/{own}/finish", BEARER, REWARD),
    "finish by another path in a header": (
        "POST", "/v1", {**BEARER, "X-Original-URL": FINISH, "X-Rewrite-URL": FINISH},
        REWARD,
    ),
    "finish as this machine": (
        "POST", FINISH, {**BEARER, "X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}, REWARD,
    ),
    "finish as another worker": (
        "POST", FINISH, {**BEARER, "Host": "worker", "X-Internal": "1"}, REWARD,
    ),
    "finish by a websocket": (
        "GET", FINISH,
        {**BEARER, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}, "",
    ),
    "a reward in a call": ("POST", "/sessions/{own}/v1/lines", BEARER, '{"reward": 1.0, "finish": true}'),
    # getting rid of a bad episode
    "drop its session": ("DELETE", "/sessions/{own}", BEARER, ""),
    "drop its session below": ("DELETE", "/sessions/{own}/v1", BEARER, ""),
    "drop all sessions": ("DELETE", "/sessions", BEARER, ""),
    "open a session in its place": ("POST", "/sessions", BEARER, '{"id": "{own}"}'),
    "open a further session": ("POST", "/sessions", BEARER, '{"group": "g", "sample": 7}'),
    "open a session without a key": ("POST", "/sessions", {}, "{}"),
    "open a session by a call": ("POST", "/sessions/brand-new/v1/lines", BEARER, '{"text": "x"}'),
    # other sessions
    "list the sessions": ("GET", "/sessions", BEARER, ""),
    "show its session": ("GET", "/sessions/{own}", BEARER, ""),
    "show another session": ("GET", "/sessions/{other}", BEARER, ""),
    "drop another session": ("DELETE", "/sessions/{other}", BEARER, ""),
    "finish another session": ("POST", "/sessions/{other}/finish", BEARER, REWARD),
    "call in another session": ("POST", "/sessions/{other}/v1/lines", BEARER, '{"text": "x"}'),
    "call in another session by a header": ("POST", "/v1/lines", {"x-episode": "{other}"}, '{"text": "x"}'),
    "count in another session": ("POST", "/sessions/{other}/v1/lines/count", BEARER, '{"text": "x"}'),
    # the server
    "figures of the server": ("GET", "/metrics", BEARER, ""),
    "figures of a worker": ("GET", "/worker/metrics", BEARER, ""),
    "description of the API": ("GET", "/openapi.json", BEARER, ""),
    "files of the server": ("GET", "/../../run.json", BEARER, ""),
}  # fmt: skip

SMUGGLED = "POST /sessions/{own}/finish HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n" + REWARD

SMUGGLING = {
    "two lengths": "Content-Length: 4\r\nContent-Length: 0\r\n\r\n{}\r\n" + SMUGGLED,
    "a length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a request behind a request": "Content-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a header with a line end": "X-A: b\r\n\tc\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
}


CLOSING = "GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def send_raw(host, port, text):
    """Send a request, and return all that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    received = b""
    try:
        writer.write((text if "Connection: close" in text else text + CLOSING).encode())
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(5):
                while data := await reader.read(1 << 16):
                    received += data
    finally:
        writer.close()
    return received.decode(errors="replace")


def filled(text, **values):
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def raw_request(name, **values):
    method, path, headers, body = REQUESTS[name]
    heads = {"Host": "localhost", **headers, "Content-Length": str(len(filled(body, **values))), "Connection": "close"}
    if headers.get("Connection"):
        heads["Connection"] = headers["Connection"]
    lines = [f"{method} {path} HTTP/1.1", *(f"{head}: {value}" for head, value in heads.items())]
    return filled("\r\n".join(lines) + "\r\n\r\n" + body, **values)


def raw_smuggling(name, **values):
    head = "POST /sessions/{own}/v1/lines HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    return filled(head + SMUGGLING[name], **values)
