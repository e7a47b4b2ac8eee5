"""`RequestMemory`: an agent sends its whole history with each call, and what is there again is not read again."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from toolgym.rollout.capture.agent_call import AgentMessage
from toolgym.rollout.capture.wires import fields

T = TypeVar("T")
_CONVERSATIONS = 512
"""Answers of a session that a request may name instead of sending the history before them."""

_KEPT = 4
"""Requests that are remembered of a session: its sub-agents call by turns."""


class _History(NamedTuple):
    entries: list[Any]
    counts: list[int]
    """Of each entry how many messages there are up to it."""
    messages: list[AgentMessage]

    def shared(self, entries: list[Any]) -> int:
        """The number of entries that are the same, from the first one on."""
        if entries[: len(self.entries)] == self.entries:
            return len(self.entries)
        pairs = zip(entries, self.entries, strict=False)
        return next((at for at, (entry, earlier) in enumerate(pairs) if entry != earlier), len(entries))


_NONE = _History([], [], [])


class RequestMemory:
    """The newest requests of one session. A history that begins as an earlier one did has the same message objects."""

    def __init__(self) -> None:
        self._histories: dict[str, list[_History]] = defaultdict(list)
        self._conversations: OrderedDict[str, tuple[AgentMessage, ...]] = OrderedDict()
        self._values: dict[str, deque[tuple[Any, Any]]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def keep_conversation(self, id: str, messages: tuple[AgentMessage, ...]) -> None:
        """Keep a conversation up to an answer, for requests that name the answer instead of sending the history."""
        self._conversations[id] = messages
        if len(self._conversations) > _CONVERSATIONS:
            self._conversations.popitem(last=False)

    def conversation(self, id: str) -> tuple[AgentMessage, ...] | None:
        return self._conversations.get(id)

    def value(self, name: str, raw: Any, read: Callable[[Any], T]) -> T:
        """The reading of a field, or the object that an equal one was read as."""
        known = next((value for earlier, value in self._values[name] if earlier == raw), None)
        if known is None:
            known = read(raw)
            self._values[name].append((raw, known))
        return known

    def history(
        self, wire: str, raw: Any, field: str, add: Callable[[list[AgentMessage], Mapping[str, Any], str], None]
    ) -> list[AgentMessage]:
        """The messages of a list of entries. `add` puts those of one behind the earlier ones; it may change the last of
        these as long as that is the assistant's."""
        entries, kept = fields.entries(raw, field), self._histories[wire]
        shared, earlier = max(((each.shared(entries), each) for each in kept), key=itemgetter(0), default=(0, _NONE))
        counts = earlier.counts[:shared]
        while counts and counts[-1] and earlier.messages[counts[-1] - 1].role == "assistant":
            counts.pop()
        messages = earlier.messages[: counts[-1]] if counts else []
        entries = [*earlier.entries[: len(counts)], *entries[len(counts) :]]
        for at in range(len(counts), len(entries)):
            name = f"{field}[{at}]"
            add(messages, fields.mapping(entries[at], name), name)
            counts.append(len(messages))
        goes_on = shared == len(earlier.entries)
        kept = [each for each in kept if each is not earlier] if goes_on else kept[1 - _KEPT :]
        self._histories[wire] = [*kept, _History(entries, counts, messages)]
        return messages
