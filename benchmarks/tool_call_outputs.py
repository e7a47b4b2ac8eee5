"""Outputs of models whose calls are known, well-formed and damaged, in the formats of `tool_call_parsers.py`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from derived_formats import DERIVED, Call, Piece, Write, as_json, as_text, data, marks, write_derived

from toolgym.tools.parsers.derived import CallFormat
from toolgym.tools.schema import ToolSchema

STRING = {"type": "string"}
OPTIONS = {
    "grid": {"type": "boolean"},
    "font": {"type": "object", "properties": {"size": {"type": "integer"}, "face": STRING}},
    "marks": {"type": "array", "items": {"type": ["string", "null"]}},
}
TOOLS = {
    schema.name: schema
    for schema in (
        ToolSchema(
            "search",
            "Search.",
            {
                "type": "object",
                "properties": {
                    "query": STRING,
                    "limit": {"type": "integer"},
                    "site": STRING,
                    "fresh": {"type": "boolean"},
                },
                "required": ["query"],
            },
        ),
        ToolSchema(
            "write_file",
            "Write a file.",
            {
                "type": "object",
                "properties": {"path": STRING, "body": STRING, "mode": STRING},
                "required": ["path", "body"],
            },
        ),
        ToolSchema(
            "plot",
            "Plot.",
            {
                "type": "object",
                "properties": {
                    "points": {"type": "array", "items": {"type": "number"}},
                    "options": {"type": "object", "properties": OPTIONS},
                    "title": STRING,
                    "scale": {"type": "number"},
                },
            },
        ),
        ToolSchema("run_code", "Run code.", {"type": "object", "properties": {"code": STRING}, "required": ["code"]}),
        ToolSchema("get_time", "Tell the time.", {"type": "object", "properties": {}}),
    )
}
WORDS = ("fox", "red fox", "naïve ☃ 🦊", "2024-05-01", "5", "true", "a/b.txt", "C:\\new\\table", "it's", 'say "hi"')
LONG = (
    "def f(x):\n    if x < 3 and x > 1:\n        return {'a': [x]}\n\nprint(f(2))",
    "<html>\n  <body class='x'><p>1 &lt; 2</p><br/></body>\n</html>",
    '<config><item key="a">1</item><items/></config>',
    "line one\nline two\n\n- a\n- b",
    "List<String> names = new ArrayList<>();",
    "SELECT * FROM t WHERE a = 'b' -- [x](y)",
)


def hermes(calls: Sequence[Call]) -> list[Piece]:
    pieces = []
    for name, arguments in calls:
        inside = data(as_json({"name": name, "arguments": arguments}))
        pieces += [marks("<tool_call>"), data("\n"), inside, data("\n"), marks("</tool_call>"), data("\n")]
    return pieces[:-1]


def tagged(
    call: tuple[str, str, str], key: tuple[str, str], value: tuple[str, str], line: str, around: tuple[str, ...] = ()
) -> Write:
    """A writer of a format with tags: around calls, after the name, around keys and around values."""

    def write(calls: Sequence[Call]) -> list[Piece]:
        pieces = [marks(around[0]), data("\n")] if around else []
        for name, arguments in calls:
            pieces += [marks(call[0]), data(name), marks(call[1]), data(line)]
            for argument, content in arguments.items():
                pieces += [marks(key[0]), data(argument), marks(key[1]), marks(value[0]), data(as_text(content))]
                pieces += [marks(value[1]), data(line)]
            pieces += [*(marks(text) for text in call[2].split(" ")), data("\n")]
        return [*pieces, marks(around[1])] if around else pieces[:-1]

    return write


def qwen3_coder(calls: Sequence[Call]) -> list[Piece]:
    pieces = []
    for name, arguments in calls:
        pieces += [marks("<tool_call>"), data("\n"), marks("<function="), data(name), marks(">"), data("\n")]
        for key, value in arguments.items():
            pieces += [
                marks("<parameter="),
                data(key),
                marks(">"),
                data(f"\n{as_text(value)}\n"),
                marks("</parameter>"),
            ]
            pieces.append(data("\n"))
        pieces += [marks("</function>"), data("\n"), marks("</tool_call>"), data("\n")]
    return pieces[:-1]


def llama3(calls: Sequence[Call]) -> list[Piece]:
    texts = [as_json({"name": name, "parameters": arguments}) for name, arguments in calls]
    return [marks("<|python_tag|>"), data("; ".join(texts))]


def python_value(value: Any) -> str:
    return repr(value)


def pythonic(opens: str = "", closes: str = "") -> Write:
    def write(calls: Sequence[Call]) -> list[Piece]:
        pieces = [marks(opens), marks("[")]
        for at, (name, arguments) in enumerate(calls):
            inside = ", ".join(f"{key}={python_value(value)}" for key, value in arguments.items())
            pieces += [marks(", ")] if at else []
            pieces += [data(name), marks("("), data(inside), marks(")")]
        return [piece for piece in (*pieces, marks("]"), marks(closes)) if piece.text]

    return write


def mistral(calls: Sequence[Call]) -> list[Piece]:
    pieces = []
    for name, arguments in calls:
        pieces += [marks("[TOOL_CALLS]"), data(name), marks("[ARGS]"), data(as_json(arguments))]
    return pieces


def sections(section: tuple[str, str], call: tuple[str, str, str, str]) -> Write:
    def write(calls: Sequence[Call]) -> list[Piece]:
        pieces = [marks(section[0])]
        for at, (name, arguments) in enumerate(calls):
            kind, behind = call[1].format(at), call[2]
            pieces += [marks(call[0]), *([marks(kind)] if "sep" in kind else [data(kind)] if kind else []), data(name)]
            pieces += [data(behind.format(at).partition("\0")[0]), marks(behind.format(at).partition("\0")[2])]
            pieces += [data(as_json(arguments)), marks(call[3])]
        return [piece for piece in (*pieces, marks(section[1])) if piece.text]

    return write


def dsml(calls: Sequence[Call]) -> list[Piece]:
    pieces = [marks("<｜DSML｜tool_calls>"), data("\n")]
    for name, arguments in calls:
        pieces += [marks('<｜DSML｜invoke name="'), data(name), marks('">'), data("\n")]
        for key, value in arguments.items():
            kind = "true" if isinstance(value, str) else "false"
            pieces += [
                marks('<｜DSML｜parameter name="'),
                data(key),
                marks(f'" string="{kind}">'),
                data(as_text(value)),
            ]
            pieces += [marks("</｜DSML｜parameter>"), data("\n")]
        pieces += [marks("</｜DSML｜invoke>"), data("\n")]
    return [*pieces, marks("</｜DSML｜tool_calls>")]


def gpt_oss(calls: Sequence[Call]) -> list[Piece]:
    (name, arguments), *_ = calls
    head = [marks("<|channel|>"), data("commentary "), marks("to=functions."), data(name), data(" ")]
    return [
        *head,
        marks("<|constrain|>"),
        data("json"),
        marks("<|message|>"),
        data(as_json(arguments)),
        marks("<|call|>"),
    ]


DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def functionary(calls: Sequence[Call]) -> list[Piece]:
    pieces = []
    for name, arguments in calls:
        pieces += [marks(">>>"), data(name), marks("\n"), data(as_json(arguments))]
    return pieces[1:]  # the prompt ends with the first mark


def json_list(opens: str, closes: str = "") -> Write:
    def write(calls: Sequence[Call]) -> list[Piece]:
        objects = ", ".join(as_json({"name": name, "arguments": arguments}) for name, arguments in calls)
        return [piece for piece in (marks(opens), data(f"[{objects}]"), marks(closes)) if piece.text]

    return write


def minimax_m3(calls: Sequence[Call]) -> list[Piece]:
    token = "]<]minimax[>["

    def value(key: str, content: Any) -> list[Piece]:
        if isinstance(content, (dict, list)):
            parts = content.items() if isinstance(content, dict) else [("item", part) for part in content]
            inside = [piece for part in parts for piece in value(*part)]
        else:
            inside = [data(as_text(content))]
        return [marks(f"{token}<"), data(key), marks(">"), *inside, marks(f"{token}</"), data(key), marks(">")]

    pieces = [marks(f"{token}<tool_call>"), data("\n")]
    for name, arguments in calls:
        pieces += [marks(f'{token}<invoke name="'), data(name), marks('">')]
        for key, content in arguments.items():
            pieces += value(key, content)
        pieces += [marks(f"{token}</invoke>"), data("\n")]
    return [*pieces, marks(f"{token}</tool_call>")]


class Format(NamedTuple):
    """A format: how it is written, our parser, and the names of SGLang's and vLLM's.

    These are empty for gpt-oss: SGLang's parser looks for `<|start|>assistant`, which is in the prompt and not in the
    turn.
    """

    write: Write
    ours: str | CallFormat
    sglang: str
    vllm: str


PEERS = {"gemma4": ("gemma4", "gemma4"), "minimax m2": ("minimax-m2", "minimax_m2")}
"""The names of SGLang's and of vLLM's parsers for formats whose parsers toolgym derives."""

FORMATS: dict[str, Format] = {
    "hermes": Format(hermes, "hermes", "hermes", "hermes"),
    "qwen3_coder": Format(qwen3_coder, "qwen3_coder", "qwen3_coder", "qwen3_coder"),
    "llama3": Format(llama3, "llama3", "llama3", "llama3_json"),
    "pythonic": Format(pythonic(), "pythonic", "pythonic", "pythonic"),
    "lfm2": Format(pythonic("<|tool_call_start|>", "<|tool_call_end|>"), "lfm2", "lfm2", "lfm2"),
    "mistral": Format(mistral, "mistral", "mistral", "mistral"),
    "deepseekv3": Format(
        sections(
            DEEPSEEK, ("<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>", "\n\0```json\n", "\n```<｜tool▁call▁end｜>")
        ),
        "deepseekv3",
        "deepseekv3",
        "deepseek_v3",
    ),
    "deepseekv31": Format(
        sections(DEEPSEEK, ("<｜tool▁call▁begin｜>", "", "\0<｜tool▁sep｜>", "<｜tool▁call▁end｜>")),
        "deepseekv31",
        "deepseekv31",
        "deepseek_v31",
    ),
    "deepseekv4": Format(dsml, "deepseekv4", "deepseekv4", "deepseek_v4"),
    "glm45": Format(
        tagged(
            ("<tool_call>", "", "</tool_call>"),
            ("<arg_key>", "</arg_key>\n"),
            ("<arg_value>", "</arg_value>"),
            "\n",
        ),
        "glm45",
        "glm45",
        "glm45",
    ),
    "glm47": Format(
        tagged(("<tool_call>", "", "</tool_call>"), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>"), ""),
        "glm45",
        "glm47",
        "glm47",
    ),
    "kimi_k2": Format(
        sections(
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            ("<|tool_call_begin|>", "functions.", ":{}\0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
        "kimi_k2",
        "kimi_k2",
        "kimi_k2",
    ),
    "minimax_m3": Format(minimax_m3, "minimax_m3", "minimax-m3", "minimax_m3"),
    "gpt_oss": Format(gpt_oss, "gpt_oss", "", ""),
    "phi4_mini": Format(json_list("functools"), "phi4_mini", "", "phi4_mini_json"),
    "phi4_mini (tags)": Format(json_list("<|tool_call|>", "<|/tool_call|>"), "phi4_mini", "", ""),
    "functionary": Format(functionary, "functionary", "", ""),
    **{
        f"{name} (derived)": Format(write_derived(form), form, *PEERS.get(name, ("", "")))
        for name, form in DERIVED.items()
    },
}


class Output(NamedTuple):
    """A model's output and the calls that it meant. Calls after the end of a cut output are not among them."""

    text: str
    calls: list[Call]
    damage: str


