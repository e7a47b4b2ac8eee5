"""`ReportPlots`: the plots of reports by matplotlib, as PNG files, and as SVG for a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from toolgym.exports.writing import becoming
from toolgym.report.estimators import Estimate
from toolgym.report.report import Report
from toolgym.report.tables import AMOUNTS
from toolgym.tools.lazy import missing_extra

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing_extra("report", "Plotting", error) from error

# Those of Okabe and Ito, which people of any colour vision tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#888888", "#F0E442") * 8
INK = "#010203"  # of texts and lines; in a page it becomes the colour of the page's text
MOST_TOOLS = 12
Draw = Callable[[Axes], None]
STYLE: dict[Any, Any] = (
    dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK)
    | {"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    | {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False}
    | {"axes.grid": True, "grid.alpha": 0.15, "svg.fonttype": "none", "svg.hashsalt": "toolgym"}
    | {"text.parse_math": False}
)


class ReportPlots:
    """Plots of one run, or of several in the same axes."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports, self._several = reports, len(reports) > 1

    def write_png(self, path: Path) -> None:
        """Write all plots to one file. A file at the path is replaced when the new one is whole."""
        with matplotlib.rc_context(STYLE), becoming(path, overwrite=True) as part:
            panels = self._panels().values()
            rows = -(-len(panels) // 3)
            sheet = Figure(figsize=(15, 3.8 * rows), layout="constrained")
            for place, panel in enumerate(panels, start=1):
                panel(sheet.add_subplot(rows, 3, place))
            sheet.savefig(part, format="png", dpi=110)

    def svgs(self) -> dict[str, str]:
        """Return the plots as elements of HTML, by name. The same reports give the same texts."""
        texts = {}
        with matplotlib.rc_context(STYLE):
            for name, panel in self._panels().items():
                _figure(panel).savefig(file := io.StringIO(), format="svg", transparent=True, metadata={"Date": None})
                text = re.sub(
                    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>", "", file.getvalue(), flags=re.S
                )
                text = re.sub(r'\b(id="|href="#|url\(#)', rf"\1report-{name}-", text)
                texts[name] = text.replace(INK, "currentColor")
        return texts

    def _panels(self) -> dict[str, Draw]:
        """Functions that draw, by name; plots without anything in them are left out."""
        panels: dict[str, tuple[str, Draw]] = {
            "reward": ("Reward, 95 % interval", partial(self._curve, name="reward")),
            "success": ("Success, 95 % interval", partial(self._curve, name="success")),
            "pass": ("pass@k and pass^k, 95 % interval", self._passes),
            "rewards": ("Rewards", partial(self._histogram, name="reward")),
            "lengths": ("Policy tokens of an episode", partial(self._histogram, name="response_length")),
            "turns": ("Turns of an episode", partial(self._histogram, name="turns")),
            "stops": ("Stop reasons by blame", self._stops),
            "times": ("Time of an episode, mean", self._times),
            "tools": ("Time of a tool call", self._tools),
        }
        drawn = {name: partial(_draw, title=title, draw=draw) for name, (title, draw) in panels.items()}
        return {name: draw for name, draw in drawn.items() if _figure(draw).axes[0].has_data()}

    def _curve(self, axes: Axes, name: str) -> None:
        """Draw an estimate over the steps, or else for each part."""
        steps = all(report.by == "step" for report in self._reports)
        for place, report in enumerate(self._reports):
            run = f"\n{report.name}" * self._several
            points = {part.name + run: part.estimates[name] for part in report.parts or (report.whole,)}
            xs = [int(part.name) for part in report.parts] if steps else list(points)
            _line(axes, list(zip(xs, points.values(), strict=True)), COLOURS[place], report.name, "-" * steps)
        if steps:
            axes.set_xlabel("step")
            axes.locator_params(axis="x", integer=True)
        else:
            axes.margins(x=0.2)

    def _passes(self, axes: Axes) -> None:
        for place, report in enumerate(self._reports):
            for shift, (name, style) in enumerate((("pass@", "-"), ("pass^", "--"))):
                points = {int(key[5:]): each for key, each in report.whole.estimates.items() if name in key}
                label = f"{report.name} " * self._several + f"{name}k"
                _line(axes, points.items(), COLOURS[place * 2 + shift], label, style)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel("k")

    def _histogram(self, axes: Axes, name: str) -> None:
        for place, report in enumerate(self._reports):
            edges, counts = report.histograms.get(name, ([], []))
            shares = [count / sum(counts) for count in counts]
            if counts:
                colour = COLOURS[place]
                axes.stairs(shares, edges, fill=True, fc=f"{colour}40", ec=colour, lw=1.5, label=report.name)
        axes.set_ylabel("part of episodes")

    def _stops(self, axes: Axes) -> None:
        stops = [(stop, f"\n{report.name}" * self._several) for report in self._reports for stop in report.whole.stops]
        _stack(axes, sorted((stop.blame + run, stop.reason, stop.rate) for stop, run in stops), "part of episodes")

    def _times(self, axes: Axes) -> None:
        bars = []
        for report in (report for report in self._reports if report.whole.stops):
            rest = report.whole.figures["seconds/mean"]
            for name in ("engine_seconds", "env_seconds", "queue_seconds"):
                bars.append((report.name, AMOUNTS[name], report.whole.figures[f"{name}/mean"]))
                rest -= bars[-1][2]
            bars.append((report.name, "the rest", max(0.0, rest)))
        _stack(axes, bars, "seconds")

    def _tools(self, axes: Axes) -> None:
        runs = list(enumerate(self._reports))
        bars = sorted((name, place, report) for place, report in runs for name in list(report.tools)[:MOST_TOOLS])
        for row, (name, place, report) in enumerate(bars):
            seconds = [report.tools[name][f"seconds/p{percent}"] for percent in (50, 90, 99)]
            axes.plot(seconds, [row] * 3, color=COLOURS[place], lw=2)
            for value, marker, label in zip(seconds, "oDs", ("median", "90 %", "99 %"), strict=True):
                axes.plot(value, row, marker, color=COLOURS[place], ms=6, label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_yticks(range(len(bars)), [name + f"\n{report.name}" * self._several for name, _, report in bars])
        axes.set_ylim(max(len(bars), 3) - 0.5, -0.5)
        axes.set_xlabel("seconds")


def _line(axes: Axes, points: Iterable[tuple[Any, Estimate]], colour: str, label: str, style: str) -> None:
    """Draw estimates with their intervals, as a curve or, without a style, as single points."""
    known = [(x, each.value, each.low, each.high) for x, each in points if each.value is not None]
    if known:
        xs, values, *_ = zip(*known, strict=True)
        axes.plot(xs, values, marker="o" * (len(known) <= 40), ls=style or "none", ms=4, color=colour, label=label)
    ends = [(x, low, high) for x, _, low, high in known if low is not None and high is not None]
    for x, low, high in ends if not style or len(ends) < 2 else ():
        axes.plot([x, x], [low, high], color=colour, lw=1.5)
    if style and len(ends) > 1:
        places, lows, highs = zip(*ends, strict=True)
        axes.fill_between(places, lows, highs, color=colour, alpha=0.18, lw=0)


def _stack(axes: Axes, bars: Sequence[tuple[str, str, float]], label: str) -> None:
    """Draw a bar for each row, of segments of these names and sizes."""
    rows, names = list(dict.fromkeys(row for row, *_ in bars)), list(dict.fromkeys(name for _, name, _ in bars))
    ends = dict.fromkeys(rows, 0.0)
    for row, name, size in bars:
        place = names.index(name)
        axes.barh(rows.index(row), size, 0.6, ends[row], color=COLOURS[place], hatch="//" * (place > 7), label=name)
        ends[row] += size
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(max(len(rows), 3) - 0.5, -0.5)
    axes.set_xlabel(label)


def _draw(axes: Axes, title: str, draw: Draw) -> None:
    axes.set_title(title)
    draw(axes)
    legend = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if len(legend) > 1:
        axes.legend(legend.values(), legend, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=3, fontsize=8)


def _figure(draw: Draw) -> Figure:
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    draw(figure.subplots())
    return figure
