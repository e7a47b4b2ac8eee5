"""What the tests of the viewer share: a viewer of a run that has read it, and the text on its screen."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.terminal.app import RunViewer
from toolgym.viewer.terminal.text_view import LineView

DEMO = Path(__file__).parents[4] / "front/viewer/demo"


async def until(pilot, holds, seconds=20.0):
    """Wait until it holds."""
    stop_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < stop_at, shown(pilot.app)
        await pilot.pause(0.01)


@contextlib.asynccontextmanager
async def viewing(path=DEMO, size=(120, 40), **options):
    """A viewer in a terminal of that size, which has read the run."""
    app = RunViewer(RunIndex(path), **options)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.opened.selection.finished and app.first.is_mounted)
        await until(
            pilot, lambda: len(app.first.rows.rows) == len(app.opened.selection.rows) and "reading" not in shown(app)
        )
        yield app, pilot


def lines_of(view):
    """The lines of a view that are on the screen, without blanks behind."""
    return [view.render_line(y).text.rstrip() for y in range(view.size.height)]


def shown(app):
    """All text on the screen."""
    texts = [str(widget.render()) for widget in app.screen.query("Static")]
    for view in app.screen.query(LineView):
        texts += lines_of(view) if view.display else []
    return "\n".join(texts)


async def opened(pilot, number=0):
    """Open the trajectory of a row of the list, and wait for its text."""
    pilot.app.first.rows.go(number)
    await pilot.press("enter")
    await until(pilot, lambda: getattr(pilot.app.screen, "trajectory", None) and "reading" not in shown(pilot.app))
    await until(pilot, lambda: "reward" in shown(pilot.app))
    return pilot.app.screen
