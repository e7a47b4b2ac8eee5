"""Make the pictures of the viewer in a terminal that docs/viewer.md shows, from the run of `toolgym view --demo`.

    python scripts/screenshots.py [FOLDER]

Writes SVG files to docs/images, or to the folder.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from toolgym.viewer.command import DEMO
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.terminal.app import RunViewer

IMAGES = Path(__file__).parents[1] / "docs/images"
SIZE = (110, 30)

PICTURES = {
    "terminal-list": (["down", "n", "n"], ""),
    "terminal-conversation": (["n", "n", "enter"], ""),
    "terminal-tokens": (["n", "n", "n", "n", "enter", "2", "p", "c"], "entropy"),
    "terminal-times": (["n", "n", "n", "n", "n", "enter", "3"], "engine"),
    "terminal-tree": (["end", "enter", "5"], "this one"),
    "terminal-group": (["n", "n", "g"], "advantage +"),
}
"""From the name of a picture to the keys that lead there, and a text that is on the screen then."""


async def take(name: str, folder: Path) -> None:
    """Press the keys of a picture in a new viewer, and write what it shows."""
    keys, text = PICTURES[name]
    viewer = RunViewer(RunIndex(DEMO))
    async with viewer.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: viewer.opened.selection.finished and _shows(viewer, "45 of 45"), name)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        await _until(pilot, lambda: viewer.opened.texts is not None or "2" not in keys, name)
        await _until(pilot, lambda: _shows(viewer, text), name)
        await pilot.pause(0.3)
        picture = viewer.export_screenshot(title="toolgym view --demo")
    # Without the fonts that it would load from the web, and with names that do not differ from run to run.
    picture = re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)
    picture = re.sub(r"terminal-\d+", "terminal", picture)
    (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    print(folder / f"{name}.svg")


def _shows(viewer: RunViewer, text: str) -> bool:
    return text.replace(" ", "&#160;") in viewer.export_screenshot()


async def _until(pilot: Pilot[None], holds: Callable[[], bool], name: str) -> None:
    for _ in range(600):
        if holds():
            return
        await pilot.pause(0.05)
    raise TimeoutError(f"{name}: the screen did not come")


def main() -> None:
    """Make all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        asyncio.run(take(name, folder))


if __name__ == "__main__":
    main()
