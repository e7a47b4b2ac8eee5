"""The parser that a chat template asks for, by the markers in its text."""

from __future__ import annotations

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
    "llama3": (('{"name": ', '"parameters": ', "<|start_header_id|>"), ("[func_name1(", "<tool_call>")),
}


def parser_for_template(chat_template: str) -> str | None:
    """Tell from a chat template's text how its model writes tool calls.

    Args:
        chat_template: the Jinja text, as in `tokenizer.chat_template`.

    Returns:
        A name for `get_parser`; None where the template has the marks of no known format, or of more than one.
    """
    names = [
        name
        for name, (wanted, unwanted) in _MARKS.items()
        if all(mark in chat_template for mark in wanted) and not any(mark in chat_template for mark in unwanted)
    ]
    return names[0] if len(names) == 1 else None
