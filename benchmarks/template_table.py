"""The verdict on every chat template in a folder, as the table of docs/templates.md.

    python benchmarks/template_table.py FOLDER > docs/templates.md

FOLDER holds one folder for each source project, with that project's templates (`*.jinja`, `*.jinja2`) in it. A template
is tried with no tool, one and ten: `toolgym check-template` compares what an episode would hold with what transformers
renders of the whole conversation. Templates without tool calls or tool results in their text, and copies of one that
was there before, are left out. The exit status is 1 if a template is wrong: it must be exact, or be refused.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import Status, TemplateReport, byte_tokenizer, check_template
from toolgym.tools.errors import TemplateError
from toolgym.tools.schema import ToolSchema

_PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "string", "description": "The word."}},
    "required": ["x"],
}
TOOLS = [ToolSchema(f"tool_{at}", "Does it.", _PARAMETERS) for at in range(10)]
HEADER = """\
# Chat templates

What `ChatRenderer` makes of the chat templates that other projects publish, tried with no tool, one and ten. **Exact**:
the ids of an episode are those of the whole conversation, over the cases of `toolgym check-template`. **Refused**: a
case that every agent needs is refused, by name, when it comes up or when the renderer is made. No template is wrong
without a word. The table is made by `benchmarks/template_table.py`; the templates themselves stay with their projects.

A template that is exact may still refuse what its model was never shown: the last column names such cases. *Outline*
says that what it writes depends on the earlier messages, so that a delta's cost grows with their number.

**Calls read by** is the parser that reads back the calls which the template renders: strings with quotes, tags and
line breaks, numbers, booleans, null, lists, objects, several calls, text before them. `derived` is a parser that
toolgym built from the rendered calls ([parsers](parsers.md)). A parser in brackets is known by the template's
instructions only, because the template renders no calls. The last column names values that the template cannot write,
as *unread*.

*Thinking* has the texts around a thought, which the renderer reads off the template. It is empty if the template writes
no thoughts. *Drops thinking* names the messages in front of which the template leaves out the thinking of the turn: an
episode keeps it unless `history="template"` is chosen ([exact tokens](exact_tokens.md)). *Looks for words* names the
roles of messages in which a word such as `/no_think` changes what follows. If a conversation has such a word, each
delta is cut from the whole rendered conversation. A template whose stop token is also inside a turn is refused.
`benchmarks/template_survey.py --folder FOLDER` looks for templates that are wrongly called exact.

With images, a template is compared with the processor of its model: `toolgym check-template FOLDER` for its folder.
[Images](images.md) has the families. A template that takes contents as lists of parts only gets them so.
"""


_AFTER = {"one result": "a result", "user": "a user's message"}


class Row(NamedTuple):
    """One template's line."""

    name: str
    project: str
    verdict: str
    ends: str
    thinking: str
    parser: str
    reason: str


def examine(path: Path) -> Row:
    """Try one template."""
    try:
        reports = [
            check_template(byte_tokenizer(path.read_text(encoding="utf-8")), TOOLS[:count]) for count in (1, 10, 0)
        ]
    except Exception as error:  # noqa: BLE001  one template must not end the table
        return Row(path.stem, path.parent.name, "wrong", "", "", "", f"{type(error).__name__}: {error}")
    notes = []
    if reports[0].facts is not None and reports[2].facts is None:
        notes.append("needs tools")
        reports.pop()
    facts = reports[0].facts
    ends = " ".join(f"`{end}`" for end in facts.ends_of_turn) if facts is not None else ""
    shows_thinking = facts is not None and facts.thinking_rendered
    thinking = " ".join(f"`{tag}`" for tag in facts.thinking[:2]) if facts is not None and shows_thinking else ""
    if facts is not None and facts.switch_words:
        notes.append(f"looks for words in {', '.join(sorted(facts.switch_words))}")
    if facts is not None and facts.thinking_dropped:
        notes.append(f"drops thinking before {' and '.join(_AFTER[kind] for kind in facts.thinking_dropped)}")
    verdicts = [verdict(report) for report in reports]
    worst = next(one for one in ("wrong", "refused", "exact") if one in [found for found, _ in verdicts])
    reason = next(why for found, why in verdicts if found == worst)
    if facts is not None and any(plan.earlier for plan in facts.plans.values()):
        notes.append("outline")
    parser, unread = read_by(path)
    if unread:
        notes.append(f"unread: {', '.join(unread)}")
    reasons = [*notes, *([reason] if reason else [])]
    return Row(path.stem, path.parent.name, worst, ends, thinking, parser, "; ".join(reasons))


def read_by(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the parser of a template, and the names of the probes that it does not read back."""
    try:
        proof = ChatRenderer(byte_tokenizer(path.read_text(encoding="utf-8")), TOOLS[:1]).parser_proof
    except TemplateError:
        return "", ()
    if proof is None or proof.parser is None:
        return "none", ()
    return (proof.name if proof.proven else f"({proof.name})"), proof.unread


def verdict(report: TemplateReport) -> tuple[str, str]:
    """Exact, refused or wrong, and why."""
    wrong = [case for case in report.cases if case.status is Status.WRONG]
    if wrong:
        return "wrong", f"{wrong[0].name}: {wrong[0].why}"
    if not report.exact:
        case = next(case for case in report.cases if case.required and case.status is Status.NOT_SUPPORTED)
        return "refused", f"{case.name}: {case.why}"
    left_out = [case.name for case in report.cases if case.status is Status.NOT_SUPPORTED]
    return "exact", f"refuses: {', '.join(left_out)}" if left_out else ""


def templates(folder: Path) -> list[Path]:
    """Return the templates in a folder, at any depth, that mention tools. Copies are left out."""
    distinct: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.jinja*")):
        text = path.read_text(encoding="utf-8")
        if "tool_calls" in text or "'tool'" in text or '"tool"' in text:
            distinct.setdefault(text.strip(), path)
    return list(distinct.values())


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder for each project in it")
    folder: Path = parser.parse_args().folder
    with ProcessPoolExecutor() as pool:
        rows = sorted(pool.map(examine, templates(folder)), key=lambda row: (row.project.lower(), row.name.lower()))
    counts = Counter(row.verdict for row in rows)
    print(HEADER)
    print(
        f"{len(rows)} templates: " + ", ".join(f"{counts[one]} {one}" for one in ("exact", "refused", "wrong")) + ".\n"
    )
    print("| template | project | verdict | ends of a turn | thinking | calls read by | notes |\n" + "| --- " * 7 + "|")
    for row in rows:
        columns = [row.name, row.project, row.verdict, row.ends, row.thinking, row.parser]
        cells = [*columns, " ".join(row.reason.split())]
        print("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells[:3]), end=" | ")
        print(" | ".join(cell.replace("|", "\\|") for cell in cells[3:]), end=" |\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
