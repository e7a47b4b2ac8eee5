"""What tool-call parsers make of model outputs whose calls are known: ours beside SGLang's and vLLM's.

    python benchmarks/tool_call_parsers.py [--outputs 2000] [--seed 0] [--formats hermes,glm45] [--examples 3]
        [--sglang .sglang-venv/bin/python] [--vllm PYTHON]

A third of the outputs are well-formed. In the others one text of the format is damaged: a tag is forgotten, misspelt or
short of a letter, the turn is cut after its first tag, or a call stands in thinking. Values and names are never
damaged, so that the calls that the model meant are known. SGLang's and vLLM's parsers run in processes of their own,
see `tool_call_peers.py`.

read right   well-formed outputs from which exactly the calls were read, with the types of the schema
run wrong    outputs, well-formed or damaged, of which a call would run that the model did not mean: it fits its tool's
             schema, and no meant call of that tool has these arguments
silent       damaged outputs that lost a call without a word: fewer calls than were meant, and no error
stalled      outputs that the parser did not read within two seconds of processor time
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tool_call_outputs import FORMATS, TOOLS, Call, Format, Output, as_json, draw_output

from toolgym.tools.parsers import Parser, get_parser
from toolgym.tools.parsers.derived import CallFormat, derived_parser
from toolgym.tools.schema import ToolCall, check_call


class Reading(NamedTuple):
    """The calls that a parser read, whether the model reads of an error, and whether the parser did not end in time."""

    calls: list[Call]
    errors: bool
    stalled: bool = False


Read = Callable[[str], Reading]


def checked(calls: Sequence[ToolCall], errors: bool) -> Reading:
    """Return what would run of the calls, and whether the model reads of an error."""
    results = [check_call(call, TOOLS) for call in calls]
    runs = [(call.name, dict(call.arguments)) for call in results if isinstance(call, ToolCall)]
    return Reading(runs, errors or len(runs) < len(results))


def read_with(parser: Parser) -> Read:
    """A reader by one of our parsers."""

    def read(text: str) -> Reading:
        turn = parser(text, schemas=TOOLS)
        return checked(turn.calls, bool(turn.errors))

    return read


class Peer:
    """The parsers of another project, which run in a process of their own (`tool_call_peers.py`).

    Args:
        kind: "sglang" or "vllm".
        python: the Python in which the project is installed.
    """

    def __init__(self, kind: str, python: str) -> None:
        program = Path(__file__).with_name("tool_call_peers.py")
        command = [python, str(program), kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask([schema.to_openai() for schema in TOOLS.values()])

    def reader(self, name: str) -> Read:
        """Return a reader by the parser of a name."""

        def read(text: str) -> Reading:
            answer = self._ask((name, text))
            calls = [ToolCall(str(at), *call, at) for at, call in enumerate(answer["calls"])]
            return checked(calls, answer["errors"])._replace(stalled="stalled" in answer)

        return read

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the process of the other parsers ended; its error is above")
        return json.loads(answer)


def own_reader(form: Format) -> Read:
    """The reader by toolgym's parser."""
    ours = derived_parser(form.ours) if isinstance(form.ours, CallFormat) else get_parser(form.ours)
    assert ours is not None
    return read_with(ours)


def readers(form: Format, peers: Mapping[str, Peer]) -> dict[str, Read]:
    """The readers of a format: toolgym's, and those of the peers that have one."""
    by_name: dict[str, Read] = {"toolgym": own_reader(form)}
    for kind, peer in peers.items():
        name = {"sglang": form.sglang, "vllm": form.vllm}[kind]
        if name:
            by_name[kind] = peer.reader(name)
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
    counts["stalled"] += reading.stalled
    counts["silent"] += not whole and not reading.errors and len(reading.calls) < len(output.calls)


def measure(
    name: str, outputs: int, seed: int, examples: int = 0, peers: Mapping[str, Peer] | None = None
) -> Mapping[str, Counter[str]]:
    """Draw outputs of a format and count what each parser makes of them."""
    source = random.Random(f"{seed} {name}")
    counts: dict[str, Counter[str]] = {}
    by_name = readers(FORMATS[name], peers or {})
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
    parser.add_argument("--sglang", default="", metavar="PYTHON", help="the Python in which SGLang is installed")
    parser.add_argument("--vllm", default="", metavar="PYTHON", help="the Python in which vLLM is installed")
    options = parser.parse_args()
    paths = {"sglang": options.sglang, "vllm": options.vllm}
    peers = {kind: Peer(kind, python) for kind, python in paths.items() if python}
    totals: dict[str, Counter[str]] = {}
    print("| format | parser | read right | run wrong | silent | stalled |\n| --- | --- | --- | --- | --- | --- |")
    for name in options.formats.split(","):
        for who, counts in measure(name, options.outputs, options.seed, options.examples, peers).items():
            totals[who] = totals.get(who, Counter()) + counts
            print_row(name, who, counts)
    for peer in peers.values():
        peer.close()
    for who, counts in totals.items():
        print_row("all", who, counts)
    return 1 if totals["toolgym"]["run wrong"] else 0


def print_row(name: str, who: str, counts: Counter[str]) -> None:
    right, whole = counts["read right"], counts["well-formed"]
    cells = (f"{right} of {whole} ({100 * right / max(whole, 1):.1f} %)", counts["run wrong"], counts["silent"])
    cells = (*cells, counts["stalled"])
    print(f"| {name} | {who} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
