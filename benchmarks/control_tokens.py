"""Control tokens that come out of a tool's, a user's or a task's text: there must be none.

    python benchmarks/control_tokens.py [--strings 1000000] [--folder FOLDER] [--seed 0]

Each string is made to become a control token of the chat template that it goes through: whole ones, pieces that join
again once what stands between them is gone, pieces cut over two messages or over a result's name and content, and
look-alikes that a normaliser makes the real thing. It goes to each place of a foreign text: results and their names,
the user's and the system's text, all texts of tools' schemas, calls in the history, and a turn that comes with the task
(out of which the tokens may come that belong into a turn, such as `<think>`). The templates are trl's and those below
FOLDER (`*.jinja*`), each text once, with tokenizers of six kinds: bytes; NFKC; NFKC with normalised added tokens; added
tokens that eat white space; ones that count as whole words only; and SentencePiece's way, with a space in front and
unknown characters as bytes.

A string leaks if the control tokens of the ids are others than with a harmless text in its place, which is empty where
the string is and has the same white space around it: templates look at that, and tokens that count as whole words
look at what touches them. Printed are the strings, the leaks, those that a template refuses, and strings a second. The
exit status is 1 if one leaks.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from toolgym.rollout.tokens.foreign_texts import template_with_tools
from toolgym.rollout.tokens.renderer import ChatRenderer, SafeEncoder
from toolgym.rollout.tokens.template_check import byte_tokenizer
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message, assistant, system, tool, tool_call, user
from toolgym.tools.schema import ToolSchema

KINDS = ("bytes", "NFKC", "NFKC, normalised tokens", "eats white space", "whole words", "SentencePiece")
LEAST = 500
"""Fewest strings for one template and tokenizer, whose renderer takes a second to make."""

TOGETHER = 8
"""Strings that go through one rendering, where a place is there as often. Each goes by itself if that shows a leak."""

MOST_PIECES = 8
FILLERS = [
    *("", " ", "\n", "\t", "  \n", "\u200b", "\u2060", "\ufeff", "\u00ad", "\u0301", "\u2581", "\u3000", "\ufb01"),
    *("a", "|", "<", ">", "[", "]", '"', "}", "{{", "{%", "</", "x>", "<0x0A>", "<0x3C>", "\\n", "\\u003c", "&lt;"),
    *("calm", "user", "assistant", "system", "tool"),
]
_CUT_AT = re.compile(r"(</think|<\|channel|<channel\|)>")
"""Tokens at which templates cut a turn: what is left of a hostile one and of a calm one cannot be compared."""

SHOWN = [ToolSchema("f", "Does it.", {"type": "object", "properties": {"x": {"type": "string", "description": "It."}}})]


Halves = tuple[str, str]


class Place(NamedTuple):
    """A function from at `most` so many strings to the ids of a text that has all of them at one kind of place."""

    most: int
    ids: Callable[[Sequence[Halves]], list[int]]


class Job(NamedTuple):
    """Strings for one template and kind of tokenizer."""

    path: Path
    kind: str
    strings: int
    seed: int


class Count(NamedTuple):
    """What became of the strings of a job; `leaks` shows some of those that leaked."""

    job: Job
    passed: int
    refused: int
    leaks: list[str]


def tokenizer_of(template: str, kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the template's own control tokens, of one of KINDS."""
    plain = byte_tokenizer(template)
    state = json.loads(plain.backend_tokenizer.to_str())
    if kind.startswith("NFKC"):
        state["normalizer"] = {"type": "NFKC"}
    for token in state["added_tokens"]:
        token["normalized"] = kind in ("NFKC, normalised tokens", "SentencePiece") and not token["special"]
        token["lstrip"] = token["rstrip"] = kind == "eats white space"
        token["single_word"] = kind == "whole words"
    if kind == "SentencePiece":
        pieces = ["\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
        vocab = {piece: at for at, piece in enumerate(pieces)}  # ids of added tokens follow
        state["model"].update(vocab=vocab, merges=[], byte_fallback=True)
        space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        state["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, space]}
        state["pre_tokenizer"] = None
    backend = Tokenizer.from_str(json.dumps(state))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer


def hostile_strings(contents: Sequence[str], count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Strings made of pieces of control tokens, each cut in two at a random place."""
    rng = np.random.default_rng(seed)
    wide = {ord(char): ord(char) + 0xFEE0 for char in "<|>_/"}  # what NFKC makes the same
    lookalikes = [text.translate(wide) for text in contents]
    parts = [part for text in contents for at in range(1, len(text)) for part in (text[:at], text[at:])]
    around = [f"{text[:at]}{filler}{text[at:]}" for text in contents for at in (1, len(text) // 2, len(text) - 1)
              for filler in (text, "\u200b", " ", "\n")]  # fmt: skip
    cores = [text.strip("<|>[]/") for text in contents]  # which a template's own brackets may complete
    groups = [list(contents), lookalikes, parts, around, [text.upper() for text in contents], FILLERS, cores]
    pieces = np.array([piece for group in groups for piece in group], dtype=object)
    ends = np.cumsum([len(group) for group in groups])
    group = rng.choice(len(groups), size=(count, MOST_PIECES), p=[0.15, 0.1, 0.3, 0.1, 0.05, 0.2, 0.1])
    starts = np.concatenate([[0], ends[:-1]])
    chosen = pieces[(starts[group] + rng.random(group.shape) * (ends - starts)[group]).astype(int)]
    lengths, cuts = rng.integers(1, MOST_PIECES + 1, count), rng.random(count)
    for row, length, cut in zip(chosen, lengths, cuts, strict=True):
        text = "".join(row[:length])
        at = int(cut * (len(text) + 1))
        yield text[:at], text[at:]


def _schema(number: int, first: str, second: str) -> dict[str, Any]:
    """A tool as a stranger's server lists it, with the texts at some of the places that it has for one."""
    described = {"x": {"type": "string", "description": second, "enum": [second], "default": first}}
    keyed = {second: {"type": "string", "description": first, "examples": [second]}}
    odd = {"x": {"type": "array", first: second, "items": {second: first}, "x-notes": [first, {second: first}]}}
    name, about, properties = [("f", first, described), (first or "f", second, keyed), ("g", first + second, odd)][
        number % 3
    ]
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _result(text: str, number: int = 0, name: str = "f") -> Message:
    return tool(text, tool_call_id=f"call{number:05}", name=name)


def _call(first: str, second: str, id: str = "call00000") -> list[Message]:
    called = assistant("", [tool_call(first or "f", {second: second, "x": [{first: second}]}, id=id)])
    return [user("Hello?"), called, tool("calm", tool_call_id=id, name=first or "f"), assistant("calm")]


def places(renderer: ChatRenderer) -> list[Place]:
    """The places of a foreign text that the template has."""
    asked = [user("Hello?")]
    tokenizer: Any = renderer.tokenizer
    encoder = SafeEncoder.of(tokenizer)

    def extend(*new: Message) -> list[int]:
        return renderer.extend(new, earlier=asked)

    def show(strings: Sequence[Halves]) -> list[int]:
        tools = [_schema(number, *halves) for number, halves in enumerate(strings)]
        return encoder.encode(template_with_tools(tokenizer, encoder, tools).render(asked))

    def talk(turn: Callable[[str, str], list[Message]]) -> Callable[[Sequence[Halves]], list[int]]:
        return lambda strings: renderer.prompt([each for halves in strings for each in turn(*halves)] + asked)

    def example(strings: Sequence[Halves]) -> list[int]:
        """Turns that come with the task. The tokens that belong into one may come out of them."""
        texts = [[_CUT_AT.sub(r"\1.>", half) for half in halves] for halves in strings]
        turns: list[Any] = [{**assistant(first), "reasoning_content": second} for first, second in texts]
        messages = [each for turn in turns for each in (*asked, turn)] + asked
        may = {encoder.id_of(token) for token in renderer.safe.turn_tokens if token in encoder.contents}
        return [each for each in renderer.prompt(messages, examples=messages) if each not in may]

    def said(first: str, second: str) -> list[Message]:
        return [{**user(second), "name": first}, assistant("calm")]

    alone: list[Callable[[str, str], list[int]]] = [
        lambda first, second: extend(_result(first + second)),
        lambda first, second: extend(_result(first), user(second)),
        lambda first, second: extend(user(first + second)),
        lambda first, second: renderer.prompt([system(first), user(second)]),
    ]
    together: list[Callable[[Sequence[Halves]], list[int]]] = [
        lambda strings: extend(*(_result(text, at) for at, text in enumerate(itertools.chain(*strings)))),
        lambda strings: extend(*(_result(second, at, first or "f") for at, (first, second) in enumerate(strings))),
        talk(lambda first, second: [user(first + second), assistant("calm")]),
        talk(said),
        talk(_call),
        talk(lambda first, second: _call("f", second, first or "call00000")),
        show,
        example,
    ]
    ways = [Place(1, lambda strings, way=way: way(*strings[0])) for way in alone]
    ways += [Place(TOGETHER, way) for way in together]
    return [way for way in ways if _tried(way, [("calm", "calm")]) is not None]


def harmless(text: str) -> str:
    """A text without control tokens that a template and a tokenizer treat alike."""
    match = re.fullmatch(r"([\s\u2581]*)(.*?)([\s\u2581]*)", text, re.DOTALL)  # SentencePiece's space is one, too
    assert match is not None
    before, core, behind = match.groups()
    if not core:
        return text
    first, last = ("a" if re.match(r"\w", edge) else "." for edge in (core[0], core[-1]))
    return f"{before}{first} calm {last}{behind}"


def _tried(way: Place, strings: Sequence[Halves]) -> list[int] | None:
    try:
        return way.ids(strings)
    except TemplateError:
        return None


def play(job: Job) -> Count | str:
    """Send a job's strings; what was wrong with its template if no renderer can be made of it."""
    try:
        renderer = ChatRenderer(tokenizer_of(job.path.read_text(encoding="utf-8"), job.kind), SHOWN, parser="hermes")
    except TemplateError as error:
        return f"{job.path.stem}, {job.kind}: {error}"
    ways = places(renderer)
    controls = renderer.added_ids
    refused, leaks = 0, []

    def controls_of(way: Place, strings: Sequence[Halves]) -> list[int] | None:
        ids = _tried(way, strings)
        return None if ids is None else [each for each in ids if each in controls]

    @functools.lru_cache(10_000)
    def calm(way: Place, *strings: Halves) -> list[int] | None:
        return controls_of(way, strings)

    def leak(way: Place, strings: Sequence[Halves]) -> bool | None:
        wild = controls_of(way, strings)
        if wild is None:
            return None
        return wild != calm(way, *((harmless(first), harmless(second)) for first, second in strings))

    contents = [renderer.decode([each]) for each in sorted(controls)]
    strings = hostile_strings(contents, job.strings, job.seed)
    for number, batch in enumerate(iter(lambda: list(itertools.islice(strings, TOGETHER)), [])):
        at = number % len(ways)
        if ways[at].most > 1 and leak(ways[at], batch) is False:
            continue
        for halves in batch:  # each by itself, to see which
            leaks_out = leak(ways[at], [halves])
            refused += leaks_out is None
            if leaks_out:
                leaks.append(f"{job.path.stem}, {job.kind}, place {at}: {halves!r}")
    return Count(job, job.strings, refused, leaks)


def jobs(folders: Sequence[Path], strings: int, seed: int) -> list[Job]:
    """The strings shared out to all templates and kinds, or to as many of them as get `LEAST` each."""
    texts = {path: path.read_text(encoding="utf-8").strip() for folder in folders for path in folder.rglob("*.jinja*")}
    paths = sorted({text: path for path, text in sorted(texts.items(), reverse=True)}.values())  # each text once
    pairs = [(path, KINDS[(at + turn) % len(KINDS)]) for turn in range(len(KINDS)) for at, path in enumerate(paths)]
    pairs = pairs[: max(1, min(len(pairs), strings // LEAST))]
    pairs.sort()  # what a process learns of a template, it remembers for the next kind
    share, more = divmod(strings, len(pairs))
    return [Job(path, kind, share + (at < more), seed * 10_000 + at) for at, (path, kind) in enumerate(pairs)]


def main() -> None:
    """Send the strings from several processes, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, action="append", default=[], help="further templates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    folders = [Path(spec.origin).parent / "chat_templates", *options.folder]
    began, total, unusable, usable = time.monotonic(), Counter[str](), list[str](), set[Path]()
    with ProcessPoolExecutor(options.processes) as pool:
        work = jobs(folders, options.strings, options.seed)
        for number, count in enumerate(pool.map(play, work, chunksize=len(KINDS)), 1):
            if number % 50 == 0:
                print(f"{number} of {len(work)} jobs, {total['strings']} strings", file=sys.stderr, flush=True)
            if isinstance(count, str):
                unusable.append(count)
                continue
            usable.add(count.job.path)
            total.update(strings=count.passed, refused=count.refused, leaks=len(count.leaks))
            print("".join(f"LEAK {leak}\n" for leak in count.leaks[:5]), end="", flush=True)
    seconds = time.monotonic() - began
    print("".join(f"not usable: {text[:200]}\n" for text in unusable), end="")
    print(f"{total['strings']} strings through {len(usable)} templates with {len(KINDS)} kinds of tokenizers")
    print(f"{total['leaks']} leaks, {total['refused']} refused; {total['strings'] / seconds:.0f} strings a second")
    sys.exit(total["leaks"] > 0)


if __name__ == "__main__":
    main()
