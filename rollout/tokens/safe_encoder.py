"""From rendered text to token ids, such that only the chat template can write control tokens.

A tokenizer reads `<|im_end|>` as one control token in any text, also in a web page that a tool fetched. Here every
control token gets a name that no author of a text can guess: a nonce, drawn when the encoder is made. The encoder works
with a copy of the tokenizer that knows the control tokens by these names only.

1. Before rendering, `protect` looks for control tokens in foreign text (also for pieces of one that the text around
could complete) and replaces one character of each by a placeholder. 2. After rendering, every control token that stands
in the text was written by the template. `encode` replaces it by its name, the placeholders by their characters, and
hands the whole text to the copy. Text that merely looks like a control token means nothing to the copy, for any
normaliser and vocabulary.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import secrets
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from toolgym.rollout.models.token_ids import is_control
from toolgym.rollout.models.tokenizer import end_token_ids
from toolgym.rollout.tokens.token_bounds import COMPOSED, TooManyTokensError, composes, longest_token
from toolgym.tools.errors import TemplateError
from toolgym.tools.lazy import missing_extra

try:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error

LONG = 16_384
"""From this many characters on, a text takes some 10 ms and is encoded without the interpreter's lock."""

_BEGINNING = 1_000
"""From this many characters on, the beginning of a prompt is kept for others that share it. It takes 0.3 ms."""

_BEGINNINGS = 8

_FRAME = 200
"""Most characters of what stands before, or behind, the longest part of a text that are kept with their ids. Between
two turns that is the template's own text around a result, the same each time."""

_FRAMES = 128

