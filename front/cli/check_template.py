"""`toolgym check-template`: whether a model's chat template keeps tokens exact, turn by turn."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolgym.cli.user_code import read_env_kwargs

if TYPE_CHECKING:
    from toolgym.rollout.tokens.template_check import TemplateReport


_COLOURS = {"append-only": "green", "exact by delta": "cyan", "not supported": "red", "wrong": "bold red"}


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_FOLDER",
            help="Folder of a model or tokenizer, a .jinja file or a folder with one, or a name on the model hub.",
        ),
    ],
    variables: Annotated[
        str, typer.Option(help="JSON object of variables for the template, such as '{\"enable_thinking\": false}'.")
    ] = "{}",
    special: Annotated[
        list[str] | None,
        typer.Option(
            help="A special token of a template that comes without a tokenizer, such as '</assistant>', where its look "
            "does not tell that it is one; may be given several times."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check case by case whether a chat template keeps tokens exact turn by turn. Exit status 1 when it does not."""
    from toolgym.rollout.tokens.template_check import check_template, tokenizer_for

    values = read_env_kwargs(variables, "--variables")
    tokenizer, origin = tokenizer_for(model, special or ())
    report = check_template(tokenizer, template_kwargs=values, origin=origin)
    console = Console(highlight=False)
    if as_json:
        console.print_json(json.dumps({"exact": report.exact, **dataclasses.asdict(report)}, default=sorted))
    else:
        console.print(_table(report, model))
        for note in _notes(report):
            console.print(Text(note))
    raise typer.Exit(0 if report.exact else 1)


def _table(report: TemplateReport, model: str) -> Table:
    table = Table(title=Text(f"chat template of {model}"), title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("why", overflow="fold")
    for case in report.cases:
        name = case.name if case.required else f"{case.name} (optional)"
        table.add_row(Text(name), Text(case.status, style=_COLOURS[case.status]), Text(case.why))
    return table


def _notes(report: TemplateReport) -> list[str]:
    from toolgym.rollout.tokens.template_check import GUESSED

    facts = report.facts
    notes = [f"tokenizer: {report.tokenizer}"]
    if report.tokenizer == GUESSED and not report.exact:
        notes.append("if the template has other special tokens: give the model's folder, or each token with --special")
    if facts is not None:
        notes.append(f"a turn ends with: {' or '.join(facts.ends_of_turn)}")
        notes.append(f"the policy goes on from: {facts.generation_prompt!r}")
        if facts.end_of_turn_is_marker:
            notes.append("turns have no end of their own; the next role's marker ends them")
        if not facts.tool_calls_rendered:
            notes.append("tool calls are not rendered; they are kept as the text that the policy wrote")
        if not facts.tools_rendered:
            notes.append("the tools are not shown to the policy; describe them in the system prompt")
        if facts.thinking_dropped:
            notes.append(
                f"the template drops the thinking of a turn before new messages ({', '.join(facts.thinking_dropped)}); "
                "an episode keeps it unless history is 'template'"
            )
        if facts.switch_words:
            notes.append(
                f"words in earlier messages ({', '.join(sorted(facts.switch_words))}) change what follows a turn; "
                "after such a word the whole conversation is rendered"
            )
        if facts.uses_date:
            notes.append("the date is written; it stays that of the run's start")
    verdict = "exact" if report.exact else "not exact: a required case is not supported, or a case is wrong"
    return [*notes, f"verdict: {verdict}"]
