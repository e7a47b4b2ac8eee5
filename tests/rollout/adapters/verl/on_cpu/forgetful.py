"""A context policy by which each turn is a token sequence of its own."""

from __future__ import annotations

from toolgym.rollout.tokens import ContextPolicy


class Forgetful(ContextPolicy):
    async def revise(self, messages, state):
        first, *rest = messages
        return [{**first, "content": first["content"] + " "}, *rest]
