"""Objects as a notebook shows them: a small table, with all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

from toolgym.tools.message import Message

MAX_CHARS = 5_000


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{_escaped(name)}</th>'
        f'<td style="text-align:left"><pre style="margin:0;white-space:pre-wrap">{_escaped(value)}</pre></td></tr>'
        for name, value in rows
    )
    return f"<div><b>{_escaped(title)}</b><table>{cells}</table></div>"


def message_row(message: Message) -> tuple[str, str]:
    parts = [message["content"]] if message["content"] else []
    if message.get("reasoning_content"):
        parts.insert(0, f"(thinking) {message['reasoning_content']}")
    parts += [f"→ {call_text(call['function'])}" for call in message.get("tool_calls", ())]
    return message["role"], "\n".join(parts)


def call_text(function: object) -> str:
    assert isinstance(function, dict)
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        return f"{function['name']}({arguments!r})"
    return f"{function['name']}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _escaped(value: object) -> str:
    text = str(value)
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return html.escape(text.encode("utf-8", errors="replace").decode("utf-8"))  # a model can write lone surrogates
