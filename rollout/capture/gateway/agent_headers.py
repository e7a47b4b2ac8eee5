"""Facts about a request that its headers tell: keys, the sub-agent, a compaction. The headers are those
that Claude Code, Codex, opencode and OpenHands send by themselves."""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import Iterable, Mapping

EPISODE = "x-episode"
"""Header that names the episode, for agents that can set a header and neither path nor key."""

KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")

SUB_AGENTS = (
    ("x-claude-code-agent-id", ("x-claude-code-agent-id",)),
    ("thread-id", ("x-codex-parent-thread-id", "x-openai-subagent")),
    ("x-session-id", ("x-parent-session-id",)),
)
"""Headers that name a conversation, each with those that are there if it is a sub-agent's."""

COMPACT = "compact"
"""The value of `x-openai-subagent` for a request that is the main agent's own: Codex asks for a summary."""


def shown_keys(headers: Mapping[str, str]) -> list[str]:
    """The keys that a request shows: as a bearer token, as Anthropic's `x-api-key`, as Azure's `api-key`, and as
    Google's `x-goog-api-key`."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [bearer.strip() if scheme.lower() == "bearer" else ""]
    keys += [headers.get(name, "").strip() for name in KEY_HEADERS]
    return [key for key in keys if key]


def shows(keys: Iterable[str], expected: str | None) -> bool:
    """Whether one of the keys is the expected one. Each comparison takes the same time, whatever the key."""
    wanted = (expected or "").encode()
    fits = [hmac.compare_digest(key.encode("utf-8", "surrogateescape"), wanted) for key in keys]
    return bool(expected) and any(fits)


def compacts(headers: Mapping[str, str]) -> bool:
    """Whether the agent says that it asks for a summary of its context."""
    kind = ""
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        kind = json.loads(headers.get("x-codex-turn-metadata", "{}")).get("request_kind", "")
    return kind == "compaction" or headers.get("x-openai-subagent") == COMPACT


class SubAgents:
    """Names of the sub-agents of one episode. Clients that name each conversation, and of none say whose it is, begin
    with the main one."""

    def __init__(self) -> None:
        self._main = ""

    def name(self, headers: Mapping[str, str]) -> tuple[str, bool]:
        """Return the sub-agent that sent a request, and whether that is a guess from a session id.

        The name is empty for the main agent, and if the headers do not say. A cache key (`prompt_cache_key`) is not a
        name: clients change it within one conversation.
        """
        for conversation, signs in SUB_AGENTS:
            shown = [headers[sign] for sign in signs if headers.get(sign, COMPACT) != COMPACT]
            if shown:
                return headers.get(conversation) or shown[0], False
        if any(conversation in headers for conversation, _ in SUB_AGENTS):
            return "", False
        name = headers.get("x-litellm-session-id", "")
        self._main = self._main or name
        return ("", False) if name in ("", self._main) else (name, True)
