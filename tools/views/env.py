"""The conversation of an env's episode, and an env in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message
from toolgym.tools.views.conversation import conversation_html, conversation_text
from toolgym.tools.views.html import View, facts, fold, grid, page


def rendered(env: Any, messages: Sequence[Message] | None = None) -> View:
    """The conversation of the env's episode so far, as text with a rich form: `messages`, or those that the env keeps.
    Raises ConfigError if it keeps none."""
    messages = _messages(env) if messages is None else messages
    if messages is None:
        raise ConfigError(
            f"{env!r} keeps no conversation to render, in an attribute `messages`: play it as "
            "toolgym.envs.GymnasiumEnv(env, render_mode='ansi'), which keeps one"
        )
    return View(conversation_text(messages), page(repr(env)[1:-1], conversation_html(messages, where="env.messages")))


def env_html(env: Any) -> str:
    """The task, the tools and the conversation so far."""
    task, messages = env.task, _messages(env)
    rows = [(schema.name, schema.description) for schema in env.tool_schemas]
    parts = [grid(["tool", "description"], rows)] if rows else []
    if task is not None:
        names = ("id", "source", "ground_truth", "tools_kwargs")
        parts.append(fold(f"task {task.id}", facts((name, getattr(task, name)) for name in names)))
    return page(repr(env)[1:-1], *parts, "" if messages is None else conversation_html(messages, where="env.messages"))


def _messages(env: Any) -> Sequence[Message] | None:
    messages = getattr(env, "messages", None)
    kept = isinstance(messages, Sequence) and all(isinstance(each, Mapping) and "role" in each for each in messages)
    return messages if kept else None
