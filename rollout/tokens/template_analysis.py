"""Facts about a chat template and a conversation that grows, proven by rendering it.

A delta is what the template puts between the end of a turn and the next generation. It is taken from a short *probe*
conversation, so that its cost depends on the new messages only. Whether it is the delta of the whole conversation is
proven for each *kind* of new messages: the template renders a set of real conversations (with system prompts, tools,
earlier turns and tool cycles, odd contents), and the probe has to give the same text after the turn's end, character by
character. If one form of probe fails, the next is tried; if all fail, that kind of messages is not supported, with the
reason.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from toolgym.rollout.tokens.chat_template import ROLES, ChatTemplate
from toolgym.rollout.tokens.end_of_turn import (
    PROBE_IDS,
    EndOfTurn,
    called,
    find_end_of_turn,
    shared_beginning,
    stands_inside,
)
from toolgym.rollout.tokens.marked_turns import THINK, MarkedTurns, ThinkingTags, find_thinking_tags, stops_inside
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.switch_words import SwitchWords, compared_words, texts_with, words_together
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import THINKING_TAGS, Message, assistant, system, text_of, tool, user

DeltaKind = Literal["one result", "several results", "user", "system", "results and user", "results and system"]

_KINDS: tuple[tuple[DeltaKind, re.Pattern[str]], ...] = (
    ("one result", re.compile(r"t")),
    ("several results", re.compile(r"tt+")),
    ("user", re.compile(r"u*")),
    ("system", re.compile(r"su?")),
    ("results and user", re.compile(r"t+u")),
    ("results and system", re.compile(r"t+su?")),
)
"""The order of roles that each kind is proven for, by their first letters."""

_CONTENTS = ("toolgym probe", "", "two\nlines: ü🦊 ")
_LONG = "word " * 1000
_LOOKING_BACK: tuple[DeltaKind, ...] = ("one result", "user")
"""The kinds of new messages that are tried after earlier messages with odd contents."""
_REMEMBERED: OrderedDict[Any, TemplateAnalysis] = OrderedDict()
_MOST_REMEMBERED = 64


@dataclass(frozen=True)
class Plan:
    """A form of probe that was proven right for a kind of new messages. The probe's assistant calls one tool per
    result, one at all, or none. With `earlier`, the probe begins with an outline of the conversation, and the cost
    depends on its length: DeepSeek V3 writes results otherwise once there were others, Command R7B numbers them, and
    Mistral Nemo repeats the system prompt."""

    calls: Literal["each", "one", "none"]
    tools: bool
    earlier: bool


@dataclass(frozen=True)
class TemplateFacts:
    """Proven facts about a template with its tools and variables.

    Attributes:
        generation_prompt: text that the template writes for the policy to go on from.
        ends_of_turn: the tokens that end the policy's turns.
        end_of_turn_in_history: text that the template writes there once the conversation goes on.
        end_of_turn_is_marker: turns have no end of their own; the next role's marker ends them.
        merged_results: results of one turn share a frame, so they must be added together.
        results_rendered: tool results are rendered; a template without tools may leave them out without a word.
        end_of_thinking: text between thinking and what follows it.
        thinking: the texts around thinking and around an answer.
        thinking_rendered: the template writes the thinking of the last turn. If not, `thinking` has known tags that are
            tokens of the model or stand in the template, or else `<think>`.
        tools_rendered: the template tells the policy of the tools; None if there are none.
        thinking_dropped: kinds of new messages after which the template leaves out the thinking of the turn before
            them. An episode's own ids keep it with `history="append"`, so that its policy reads thoughts that a server
            which renders everything again would not show; `history="template"` begins a sequence without them.
        switch_words: words that change the delta if an earlier message has them, by its role. Then the delta is that
            of the whole conversation.
        uses_date: the template writes the date. A `ChatRenderer` keeps the date of its making.
        content_parts: the template drops a content that is a text, so each is given as a list of parts.
    """

    generation_prompt: str
    ends_of_turn: tuple[str, ...]
    end_of_turn_in_history: str
    end_of_turn_is_marker: bool
    merged_results: bool | None
    parallel_calls: bool
    tool_calls_rendered: bool
    results_rendered: bool
    end_of_thinking: str
    thinking: ThinkingTags
    thinking_rendered: bool
    thinking_dropped: tuple[DeltaKind, ...]
    switch_words: SwitchWords
    tools_rendered: bool | None
    json_arguments: bool
    uses_date: bool
    content_parts: bool
    plans: Mapping[DeltaKind, Plan] = field(default_factory=dict)
    unsupported: Mapping[DeltaKind, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TemplateAnalysis:
    ends: EndOfTurn
    facts: TemplateFacts


def delta_kind(messages: Sequence[Message]) -> DeltaKind:
    """The kind of some new messages. Raises TemplateError if they are of no kind, so that nothing was proven about
    them."""
    roles = "".join(message["role"][0] for message in messages)
    kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(roles)), None)
    if kind is None:
        raise TemplateError(
            "new messages are tool results, or messages of the user, or results and then a message of the user; a "
            "system message may stand before the user's: got the order "
            + ", ".join(message["role"] for message in messages)
        )
    return kind


def probe_conversation(
    messages: Sequence[Message], mark: str, plan: Plan, earlier: Sequence[Message] = ()
) -> list[Message]:
    head = _outline(earlier, plan) if plan.earlier else [user("x")]
    return [*head, turn_before(messages, mark, plan), *messages]


def turn_before(messages: Sequence[Message], text: str, plan: Plan) -> Message:
    answered = list(itertools.takewhile(lambda message: message["role"] == "tool", messages))
    if plan.calls == "none" or not answered:
        return assistant(text)
    if plan.calls == "one":
        answered = answered[:1]
    names = [message.get("name", "") for message in answered]
    return called(text, names, [message.get("tool_call_id", "") for message in answered])


def _outline(earlier: Sequence[Message], plan: Plan) -> list[Message]:
    """A conversation of the same form: its system prompt, and each other message with one letter for its content."""
    outline: list[Message] = []
    for at, message in enumerate(earlier):
        if message["role"] == "assistant":
            outline.append(turn_before(earlier[at + 1 :], "x", plan))
        elif message["role"] == "system":
            outline.append(message)
        else:
            outline.append({**message, "content": "x"})
    return outline


def analyze(
    template: ChatTemplate, encoder: SafeEncoder, variables: Mapping[str, Any], own_ends: Sequence[str] = ()
) -> TemplateAnalysis:
    """Find out what the template does; remembered, so that a process analyzes the same template once."""
    parts = (template.source, template.tools, dict(variables), template.special_tokens, encoder.contents, own_ends)
    key = encoder.restore(json.dumps(parts, sort_keys=True, default=repr))  # its random letters say nothing
    analysis = _REMEMBERED.get(key)
    if analysis is None:
        analysis = _Analyzer(template, encoder, own_ends).analysis()
        _REMEMBERED[key] = analysis
        if len(_REMEMBERED) > _MOST_REMEMBERED:
            _REMEMBERED.popitem(last=False)
    _REMEMBERED.move_to_end(key)
    template.json_arguments = analysis.ends.json_arguments
    return analysis


class _Truth(NamedTuple):
    head: Sequence[Message]
    new: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    delta: tuple[str, str]


class _Analyzer:
    def __init__(self, template: ChatTemplate, encoder: SafeEncoder, own_ends: Sequence[str]) -> None:
        self.template, self.encoder = template, encoder
        self.mark = encoder.nonce + "m"
        self.name = str(template.tools[0]["function"]["name"]) if template.tools else "tool"
        self.few = template.tools[:1]
        self.turns = MarkedTurns(template, encoder, name=self.name, tools=self.few)
        self.prompt = self._generation_prompt()
        self.ends = self._ends(own_ends)
        self.rendered_thinking = find_thinking_tags(self.turns, self.ends, self.prompt)
        self.thinking = self.rendered_thinking or self._known_thinking()
        self.heads = self._heads()
        self._probes: dict[str, tuple[str, str]] = {}

    def analysis(self) -> TemplateAnalysis:
        plans: dict[DeltaKind, Plan] = {}
        unsupported: dict[DeltaKind, str] = {}
        for kind, news in self._new_messages().items():
            try:
                plan = self._plan(kind, news)
                if kind in _LOOKING_BACK and self._looks_at([_LONG], ROLES, kind, plan):
                    raise TemplateError(
                        f"what the chat template writes for new messages ({kind}) depends on the length of earlier ones"
                    )
                plans[kind] = plan
            except TemplateError as error:
                unsupported[kind] = str(error)
        return TemplateAnalysis(self.ends, self._facts(plans, unsupported))

    def _switch_words(self, plans: Mapping[DeltaKind, Plan]) -> SwitchWords:
        """Find the words in earlier messages that change what the template writes after new ones."""
        words: dict[str, set[str]] = {}
        compared, together = compared_words(self.template), words_together(self.template)
        for kind, plan in ((kind, plans[kind]) for kind in _LOOKING_BACK if kind in plans):
            groups: list[tuple[str, ...]] = [*((word,) for word in compared), *together, compared]
            for group in groups:
                self._add_switch_words(words, group, kind, plan)
        return {role: frozenset(texts) for role, texts in words.items()}

    def _add_switch_words(
        self, words: dict[str, set[str]], group: tuple[str, ...], kind: DeltaKind, plan: Plan
    ) -> None:
        """Add words by the roles in which they change a delta, if they do so together.

        Words that are known already change a delta whatever stands beside them, so they are left out.
        """
        while True:
            known = frozenset().union(*words.values())
            group = tuple(word for word in group if word.lower() not in known)
            if not group or not self._looks_at(texts_with(*group), ROLES, kind, plan):
                return
            needed = group
            for word in group if len(group) > 2 else ():
                fewer = tuple(other for other in needed if other != word)
                if fewer and self._looks_at(texts_with(*fewer), ROLES, kind, plan):
                    needed = fewer
            alone = [role for role in ROLES if self._looks_at(texts_with(*needed), (role,), kind, plan)]
            for role in alone or ROLES:
                words.setdefault(role, set()).update(word.lower() for word in needed)

    def _looks_at(self, texts: Sequence[str], roles: Sequence[str], kind: DeltaKind, plan: Plan) -> bool:
        """Whether such texts in earlier messages of these roles change what the template writes after new ones."""
        for text in texts:
            head = self._head_with(text, roles)
            # A new message without the text may follow: an old text must not matter then. With it, results are counted.
            for content in ("toolgym probe", text) if kind == "one result" and "tool" in roles else ("toolgym probe",):
                new = [user(content)] if kind == "user" else self._results(content)
                turn = self._turns(new)[0]
                turns = [turn]
                if "assistant" in roles:  # the turn itself may have the text; `_real` looks for it in front of the mark
                    spoken = f"{self.encoder.nonce}w {text}"
                    turns.append({**turn, "content": spoken if "tool_calls" in turn else f"{spoken} {self.mark}"})
                for turn in turns:
                    try:
                        truth = _Truth(head, new, self.few, self._real(head, turn, new, self.few))
                        if self._probed(truth, plan) != truth.delta:
                            return True
                    except TemplateError:
                        continue
        return False

    def _head_with(self, text: str, roles: Sequence[str]) -> list[Message]:
        """A conversation with three tool cycles in which the messages of some roles have this text."""

        def content(role: str, usual: str) -> str:
            return text if role in roles else usual

        asked = user(content("user", "Hello?"))
        head = [system(content("system", "Be brief.")), asked]
        if not self._renders(head):
            head = [asked]
        cycles = [message for number in (1, 2, 3) for message in self._cycle(number, content("tool", "7"))]
        for tail in ([*cycles, assistant(content("assistant", "Yes.")), asked, *cycles], cycles, []):
            if self._renders([*head, *tail]):
                return [*head, *tail]
        return head

    def _ends(self, own_ends: Sequence[str]) -> EndOfTurn:
        """Find how turns end, with tokens that never stand inside a turn."""
        ends = find_end_of_turn(self.template, self.encoder, self.name, own_ends)
        inside = stops_inside(self.turns, {*ends.sampled, *own_ends}, self.prompt)
        if not inside:
            return ends
        ends = find_end_of_turn(self.template, self.encoder, self.name, own_ends, inside)
        still_inside = stops_inside(self.turns, {*ends.sampled, *own_ends}, self.prompt)
        if still_inside:
            raise TemplateError(stands_inside(still_inside))
        return ends

    def _called(self, argument: str, count: int = 1, ids: Sequence[str] = PROBE_IDS) -> Message:
        return called(argument, [self.name] * count, ids) if self.ends.renders_calls else assistant(argument)

    def _results(self, *contents: str, ids: Sequence[str] = PROBE_IDS) -> list[Message]:
        return [tool(text, tool_call_id=ids[at], name=self.name) for at, text in enumerate(contents)]

    def _cycle(self, number: int, *contents: str) -> list[Message]:
        ids = [f"earlier{number}{at}" for at in range(len(contents))]
        return [self._called("earlier", len(contents), ids), *self._results(*contents, ids=ids)]

    def _new_messages(self) -> dict[DeltaKind, list[list[Message]]]:
        plain, none, odd = _CONTENTS
        result, pair = self._results(plain), self._results(odd, none)
        return {
            "one result": [self._results(text) for text in _CONTENTS],
            "several results": [self._results(plain, "second probe"), self._results(none, odd, plain)],
            "user": [*([user(text)] for text in _CONTENTS), [], [user(plain), user(odd)]],
            "system": [[system(plain)], [system(odd), user(plain)]],
            "results and user": [[*result, user("second probe")], [*pair, user(plain)]],
            "results and system": [[*result, system("second probe")], [*pair, system(plain), user(odd)]],
        }

    def _heads(self) -> list[list[Message]]:
        asked = [user("Hello?")]
        brief = [system("Be brief."), *asked]
        first, second = self._cycle(1, "7"), self._cycle(2, "8")
        thought: Message = {**first[0], "reasoning_content": "Hm.\nWhat is it?"}
        answered = [assistant("Yes."), user("What is it?")]
        heads = [
            asked,
            brief,
            [*brief, *answered],
            [*asked, *first],
            [*brief, *first, *second],
            [system("Be\nkind. "), *asked, *first, *answered],
            [*brief, thought, *first[1:], *answered, *second, *self._cycle(3, "9", "10")],
            [*asked, *second, *answered, thought, *first[1:]],
        ]
        return [head for head in heads if self._renders(head)]

    def _plan(self, kind: DeltaKind, news: Sequence[Sequence[Message]]) -> Plan:
        """The first form of probe that gives the same delta as every real conversation."""
        truths: list[_Truth] = []
        refusal: TemplateError | None = None
        for number, head in enumerate(self.heads):
            # Each of the new messages behind the simple heads; behind the others, what all of a kind have in common.
            for new in news if number < 2 else news[:2]:
                for turn in self._turns(new):
                    # All tools once for each kind; the cost of a rendering grows with them.
                    tools = self.template.tools if not truths else self.few
                    try:
                        delta = self._real(head, turn, new, tools)
                    except TemplateError as error:
                        refusal = refusal or error
                        continue
                    self._check_complete(kind, new, delta[1])
                    truths.append(_Truth(head, new, tools, delta))
        if refusal is not None and not any(truth.new is news[0] for truth in truths):
            raise refusal
        seen = {message["role"] for truth in truths for message in truth.head}
        if news[0][0]["role"] == "tool" and "tool" not in seen:
            raise TemplateError(f"the chat template refuses new messages ({kind}) once there were tool results before")
        for plan in self._candidates(kind):
            try:
                if all(self._probed(truth, plan) == truth.delta for truth in truths):
                    return plan
            except TemplateError:
                continue
        raise TemplateError(
            f"what the chat template writes for new messages ({kind}) depends on the earlier conversation, "
            "so it cannot be added without rendering everything again"
        )

    def _candidates(self, kind: DeltaKind) -> list[Plan]:
        """Forms of probe, the cheap ones first."""
        calls: tuple[Literal["each", "one", "none"], ...] = ("each", "one", "none")
        plans = [
            Plan(calling, tools, earlier) for earlier in (False, True) for tools in (False, True) for calling in calls
        ]
        if not self.ends.renders_calls:
            return [plan for plan in plans if plan.calls == "none"]
        if kind in ("user", "system"):  # there are no calls but in an outline
            return [plan for plan in plans if plan.calls == ("each" if plan.earlier else "none")]
        return plans

    def _turns(self, new: Sequence[Message]) -> list[Message]:
        results = sum(message["role"] == "tool" for message in new)
        turn = self._called(self.mark, results) if results else assistant(self.mark)
        if results > 1 and not self._renders([user("x"), turn]):
            turn = assistant(self.mark)
        spoken = "Let me see. "
        text = spoken if "tool_calls" in turn else spoken + self.mark
        return [turn, {**turn, "content": text}, {**turn, "reasoning_content": "Hm."}]

    def _real(
        self, head: Sequence[Message], turn: Message, new: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[str, str]:
        text = self.template.render([*head, turn, *new], tools=tools)
        if text_of(turn["content"]).removesuffix(self.mark).strip() not in text[: text.rfind(self.mark)]:
            # Gemma 4 does. Such a turn is kept as text, because that is how the policy wrote it.
            raise TemplateError("the chat template shows the text of a turn after the calls that the turn ends with")
        return self.ends.cut(self.encoder, text, self.mark, turn)

    def _probed(self, truth: _Truth, plan: Plan) -> tuple[str, str]:
        if plan.earlier:
            return self._probe(truth, plan)
        key = repr((truth.new, plan, len(truth.tools)))
        if key not in self._probes:
            self._probes[key] = self._probe(truth, plan)
        return self._probes[key]

    def _probe(self, truth: _Truth, plan: Plan) -> tuple[str, str]:
        messages = probe_conversation(truth.new, self.mark, plan, truth.head)
        text = self.template.render(messages, tools=truth.tools if plan.tools else ())
        return self.ends.cut(self.encoder, text, self.mark, messages[-len(truth.new) - 1])

    def _check_complete(self, kind: DeltaKind, new: Sequence[Message], delta: str) -> None:
        """Refuse a template that shows a new message elsewhere, or not at all."""
        missing = [message for message in new if text_of(message["content"]).strip().split("\n")[0] not in delta]
        if missing:
            raise TemplateError(
                f"the chat template does not write a new {missing[0]['role']} message ({kind}) after the turn: "
                "it moves it to an earlier place, or leaves it out"
            )

    def _renders(self, messages: Sequence[Message]) -> bool:
        try:
            self.template.render(messages, tools=self.few)
        except TemplateError:
            return False
        return True

    def _facts(self, plans: Mapping[DeltaKind, Plan], unsupported: Mapping[DeltaKind, str]) -> TemplateFacts:
        few, question = self.few, [user("Hello?")]
        prompt = self.prompt

        def shown(text: Callable[[], str]) -> str | None:
            try:
                return text()
            except TemplateError:
                return None

        single, pair = self._results("7"), self._results("7", "8")
        alone = shown(lambda: self._real(question, self._turns(single)[0], single, few)[1])
        both = shown(lambda: self._real(question, self._turns(pair)[0], pair, few)[1])
        calls = shown(lambda: self.template.render([*question, called(self.mark, [self.name] * 2)], tools=few))
        return TemplateFacts(
            generation_prompt=prompt,
            ends_of_turn=self.ends.sampled,
            end_of_turn_in_history=self.ends.history.text,
            end_of_turn_is_marker=self.ends.ends_with_next_role,
            merged_results=None if alone is None or both is None else not both.startswith(alone.removesuffix(prompt)),
            parallel_calls=(calls or "").count(self.mark) == 2,
            tool_calls_rendered=self.ends.renders_calls,
            results_rendered=self._shows_results(),
            end_of_thinking=self._end_of_thinking(),
            thinking=self.thinking,
            thinking_rendered=self.rendered_thinking is not None,
            thinking_dropped=self._dropped_thinking(),
            switch_words=self._switch_words(plans),
            tools_rendered=self.name in self.template.render(question, tools=few) if self.template.tools else None,
            json_arguments=self.ends.json_arguments,
            uses_date=self.template.uses_date,
            content_parts=self.template.content_parts,
            plans=dict(plans),
            unsupported=dict(unsupported),
        )

    def _shows_results(self) -> bool:
        """False if the template takes a tool result and leaves it out."""
        try:
            return self.mark in self.template.render([user("x"), self._called("y"), *self._results(self.mark)])
        except TemplateError:  # which says so
            return True

    def _dropped_thinking(self) -> tuple[DeltaKind, ...]:
        """Return the kinds of new messages after which the thinking of the turn before them is not there."""
        if self.rendered_thinking is None:
            return ()
        turns, calls = self.turns, int(self.ends.renders_calls)
        news: dict[DeltaKind, tuple[Message, Sequence[Message]]] = {
            "one result": (turns.message(thought=True, text=True, calls=calls), self._results("7")),
            "user": (turns.message(thought=True, text=True), [user("y")]),
        }
        dropped: list[DeltaKind] = []
        for kind, (turn, new) in news.items():
            text = turns.render([*turns.head, turn, *new], generation_prompt=True)
            if text is not None and turns.text in text and turns.thought not in text:
                dropped.append(kind)
        return tuple(dropped)

    def _known_thinking(self) -> ThinkingTags:
        """Return the tags of a model whose template writes no thinking: its tokens, or texts of the template."""
        tokens, source = set(self.encoder.contents), self.template.source
        known = [pair for pair in THINKING_TAGS if tokens.issuperset(pair) or all(tag in source for tag in pair)]
        return ThinkingTags(*known[0]) if known else THINK

    def _end_of_thinking(self) -> str:
        closes = self.thinking.closes
        for text in (self.turns.written(self.turns.message(thought=True, calls=calls)) for calls in (0, 1)):
            closing = re.match(rf"\s*{re.escape(closes)}\s*", (text or "").rpartition(self.turns.thought)[2])
            if closing:
                return closing.group()
        return f"\n{closes}\n\n" if closes == THINK.closes else closes

    def _generation_prompt(self) -> str:
        asked = [user(self.mark)]
        tail, closed = (
            self.template.render(asked, tools=(), generation_prompt=wanted).rpartition(self.mark)[2]
            for wanted in (True, False)
        )
        if tail.startswith(closed):
            return tail[len(closed) :]
        # Something else stands there instead; a control token that begins alike is not half shared.
        at = len(shared_beginning(tail, closed))
        starts = [control.start() for control in self.encoder.all_controls(tail) if control.start() <= at]
        return tail[starts[-1] if starts else at :]
