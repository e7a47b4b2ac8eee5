"""What tool-call parsers make of model outputs whose calls are known: ours beside SGLang's and vLLM's.

    python benchmarks/tool_call_parsers.py [--outputs 2000] [--seed 0] [--formats hermes,glm45] [--examples 3]

A third of the outputs are well-formed. In the others one text of the format is damaged: a tag is forgotten, misspelt or
short of a letter, the turn is cut after its first tag, or a call stands in thinking. Values and names are never
damaged, so that the calls that the model meant are known. Parsers of packages that are not installed are left out.

read right   well-formed outputs from which exactly the calls were read, with the types of the schema
run wrong    outputs, well-formed or damaged, of which a call would run that the model did not mean: it fits its tool's
             schema, and no meant call of that tool has these arguments
silent       damaged outputs that lost a call without a word: fewer calls than were meant, and no error
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tool_call_outputs import FORMATS, TOOLS, Call, Format, Output, as_json, draw_output

from toolgym.tools.errors import ToolgymError
from toolgym.tools.parsers import Parser, get_parser
from toolgym.tools.parsers.derived import CallFormat, derived_parser
from toolgym.tools.schema import ToolCall, check_call


class Reading(NamedTuple):
    """The calls that a parser read, and whether the model reads of an error."""

    calls: list[Call]
    errors: bool


Read = Callable[[str], Reading]


def read_with(parser: Parser) -> Read:
    """A reader by one of our parsers, or by one of SGLang's with the same contract."""

    def read(text: str) -> Reading:
        turn = parser(text, schemas=TOOLS)
        checked = [check_call(call, TOOLS) for call in turn.calls]
        runs = [(call.name, dict(call.arguments)) for call in checked if isinstance(call, ToolCall)]
        return Reading(runs, bool(turn.errors) or len(runs) < len(checked))

    return read


def vllm_reader(name: str) -> Read | None:
    """A reader by vLLM's parser of a name; None if vLLM is not installed, or it has no such parser without a model."""
    try:
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        tools: list[Any] = [schema.to_openai() for schema in TOOLS.values()]
        request = ChatCompletionRequest(messages=[], model="m", tools=tools)
        parser = ToolParserManager.get_tool_parser(name)(None)
    except Exception:  # noqa: BLE001  its parsers want tokenizers, engines and other packages
        return None

    def read(text: str) -> Reading:
        _, closing, rest = text.partition("</think>")
        extracted = parser.extract_tool_calls(rest if closing else text, request)
        runs: list[Call] = []
        for call in extracted.tool_calls or ():
            try:
                checked = check_call(ToolCall("0", call.function.name, json.loads(call.function.arguments), 0), TOOLS)
            except ValueError:
                continue
            if isinstance(checked, ToolCall):
                runs.append((checked.name, dict(checked.arguments)))
        return Reading(runs, False)

    return read


def in_time(read: Read) -> Read:
    """A reader whose every output has a second. One that takes longer reads nothing."""

    def stop(*_: object) -> None:
        raise TimeoutError

    def limited(text: str) -> Reading:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            return read(text)
        except TimeoutError:
            return Reading([], False)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return limited


def own_reader(form: Format) -> Read:
    """The reader by toolgym's parser."""
    ours = derived_parser(form.ours) if isinstance(form.ours, CallFormat) else get_parser(form.ours)
    assert ours is not None
    return read_with(ours)


def readers(form: Format) -> dict[str, Read]:
    """The readers of a format whose packages are installed."""
    by_name: dict[str, Read] = {"toolgym": own_reader(form)}
    if not form.sglang:
        return by_name
    try:
        by_name["SGLang"] = in_time(read_with(get_parser(f"sglang:{form.sglang}")))
    except ToolgymError as error:
        print(f"# SGLang {form.sglang}: {error}", file=sys.stderr)
    vllm = vllm_reader(form.vllm)
    if vllm is not None:
        by_name["vLLM"] = in_time(vllm)
    return by_name


def same(call: Call, other: Call) -> bool:
    """Whether two calls are the same, with numbers of one type where JSON has one."""
    return call[0] == other[0] and call[1] == other[1] and as_json(call[1]) == as_json({**other[1]})


def ran_wrong(output: Output, reading: Reading) -> bool:
    """Whether a call runs that the output did not mean."""
    return any(not any(same(call, meant) for meant in output.calls) for call in reading.calls)


def count_output(counts: Counter[str], output: Output, reading: Reading) -> None:
    """Add one output and what a parser read of it to the counts."""
    whole = output.damage in ("none", "thought")
    right = len(reading.calls) == len(output.calls) and all(map(same, reading.calls, output.calls))
    counts["well-formed"] += whole
    counts["damaged"] += not whole
    counts["read right"] += whole and right
    counts["run wrong"] += ran_wrong(output, reading)
    counts["silent"] += not whole and not reading.errors and len(reading.calls) < len(output.calls)


def measure(name: str, outputs: int, seed: int, examples: int = 0) -> Mapping[str, Counter[str]]:
    """Draw outputs of a format and count what each parser makes of them."""
    source = random.Random(f"{seed} {name}")
    counts: dict[str, Counter[str]] = {}
    by_name = readers(FORMATS[name])
    for _ in range(outputs):
        output = draw_output(source, name)
        for who, read in by_name.items():
            count = counts.setdefault(who, Counter())
            reading = read(output.text)
            wrong = count["run wrong"]
            count_output(count, output, reading)
            if who == "toolgym" and count["run wrong"] > wrong and examples > wrong:
                print(f"# {name} {output.damage}: {output.text!r}\n#   {reading.calls}", file=sys.stderr)
    return counts


def main() -> int:
    """Print the table. The exit status is 1 if a call ran with arguments that its model did not mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=2000, help="outputs of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--examples", type=int, default=0, help="wrong runs to print of each format")
    options = parser.parse_args()
    totals: dict[str, Counter[str]] = {}
    print("| format | parser | read right | run wrong | silent |\n| --- | --- | --- | --- | --- |")
    for name in options.formats.split(","):
        for who, counts in measure(name, options.outputs, options.seed, options.examples).items():
            totals[who] = totals.get(who, Counter()) + counts
            print_row(name, who, counts)
    for who, counts in totals.items():
        print_row("all", who, counts)
    return 1 if totals["toolgym"]["run wrong"] else 0


def print_row(name: str, who: str, counts: Counter[str]) -> None:
    right, whole = counts["read right"], counts["well-formed"]
    cells = (f"{right} of {whole} ({100 * right / max(whole, 1):.1f} %)", counts["run wrong"], counts["silent"])
    print(f"| {name} | {who} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
