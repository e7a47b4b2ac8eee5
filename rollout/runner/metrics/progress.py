"""`Progress`: how far a run is, in a terminal, in a notebook, or as lines of a log."""

from __future__ import annotations

import asyncio
import html
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.runner.metrics.run_metrics import RunMetrics, Wait
from toolgym.tools.errors import shorten
from toolgym.tools.lazy import missing_extra

try:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise missing_extra("rollout", "Progress", error) from error

TICK = 0.25
"""Seconds between two looks of a terminal or a notebook."""

LINES, SILENCE = 10, 60.0
"""Lines of a log that a run prints as it goes on, and the seconds after which it prints one in any case."""

_RECENT = 10.0
"""Seconds that the rate of tokens is taken over."""

_PLACES = {
    Phase.RESET: "in reset",
    Phase.ENGINE: "in the engine",
    Phase.CONTEXT: "in the context policies",
    Phase.OTHER_ROLE: "for another role's turn",
    Phase.SUSPENDED: "standing still",
}
_MOST_PLACES = 3


class Progress(EpisodeObserver):
    """Shows episodes, turns, tokens per second, the reward so far, failed episodes, and what the slowest episodes wait
    for.

    It reads a `RunMetrics` some times a second. A console that is neither a terminal nor a notebook gets some ten
    lines.

    Args:
        metrics: whose figures are shown; an observer of the same run, before this one.
        total: episodes of the run; None if that is not known.
        finished: episodes of the run that an earlier call finished; the figures are without them.
        console: where to; None for standard error.
        transient: remove what is shown when the run is over.
    """

    def __init__(
        self,
        metrics: RunMetrics,
        total: int | None,
        *,
        finished: int = 0,
        console: Console | None = None,
        transient: bool = False,
    ) -> None:
        self._metrics, self._total, self._before = metrics, total, finished
        self._console = console or Console(stderr=True, highlight=False)
        self._started = time.monotonic()
        self._tokens: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._transient = transient
        self._view: _Terminal | _Notebook | _Lines | None = None  # while a run goes on

    def run_began(self) -> None:
        self._started = time.monotonic()
        if self._console.is_jupyter:
            self._view = _Notebook()
        elif self._console.is_terminal:
            self._view = _Terminal(self._console, transient=self._transient)
        else:
            self._view = _Lines(self._console)
        self._tick()

    def run_ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._show(over=True)
        if isinstance(self._view, _Terminal):
            self._view.stop()

    def _tick(self) -> None:
        self._show()
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _show(self, *, over: bool = False) -> None:
        if self._view is not None:
            self._view.show(self._now(over=over))

    def _now(self, *, over: bool) -> _Moment:
        counts, now = self._metrics.counts, time.monotonic()
        self._tokens.append((now, counts.generated_tokens))
        while len(self._tokens) > 2 and now - self._tokens[0][0] > _RECENT:
            self._tokens.popleft()
        since, before = self._tokens[0]
        rate = max(0, counts.generated_tokens - before) / (now - since) if now > since else 0.0
        rewards, played = counts.rewards, int(counts.jobs + 1e-6)  # the thirds of three roles are not quite 1
        return _Moment(
            finished=self._before + played,
            played=played,
            total=self._total,
            seconds=now - self._started,
            turns=counts.turns,
            rate=rate,
            reward=rewards.mean if rewards.count else None,
            failed=counts.failed,
            waiting=[] if over else self._metrics.waiting,
            over=over,
        )


@dataclass(frozen=True)
class _Moment:
    finished: int
    played: int
    total: int | None
    seconds: float
    turns: int
    rate: float
    reward: float | None
    failed: int
    waiting: list[Wait]
    over: bool

    @property
    def episodes(self) -> str:
        return f"{self.finished} episodes" if self.total is None else f"{self.finished} of {self.total} episodes"

    @property
    def clock(self) -> str:
        """The time so far, and the time that is left if it goes on like this."""
        if self.over and self.total and self.finished < self.total:
            return f"{_time(self.seconds)}, over"
        if not self.total or not self.played or self.finished >= self.total:
            return _time(self.seconds)
        return f"{_time(self.seconds)}, {_time(self.seconds / self.played * (self.total - self.finished))} left"

    @property
    def figures(self) -> list[str]:
        return [
            *([f"reward {self.reward:.2f}"] if self.reward is not None else []),
            *([f"{self.failed} failed"] if self.failed else []),
            f"{self.turns} turn{'s' * (self.turns != 1)}",
            *([f"{self.rate:,.0f} tokens/s"] if self.rate else []),
        ]

    @property
    def waits(self) -> str:
        """The waits of the episodes, the longest first; empty if none runs."""
        return ", ".join(map(_wait, self.waiting[:_MOST_PLACES]))


def _wait(wait: Wait) -> str:
    what = "".join(character if character.isprintable() else "?" for character in wait.what)  # the model's own words
    place = _PLACES.get(wait.phase, f"in {shorten(what, 40)}")
    return f"{wait.episodes} {place if what or wait.phase is not Phase.ENV else 'in the env'} {_time(wait.longest)}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class _Terminal:
    """A bar, and two lines below it."""

    def __init__(self, console: Console, *, transient: bool) -> None:
        self._spinner = Spinner("dots")
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._live.start()

    def show(self, now: _Moment) -> None:
        bar = ProgressBar(now.total, now.finished, width=40) if now.total else self._spinner
        first = Table.grid(padding=(0, 1))
        first.add_row(bar, Text(now.episodes, style="bold"), Text(now.clock, style="dim"))
        lines = [Text(" · ".join(now.figures)), *([Text(now.waits, style="dim")] if now.waits else [])]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._live.update(Group(first, *lines), refresh=True)

    def stop(self) -> None:
        self._live.stop()


class _Notebook:
    """The browser's own bar with a line beside it, one output that changes: it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, now: _Moment) -> None:
        from IPython.display import display

        line = " · ".join([now.episodes, now.clock, *now.figures, *([now.waits] if now.waits else [])])
        bar = f'<progress value="{now.finished}" max="{now.total}"></progress> ' if now.total else ""
        shown = {"text/plain": line, "text/html": bar + html.escape(line)}
        if self._handle is None:
            show: Callable[..., Any] = display  # which has no types
            self._handle = show(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class _Lines:
    """A line at each tenth of the run, and after a minute without one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said, self._at = 0, time.monotonic()

    def show(self, now: _Moment) -> None:
        tenth = now.finished * LINES // now.total if now.total else 0
        if tenth > self._said or time.monotonic() - self._at > SILENCE:
            self._said, self._at = tenth, time.monotonic()
            waits = f"; waiting: {now.waits}" if now.waits else ""
            line = ", ".join([now.episodes, *now.figures]) + waits
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
