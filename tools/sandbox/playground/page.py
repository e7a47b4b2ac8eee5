"""The route of a playground page: one file without requests to elsewhere, under a strict policy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path

from aiohttp import web

from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.routes import Call, Operation, Route

PATHS = ("/playground", "/SandboxFusion/playground/sandbox")
"""Paths of the page; the second one is SandboxFusion's."""

_SETTINGS = {"max_timeout", "queue_timeout", "network", "limits"}
_HERE = Path(__file__).parent


def playground_routes(config: ServingConfig) -> list[Route]:
    """The page of a sandbox server with these settings, which anyone may load: what it asks for needs the token."""
    style, script, page, examples = (
        (_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html", "examples.json")
    )
    server = config.model_dump(mode="json", include=_SETTINGS)
    server |= {"token": config.secret is not None, "examples": json.loads(examples)}
    page = page.replace("{{server}}", html.escape(json.dumps(server)))
    page = page.replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    async def show(call: Call) -> web.Response:
        return web.Response(text=page, headers=headers)

    return [Route(path, {"GET": Operation(show)}, public=True) for path in PATHS]


def _hash(text: str) -> str:
    """The source of an inline text, as a policy names it (https://www.w3.org/TR/CSP3/#grammardef-hash-source)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
