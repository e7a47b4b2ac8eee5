"""Parsers by name, and the name that a chat template asks for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TypeVar

from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.parsers.base import ParsedTurn, Parser
from toolgym.tools.parsers.scan import MAX_REQUESTS
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema

Request = TypeVar("Request", ToolCall, ToolCallError)

_HOME = "toolgym.tools.parsers."
_PARSERS = {
    "hermes": "hermes:parse_hermes",
    "qwen3_coder": "qwen3_coder:parse_qwen3_coder",
    "llama3": "llama3:parse_llama3",
    "pythonic": "pythonic:parse_pythonic",
    "mistral": "mistral:parse_mistral",
    "deepseekv3": "deepseek:parse_deepseek_v3",
    "deepseekv31": "deepseek:parse_deepseek_v31",
    "deepseekv32": "dsml:parse_deepseek_v32",
    "deepseekv4": "dsml:parse_deepseek_v4",
    "glm45": "glm:parse_glm",
    "hy3": "glm:parse_hy3",
    "kimi_k2": "kimi:parse_kimi",
    "minimax_m3": "minimax_m3:parse_minimax_m3",
    "gpt_oss": "gpt_oss:parse_gpt_oss",
    "phi4_mini": "phi4_mini:parse_phi4_mini",
    "functionary": "functionary:parse_functionary",
    "search_r1": "search_r1:parse_search_r1",
}
_ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "step3p5": "qwen3_coder",
    "nanbeige": "qwen3_coder",
    "lfm2": "pythonic",
    "glm": "glm45",
    "glm47": "glm45",
    "gpt-oss": "gpt_oss",
    "minimax-m3": "minimax_m3",
    "phi4_mini_json": "phi4_mini",
}
_SGLANG = "sglang:"
_OPEN_THINKING = "open_thinking:"
_MARKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: (all of these, none of these)
    "kimi_k2": (("<|tool_call_argument_begin|>",), ()),
    "deepseekv32": (("｜DSML｜", "function_calls"), ("｜DSML｜tool_calls",)),
    "deepseekv4": (("｜DSML｜tool_calls",), ("function_calls",)),
    "deepseekv3": (("<｜tool▁call▁begin｜>", "```json"), ()),
    "deepseekv31": (("<｜tool▁call▁begin｜>",), ("```json",)),
    "gpt_oss": (("<|channel|>", "<|call|>", "functions."), ()),
    "hy3": (("<tool_sep", ":opensource"), ()),
    "glm45": (("<tool_call>", "<arg_key>"), ("<function=",)),
    "qwen3_coder": (("<tool_call>", "<function=", "<parameter="), ("<arg_key>",)),
    "hermes": (("<tool_call>", '"arguments"'), ("<arg_key>", "<function=")),
    "mistral": (("[TOOL_CALLS]",), ()),
    "lfm2": (("<|tool_call_start|>[",), ()),
    "pythonic": (("[func_name1(",), ()),
    "minimax_m3": (("]<]minimax[>[", "<invoke name="), ()),
    "phi4_mini": (("functools[",), ()),
    "functionary": ((">>>${recipient}",), ()),
    "llama3": (('{"name": ', '"parameters": ', "<|start_header_id|>"), ("[func_name1(", "<tool_call>")),
}


def own_parsers() -> list[str]:
    """The names of toolgym's parsers, without aliases and without `search_r1`, which no chat template renders."""
    return [name for name in _PARSERS if name != "search_r1"]


def parser_names() -> list[str]:
    """The names that `get_parser` knows, aliases included; `sglang:NAME` and `open_thinking:NAME` come on top."""
    return [*_PARSERS, *_ALIASES]


