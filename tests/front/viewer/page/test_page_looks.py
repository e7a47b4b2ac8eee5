"""The page in a real Chromium: light and dark, legible, and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.front.viewer.page.runs import BRANCH, FAILED

pytestmark = pytest.mark.asyncio(loop_scope="package")

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_texts_stand_out_from_what_is_behind_them(page, demo, scheme):
    await page.prefer(scheme)
    views = [f"row={BRANCH['id']}&view={view}" for view in ("conversation", "tokens", "timings", "group", "json")]
    for place in ("", f"row={FAILED[0]}", *views):
        await page.open(f"{demo}#{place}")
        assert await page.eval(CONTRAST) == [], place
    await page.eval("go({ view: 'tokens' })")
    await page.until("document.querySelector('.token')")
    for name in ("log-prob", "entropy", "version", "advantage"):
        select = "document.querySelector('.token-bar select')"
        await page.eval(f"{select}.value = '{name}'; {select}.dispatchEvent(new Event('change'))")
        assert await page.eval(CONTRAST) == [], name
    await page.eval(f"{select}.value = 'kind'; {select}.dispatchEvent(new Event('change'))")


@pytest.mark.long
@pytest.mark.parametrize(
    "view", ["", *(f"&row={BRANCH['id']}&view={view}" for view in ("conversation", "tokens", "group"))]
)
async def test_nothing_is_cut_on_a_phone(page, demo, view):
    await page.size(360, 740, mobile=True)
    await page.open(f"{demo}#{view}")
    assert await page.eval("document.documentElement.scrollWidth") <= 360
    both = "[$('runs'), $('detail')].filter((node) => node.offsetParent).length"
    assert await page.eval(both) == 1
    parts = "[...document.querySelectorAll('#panel > *, #search, #chips, #summary, .row .cell')]"
    wide = f"{parts}.filter((node) => node.getBoundingClientRect().right > 361)"
    assert await page.eval(f"{wide}.length") == 0
    if view:
        await page.click(".back")
        await page.until("document.body.dataset.shows === 'list'")


async def test_it_is_light_or_dark_as_the_system_says_or_the_button(page, demo):
    colour = "getComputedStyle(document.documentElement).backgroundColor.match(/[\\d.]+/g)"
    brightness = f"{colour}.slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
    await page.open(demo)
    assert await page.eval(brightness) > 700
    await page.prefer("dark")
    assert await page.eval(brightness) < 100
    await page.click("#theme")
    assert await page.eval(brightness) > 700
    await page.press("d")
    assert await page.eval(brightness) < 100
    await page.press("d")
    await page.open(demo)  # what was chosen stays
    assert await page.eval(brightness) > 700
    await page.eval("localStorage.clear()")
