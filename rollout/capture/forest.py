"""`Forest`: the calls of one episode, each behind the one whose answer its request goes on from.

A request finds its place by the messages from the first one on, and among answers that say the same by the ids in them.
Calls of one agent with one set of tools are compared with each other only.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, Reply
from toolgym.rollout.capture.canonical import Likeness, begins_with, likeness, marks_of, same, written
from toolgym.rollout.engines.base import Generation
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.trajectory import Turn
from toolgym.tools.message import Message

GOES_ON = "goes_on"
"""The cause of a call that is the first to go on from its parent: it begins no sequence."""

ASIDE = ("sub_agent", "side_call")
"""Causes of conversations beside the main one."""

_LATELY, _QUOTED = 8, 24
"""The newest replies that are looked for in the text of a new prompt, and the characters that such a reply has."""


class State(enum.StrEnum):
    """A call's state. One that fails leaves the forest."""

    GENERATING = "generating"
    KEPT = "kept"
    UNDELIVERED = "undelivered"
    """The client was gone before it had the answer."""
    RETRACTED = "retracted"
    """The agent went on from the same prompt, with other messages in place of the answer."""


@dataclass(eq=False)
class CapturedCall:
    """A call. `messages` are those of its request behind the parent's answer, all of them at a root; `observation` the
    same as the chat template gets them. `lead` are the ids between the parent's last one and the first sampled one; at
    a root the whole prompt. `cause` says why it does not go on its parent's sequence, and `origin` is the root of its
    conversation: of several roots that asked for the same, the first. `twin` is the first of the calls that asked for
    the same in the same place. `summarizes` is the newest call in the history of a request that has no tools."""

    number: int
    agent: str
    renderer: ChatRenderer
    messages: tuple[AgentMessage, ...]
    parent: CapturedCall | None
    cause: str
    state: State = State.GENERATING
    children: list[CapturedCall] = field(default_factory=list)
    observation: tuple[Message, ...] = ()
    lead: tuple[int, ...] = ()
    images: tuple[PlacedImage, ...] = ()
    """Those in its whole context."""
    parts: tuple[Generation, ...] = ()
    end: int | None = None
    """Where in the turn's text the stop text begins that ended it."""
    plain: bool = False
    """Whether the turn is answered as a text, without calls."""
    constrained: bool = False
    """Whether it was sampled under a grammar."""
    turn: Turn | None = None
    message: Message | None = None
    reading: Message | None = None
    requests: tuple[tuple[str, str, str], ...] = ()
    """Of each call of a tool its id for the agent, its id for the chat template, and the tool's name."""
    reply: Reply | None = None
    sent: AgentMessage | None = None
    prompt: tuple[AgentMessage, ...] | None = None
    """All messages of its request, as long as the next call is likely to go on from it."""
    seen: AgentMessage | None = None
    conversation: Conversation | None = None
    twin: CapturedCall | None = None
    summarizes: CapturedCall | None = None
    is_quoted: bool = False
    """Whether a new conversation began with its answer in a text, as after a compaction."""

    def __post_init__(self) -> None:
        self.origin = self

    @property
    def path(self) -> list[CapturedCall]:
        calls = [self]
        while (parent := calls[-1].parent) is not None:
            calls.append(parent)
        return calls[::-1]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for part in self.parts for token in part.token_ids)