def draw_arguments(source: random.Random, schema: ToolSchema) -> dict[str, Any]:
    """Draw arguments that fit a tool's schema."""
    properties, required = schema.parameters["properties"], schema.parameters.get("required", [])
    values = {
        "query": source.choice(WORDS),
        "limit": source.randint(-3, 500),
        "site": source.choice(WORDS),
        "fresh": source.random() < 0.5,
        "path": source.choice(("a.txt", "src/main page.py", "ü.md")),
        "body": source.choice(LONG),
        "mode": source.choice(("w", "append")),
        "points": [source.choice((1, 2.5, -3)) for _ in range(source.randint(0, 3))],
        "options": source.choice(({}, {"grid": True, "font": {"size": 3, "face": "a b"}}, {"marks": ["x", None]})),
        "title": source.choice(WORDS),
        "scale": source.choice((2, 0.5)),
        "code": source.choice(LONG),
    }
    keys = [key for key in properties if key in required or source.random() < 0.6]
    return {key: values[key] for key in keys}


def damage_text(source: random.Random, text: str) -> str:
    """Forget a text, or change a letter or two of it."""
    at = source.randrange(len(text))
    changed = (
        "",
        text[:at] + text[at + 1 :],
        text[:at] + "x" + text[at + 1 :],
        text[:at] + text[at : at + 2][::-1] + text[at + 2 :],
    )
    return source.choice(changed)


