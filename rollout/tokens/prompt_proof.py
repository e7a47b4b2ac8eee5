"""Whether what was proven about a chat template holds after an episode's own first messages.

The facts about a template are proven after prompts of a few words (`toolgym.rollout.tokens.template_analysis`). A
template may look into the messages that a task begins with: for a switch such as `/no_think`, a date, a number of
examples, the length of a text. So whole turns are played after each distinct prompt, with marked values, and compared
with those after the short prompts:

* the turn itself (thinking, text, calls, end) is the same text. If it is not, no stop token stands inside it, the
  parser reads back its calls, and its thinking has the known tags. Otherwise the prompt is refused.
* the delta after it is the same text. If it is not, deltas after this prompt are taken from the whole conversation.

All of it is played for each new *shape*: the prompt without its last text, which is what the tasks of a data set differ
in. For a further prompt of a shape, one delta is compared.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import PROBE_IDS, EndOfTurn, stands_inside
from toolgym.rollout.tokens.marked_turns import MarkedTurns
from toolgym.rollout.tokens.parser_choice import turn_text
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.template_analysis import DeltaKind, Plan, TemplateFacts, turn_before
from toolgym.rollout.tokens.turn_reading import TurnReader
from toolgym.tools.errors import TemplateError, shorten
from toolgym.tools.message import Message, system, tool, user
from toolgym.tools.parsers.base import Parser
from toolgym.tools.schema import ToolSchema

Delta = tuple[str, str]
"""The token that ends a turn, and the text after it."""

_MOST_PROVEN = 4096
_MOST_LOOKING_BACK = 4096
_PROBE = "toolgym probe"
_PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}}


class PromptProof(NamedTuple):
    """The result of playing whole turns after a prompt.

    Attributes:
        same_turn: the template writes a turn after this prompt as after a short one.
        looks_back: what the template writes after a turn depends on this prompt, so that each delta is taken from the
            whole conversation.
    """

    same_turn: bool
    looks_back: bool


def prompt_key(messages: Sequence[Message]) -> bytes:
    """Return a key of messages. Images count as images, whatever they show."""
    shown = [
        {**message, "content": [part.get("text") for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
    return hashlib.blake2b(repr(shown).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class PromptProver:
    """Plays turns after prompts, once for each distinct prompt.

    Args:
        template: the chat template, with the episode's tools.
        encoder: the encoder of its tokenizer.
        ends: how its turns end.
        facts: what was proven about it.
        parser: reads turns. Its calls are checked if the template's own calls are read back by it.
        reads_calls: whether `parser` was proven to read back the template's calls.
        delta: the delta of new messages by a plan, after the given prompt.
    """

    def __init__(
        self,
        template: ChatTemplate,
        encoder: SafeEncoder,
        ends: EndOfTurn,
        facts: TemplateFacts,
        parser: Parser,
        reads_calls: bool,
        delta: Callable[[Sequence[Message], Sequence[Message], Plan], Delta],
    ) -> None:
        self._template, self._encoder, self._ends, self._facts = template, encoder, ends, facts
        self._reader = TurnReader(parser, facts.thinking, facts.thinking_rendered)
        self._reads_calls, self._delta = reads_calls, delta
        self._name = str(template.tools[0]["function"]["name"]) if template.tools else "tool"
        self._few = template.tools[:1]
        self._schemas = {self._name: ToolSchema(self._name, "", _PARAMETERS)}
        self._marks = MarkedTurns(template, encoder, name=self._name, tools=self._few)
        self._proofs: OrderedDict[bytes, PromptProof] = OrderedDict()
        self._shapes: OrderedDict[bytes, PromptProof] = OrderedDict()
        self._looking_back: dict[int, set[bytes]] = {}
        self._known_turns: list[tuple[Message, str]] | None = None
        self._known_deltas: dict[DeltaKind, Delta] = {}

    @property
    def any_looks_back(self) -> bool:
        """Whether a prompt was found after which deltas are taken from the whole conversation."""
        return bool(self._looking_back)

    def looks_back(self, messages: Sequence[Message]) -> bool:
        """Return whether a conversation begins with a prompt after which the known deltas do not hold."""
        if sum(map(len, self._looking_back.values())) >= _MOST_LOOKING_BACK:
            return True
        return any(prompt_key(messages[:length]) in keys for length, keys in self._looking_back.items())

    def prove(self, messages: Sequence[Message], safe: Sequence[Message]) -> PromptProof:
        """Play turns after a prompt; remembered for the same messages.

        Args:
            messages: the prompt.
            safe: its messages as the template may see them.

        Raises:
            TemplateError: after this prompt, a stop token stands inside a turn, the parser reads other calls than
                those that the template writes, or the thinking has other tags than after a short prompt.
        """
        key = prompt_key(messages)
        proof = self._proofs.get(key)
        if proof is None:
            shape = prompt_key([*messages[:-1], {**messages[-1], "content": ""}]) if messages else key
            proof = self._shapes.get(shape)
            if proof is None or proof.looks_back or self._has_other_delta(safe):
                proof = self._shapes[shape] = PromptProof(self._has_same_turns(safe), self._looks_at(safe))
            self._proofs[key] = proof
            for proofs in (self._proofs, self._shapes):
                if len(proofs) > _MOST_PROVEN:
                    proofs.popitem(last=False)
        if proof.looks_back and not self.looks_back(messages):
            self._looking_back.setdefault(len(messages), set()).add(key)
        return proof

    def _has_same_turns(self, head: Sequence[Message]) -> bool:
        same = True
        for message, known in self._turns():
            whole = self._marks.render([*head, message], generation_prompt=False)
            if whole is None or known in whole:  # a refused turn has no delta either
                continue
            same = False
            self._check_turn(head, message, whole)
        return same

    def _turns(self) -> list[tuple[Message, str]]:
        """Turns with marked parts, and the text of each after the shortest prompt."""
        if self._known_turns is None:
            message = self._marks.message
            calls = int(self._facts.tool_calls_rendered)
            shapes = [message(thought=True, text=True, calls=calls), message(text=True), message(calls=calls)]
            prompts = [self._marks.render(self._marks.head, generation_prompt=wanted) or "" for wanted in (True, False)]
            self._known_turns = []
            for shape in shapes[: 2 + calls]:
                whole = self._marks.render([*self._marks.head, shape], generation_prompt=False)
                if whole is not None:
                    self._known_turns.append((shape, turn_text(self._encoder, whole, prompts, self._ends)))
        return self._known_turns

    def _check_turn(self, head: Sequence[Message], message: Message, whole: str) -> None:
        """Check a turn that the template writes otherwise after this prompt."""
        marks = self._marks
        prompts = [marks.render(head, generation_prompt=wanted) or "" for wanted in (True, False)]
        if not whole.startswith(prompts[1]):  # the prompt itself is changed once a turn follows
            return
        turn = turn_text(self._encoder, whole, prompts, self._ends)
        written = [mark for mark in (marks.thought, marks.text, marks.argument) if mark in whole]
        places = [whole.find(mark) for mark in written]
        if not places or places != sorted(places):  # another order than the policy's: such a turn is kept as text
            return
        inside = whole[places[0] : places[-1]]
        stops = [end for end in self._ends.sampled if end in inside]
        if stops:
            raise TemplateError(f"after this prompt, {stands_inside({stops[0]: marks.readable(inside[-80:])})}")
        opened = whole.startswith(prompts[0]) and prompts[0].rstrip().endswith(self._facts.thinking.opens)
        parsed = self._reader(self._encoder.restore(turn), first_id=0, schemas=self._schemas, starts_open=opened)
        shows_call = bool(message.get("tool_calls")) and marks.argument in turn
        if self._reads_calls and shows_call and [call.arguments for call in parsed.calls] != [{"x": marks.argument}]:
            raise TemplateError(
                "after this prompt, the parser does not read back the call that the chat template writes as "
                f"{shorten(repr(marks.readable(turn)))}: name another one with RunConfig(parser=...)"
            )
        if self._facts.thinking_rendered and marks.thought in turn and marks.thought in parsed.visible_content:
            raise TemplateError(
                f"after this prompt, the chat template writes thinking as {shorten(repr(marks.readable(turn)))}, and "
                f"otherwise between {self._facts.thinking.opens!r} and {self._facts.thinking.closes!r}"
            )

    def _looks_at(self, head: Sequence[Message]) -> bool:
        return any(self._differs(head, kind, plan) for kind, plan in self._facts.plans.items())

    def _has_other_delta(self, head: Sequence[Message]) -> bool:
        """Whether the first kind of messages that can follow a turn has another delta after this prompt."""
        kind, plan = next(iter(self._facts.plans.items()), (None, None))
        return kind is not None and plan is not None and self._differs_after(head, kind, plan, self._few)

    def _differs(self, head: Sequence[Message], kind: DeltaKind, plan: Plan) -> bool:
        if kind != "one result":
            return self._differs_after(head, kind, plan, self._few)
        later = [*head, *self._cycle(plan)]
        return self._differs_after(head, kind, plan, None) or self._differs_after(later, kind, plan, self._few)

    def _differs_after(
        self,
        before: Sequence[Message],
        kind: DeltaKind,
        plan: Plan,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> bool:
        """Whether new messages of a kind have another delta after these messages. `tools` are shown; None: all."""
        new = self._new_messages(kind)
        mark = self._encoder.nonce + "m"
        turn = turn_before(new, mark, plan)
        try:
            text = self._template.render([*before, turn, *new], tools=None if plan.tools else tools)
            return self._ends.cut(self._encoder, text, mark, turn) != self._known_delta(before, new, kind, plan)
        except TemplateError:  # which then comes up when such messages do
            return True

    def _known_delta(self, before: Sequence[Message], new: Sequence[Message], kind: DeltaKind, plan: Plan) -> Delta:
        if plan.earlier:
            return self._delta(new, before, plan)
        if kind not in self._known_deltas:
            self._known_deltas[kind] = self._delta(new, (), plan)
        return self._known_deltas[kind]

    def _cycle(self, plan: Plan) -> list[Message]:
        call_id = "earlier10"
        result = tool("7", tool_call_id=call_id, name=self._name)
        return [turn_before([result], "earlier", plan), result]

    def _new_messages(self, kind: DeltaKind) -> list[Message]:
        results = [tool(_PROBE, tool_call_id=call_id, name=self._name) for call_id in PROBE_IDS]
        news: Mapping[DeltaKind, list[Message]] = {
            "one result": results[:1],
            "several results": results[:2],
            "user": [user(_PROBE)],
            "system": [system(_PROBE)],
            "results and user": [*results[:1], user(_PROBE)],
            "results and system": [*results[:1], system(_PROBE)],
        }
        return news[kind]
