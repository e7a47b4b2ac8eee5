"""Texts that a policy could write to make a parser or a scorer work long, by name. Each has about a given length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

Shape = Callable[[int], str]

TAGS = (
    "think", "answer", "tool_call", "search", "parameter=a", "function=f", "arg_key", "arg_value", "tool_response",
    "tool_call:opensource", "information",
)  # fmt: skip

MARKS = (
    "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>", "<|python_start|>", "<|python_end|>",
    "<|tool_call_start|>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", '<｜DSML｜invoke name="f">',
    '<｜DSML｜parameter name="a" string="true">', '<｜DSML｜parameter name="a" string="false">',
    "</｜DSML｜parameter>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<tool_sep:opensource>",
)  # fmt: skip

PIECES = {
    "braces": "{", "closing braces": "}", "brackets": "[", "parentheses": "(", "quotes": '"', "apostrophes": "'",
    "triple quotes": '"""', "backticks": "`", "fences": "```\n", "python fences": "```python\n",
    "sql fences": "```sql ",
    "tildes": "~~~\n", "lists with fences": "- ```python\n", "backslashes": "\\", "blanks": " ", "line breaks": "\n",
    "carriage returns": "\r\n", "tabs": "\t", "digits": "9", "letters": "a", "words": "a ", "angles": "<",
    "half tags": "<ans", "half closing tags": "</", "escapes": "\\u00e9", "surrogates": "\ud800", "nuls": "\0",
    "accents": "e\u0301", "wide digits": "\uff19", "emoji": "\U0001f600", "boxes": "\\boxed{", "whole boxes":
    "\\boxed{1}", "fractions": "\\frac{1}{", "hashes": "#### ", "lines of hashes": "#### 1\n", "dollars": "$",
    "commas": ",", "dots": "1.", "exponents": "1e9", "signs": "-", "slashes": "1/", "colons": '{"a":',
    "objects": '{"name": "f", "parameters": ', "lines of objects": '{"a\n', "calls": "[f(a=", "lines of calls":
    "[f(a='\n", "escaped quotes": '\\"', "semicolons": ";", "entities": "&lt;", "conjunctions": " and ", "negations":
    "not ", "articles": "the ", "percents": "%(", "recipients": "to=a ", "asterisks": "*", "bold": "**a", "underscores":
    "_", "headings": "# ", "citations": "> ", "bars": "|", "separators": "\u2028", "comments": "/*", "dashes": "--",
    "special tokens": "<|a|>", "addresses": "http://a", "bearers": "bearer ", "patches": "--- a\n+++ b\n", "hunks":
    "@@ -1 +1 @@\n", "verdicts": "Verdict: 1\n", "equals": "= ", "cases": "a\\\\ ", "environments": "\\begin{a}",
    "texts": "\\text{", "percent signs": "1%", "times": "1 \\times 10^{", "final answers": "The final answer is ",
}  # fmt: skip
"""Pieces of which a text repeats one."""

HEADS = (
    "<tool_call>",
    "<answer>",
    "\\boxed{",
    "[TOOL_CALLS]",
    '{"name": "f", "arguments": {"a": "',
    "#### ",
    "```python\n",
)
"""Beginnings that make a parser read what follows."""

BODIES = ("blanks", "digits", "letters", "line breaks", "braces", "quotes", "backslashes")
"""Pieces that follow a head."""


def shapes() -> Iterator[tuple[str, Shape]]:
    """Yield each shape with its name."""
    pieces = {**PIECES, **{mark: mark for mark in MARKS}}
    for tag in TAGS:
        name = tag.partition("=")[0]
        pieces |= {
            f"open {name}": f"<{tag}>",
            f"closed {name}": f"</{name}>",
            f"pairs of {name}": f"<{tag}>a</{name}>",
            f"crossed {name}": f"</{name}><{tag}>",
            f"lines of {name}": f"<{tag}>\n",
        }
    for name, piece in pieces.items():
        yield name, partial(_repeat, "", piece, "")
    for head in HEADS:
        for name in BODIES:
            yield f"{head!r} and {name}", partial(_repeat, head, PIECES[name], "")
    for tag in TAGS:
        name = tag.partition("=")[0]
        yield f"{name} around blanks", partial(_repeat, f"<{tag}>", " ", f"</{name}>")
        yield f"nested {name}", partial(_nest, f"<{tag}>", "", f"</{name}>")
    yield "deep JSON", partial(_nest, '{"a":', "1", "}")
    yield "deep lists", partial(_nest, "[", "", "]")
    yield "deep boxes", partial(_nest, "\\boxed{", "", "}")
    yield "many keys", _many_keys


def _repeat(head: str, piece: str, tail: str, length: int) -> str:
    return head + piece * (length // len(piece)) + tail


def _nest(opening: str, middle: str, closing: str, length: int) -> str:
    depth = length // len(opening + closing)
    return opening * depth + middle + closing * depth


def _many_keys(length: int) -> str:
    keys = ", ".join(f'"{number}": 1' for number in range(length // 12))
    return f'<tool_call>{{"name": "f", "arguments": {{{keys}}}}}</tool_call>'
