"""The tables of reports as texts, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolgym.report.estimators import Estimate
from toolgym.report.report import By, Report, RunPart, compare

MOST_PARTS = 24  # of a run are listed; of more, as many at equal distances, the first and the last among them
AMOUNTS = (
    {"turns": "turns", "tool_calls": "tool calls", "response_length": "policy tokens"}
    | {"context_length": "longest context", "seconds": "time", "engine_seconds": "in the engine"}
    | {"env_seconds": "in env and tools", "queue_seconds": "in the queue"}
)
_COUNTS = (
    {"episodes": "episodes", "episodes/counted": "that count", "episodes/at_limit": "ended at a limit"}
    | {"episodes/broken_off": "broken off", "tasks": "tasks"}
)  # fmt: skip
_RATES = (
    {"groups/equal_rewards": "groups of equal rewards", "truncated/rate": "truncated", "failed/rate": "failed"}
    | {
        "tokens/policy": "policy tokens",
        "tokens/truncated": "tokens of truncated episodes",
        "tokens/lost": "tokens that no trainer gets",
    }
    | {"process/worker_hours_per_million_actions": "worker-hours per million actions"}
)
_ENDS = ("blame", "stop reason", "to train on", "episodes", "part", "policy tokens")
_KINDS = ("mean", "p50", "p90", "p99", "max")
Line = tuple[str, ...]


@dataclass(frozen=True)
class FigureTable:
    """Texts in the first `texts` columns, and figures in the others."""

    title: str
    head: Line
    rows: tuple[Line, ...]
    texts: int = 1


def tables_of(reports: Sequence[Report]) -> list[FigureTable]:
    """Return the tables of one run, or of several beside each other; those without rows are left out."""
    tables = [_figure_table(reports)]
    kinds: list[tuple[str, Line, int, Callable[[Report], Iterator[Line]]]] = [
        ("By {by}", ("{by}", "episodes", "reward", "success", "turns", "tokens", "cut", "failed"), 1, _parts),
        ("An episode", ("", *_KINDS), 1, _amounts),
        ("Ends", _ENDS, 3, _ends),
        ("Tool calls", ("tool", "calls", "not ok", *_KINDS[1:], "sum"), 1, _tools),
    ]
    for title, head, texts, lines in kinds:
        for report in reports:
            if rows := tuple(lines(report)):
                name = title.format(by=report.by) + (f": {report.name}" if len(reports) > 1 else "")
                tables.append(FigureTable(name, (head[0].format(by=report.by), *head[1:]), rows, texts))
    return tables


def tables_of_evaluation(reports: Sequence[Report], divisions: Mapping[By, Sequence[RunPart]]) -> list[FigureTable]:
    """Return the tables of an evaluation, the last of the reports, with its parts."""
    report, tables = reports[-1], [_figure_table(reports)]
    most = max(int(name.removeprefix("pass@")) for name in report.whole.estimates if name.startswith("pass@"))
    names = ["reward", "success", *(f"pass{sign}{most}" for sign in "@^" if most > 1)]
    for by, parts in divisions.items():
        rows = [_part_line(part, names) for part in parts]
        head = (by, "tasks", "episodes", *names, "limit", "broken")
        tables.append(FigureTable(f"By {by}", head, tuple(rows)))
    return [*tables, FigureTable("Ends", _ENDS, tuple(_ends(report)), 3)]


def _part_line(part: RunPart, names: Sequence[str]) -> Line:
    """Return a line whose intervals stand below their values, so that the table is narrow."""
    counts = [shown(part.figures.get(name)) for name in ("tasks", "episodes")]
    estimates = [interval(name, part.estimates[name], digits=0).replace(" ", "\n", 1) for name in names]
    ends = [shown(part.figures.get(f"episodes/{end}")) for end in ("at_limit", "broken_off")]
    return (part.name, *counts, *estimates, *ends)


def notes_of(reports: Sequence[Report]) -> Iterator[str]:
    """Yield sentences about what is not in the tables, and why."""
    for report in reports:
        run = f"{report.name}: " if len(reports) > 1 else ""
        yield from (run + note for note in report.notes)
        if len(report.parts) > MOST_PARTS:
            yield f"{run}{MOST_PARTS} of {len(report.parts):,} parts are listed; --json has all"
        yield from _reasons(run, report.whole.estimates)
    for other in reports[1:]:
        ways = [", ".join(sorted(report.distributions)) for report in (reports[0], other)]
        if all(ways) and ways[0] != ways[1]:
            yield f"{other.name} was sampled at {ways[1]}, and {reports[0].name} at {ways[0]}"
        yield from _reasons(f"{other.name} - {reports[0].name}: ", compare(reports[0], other))


def _reasons(run: str, estimates: dict[str, Estimate]) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for name, each in estimates.items():
        few = f"{each.left_out:,} of {each.left_out + each.samples:,} tasks have too few episodes"
        both = f"{each.tasks:,} tasks in both, {each.dropped[0]:,} only in the first, {each.dropped[1]:,} in the other"
        texts = (few * (each.left_out > 0), both * any(each.dropped), each.why)
        names.setdefault("; ".join(filter(None, texts)), []).append(name)
    yield from (f"{run}{', '.join(group)}: {text}" for text, group in names.items() if text)


def _figure_table(reports: Sequence[Report]) -> FigureTable:
    first, *others = reports
    head = ("", *(report.name for report in reports), *(f"{other.name} - {first.name}" for other in others))
    return FigureTable("Figures", head, tuple(_figures(reports)))


def _figures(reports: Sequence[Report]) -> Iterator[Line]:
    differences = [compare(reports[0], other) for other in reports[1:]]
    estimates = {name: name for report in reports for name in report.whole.estimates if name != "pass^1"}
    for name, label in (_COUNTS | estimates | _RATES).items():
        if name in estimates:
            values = [interval(name, report.whole.estimates.get(name, Estimate())) for report in reports]
            values += [interval(name, each.get(name, Estimate()), sign="+") for each in differences]
        else:
            unit = "%" if name.endswith(("rate", "rewards")) else ""
            values = [shown(report.whole.figures.get(name), unit) for report in reports] + [""] * len(differences)
        yield (label, *values)


def _parts(report: Report) -> Iterator[Line]:
    parts, count = report.parts, min(len(report.parts), MOST_PARTS)
    for part in (parts[place * (len(parts) - 1) // max(count - 1, 1)] for place in range(count)):
        estimates = [interval(name, part.estimates[name], digits=0) for name in ("reward", "success")]
        means = [shown(part.figures.get(f"{name}/mean")) for name in ("turns", "response_length")]
        rates = [shown(part.figures.get(f"{name}/rate"), "%") for name in ("truncated", "failed")]
        yield (part.name, shown(part.figures["episodes"]), *estimates, *means, *rates)


def _amounts(report: Report) -> Iterator[Line]:
    for name, label in AMOUNTS.items():
        figures = [report.whole.figures.get(f"{name}/{kind}") for kind in _KINDS]
        if any(figures):
            yield (label, *(shown(figure, "s" * ("seconds" in name)) for figure in figures))


def _ends(report: Report) -> Iterator[Line]:
    for stop in report.whole.stops:
        use = "yes" if stop.usable else "no"
        yield stop.blame, stop.reason, use, shown(stop.episodes), shown(stop.rate, "%"), shown(stop.policy_tokens)


def _tools(report: Report) -> Iterator[Line]:
    for name, figures in report.tools.items():
        seconds = [shown(figures[f"seconds/{kind}"], "s") for kind in (*_KINDS[1:], "sum")]
        yield (name, shown(figures["calls"]), shown(figures["errors"]), *seconds)


def interval(name: str, estimate: Estimate, digits: int = 1, sign: str = "") -> str:
    """Write a value with its interval: `0.465 ± 0.295`, or in per cent `46.5% [25.2, 69.2]`."""
    value, low, high, form = estimate.value, estimate.low, estimate.high, ".3f" if name == "reward" else f".{digits}%"
    if value is None:
        return "–"
    if low is None or high is None:
        return f"{value:{sign}{form}}"
    if sign or name == "reward":  # Student's t, the same to both sides
        return f"{value:{sign}{form}} ± {high - value:{form}}"
    return f"{value:{form}} [{low * 100:.{digits}f}, {high * 100:.{digits}f}]"


def shown(value: float | None, unit: str = "") -> str:
    if value is None or unit == "%":
        return "–" if value is None else f"{value:.1%}"
    if unit and 0 < value < 0.9995:
        return f"{value * 1000:.3g} ms"
    return (f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}") + f" {unit}" * bool(unit)
