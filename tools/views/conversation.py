"""A conversation as HTML and as text, with its calls and their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolgym.tools.message import Message, described
from toolgym.tools.views.html import MAX_CHARS, block, escaped, fold, note, without_controls

ROOM, MOST, MOST_CALLS = 60_000, 200, 16
"""Characters of all messages together, messages (the first and the last ones), and calls of a message that are
shown."""

_SHORT = 200  # characters of a result that is not folded


def conversation_html(
    messages: Sequence[Message], *, where: str = "messages", remarks: Mapping[str, str] | None = None
) -> str:
    """The messages in order, with calls and long results folded. `where` is how the caller's code names them, for what
    is left out; `remarks` are on results, by their call's id."""
    half = MOST // 2
    end = max(half, len(messages) - half)
    shown = [*messages[:half], *messages[end:]]
    room = min(MAX_CHARS, ROOM // max(1, len(shown)))
    parts = [_message(each, room, remarks or {}) for each in shown]
    if end > half:
        parts.insert(half, note(f"[{end - half} messages left out: {where}[{half}:{end}]]"))
    return "".join(parts) or note("No messages yet.")


def _message(message: Message, room: int, remarks: Mapping[str, str]) -> str:
    role, content, parts = message["role"], described(message["content"]), []
    thinking, calls = message.get("reasoning_content"), message.get("tool_calls") or []
    if thinking:
        parts.append(fold(f"(thinking) {len(thinking):,} characters", block(thinking, room)))
    if role == "tool":
        remark = remarks.get(message.get("tool_call_id", ""), "")
        label = " · ".join(filter(None, (f"← {message.get('name') or 'result'}", remark, _line(content))))
        parts.append(fold(label, block(content, room), shown=len(content) <= _SHORT))
    elif content:
        parts.append(block(content, room))
    for call in calls[:MOST_CALLS]:
        text = arguments_text(call["function"]["arguments"])
        parts.append(fold(f"→ {_line(call_text(call['function']))}", block(text, room // min(MOST_CALLS, len(calls)))))
    if len(calls) > MOST_CALLS:
        parts.append(note(f"[{len(calls) - MOST_CALLS} more calls left out]"))
    css = role if role in ("assistant", "tool", "user") else "other"
    return f'<div class="m {css}"><div class="n">{escaped(role, 50)}</div>{"".join(parts)}</div>'


def arguments_text(arguments: object) -> str:
    """Arguments of a call, one below the other; texts as they are, not as JSON, so that programs can be read."""
    if not isinstance(arguments, Mapping):
        return _value_text(arguments)
    texts = {name: _value_text(value) for name, value in arguments.items()}
    return "\n".join(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}" for name, text in texts.items())


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def call_text(function: Any) -> str:
    """A call in one line, as Python writes it."""
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        return f"{function['name']}({arguments!r})"
    return f"{function['name']}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def conversation_text(messages: Iterable[Message]) -> str:
    return "\n\n".join(map(_text_of, messages))


def _text_of(message: Message) -> str:
    name = message.get("name")
    lines = [f"[{message['role']} {name}]" if name else f"[{message['role']}]"]
    lines += filter(None, [described(message["content"])])
    for call in message.get("tool_calls", []):
        function = call["function"]
        lines.append(f"-> {function['name']} {json.dumps(function['arguments'], ensure_ascii=False)}")
    return without_controls("\n".join(lines))


def _line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 120 else f"{line[:119]}…"