def count_begun(write: Write, calls: Sequence[Call], text: str) -> int:
    """Count the calls of which a cut text has at least one sign that only a call has."""
    for count in range(1, len(calls)):
        whole = "".join(piece.text for piece in write(calls[:count]))
        if whole.startswith(text.rstrip(" \n;,")):
            return count
    return len(calls)


def draw_output(source: random.Random, name: str) -> Output:
    """Draw an output in a format: well-formed, or with one damage."""
    count = 1 if name == "gpt_oss" else source.choice((1, 1, 2, 3))
    schemas = [source.choice(list(TOOLS.values())) for _ in range(count)]
    calls = [(schema.name, draw_arguments(source, schema)) for schema in schemas]
    pieces = FORMATS[name].write(calls)
    before = "" if name == "gpt_oss" else source.choice(("", "I look it up.\n", "Let me see: 1 < 2.\n\n"))
    damage = source.choice(("none", "tag", "tag", "tag", "cut", "thought"))
    if source.random() < 1 / 5:
        damage = "none"
    places = [at for at, piece in enumerate(pieces) if piece.is_format and piece.text.strip()]
    if damage == "tag" and not places:  # the format has no text of its own
        damage = "none"
    if damage == "tag":
        at = source.choice(places)
        pieces[at] = Piece(damage_text(source, pieces[at].text), True)
    if name == "functionary" and before:
        before = f"all\n{before}>>>"
    text = before + "".join(piece.text for piece in pieces)
    if damage == "cut":
        text = text[: source.randrange(len(before) + len(pieces[0].text), len(text))]
        calls = calls[: count_begun(FORMATS[name].write, calls, text[len(before) :])]
    if damage == "thought" and name != "gpt_oss":
        return Output(f"<think>I could write\n{text}\nbut no.</think>It is 4.", [], damage)
    return Output(text, calls, "none" if damage == "thought" else damage)
