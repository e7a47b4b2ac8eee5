"""Asking a server for a case, and what is kept of its answer: everything that does not change from call to call.

Seconds become "<seconds>". Paths of the program and its folder, addresses and the compiler's temporary files become
words. Long texts become their length and hash.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import aiohttp

from tests.tools.sandbox.server.golden.case import Case

LONG = 4000
"""Characters from which on a text is kept as its length and hash."""

SECONDS = frozenset({"execution_time"})

Answer = dict[str, Any]
"""`status`, `type` and `allow` of the answer's head, and `body`: its JSON, or the text that it is instead."""

_ENDS = r"(?=\.(?:py|sh|cpp|js|ts|go|pl|rb|lua|sv|rkt)\b)"
_WORDS = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"/tmp/ipykernel_\d+/\d+\.py|\b\d{6,}\.py\b|<cell \d+>", "<cell>"),
        (r"/[^\s'\":]+/site-packages/", "<packages>/"),
        (r"/[^\s'\":]+/lib/python3\.\d+/", "<library>/"),
        (r"CPU times: .*\n(?:Wall time: .*\n)?", "<times>\n"),
        (r"\bin \d+\.\d\ds\b", "in <seconds>"),
        (r"/tmp/cc\w{6}\.(\w+)", r"<object>.\1"),
        # SandboxFusion's names, then ours. A program's own name stands without its folder: some runtimes give the path
        # that they were called with, some a whole one.
        (r"(?:/tmp/tmp\w{8}/|\./)?\btmp\w{8}(?:_test|\.test)?" + _ENDS, "<program>"),
        (r"(?:/tmp/|\./)?\b(?:test_)?main(?:_test|\.test)?" + _ENDS, "<program>"),
        (r"\btmp\w{8}\b(?=\)|')", "<program>"),
        (r"/tmp/tmp\w{8}\b", "<folder>"),
        # Where an interpreter lives below /tmp, its programs work in /tmp/work.
        (r"/tmp(?:[/]work)?\b", "<folder>"),
        (r"\b0x[0-9a-f]{6,16}\b", "<address>"),
    )
]


async def ask(session: aiohttp.ClientSession, url: str, case: Case) -> Answer:
    """Send a case's request and keep what does not change of the answer."""
    headers = {"Content-Type": "application/json"} | case.headers
    skipped = [name for name, value in headers.items() if not value]
    data = case.body
    if data is not None and not isinstance(data, str | bytes):
        data = json.dumps(data)
    if data is None:
        headers = {}
    async with session.request(
        case.method,
        url + case.path,
        data=data.encode() if isinstance(data, str) else data,
        headers={name: value for name, value in headers.items() if value},
        skip_auto_headers=[*skipped, "Content-Type"],
        allow_redirects=False,
    ) as response:
        text = (await response.read()).decode()
        kind = response.content_type
        answer = {"status": response.status, "type": kind}
        if "Allow" in response.headers:
            answer["allow"] = response.headers["Allow"]
    try:
        body = json.loads(text) if kind == "application/json" else text
    except ValueError:
        body = text
    if response.status == 500 and isinstance(body, dict) and isinstance(body.get("traceback"), list):
        body["traceback"] = ["<lines>"] if body["traceback"] else []
    return answer | {"body": _kept(body)}


def _kept(value: Any, key: str = "") -> Any:
    if key in SECONDS and isinstance(value, int | float):
        return "<seconds>"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_kept(item) for item in value]
    if isinstance(value, dict):
        return {name: _kept(item, name) for name, item in value.items()}
    return value


def _text(text: str) -> str:
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    if len(text) > LONG:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        text = f"<{len(text)} characters, sha256 {digest}>"
    return text
