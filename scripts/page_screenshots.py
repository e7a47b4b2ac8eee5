"""Make the pictures of docs/viewer.md: the page of the demo's run, as Chromium shows it.

    python scripts/page_screenshots.py

Needs Chromium (`apt-get install chromium`) and the extra `dev`.
"""

from __future__ import annotations

import asyncio
import collections
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.front.viewer.page.browser import chromium
from toolgym.viewer.page.write import write_page
from toolgym.viewer.run_index import RunIndex

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"


async def main() -> None:
    """Write each picture, with 128 colours so that it is small."""
    IMAGES.mkdir(exist_ok=True)
    index = RunIndex(ROOT / "front/viewer/demo").read_all()
    families = collections.Counter(row.parent for row in index.rows if row.parent)
    root = families.most_common(1)[0][0]
    called = next(row for row in index.rows if row.calls and row.success and row.step == 1 and not row.parent)
    pictures = {
        "page-list": ("", "light", (1280, 760)),
        "page-conversation": (f"row={called.id}", "light", (1280, 760)),
        "page-tokens": (f"row={called.id}&view=tokens", "dark", (1280, 760)),
        "page-tree": (f"row={root}&view=tree", "light", (1280, 460)),
        "page-group": (f"row={called.id}&view=group", "dark", (1280, 760)),
        "page-phone": (f"row={called.id}", "light", (390, 760)),
    }
    with tempfile.TemporaryDirectory() as folder:
        page_file = Path(folder, "run.html")
        write_page(index, page_file)
        async with chromium() as page:
            for name, (address, scheme, (width, height)) in pictures.items():
                await page.size(width, height, mobile=width < 600)
                await page.prefer(scheme)
                await page.open(f"{page_file.as_uri()}#{address}")
                if address.endswith("tokens"):
                    await page.eval(
                        "(() => { const select = document.querySelector('.token-bar select'); select.value = 'entropy';"
                        " select.dispatchEvent(new Event('change')); })()"
                    )
                    await page.press("p", "ArrowRight")
                await asyncio.sleep(0.4)  # the panel is drawn
                await page.screenshot(IMAGES / f"{name}.png")
                with Image.open(IMAGES / f"{name}.png") as picture:
                    picture.convert("RGB").quantize(128).save(IMAGES / f"{name}.png", optimize=True)
                assert page.complaints == []


if __name__ == "__main__":
    asyncio.run(main())
