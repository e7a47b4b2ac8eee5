"""The playground's page by plain HTTP: its policy, its settings, and its examples."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import get_args

import pytest

from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.playground.page import PATHS
from toolgym.tools.sandbox.protocol.fusion import Language

SLOW = {name for name in LANGUAGES if name not in ("bash", "perl", "sql", "lua", "js", "c")}


def settings_of(page):
    return json.loads(html.unescape(re.search(r'data-server="([^"]*)"', page)[1]))


async def test_the_page_is_one_file_under_a_strict_policy(serve, http):
    service = await serve()
    for path in PATHS:
        async with http.get(service.url + path) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            page, headers = await answer.text(), answer.headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        for tag, rule in (("script", "script-src"), ("style", "style-src")):
            [inline] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
            assert policy[rule] == f"'sha256-{digest}'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not re.findall(r"https?://|\son\w+=|src=", page.replace("toolgym", ""))
        assert not re.findall(r"{{\w+}}", page)


async def test_the_page_needs_no_token_and_shows_none(serve, http):
    service = await serve(token="a-secret-that-is-long-enough")
    async with http.get(f"{service.url}/playground") as answer:
        page = await answer.text()
    assert answer.status == 200
    assert "a-secret" not in page
    assert settings_of(page)["token"] is True
    async with http.post(f"{service.url}/run_code", json={"code": "1", "language": "python"}) as answer:
        assert answer.status == 401


async def test_the_page_knows_the_servers_limits(serve, http):
    service = await serve(max_timeout=7, limits={"memory_mb": 99, "processes": 5})
    async with http.get(f"{service.url}/playground") as answer:
        settings = settings_of(await answer.text())
    assert (settings["max_timeout"], settings["limits"]["memory_mb"], settings["token"]) == (7, 99, False)


async def test_the_page_can_be_switched_off(serve, http):
    service = await serve(playground="none")
    for path in PATHS:
        async with http.get(service.url + path) as answer:
            assert answer.status == 404


async def examples(serve, http):
    service = await serve()
    async with http.get(f"{service.url}/playground") as answer:
        return service, settings_of(await answer.text())["examples"]


async def test_each_language_that_is_offered_has_an_example(serve, http):
    _, known = await examples(serve, http)
    assert set(known) == {"python", *LANGUAGES}
    assert set(known) <= set(get_args(Language))


@pytest.mark.parametrize(
    "language",
    ["python", *(pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in sorted(LANGUAGES))],
)
async def test_an_example_runs(language, serve, http):
    if language != "python" and not LANGUAGES[language].available:
        pytest.skip(f"{language} is not installed here")
    service, known = await examples(serve, http)
    body = {"code": known[language], "language": language, "run_timeout": 100, "compile_timeout": 100}
    async with http.post(f"{service.url}/run_code", json=body) as answer:
        result = await answer.json()
    assert result["status"] == "Success", result
    assert result["run_result"]["stdout"] + result["run_result"]["stderr"] or language == "D_ut"
