"""Words that a chat template looks for in messages, such as `/no_think` in a system prompt.

A template that finds a word in an earlier message may write something else after the next one. Which words a template
compares with is read from its syntax tree; which of them matter is found by rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeGuard

from jinja2 import nodes

from toolgym.rollout.tokens.chat_template import ROLES, ChatTemplate
from toolgym.tools.message import Message, text_of

SwitchWords: TypeAlias = Mapping[str, frozenset[str]]
"""The words that matter in an earlier message, by the message's role, in lower case."""

MAX_WORDS = 120
_REMEMBERED: dict[str, tuple[str, ...]] = {}
_LONGEST = 80
_MOST_TOGETHER = 8
"""Words of one condition. A condition of more words is a list of alternatives."""

_NOT_TEXTS = frozenset({"role", "type", "name", "id", "tool_call_id"})
"""Fields without a text of an author."""

_COMPARING = frozenset(
    ("startswith", "endswith", "split", "rsplit", "find", "rfind", "index", "count", "replace", "partition")
)


def compared_words(template: ChatTemplate) -> tuple[str, ...]:
    """Return the texts that a template compares parts of messages with, without names of roles."""
    if template.source not in _REMEMBERED:
        if len(_REMEMBERED) >= MAX_WORDS:
            _REMEMBERED.clear()
        _REMEMBERED[template.source] = _compared_words(template.tree)
    return _REMEMBERED[template.source]


def _compared_words(tree: nodes.Template) -> tuple[str, ...]:
    words: dict[str, None] = {}
    for node in _walk(tree):
        for word in _compared(node):
            if _is_looked_for(word):
                words.setdefault(word)
    return tuple(words)[:MAX_WORDS]


def words_together(template: ChatTemplate) -> tuple[tuple[str, ...], ...]:
    """Return the texts that one condition of a template compares with, if there are several.

    A condition inside another one needs the words of both. Alternatives of an `or` count too: too many words in a
    message are tried, and not too few.
    """
    groups = dict.fromkeys(_words_together(template.tree, ()))
    return tuple(group for group in groups if 1 < len(group) <= _MOST_TOGETHER)[:MAX_WORDS]


def _words_together(node: nodes.Node, outer: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(node, nodes.If | nodes.CondExpr):
        words = tuple(dict.fromkeys([*outer, *filter(_is_looked_for, _demanded(node.test))]))
        yield words
        for branch in node.body if isinstance(node, nodes.If) else [node.expr1]:
            yield from _words_together(branch, words)
        others = [*node.elif_, *node.else_] if isinstance(node, nodes.If) else [node.expr2]
        for branch in filter(None, others):
            yield from _words_together(branch, outer)
        return
    for child in node.iter_child_nodes():
        yield from _words_together(child, outer)


def _demanded(test: nodes.Node) -> Iterator[str]:
    """The texts in a condition, without those that must not be there."""
    if isinstance(test, nodes.Not) or (isinstance(test, nodes.Compare) and test.ops[0].op in ("notin", "ne")):
        return
    yield from _compared(test)
    for child in test.iter_child_nodes():
        yield from _demanded(child)


def has_switch_word(messages: Iterable[Message], words: SwitchWords) -> bool:
    """Return whether a message has one of the words that matter in messages of its role."""
    return any(
        any(word in text for word in words[message["role"]])
        for message in messages
        if message["role"] in words
        for text in [text_of(message.get("content") or "").lower()]
    )


def _is_looked_for(word: str) -> bool:
    return bool(word.strip()) and len(word) <= _LONGEST and word not in ROLES


def _compared(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Compare):
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        if not any(_is_no_text(operand) for operand in operands):
            for operand in operands:
                yield from _texts(operand)
    elif _is_comparing_call(node):
        for argument in node.args:
            yield from _texts(argument)
    elif isinstance(node, nodes.Assign):
        yield from _texts(node.node)
    elif isinstance(node, nodes.For):
        yield from _texts(node.iter)


def _is_comparing_call(node: nodes.Node) -> TypeGuard[nodes.Call | nodes.Filter]:
    if isinstance(node, nodes.Call):
        return isinstance(node.node, nodes.Getattr) and node.node.attr in _COMPARING
    return isinstance(node, nodes.Filter) and node.name == "replace"


def _is_no_text(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr in _NOT_TEXTS
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value in _NOT_TEXTS
    return False


def _texts(node: nodes.Node) -> Iterator[str]:
    """The constant texts that a value consists of."""
    if isinstance(node, nodes.Const):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, nodes.List | nodes.Tuple):
        for item in node.items:
            yield from _texts(item)
    elif isinstance(node, nodes.Dict):
        for pair in node.items:
            yield from _texts(pair.key)
            yield from _texts(pair.value)
    elif isinstance(node, nodes.CondExpr):
        yield from _texts(node.expr1)
        if node.expr2 is not None:
            yield from _texts(node.expr2)


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def texts_with(*words: str) -> Sequence[str]:
    """Return contents that have some words: nothing else, and within others."""
    return (" ".join(words), f"x {' x '.join(words)} x")
