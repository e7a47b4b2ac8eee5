"""Exact tokens: a conversation as token ids that only ever grows.

1. Generated ids are kept as generated; they are never decoded and encoded again.
2. After a turn, only the new messages are rendered, as the *delta* that the chat template puts between the turn's end
and the next generation (`toolgym.rollout.tokens.template_analysis`). 3. Text from tools, users and tasks never becomes
a control token (`toolgym.rollout.tokens.safe_encoder`).

The renderer also reads generated ids back into a `ParsedTurn`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from toolgym.rollout.models.images import ImageProcessor, PlacedImage, blank_image_url
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.rollout.models.tokenizer import end_token_ids
from toolgym.rollout.tokens.foreign_texts import SafeMessages, template_with_tools
from toolgym.rollout.tokens.marked_turns import THINK
from toolgym.rollout.tokens.parser_choice import ParserProof, choose_parser
from toolgym.rollout.tokens.placed_ids import PlacedIds, framed, images_in, placed
from toolgym.rollout.tokens.prompt_proof import PromptProof, PromptProver
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.switch_words import has_switch_word
from toolgym.rollout.tokens.template_analysis import (
    Plan,
    TemplateFacts,
    analyze,
    delta_kind,
    probe_conversation,
    turn_before,
)
from toolgym.rollout.tokens.turn_reading import TurnReader, split_turn
from toolgym.tools.errors import ConfigError, TemplateError, shorten
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Message, assistant, images_of, joined, text_of, text_part, user
from toolgym.tools.parsers import ParsedTurn, Parser, get_parser, parser_names, split_reasoning
from toolgym.tools.parsers.base import read_plain_turn
from toolgym.tools.schema import ToolSchema

try:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error

__all__ = ["ChatRenderer", "SafeEncoder", "TemplateFacts"]

UNREADABLE = "[An image left out: it cannot be read]"

_PROMPTS = 32

_OPENING_IDS = 16
"""How many ids at the end of a context are looked at for what opens thinking: enough for a tag and white space."""

_CLOSEST_IDS = 4
"""How many of them are looked at first. Nearly always they are the template's, the same at each turn."""


