"""Writers of calls for formats that toolgym reads off chat templates, from the formats' descriptions.

`toolgym.rollout.tokens.call_format` gives the description of a template. Every text of a format is one piece, which
`tool_call_outputs.py` may damage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from toolgym.tools.parsers.derived import CALL_ID, KEY, KIND, NUMBER, CallFormat

Call = tuple[str, dict[str, Any]]


class Piece(NamedTuple):
    """A part of an output: a text of the format, which may be damaged, or what the model says in it."""

    text: str
    is_format: bool


Write = Callable[[Sequence[Call]], list[Piece]]


def marks(text: str) -> Piece:
    """A text of the format."""
    return Piece(text, True)


def data(text: str) -> Piece:
    """What the model says."""
    return Piece(text, False)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def write_derived(form: CallFormat) -> Write:
    """Return the writer of a format."""

    def write(calls: Sequence[Call]) -> list[Piece]:
        if form.kind == "list":
            objects = [_object(form, call) for call in calls]
            pieces = [marks(form.begin + form.open), data(as_json(objects)), marks(form.close + form.end)]
        else:
            pieces = [marks(form.begin)]
            for at, call in enumerate(calls):
                pieces += [marks(form.separator)] if at else []
                pieces += [marks(_numbered(form.open, at)), *_inside(form, call, at), marks(_numbered(form.close, at))]
            pieces.append(marks(form.end))
        whole = [piece for piece in pieces if piece.text]
        edges = (whole[0]._replace(text=whole[0].text.lstrip()), whole[-1]._replace(text=whole[-1].text.rstrip()))
        return [piece for piece in (edges[0], *whole[1:-1], edges[1]) if piece.text]

    return write


def _numbered(text: str, at: int) -> str:
    return text.replace(CALL_ID, f"call_{at}").replace(NUMBER, str(at))


def _object(form: CallFormat, call: Call) -> Any:
    name, arguments = call
    value: Any = {form.name_key: name, form.arguments_key: arguments} if form.name_key else {name: arguments}
    for key in reversed(form.path):
        value = {key: value}
    return value


def _inside(form: CallFormat, call: Call, at: int) -> Iterator[Piece]:
    name, arguments = call
    if form.kind == "object":
        yield data(as_json(_object(form, call)))
        return
    yield from (data(name), marks(_numbered(form.after_name, at)))
    if form.kind == "named":
        yield data(as_json(arguments))
        return
    for count, (key, value) in enumerate(arguments.items()):
        if count:
            yield marks(form.between)
        kind = form.string_kind if isinstance(value, str) else "object"
        yield from (marks(form.before_key), data(key), marks(form.after_key.replace(KIND, kind)))
        yield from _value(form, value)
        yield marks(form.after_value.replace(KEY, key))


def _value(form: CallFormat, value: Any) -> Iterator[Piece]:
    if form.values == "text":
        yield data(as_text(value))
    elif form.values == "json":
        yield data(as_json(value))
    elif form.values == "python":
        yield data(repr(value))
    elif isinstance(value, str):
        yield from (marks(form.quotes[0]), data(value), marks(form.quotes[1]))
    elif isinstance(value, list | dict):
        yield data("{" if isinstance(value, dict) else "[")
        pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        for count, (key, item) in enumerate(pairs):
            yield data("," if count else "")
            yield data("" if key is None else f"{key}:")
            yield from _value(form, item)
        yield data("}" if isinstance(value, dict) else "]")
    else:
        yield data(as_json(value))


DERIVED: dict[str, CallFormat] = {
    "apertus": CallFormat("list", open="<|tools_prefix|>"),
    "functiongemma": CallFormat(
        "arguments",
        open="<start_function_call>call:",
        close="}<end_function_call>",
        after_name="{",
        after_key=":<escape>",
        after_value="<escape>",
        between=",",
        values="text",
    ),
    "gemma4": CallFormat(
        "arguments",
        open="<|tool_call>call:",
        close="}<tool_call|>",
        after_name="{",
        after_key=":",
        between=",",
        values="quoted",
        quotes=('<|"|>', '<|"|>'),
    ),
    "granite": CallFormat("list", open="<|tool_call|>", name_key="name", arguments_key="arguments"),
    "granite 20b": CallFormat(
        "object", open="\n<function_call> ", end="\n", name_key="name", arguments_key="arguments"
    ),
    "hunyuan": CallFormat(
        "list", open="<tool_calls>", close="</tool_calls>", name_key="name", arguments_key="arguments"
    ),
    "internlm2": CallFormat(
        "object",
        open="<|action_start|><|plugin|>\n",
        close="<|action_end|>",
        name_key="name",
        arguments_key="arguments",
    ),
    "minimax m1": CallFormat(
        "object", begin="<tool_calls>", open="\n", end="\n</tool_calls>", name_key="name", arguments_key="arguments"
    ),
    "xlam": CallFormat("list", name_key="name", arguments_key="arguments"),
    "command a": CallFormat(
        "list", open="<|START_ACTION|>", close="<|END_ACTION|>", name_key="tool_name", arguments_key="parameters"
    ),
    "llama4 json": CallFormat("object", begin="<|python_end|>", name_key="name", arguments_key="parameters"),
    "seed-oss": CallFormat(
        "arguments",
        open="<seed:tool_call>\n<function=",
        close=">\n</function>\n</seed:tool_call>",
        separator="\n",
        before_key=">\n<parameter=",
        after_key=">",
        after_value="</parameter",
        values="text",
    ),
    "gigachat3.1": CallFormat("object", open="<|function_call|>", name_key="name", arguments_key="arguments"),
    "functionary 3.1": CallFormat("named", open="<function=", close="</function>", after_name=">"),
    "minimax m2": CallFormat(
        "arguments",
        begin="\n<minimax:tool_call>",
        open='\n<invoke name="',
        close="\n</invoke>",
        end="\n</minimax:tool_call>",
        after_name='">',
        before_key='\n<parameter name="',
        after_key='">',
        after_value="</parameter>",
        values="text",
    ),
    "inkling": CallFormat(
        "object",
        open="<|content_invoke_tool_json|>",
        close="<|end_message|>",
        separator="<|message_model|>",
        name_key="name",
        arguments_key="args",
        strays=False,
    ),
    "kimi k3": CallFormat(
        "arguments",
        begin="<|close|>response<|sep|><|open|>tools",
        open='<|sep|><|open|>call tool="',
        close="<|sep|><|close|>call",
        end="<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        after_name='" index="\x00number\x00"',
        before_key='<|sep|><|open|>argument key="',
        after_key='" type="\x00kind\x00"<|sep|>',
        after_value="<|close|>argument",
        values="text",
        string_kind="string",
    ),
    "minimax m3": CallFormat(
        "arguments",
        begin="]<]minimax[>[<tool_call>",
        open='\n]<]minimax[>[<invoke name="',
        close="]<]minimax[>[</invoke>",
        end="\n]<]minimax[>[</tool_call>",
        after_name='">',
        before_key="]<]minimax[>[<",
        after_key=">",
        after_value="]<]minimax[>[</\x00key\x00>",
        values="text",
    ),
    "minicpm5": CallFormat(
        "arguments",
        open='<function name="',
        close="</function>",
        separator="\n",
        after_name='">',
        before_key='<param name="',
        after_key='">',
        after_value="</param>",
        values="text",
        cdata=True,
    ),
    "muse-glimmer": CallFormat(
        "arguments",
        open='<|message|><atem:function_calls>\n<atem:invoke name="',
        close="\n</atem:invoke>\n</atem:function_calls>",
        separator="<|eom|><|start|>assistant to=second_tool",
        after_name='">',
        before_key='\n<atem:parameter name="',
        after_key='">',
        after_value="</atem:parameter>",
        values="text",
    ),
}
"""What toolgym reads off the chat templates of these models."""