def get_parser(name: str) -> Parser:
    """Find a parser by the name of its format.

    Args:
        name: names are those of SGLang's `--tool-call-parser`. `sglang:NAME` is SGLang's own parser.
            `open_thinking:NAME` is the parser of that name for models that call a tool inside of a `<think>` which
            they never close: the call is run, while else the model reads that it was not (status `open_thinking`).

            | name | models | also called |
            | --- | --- | --- |
            | `hermes` | Hermes, Qwen 2.5, Qwen 3 | `qwen`, `qwen25` |
            | `qwen3_coder` | Qwen 3 Coder, Qwen 3.5 and later, Nemotron 3 | `step3p5`, `nanbeige` |
            | `llama3` | Llama 3.1, 3.2, 3.3 | |
            | `pythonic` | Llama 4, Llama 3.2 with such a prompt, LFM2 | `lfm2` |
            | `mistral` | Mistral and Ministral, old and new form | |
            | `deepseekv3`, `deepseekv31` | DeepSeek V3 and R1; V3.1, V3.2-Exp | |
            | `deepseekv32`, `deepseekv4` | DeepSeek V3.2, V4 | |
            | `glm45` | GLM 4.5, 4.6, 4.7 | `glm`, `glm47` |
            | `hy3` | Hy3 (Hunyuan 3) | |
            | `kimi_k2` | Kimi K2, K2 Thinking, K2.5 | |
            | `minimax_m3` | MiniMax M3 | `minimax-m3` |
            | `gpt_oss` | gpt-oss | `gpt-oss` |
            | `phi4_mini` | Phi-4-mini | `phi4_mini_json` |
            | `functionary` | functionary 3.2 | |
            | `search_r1` | those trained with `<search>query</search>`, as Search-R1 | |

    Raises:
        UnknownNameError: no parser has that name.
        MissingExtraError: a parser of SGLang was asked for, and SGLang is not installed.
    """
    if name.startswith(_OPEN_THINKING):
        return functools.partial(_parse_open_thinking, get_parser(name.removeprefix(_OPEN_THINKING)))
    if name.startswith(_SGLANG):
        from toolgym.tools.parsers.sglang import sglang_parser

        return sglang_parser(name.removeprefix(_SGLANG))
    known = parser_names()
    place = _PARSERS.get(_ALIASES.get(name, name))
    if place is None:
        raise UnknownNameError(
            f"no tool-call parser {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}, "
            "sglang:NAME for those of SGLang, and open_thinking:NAME."
        )
    module, _, attribute = place.partition(":")
    parser: Parser = getattr(importlib.import_module(_HOME + module), attribute)
    return parser


def parser_for_template(chat_template: str) -> str | None:
    """Return the name of the parser for a chat template's Jinja text; None if it has the marks of no known format, or
    of more than one."""
    names = [
        name
        for name, (wanted, unwanted) in _MARKS.items()
        if all(mark in chat_template for mark in wanted) and not any(mark in chat_template for mark in unwanted)
    ]
    return names[0] if len(names) == 1 else None


def _parse_open_thinking(
    parser: Parser,
    text: str,
    *,
    first_id: int = 0,
    schemas: Mapping[str, ToolSchema] | None = None,
    starts_open: bool = False,
) -> ParsedTurn:
    """Read a turn as `parser` does, except that a call ends thinking which never closes. Calls in thinking that closes
    stay thoughts."""
    turn = parser(text, first_id=first_id, schemas=schemas, starts_open=starts_open)
    content, calls, errors, open_thinking = turn.content, turn.calls, turn.errors, turn.open_thinking
    while errors and errors[-1].problem is CallProblem.OPEN_THINKING and len(calls) + len(errors) < MAX_REQUESTS:
        rest = errors[-1].raw  # from the first call in it to the end
        errors, begun = errors[:-1], len(calls) + len(errors) - 1
        more = parser(rest, first_id=first_id + begun, schemas=schemas)
        taken = {request.id for request in calls} | {request.id for request in errors}
        content = content.removesuffix(rest) + more.content
        open_thinking = more.open_thinking
        calls = [*calls, *(_behind(call, begun, first_id, taken) for call in more.calls)]
        errors = [*errors, *(_behind(error, begun, first_id, taken) for error in more.errors)]
    return ParsedTurn(text, content, calls, errors, turn.reasoning, open_thinking)


def _behind(request: Request, begun: int, first_id: int, taken: Set[str]) -> Request:
    index = request.index + begun
    return replace(request, index=index, id=f"call_{first_id + index}" if request.id in taken else request.id)