class ChatRenderer:
    """Turns messages into token ids, and generated ids into a `ParsedTurn`, for one chat template and set of tools.

    It holds no conversation, so one object serves any number of them at once. The way through one:

        ids = renderer.prompt(messages)
        while True:
            turn = generate(ids, stop_token_ids=renderer.stop_token_ids)
            ids += turn
            parsed = renderer.parse(turn)
            result = await env.step(parsed)
            ids += renderer.extend(result.obs, turn, earlier=messages)
            messages += [parsed.message, *result.obs]

    Args:
        tokenizer: a Hugging Face fast tokenizer with a chat template.
        tools: the tools that the template offers to the policy.
        template_kwargs: further variables for the template, for example `{"enable_thinking": False}`.
        parser: how the model writes tool calls, by name (see `toolgym.tools.parsers.get_parser`) or as a function;
            default: the parser that reads back the calls which the chat template renders.
        now: the date for templates that write one; default: the present one. It stays the same for this object.
        processor: of images, for a vision-language model; default: that beside the tokenizer, in its folder or on the
            hub.

    Attributes:
        parser: reads turns. None if there are tools and no parser reads back the calls that the chat template renders.
            Without tools, such a template's turns are content.
        parser_proof: what was proven about `parser`. None if the parser was an argument.
        thinking: the texts that the model writes around its thinking and around its answer.
        opens_thinking: the generation prompt ends with what opens thinking, so that turns begin inside of thinking.
        facts: proven facts about the template.
        safe: makes messages safe for the template.
        stop_token_ids: ids of all tokens that end a turn: behind an answer, behind a call, and those that the tokenizer
            and the generation config beside it name as an end (`end_token_ids`).

    Raises:
        TemplateError: the tokenizer has no chat template, or the template marks no end of turn that can be sampled.
        UnknownNameError: no parser has that name.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[ToolSchema] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        parser: str | Parser | None = None,
        now: datetime | None = None,
        processor: ImageProcessor | None = None,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise TemplateError(
                f"a fast tokenizer is needed (one with a tokenizer.json), got {type(tokenizer).__name__}"
            )
        self.tokenizer, self._processor = tokenizer, processor
        # What transformers wraps around it, for nothing, is half of the time.
        replaced = type(tokenizer).decode is not PreTrainedTokenizerBase.decode
        replaced = replaced or type(tokenizer)._decode is not PreTrainedTokenizerFast._decode
        self._backend = None if replaced else tokenizer.backend_tokenizer
        self.tools = [schema.to_openai() for schema in tools]
        variables = dict(template_kwargs or {})
        self._encoder = encoder = SafeEncoder.of(tokenizer)
        self._template = template_with_tools(tokenizer, encoder, self.tools, variables, now)
        end_ids = end_token_ids(tokenizer)
        own_ends = [encoder.contents_by_id[token_id] for token_id in end_ids if token_id in encoder.control_ids]
        analysis = analyze(self._template, encoder, variables, own_ends)
        self._ends = ends = analysis.ends
        self.facts = analysis.facts
        self._schemas = {schema.name: schema for schema in tools}
        self.parser_proof: ParserProof | None = None
        if parser is None:
            self.parser_proof = choose_parser(self._template, encoder, ends, variables)
            parser = self.parser_proof.parser or (None if tools else read_plain_turn)
        self.parser: Parser | None = get_parser(parser) if isinstance(parser, str) else parser
        self.thinking = self.facts.thinking
        self.opens_thinking = self._opens_thinking(self.facts.generation_prompt)
        self._reader: TurnReader | None = None
        self._mark = encoder.nonce + "m"
        self.safe = SafeMessages(self._template, encoder, analysis)
        self._head = self._template.render([user("x")], tools=())
        self._end_ids = frozenset(map(encoder.id_of, ends.known))
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*map(encoder.id_of, ends.sampled), *end_ids]))
        self.end_of_turn = ends.sampled[0]
        self.end_of_turn_id = encoder.id_of(self.end_of_turn)
        self._stops = frozenset(self.stop_token_ids)
        self._closing_ids = encoder.encode(ends.history.text)
        self._answer_ends = frozenset(encoder.id_of(terminator.end) for terminator in ends.answer)
        self._kept_prompt = functools.lru_cache(_PROMPTS)(
            lambda key, most: self._first_ids([cast(Message, dict(pairs)) for pairs in key], most)
        )
        proven = self.parser_proof is not None and self.parser_proof.proven
        reader = self.parser or read_plain_turn
        self._prover = PromptProver(self._template, encoder, ends, self.facts, reader, proven, self._probed_delta)
        self._end_of = functools.lru_cache(_PROMPTS)(self.decode)

    @property
    def added_ids(self) -> frozenset[int]:
        """Ids of all control tokens: special tokens, and added ones that are not ordinary words."""
        return self._encoder.control_ids

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that no turn may have, since they stand for images; none if the renderer has no processor of images."""
        return () if self._processor is None else self._processor.forbidden_ids

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        most: int | None = None,
        examples: Collection[Message] = (),
        prove: bool = True,
    ) -> list[int]:
        """Token ids of a conversation up to the point where the policy speaks.

        Contents of assistant messages are the policy's own writing and may contain control tokens; nothing else may.
        An assistant's message that is among the `examples` came with the task: there only those stay
        that the template writes inside of a turn. With images it is a `PlacedIds`.

        With `prove`, whole turns are played after this prompt (`PromptProver`), once for the same messages. It is for
        conversations that go on with `extend`.

        Raises:
            TemplateError: a message holds something else than text and images, the template refuses the conversation,
                or it leaves out its tool results or an image, or an image cannot be read, or turns after this prompt
                cannot be read as those after a short one.
            TooManyTokensError: there are surely more than `most`.
        """
        if not self.facts.results_rendered and any(message.get("role") == "tool" for message in messages):
            raise TemplateError("the chat template leaves out tool results, so the policy would never read them")
        safe = self.safe(messages, examples)
        ids = self._encoded("", self._template.render(safe), messages, most)
        if prove:
            self._prover.prove(messages, safe)
        return ids

    def proof_of(self, messages: Sequence[Message]) -> PromptProof:
        """Return what whole turns after a prompt showed, whose messages were all given. Raises as `prompt` does."""
        return self._prover.prove(messages, self.safe(messages, messages))

    def prompt_ids(self, messages: Sequence[Message], *, most: int | None = None) -> TokenIds:
        """As `prompt`, of messages that were all given. The episodes of a group begin with the same, and share the
        ids."""
        key = tuple(tuple(message.items()) for message in messages)
        if all(type(value) is str for pairs in key for _, value in pairs):
            return self._kept_prompt(key, most)
        # Of other values, equal ones may render differently, as 1 and True.
        return self._first_ids(messages, most)

    def _first_ids(self, messages: Sequence[Message], most: int | None) -> TokenIds:
        return TokenIds(self.prompt(messages, most=most, examples=messages))

    def begin(
        self, messages: Sequence[Message], *, most: int | None = None
    ) -> tuple[TokenIds, tuple[PlacedImage, ...]]:
        """As `prompt_ids`, and the images among them."""
        if not any(images_of(message.get("content") or "") for message in messages):
            return self.prompt_ids(messages, most=most), ()
        ids = self.prompt(messages, most=most, examples=messages)
        return TokenIds(ids), images_in(ids)

    def extend(
        self,
        messages: Sequence[Message],
        turn: Sequence[int] | None = None,
        *,
        earlier: Sequence[Message] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Token ids to append after a turn of the policy, from the turn's end to the next generation.

        Args:
            messages: all tool results of the turn at once (some templates put them into one common frame), or a user's
                message, or both; a system message if the template takes one.
            turn: the ids of the turn. If it does not end with the token that the template expects before these
                messages, that token comes first. Without it, the turn is taken to have ended as expected, or to be
                closed by `close_turn`.
            earlier: the conversation up to the turn, of which a few templates look at the system prompt and the
                messages' roles and ids (`facts.plans[kind].earlier`).
            most: tokens that are of use; see `SafeEncoder.encode`.

        With images it gives a `PlacedIds`.

        Raises:
            TemplateError: a message holds something else than text and images, the template cannot go on with such
                messages or leaves out an image, an image cannot be read, or `earlier` is needed and not given.
            TooManyTokensError: there are surely more than `most`.
        """
        if any(message.get("role") == "assistant" for message in messages):
            raise TemplateError("new messages are answers to the policy, got one of the role 'assistant'")
        written = self.decode(turn) if turn and "assistant" in self.facts.switch_words else ""
        end, rest = self._delta(self.safe(messages), earlier, written)
        end_id = self._encoder.id_of(end)
        ids = self._encoded(end, rest, messages, most)
        if turn is None:  # no policy ends its turn with a marker that it never samples, such as the system's
            before = [] if end_id in self._end_ids else [end_id]
        elif turn and turn[-1] == end_id:
            before = []
        else:
            before = self._missing(turn) if end_id in self._answer_ends else [end_id]
        return ids.behind(before) if isinstance(ids, PlacedIds) else before + ids

    def _encoded(self, end: str, rendered: str, messages: Sequence[Message], most: int | None) -> list[int]:
        """The ids of a rendered text, images included, behind the end of a turn, if any: it may swallow white space."""
        contents = [content for message in messages if isinstance(content := message.get("content"), list)]
        urls = [url for content in contents for url in images_of(content)]
        processor = self._require_processor() if urls else None
        text = rendered if processor is None else framed(rendered, urls, processor)
        ids = self._encoder.encode(
            end + text, most=None if most is None else most + bool(end), shares_beginning=not end
        )[bool(end) :]
        if processor is None:
            return ids
        whole = placed(ids, self._encoder.id_of(processor.image_token), urls, processor, most)
        for text in [part["text"].strip() for content in contents for part in content if part["type"] == "text"]:
            if self._encoder.protect(text).split("\n")[0] not in rendered:
                raise TemplateError(f"the chat template drops a text beside an image: {shorten(repr(text))}")
        return whole

    def _require_processor(self) -> ImageProcessor:
        from toolgym.rollout.models.processor import processor_of  # takes a second to import

        try:
            self._processor = self._processor or processor_of(self.tokenizer)
        except ConfigError as error:
            raise TemplateError(f"the messages have images: {error}") from error
        if self._processor is None:
            raise TemplateError(
                "the messages have images, and there is no processor of images beside the tokenizer: its model takes "
                "none, or give one with RunConfig(processor=load_processor(...))"
            )
        return self._processor

    def reads_image(self, url: str) -> bool:
        """Return whether the image of a data URL can be shown to the model."""
        try:
            self._require_processor().text(url)
        except TemplateError:
            return False
        return True

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with a note in the place of each image that the processor refuses, though it takes others.

        Programs of a policy make images of which only the header can be read.
        """
        return [self._readable(message) for message in messages]

    def _readable(self, message: Message) -> Message:
        content = message.get("content") or ""
        refused = {url for url in images_of(content) if not self.reads_image(url)}
        if not refused or isinstance(content, str) or not self.reads_image(blank_image_url()):
            return message
        parts = [
            text_part(UNREADABLE) if part["type"] == "image_url" and part["image_url"]["url"] in refused else part
            for part in content
        ]
        return {**message, "content": joined([parts], "\n")}

    def close_turn(self, token_ids: Sequence[int], *, starts_open: bool | None = None) -> list[int]:
        """The ids that close a turn which stopped without its end, because of a limit or an abort.

        They are the template's, not the policy's: no trainer may count them as sampled. There are none if the turn ends
        with a token that ends turns. If turns have no end of their own, it is the marker of the user's next message.
        The end of thinking comes first if the turn was cut inside of it; `starts_open` says that it began there.
        """
        return [] if token_ids and token_ids[-1] in self._end_ids else self._missing(token_ids, starts_open)

    def ends_turn(self, token_ids: Sequence[int]) -> bool:
        return bool(token_ids) and token_ids[-1] in self._stops

    def text(self, token_ids: Sequence[int]) -> str:
        return self.decode(token_ids[:-1] if self.ends_turn(token_ids) else token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        ids = list(token_ids)
        if self._backend is not None:
            return str(self._backend.decode(ids, skip_special_tokens=False))
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _missing(self, turn: Sequence[int], starts_open: bool | None = None) -> list[int]:
        closing = self._closing_ids
        if turn and turn[-1] in self._answer_ends:
            return []
        if not self.ends_turn(turn) and self._is_thinking(turn, starts_open):
            return self._encoder.encode(self.facts.end_of_thinking + self._ends.history.text)
        have = next((size for size in range(len(closing), 0, -1) if list(turn[-size:]) == closing[:size]), 0)
        return closing[have:]

    def _is_thinking(self, turn: Sequence[int], starts_open: bool | None) -> bool:
        text = self.decode(turn)
        opened = self.opens_thinking if starts_open is None else starts_open
        return (opened or text.lstrip().startswith(self.thinking.opens)) and self.thinking.closes not in text

    def require_parser(self) -> Parser:
        """Return `parser`. Raises TemplateError if there are tools and no parser reads the template's own calls."""
        if self.parser is None:
            why = self.parser_proof.why if self.parser_proof else ""
            raise TemplateError(
                f"{why or 'the chat template shows no known tool-call format'}, so calls of the tools "
                f"({', '.join(self._schemas)}) could not be read: name the model's parser with RunConfig(parser=...) "
                f"or --parser; known: {', '.join(parser_names())}, and sglang:NAME for those of SGLang"
            )
        return self.parser

    def parse(self, token_ids: Sequence[int], *, first_id: int = 0, starts_open: bool | None = None) -> ParsedTurn:
        """Read a generated turn, with or without the token that ended it: its text, and the calls in it.

        `first_id` is the number in the id of the turn's first call: how many calls, malformed ones included, came
        before. `starts_open` says that the turn began inside of thinking; default: `opens_thinking`. Raises as
        `require_parser` does.
        """
        return self.parse_text(self.text(token_ids), first_id=first_id, starts_open=starts_open)

    def parse_text(self, text: str, *, first_id: int = 0, starts_open: bool | None = None) -> ParsedTurn:
        starts_open = self.opens_thinking if starts_open is None else starts_open
        if self._reader is None:
            self._reader = TurnReader(self.require_parser(), self.thinking, self.facts.thinking_rendered)
        return self._reader(text, first_id=first_id, schemas=self._schemas, starts_open=starts_open)

    def part_reasoning(self, message: Message, *, starts_open: bool) -> Message:
        """Move the thinking of an assistant message from its content to `reasoning_content`, as servers do."""
        if "reasoning_content" in message:
            return message
        text = text_of(message["content"])
        if self.thinking[:2] != THINK[:2]:
            split = split_turn(text, self.thinking, starts_open=starts_open)
            reasoning, content = split.reasoning, split.content
        else:
            reasoning, content = split_reasoning(text, starts_open=starts_open)
        if reasoning is None:
            return message
        return {**message, "content": content.strip(), "reasoning_content": reasoning.strip()}

    def leaves_thinking_open(self, context: Sequence[int]) -> bool:
        """Whether a turn that goes on from these ids begins inside of thinking.

        It may differ from `opens_thinking`: some templates open thinking for a user's message, and not for a result.
        """
        for count in (_CLOSEST_IDS, _OPENING_IDS):
            text = self._end_of(tuple(context[-count:])).rstrip()
            if len(text) >= len(self.thinking.opens):
                break
        return self._opens_thinking(text)

    def _opens_thinking(self, text: str) -> bool:
        return text.rstrip().endswith(self.thinking.opens)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True, tools: bool = True) -> str:
        shown = None if tools else ()
        rendered = self._template.render(messages, generation_prompt=generation_prompt, tools=shown)
        return self._encoder.restore(rendered)

    def exact_message(self, text: str, message: Message) -> Message:
        """The assistant message to store for a turn, such that the template renders it to what was generated:
        `message`, which is the env's reading, or else the text itself as content."""
        if message.get("content") == text and "tool_calls" not in message:
            return message
        head = self._head
        try:
            rendered = self._template.render([user("x"), message], generation_prompt=False, tools=())
        except TemplateError:  # templates refuse what they do not know, such as two calls in one turn
            return assistant(text)
        if rendered.startswith(head + text):
            after = rendered[len(head) + len(text) :]
            if after.startswith(self._ends.sampled) or (not after and self._ends.ends_with_next_role):
                return message
        return assistant(text)

    def _delta(
        self, messages: Sequence[Message], earlier: Sequence[Message] | None, written: str = ""
    ) -> tuple[str, str]:
        """The token that ends a turn, and the text after it. `written` is the turn, if the template looks into it."""
        kind = delta_kind(messages)
        plan = self.facts.plans.get(kind)
        if plan is None:
            raise TemplateError(self.facts.unsupported[kind])
        words, prover = self.facts.switch_words, self._prover
        if earlier is None:
            if plan.earlier:
                raise TemplateError(
                    f"what the chat template writes for new messages ({kind}) depends on the earlier conversation: "
                    "give it with extend(..., earlier=messages)"
                )
            if words or prover.any_looks_back:
                raise TemplateError(
                    "the chat template looks for words in earlier messages: give the messages with "
                    "extend(..., earlier=messages)"
                )
            earlier = ()
        if words and has_switch_word([*earlier, assistant(written)], words):
            return self._whole_delta(messages, earlier, plan, written)
        if prover.any_looks_back and prover.looks_back(earlier):
            return self._whole_delta(messages, earlier, plan)
        conversation = probe_conversation(messages, self._mark, plan, self.safe(earlier) if plan.earlier else ())
        delta = self._cut(conversation, plan, len(messages))
        # With images a content is a list. The probe has none before them, and some templates number images.
        if any(isinstance(message["content"], list) for message in messages):
            first: Any = {**conversation[0], "content": [{"type": "image"}, {"type": "text", "text": "x"}]}
            if first["role"] == "user" and self._cut([first, *conversation[1:]], plan, len(messages)) != delta:
                raise TemplateError("what the chat template writes for an image depends on the images before it")
        return delta

    def _whole_delta(
        self, messages: Sequence[Message], earlier: Sequence[Message], plan: Plan, written: str = ""
    ) -> tuple[str, str]:
        """The delta of the whole conversation, whose cost grows with its length."""
        turn = turn_before(messages, self._mark, plan)
        if written:
            content = written.removesuffix(self._ends.history.end)
            turn = {**turn, "content": content if "tool_calls" in turn else content + self._mark}
        return self._cut([*self.safe(earlier), turn, *messages], replace(plan, tools=True), len(messages))

    def _probed_delta(self, new: Sequence[Message], earlier: Sequence[Message], plan: Plan) -> tuple[str, str]:
        return self._cut(probe_conversation(new, self._mark, plan, earlier), plan, len(new))

    def _cut(self, conversation: list[Message], plan: Plan, new: int) -> tuple[str, str]:
        text = self._template.render(conversation, tools=None if plan.tools else ())
        return self._ends.cut(self._encoder, text, self._mark, conversation[-new - 1])