class Forest:
    """The calls of an episode; `counts` are what was overlooked or decided on the way, by name."""

    def __init__(self) -> None:
        self.roots: list[CapturedCall] = []
        self.counts: Counter[str] = Counter()
        self._by_mark: dict[str, CapturedCall] = {}
        self._newest: list[CapturedCall] = []

    def __iter__(self) -> Iterator[CapturedCall]:
        """All calls, each behind its parent."""
        waiting = [*reversed(self.roots)]
        while waiting:
            call = waiting.pop()
            yield call
            waiting.extend(reversed(call.children))

    def attach(
        self, number: int, request: AgentCall, renderer: ChatRenderer, *, counting: bool = False
    ) -> CapturedCall:
        """Put a request into its place, as a call that is generating; or only find the place, for `counting`. One that
        brings turns which are none of the parent's descendants is a root, for a template cannot go on with turns that
        were not sampled there."""
        if request.agent_is_guess:
            request = replace(request, agent=self._agent_of(request, renderer))
        parent, at = self._find(request, renderer)
        origin = parent
        if parent is not None and any(message.role == "assistant" for message in request.messages[at:]):
            parent, at = None, 0
        messages = request.messages[at:]
        if counting:
            return CapturedCall(number, request.agent, renderer, messages, parent, GOES_ON)
        siblings = self._roots_beside(request.agent, renderer) if parent is None else parent.children
        cause, beside, twin = self._cause_beside(siblings, messages)
        summarizes: CapturedCall | None = None
        if cause is None and parent is not None:
            cause = "fork" if siblings else GOES_ON
        elif cause is None and origin is not None:
            cause = "rewrite"
        elif cause is None:
            cause, origin, summarizes = self._cause_of_root(request, renderer)
        call = CapturedCall(number, request.agent, renderer, messages, parent, cause, summarizes=summarizes)
        if twin is not None:
            call.twin = twin.twin = twin.twin or twin
        origin = origin or beside
        call.origin = call if origin is None else origin.origin
        (self.roots if parent is None else parent.children).append(call)
        return call

    def uproot(self, call: CapturedCall, request: AgentCall) -> None:
        """Make a call a root, since the chat template cannot go on with its messages."""
        if self.drop(call):
            self.roots.append(call)
        call.parent, call.messages, call.cause, call.twin = None, request.messages, "rewrite", None

    def drop(self, call: CapturedCall) -> bool:
        """Take a call without an answer out; False if it was only counted."""
        siblings = self.roots if call.parent is None else call.parent.children
        if is_in := call in siblings:
            siblings.remove(call)
        return is_in

    def keep(self, call: CapturedCall, reply: Reply) -> None:
        call.reply, call.sent, call.state = reply, written(reply), State.KEPT
        self._by_mark[reply.id] = call
        self._newest = [*self._newest[1 - _LATELY :], call]

    def undelivered(self, reply_id: str) -> None:
        """Note that an answer did not reach its agent. One that comes back in a later request did."""
        call = self._by_mark.get(reply_id)
        if call is not None and call.state is State.KEPT and not call.children:
            call.state = State.UNDELIVERED

    def call_of(self, message: AgentMessage) -> CapturedCall | None:
        """The newest call whose id is in a message."""
        calls = [self._by_mark[mark] for mark in marks_of(message) if mark in self._by_mark]
        return max(calls, key=lambda call: call.number, default=None)

    def _roots_beside(self, agent: str, renderer: ChatRenderer) -> list[CapturedCall]:
        return [root for root in self.roots if root.agent == agent and _same_tools(root, renderer)]

    # ------------------------------------------------------------------ the place of a request

    def _agent_of(self, request: AgentCall, renderer: ChatRenderer) -> str:
        """Return the agent whose conversation the request continues, whatever name it has now; else that name."""
        for message in reversed(request.messages):
            if (call := self.call_of(message)) is not None:
                return call.agent
        agents = dict.fromkeys([request.agent, *(root.agent for root in self.roots)])
        return next((name for name in agents if self._candidates(name, request, renderer)[0]), request.agent)

    def _find(self, request: AgentCall, renderer: ChatRenderer) -> tuple[CapturedCall | None, int]:
        """The call with the most messages whose answer, and all before it, the request holds, and their number."""
        messages = request.messages
        newest = self._newest_in(request, renderer)
        if newest is not None:
            self._note(*newest, messages)
            return newest
        best, most = self._candidates(request.agent, request, renderer)
        if not best:
            return None, 0
        if len({call.token_ids for call in best}) > 1:
            self.counts["ambiguous"] += 1
        parent = max(best, key=lambda call: call.number)
        self._note(parent, most, messages)
        return parent, most

    def _candidates(self, agent: str, request: AgentCall, renderer: ChatRenderer) -> tuple[list[CapturedCall], int]:
        """Return the calls of an agent with the most messages that the request holds, and the number of messages."""
        messages = request.messages
        waiting = [(root, 0) for root in self._roots_beside(agent, renderer)]
        best: list[CapturedCall] = []
        most = 0
        while waiting:
            call, at = waiting.pop()
            behind = at + len(call.messages) + 1
            if call.sent is None or behind > len(messages) or not begins_with(messages, at, call.messages):
                continue
            if not self._is_answer_of(call, messages[behind - 1]):
                continue
            if behind > most:
                best, most = [], behind
            if behind == most:
                best.append(call)
            waiting.extend((child, behind) for child in call.children)
        return best, most

    def _newest_in(self, request: AgentCall, renderer: ChatRenderer) -> tuple[CapturedCall, int] | None:
        """The call whose answer is the last one in the request by its id, if all before it looks as it did; and the
        number of messages. So a conversation that goes on costs little, however long it is."""
        messages = request.messages
        at = next((at for at in reversed(range(len(messages))) if messages[at].role == "assistant"), 0)
        call = self.call_of(messages[at]) if at else None
        if call is None or call.prompt != messages[:at] or call.agent != request.agent:
            return None
        return (call, at + 1) if _same_tools(call, renderer) and self._is_answer_of(call, messages[at], call) else None

    def _is_answer_of(self, call: CapturedCall, message: AgentMessage, known: CapturedCall | None = None) -> bool:
        """Whether a message is a call's answer; `known` is the call whose id it has, if that was looked up."""
        if message is call.seen or message == call.seen:
            return True
        known = known or self.call_of(message)
        if known is not None and known is not call and known.sent is not None and same(message, known.sent):
            return False  # the answer of another call that says the same
        assert call.sent is not None
        return likeness(message, call.sent, by_id=known is call) is not Likeness.OTHER

    def _note(self, parent: CapturedCall, at: int, messages: tuple[AgentMessage, ...]) -> None:
        """Remember how the answers on the way look now, and that they were delivered."""
        call: CapturedCall | None = parent
        while call is not None:
            message = messages[at - 1]
            assert call.sent is not None
            if call.seen != message:
                how = likeness(message, call.sent, by_id=True)
                if call.seen is None and how in (Likeness.HEALED, Likeness.FLATTENED):
                    self.counts[how.name.lower()] += 1
                call.seen, call.state = message, State.KEPT
            elif call.state is not State.KEPT:
                call.state = State.KEPT
            else:
                return
            at -= 1 + len(call.messages)
            call = call.parent

    # ------------------------------------------------------------------ causes

    def _cause_beside(
        self, siblings: list[CapturedCall], messages: tuple[AgentMessage, ...]
    ) -> tuple[str | None, CapturedCall | None, CapturedCall | None]:
        """Return the cause of a call whose messages are, or begin with, those of a sibling; that sibling; and the
        first sibling that asked for the same. Each is None if no sibling qualifies.

        A delivered answer stays trained when its request is sent again: a client repeats a request because an attempt
        was *not* answered, and nothing in the request says which attempt that was.
        """
        cause, beside, twin = None, None, None
        for call in siblings:
            behind = messages[len(call.messages) :]
            if not begins_with(messages, 0, call.messages) or (behind and behind[0].role == "assistant"):
                continue
            twin = twin if behind or twin is not None else call
            if call.children or call.state is State.GENERATING:
                if cause is None and not behind:
                    cause, beside = "fork", call
                continue
            if behind and call.parent is None and self._quoted(messages) not in (None, call):
                continue  # it goes on with the text of a later answer, so nothing was taken back
            beside, cause = call, "retraction" if behind else "retry"
            if call.state is State.KEPT and behind:
                call.state = State.RETRACTED
        return cause, beside, twin

    def _cause_of_root(
        self, request: AgentCall, renderer: ChatRenderer
    ) -> tuple[str, CapturedCall | None, CapturedCall | None]:
        """Return the cause of a call without a parent, a call of the conversation that it belongs to, and the call
        that it may summarize."""
        if not self.roots:
            return "start", None, None
        if request.agent and not any(root.agent == request.agent for root in self.roots):
            return "sub_agent", None, None
        if request.compacts:
            return "compaction", None, None
        systems = _systems(request.messages)
        known = next((call for each in reversed(request.messages) if (call := self.call_of(each)) is not None), None)
        if known is not None:
            if not request.tools and known.renderer.tools:
                return "tools", known, known  # the last answer or a summary: what follows tells, see `rows`
            if systems != _systems(known.origin.messages):
                return "sub_agent", None, None
            return "rewrite" if _same_tools(known, renderer) else "tools", known, None
        alike = [root for root in self.roots if root.agent == request.agent and _systems(root.messages) == systems]
        same_tools = [root for root in alike if _same_tools(root, renderer)]
        quoted = self._quoted(request.messages)
        if quoted is not None and same_tools:
            quoted.is_quoted = True
            return "compacted", same_tools[-1], None
        if quoted is not None and not request.tools:
            return "compaction", None, None
        if same_tools:
            cause = same_tools[-1].origin.cause
            return (cause, None, None) if cause in ASIDE else ("rewrite", same_tools[-1], None)
        if not request.tools and any(root.renderer.tools for root in self.roots):
            return "side_call", None, None
        opening = request.messages[: len(systems) + 1]
        other_tools = next((root for root in alike if begins_with(root.messages, 0, opening)), None)
        return ("sub_agent" if other_tools is None else "tools"), other_tools, None

    def _quoted(self, messages: tuple[AgentMessage, ...]) -> CapturedCall | None:
        """Return the newest call whose reply stands in a text of the messages."""
        for call in reversed(self._newest):
            text = "" if call.reply is None else call.reply.content.strip()
            if len(text) >= _QUOTED and any(text in message.content for message in messages):
                return call
        return None


def _same_tools(call: CapturedCall, renderer: ChatRenderer) -> bool:
    return call.renderer is renderer or call.renderer.tools == renderer.tools


def _systems(messages: tuple[AgentMessage, ...]) -> list[str]:
    systems = []
    for message in messages:
        if message.role != "system":
            break
        systems.append(message.content.strip())
    return systems
