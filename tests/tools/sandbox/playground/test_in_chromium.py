"""The playground in a browser, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.actors import until
from tests.front.viewer.page.browser import CHROMIUM, chromium

CONTRAST = Path(__file__).parents[3] / "front/viewer/page/contrast.js"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture
async def page():
    async with chromium() as opened:
        yield opened


async def visit(page, service, path="/playground"):
    await page.call("Page.navigate", url=service.url + path)
    await page.until("document.getElementById('about')?.textContent.includes('isolation: ')")


async def press(page, key, *, ctrl=False):
    code = {"Enter": 13, "Tab": 9, "Escape": 27}[key]
    for kind in ("keyDown", "keyUp"):
        await page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=2 if ctrl else 0
        )


async def fill(page, field, text):
    await page.eval(f"document.getElementById({field!r}).value = {text!r}; document.getElementById({field!r}).focus()")


async def click(page, field):
    await page.eval(f"document.getElementById({field!r}).click()")


async def run(page):
    await press(page, "Enter", ctrl=True)
    await page.until("document.querySelector('#output .status') && !document.getElementById('run').disabled")
    return await page.eval("document.getElementById('output').innerText")


async def cell(page, code):
    before = await page.eval("document.querySelectorAll('.cell').length")
    await fill(page, "cell", code)
    await press(page, "Enter", ctrl=True)
    more = f"document.querySelectorAll('.cell').length > {before}"
    await page.until(f"{more} && !document.getElementById('run-cell').disabled")
    return await page.eval("[...document.querySelectorAll('.cell')].at(-1).innerText")


async def shown_error(page):
    await page.until("!document.getElementById('error').hidden")
    return await page.eval("document.getElementById('error').textContent")


KEEP_DOWNLOADS = """
globalThis.kept = [];
const make = URL.createObjectURL.bind(URL);
URL.createObjectURL = (blob) => { kept.push(blob); return make(blob); };
"""


async def test_a_program_runs_with_input_and_files(serve, page):
    service = await serve()
    await visit(page, service)
    assert "sum: 45" in await run_example(page)
    await fill(page, "stdin", "40 2")
    await fill(page, "fetch", "out.bin, none.txt")
    await page.eval(
        "const d = new DataTransfer(); d.items.add(new File([new Uint8Array([0, 255, 7])], 'in.bin'));"
        "document.getElementById('files').files = d.files"
    )
    await fill(page, "code", "print(input()); open('out.bin', 'wb').write(open('in.bin', 'rb').read()[::-1])")
    shown = await run(page)
    for part in ("Success", "40 2", "return code 0", "Download out.bin", "no file none.txt"):
        assert part in shown
    await page.eval(KEEP_DOWNLOADS)
    await page.eval("[...document.querySelectorAll('#output button')][0].click()")
    assert await page.eval("[...new Uint8Array(await kept[0].arrayBuffer())]") == [7, 255, 0]
    await fill(page, "code", "import sys; print('<b>no</b>'); sys.exit(3)")
    shown = await run(page)
    assert "Failed" in shown
    assert "<b>no</b>" in shown
    assert "return code 3" in shown
    assert page.complaints == []
    assert all(url.startswith((service.url, "data:", "blob:", "about:")) for url in page.requests)


async def run_example(page):
    await page.eval("document.getElementById('code').focus()")
    return await run(page)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_texts_stand_out_and_a_phone_holds_them(serve, page, scheme):
    await page.prefer(scheme)
    await page.size(360, 740, mobile=True)
    await visit(page, await serve())
    assert "sum: 45" in await run_example(page)
    await page.eval("document.querySelectorAll(':disabled').forEach((button) => { button.hidden = true; })")
    assert await page.eval(CONTRAST.read_text(encoding="utf-8")) == []
    assert await page.eval("document.documentElement.scrollWidth") <= 360


@pytest.mark.long
async def test_languages_bring_their_examples_and_the_keyboard_edits(serve, page):
    await visit(page, await serve(), "/SandboxFusion/playground/sandbox")
    choose = "const l = document.getElementById('language'); l.value = '{}'; l.onchange()"
    await page.eval(f"{{ {choose.format('bash')} }}")
    assert "hello from" in await run_example(page)
    await fill(page, "code", "echo mine")
    await page.eval(f"{{ {choose.format('python')} }}")
    assert await page.eval("document.getElementById('code').value") == "echo mine"
    await fill(page, "code", "")
    await press(page, "Tab")
    assert await page.eval("document.getElementById('code').value") == "    "
    await press(page, "Escape")
    await press(page, "Tab")
    assert await page.eval("document.activeElement.id") == "stdin"


async def test_what_goes_wrong_is_said(serve, page):
    service = await serve(max_timeout=20, token="a-secret-that-is-long-enough")
    await visit(page, service)
    assert await page.eval("document.getElementById('token-label').hidden") is False
    await fill(page, "code", "while True: pass")
    await press(page, "Enter", ctrl=True)
    assert await shown_error(page) == "401: a valid bearer token is needed (in the field Token)"
    await fill(page, "token", "a-secret-that-is-long-enough")
    await fill(page, "seconds", "21")
    await click(page, "run")
    assert await shown_error(page) == "Seconds: more than 0, at most 20"
    await fill(page, "seconds", "0.3")
    await page.eval("document.getElementById('code').focus()")
    assert "TimeLimitExceeded" in await run(page)
    await fill(page, "memory", "99999999")
    await click(page, "run")
    assert await shown_error(page) == "422: memory_limit_MB: Input should be less than or equal to 4096"
    await fill(page, "memory", "")
    await fill(page, "seconds", "20")
    await click(page, "run")
    await until(lambda: service.app.gate.running == 1)
    await click(page, "stop")
    assert await shown_error(page) == "stopped"
    await until(lambda: service.app.gate.running == 0, 10)
    assert await page.eval("localStorage.length + sessionStorage.length + document.cookie.length") == 0


async def test_sessions_go_cell_by_cell_and_end_with_the_page(serve, page):
    service = await serve()
    await visit(page, service)
    await click(page, "tab-session")
    await click(page, "open")
    await page.until("!document.getElementById('editor').hidden")
    await cell(page, "x = 20; open('kept.txt', 'w').write('hi')")
    assert "42" in await cell(page, "x + 22")
    assert "ZeroDivisionError: division by zero" in await cell(page, "1 / 0")
    assert "kept.txt, 2 bytes" in await page.eval("document.getElementById('listing').innerText")
    await click(page, "fork")
    await page.until("document.querySelectorAll('#sessions button').length == 2")
    await page.until("!document.getElementById('fork').disabled")
    titles = await page.eval("[...document.querySelectorAll('#sessions button')].map((each) => each.textContent)")
    assert titles == ["Session 1", "Session 2, fork of 1"]
    await cell(page, "x = 1")
    await page.eval("document.querySelector('#sessions button').click()")
    await page.until("!document.getElementById('open').disabled")
    assert "20" in await cell(page, "x")
    await page.eval(
        "const d = new DataTransfer(); d.items.add(new File(['sent'], 'a b?.txt')); const u = "
        "document.getElementById('upload'); u.files = d.files; u.onchange()"
    )
    await page.until("document.getElementById('listing').innerText.includes('a b?.txt, 4 bytes')")
    await page.eval(KEEP_DOWNLOADS)
    await page.eval("document.querySelector('#listing button').click()")
    await page.until("kept.length == 1")
    assert await page.eval("await kept[0].text()") == "sent"
    image = "import base64\nclass P:\n    def _repr_png_(self): return base64.b64decode('iVBORw0KGgo=')\nP()"
    await cell(page, image)
    assert await page.eval("document.querySelector('.cell img').src") == "data:image/png;base64,iVBORw0KGgo="
    assert "the session has ended" in await cell(page, "import os; os._exit(1)")
    await click(page, "close")
    await page.until("document.querySelectorAll('#sessions button').length == 1")
    assert service.app.about()["sessions"] == 1
    await page.call("Page.navigate", url="about:blank")
    await until(lambda: service.app.about()["sessions"] == 0, 10)
    assert page.complaints == []