_MARKER = re.compile(r"[|\uff5c]|think|thought|reason|tool|call|func|param|arg|turn|role|im_|response", re.IGNORECASE)
"""In the name of a token that has a role in turns, though the template does not write it in one piece."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_NAME = 40
"""More characters than a placeholder has."""

_made: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, tuple[tuple[Any, ...], SafeEncoder]]
_made = weakref.WeakKeyDictionary()


class SafeEncoder:
    """Encodes rendered text in which only the template's own control tokens count.

    A *control token* is an added token with a role: it is special, ends a text, stands in the chat template, or is
    named like a marker of thinking or of calls. Other added tokens, such as Gemma's `<table>`, are vocabulary, which
    every inference server reads in any text. `nonce` is the random part of all names and placeholders.

    Raises:
        TemplateError: the tokenizer cannot be copied with its control tokens renamed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = tokenizer.added_tokens_decoder
        self._ids = control_tokens(tokenizer)
        self.contents_by_id = {index: content for content, index in self._ids.items()}
        self._alone = frozenset(token.content for token in added.values() if token.single_word)
        self.control_ids = frozenset(self.contents_by_id)
        self.nonce = _draw_nonce(self._ids)
        # No accent behind a name can be composed with a `q`, whatever the normaliser; of a `z` it makes another letter.
        self._names = {content: f"{self.nonce}y{number}q" for number, content in enumerate(self._ids)}
        self._copy, self._remap, state = _renamed(tokenizer, self._names)
        self._longest_token, self._composes = longest_token(state), composes(state)

        self._by_name = {name: content for content, name in self._names.items()}
        self._named = re.compile(f"{self.nonce}y[0-9]+q")
        self._copy_ids = frozenset(map(self._copy.token_to_id, self._by_name))
        self._may_miss = self._copy.normalizer is not None and any(
            token.normalized for token in added.values() if token.content in self._ids
        )
        # A tokenizer reads what stands between two added tokens on its own, so a text can be cut in front of one; but
        # not if that one would swallow white space before it, or if a word before it counts only where it ends.
        self._divisible = not self._may_miss and not any(
            token.lstrip if token.content in self._ids else token.single_word for token in added.values()
        )
        self._kept_beginning = functools.lru_cache(_BEGINNINGS)(lambda text: tuple(self._encode(text)))
        self._kept_frame = functools.lru_cache(_FRAMES)(lambda text: tuple(self._encode_whole(text)) if text else ())

        # Of each control token: all beginnings, all ends, and the whole as one long text, to find pieces of it.
        self._beginnings = frozenset(text[:end] for text in self._ids for end in range(1, len(text)))
        self._ends = frozenset(text[at:] for text in self._ids for at in range(1, len(text)))
        self._firsts = frozenset(text[0] for text in self._ids)
        self._lasts = frozenset(text[-1] for text in self._ids)
        self._joined = "\0".join(self._ids)
        self._longest = max(map(len, self._ids), default=0)

        controls = _any_of(self._ids)
        self._control = re.compile(controls)
        self._written = re.compile(f"{self.nonce}x([0-9a-f]+)z|{controls}")

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> SafeEncoder:
        """The encoder of a tokenizer, made once and again only when its added tokens or its template change."""
        added = tokenizer.added_tokens_decoder
        tokens = tuple((index, str(token.content), token.special) for index, token in added.items())
        state = (tokens, _template_texts(tokenizer))
        entry = _made.get(tokenizer)
        if entry is None or entry[0] != state:
            entry = _made[tokenizer] = (state, cls(tokenizer))
        return entry[1]

    @property
    def contents(self) -> tuple[str, ...]:
        return tuple(self._ids)

    def id_of(self, content: str) -> int:
        return self._ids[content]

    def first_control(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._control.search(text, start) if self._ids else None

    def all_controls(self, text: str) -> list[re.Match[str]]:
        return list(self._control.finditer(text)) if self._ids else []

    def without_controls(self, text: str) -> str:
        return self._control.sub("", text) if self._ids else text

    def protect(self, text: str, but: Collection[str] = ()) -> str:
        """Foreign text as the template may see it; `encode` turns it back into itself. It is the same text unless it
        holds a control token, or begins, ends or consists of a piece of one (which the text that the template puts
        around it could complete). Control tokens of `but` stay. Raises TemplateError for a text with the encoder's
        nonce, which only an attack can contain."""
        if not text or not self._ids:
            return text
        if self.nonce in text:
            raise TemplateError("the text holds the random letters that stand for control tokens in this process")
        text = self.protect_whole(text, but)
        core = text.strip()
        if not core:
            return text
        size = self._longest - 1
        head, tail = core[:size], core[-size:] if size else ""
        last = not self._firsts.isdisjoint(tail) and any(
            tail[-length:] in self._beginnings for length in range(1, len(tail) + 1)
        )
        first = (len(core) <= size and core in self._joined) or (
            not self._lasts.isdisjoint(head) and any(head[:length] in self._ends for length in range(1, len(head) + 1))
        )
        start, end = text.index(core), text.index(core) + len(core) - 1
        if last and not (first and start == end):
            text = text[:end] + self._hide(text[end:])
        if first:
            text = text[:start] + self._hide(text[start:])
        return text

    def protect_whole(self, text: str, but: Collection[str] = ()) -> str:
        """The same for whole control tokens only; for text whose short words the template itself looks at."""
        before = None if self._ids else text
        while text != before:  # taking one apart may leave another
            before = text
            text = self._control.sub(lambda match: match[0] if match[0] in but else self._hide(match[0]), before)
        return text

    def _hide(self, text: str) -> str:
        return f"{self.nonce}x{ord(text[0]):x}z{text[1:]}"

    def restore(self, rendered: str) -> str:
        """Rendered text as a person would read it, with the foreign text's own characters."""
        if self.nonce not in rendered:
            return rendered
        return self._written.sub(lambda match: chr(int(match[1], 16)) if match[1] else match.group(), rendered)

    def encode(self, rendered: str, *, most: int | None = None, shares_beginning: bool = False) -> list[int]:
        """Token ids of rendered text, without a beginning-of-sequence token. Several threads may encode at once.

        If other texts begin like this one (`shares_beginning`), as prompts do with what the template says of the tools,
        the text before the first control token behind `_BEGINNING` characters is encoded once. A lone surrogate (half
        an emoji, which tools cut off) is encoded as U+FFFD, because no tokenizer takes one. Raises TooManyTokensError
        if the text surely has more than `most` tokens; then it was not encoded.
        """
        if self._ids:
            rendered = self._written.sub(self._name, rendered)
        if most is not None and (least := self._least(rendered)) > most:
            raise TooManyTokensError(least)
        cut = self._named.search(rendered, _BEGINNING) if shares_beginning and self._divisible else None
        if cut is None:
            return self._encode(rendered)
        return [*self._kept_beginning(rendered[: cut.start()]), *self._encode(rendered[cut.start() :])]

    def _encode(self, text: str) -> list[int]:
        if self._divisible and len(text) < LONG:
            cuts = [0, *(name.start() for name in self._named.finditer(text)), len(text)]
            start, end = max(itertools.pairwise(cuts), key=lambda part: part[1] - part[0])
            if start <= _FRAME >= len(text) - end:
                middle = self._encode_whole(text[start:end])
                return [*self._kept_frame(text[:start]), *middle, *self._kept_frame(text[end:])]
        return self._encode_whole(text)

    def _encode_whole(self, text: str) -> list[int]:
        encoding = self._encoding(text, offsets=self._may_miss)
        if self._may_miss:
            encoding = self._without_missed(text, encoding)
        ids: list[int] = encoding.ids
        return [self._remap.get(token_id, token_id) for token_id in ids] if self._remap else ids

    def plain(self, text: str) -> Encoding:
        return self._encoding(text)

    def _encoding(self, text: str, *, offsets: bool = True) -> Encoding:
        # That without offsets takes three quarters of the time, and there is none of it for a single text.
        encode = self._copy.encode_batch if offsets else self._copy.encode_batch_fast
        try:
            return encode([text], add_special_tokens=False)[0]
        except (TypeError, UnicodeEncodeError):
            return encode([_SURROGATE.sub("\ufffd", text)], add_special_tokens=False)[0]

    def _least(self, text: str) -> int:
        if self._longest_token is None:
            return 0
        return len(text) // (self._longest_token * (COMPOSED if self._composes and not text.isascii() else 1))

    def _without_missed(self, text: str, encoding: Encoding) -> Encoding:
        """Encode again, as plain text, the control tokens that the tokenizer itself does not recognise where they
        are. A normaliser that puts a space in front of everything does so with added tokens as well, and then finds
        them after a space only."""
        spans = zip(encoding.offsets, encoding.ids, strict=True)
        copied = {at for (start, end), token_id in spans if token_id in self._copy_ids for at in range(start, end)}
        missed = [name for name in self._named.finditer(text) if copied.isdisjoint(range(*name.span()))]
        if not missed:
            return encoding
        for match in reversed(missed):
            text = text[: match.start()] + self._by_name[match.group()] + text[match.end() :]
        return self._encoding(text)

    def _name(self, match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        content = match.group()
        if content in self._alone:  # such a token counts only where no word touches it
            start, end = match.span()
            before = self.restore(match.string[max(0, start - _NAME) : start])[-1:]
            after = self.restore(match.string[end : end + _NAME])[:1]
            if re.match(r"\w", before) or re.match(r"\w", after):
                return content
        return self._names[content]


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the ids of a tokenizer's control tokens by their texts; see `SafeEncoder`."""
    added = {index: token for index, token in tokenizer.added_tokens_decoder.items() if is_control(token)}
    template, ends = _template_texts(tokenizer), {*end_token_ids(tokenizer)}
    return {
        token.content: index
        for index, token in added.items()
        if token.special
        or index in ends
        or not template
        or token.content.strip() in template
        or _MARKER.search(token.content)
    }


def _template_texts(tokenizer: PreTrainedTokenizerBase) -> str:
    templates = getattr(tokenizer, "chat_template", None) or ""
    return "\0".join(templates.values()) if isinstance(templates, Mapping) else str(templates)


def _draw_nonce(contents: Iterable[str]) -> str:
    contents = tuple(contents)
    for _ in range(100):
        nonce = "q" + "".join(secrets.choice("ghjkmnpqrstuvw") for _ in range(17))
        if not any(content in f"{nonce}xyz0123456789abcdef" for content in contents):
            return nonce
    raise TemplateError(
        "the tokenizer has special tokens of one or two ordinary letters: foreign text could not differ from them"
    )


def _any_of(texts: Iterable[str]) -> str:
    """A regular expression for any of the texts, the longest if several fit, quick for thousands of them."""
    trie: dict[str, Any] = {}
    for text in texts:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _trie_pattern(trie) if trie else r"(?!)"


def _trie_pattern(node: Mapping[str, Any]) -> str:
    single = ""
    while len(node) == 1 and "" not in node:  # a run without branches; recursion is for branches only
        [(char, node)] = node.items()
        single += re.escape(char)
    if set(node) <= {""}:
        return single
    branches = "|".join(re.escape(char) + _trie_pattern(below) for char, below in node.items() if char)
    return f"{single}(?:{branches})" + ("?" if "" in node else "")


def _renamed(
    tokenizer: PreTrainedTokenizerBase, names: Mapping[str, str]
) -> tuple[Tokenizer, dict[int, int], dict[str, Any]]:
    """A copy of the tokenizer that knows control tokens by other names, its ids to map back, and its JSON form."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state.update(truncation=None, padding=None, post_processor=None)
    for token in state["added_tokens"]:
        if token["content"] in names:
            token.update(content=names[token["content"]], single_word=False)
    model = state["model"]
    # The vocabulary may list control tokens as words, which plain text could be merged into.
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in model["vocab"].items()}
    elif isinstance(model.get("vocab"), list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if model.get("merges"):
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        gone = names.keys()
        model["merges"] = [
            pair for pair in pairs if not (pair[0] in gone or pair[1] in gone or pair[0] + pair[1] in gone)
        ]
    try:
        copy = Tokenizer.from_str(json.dumps(state))
    except Exception as error:  # the library raises plain exceptions
        raise TemplateError(f"the tokenizer cannot be copied with its control tokens renamed: {error}") from error
    remap = {}
    for index, token in tokenizer.added_tokens_decoder.items():
        copy_id = copy.token_to_id(names.get(token.content, token.content))
        if copy_id is None:
            raise TemplateError(f"the tokenizer's copy lost the added token {token.content!r}")
        if copy_id != index:
            remap[copy_id] = index
    return copy, remap, state
