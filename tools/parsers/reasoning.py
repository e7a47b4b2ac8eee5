"""Splitting a turn into its thinking and its content."""

from __future__ import annotations


def split_reasoning(
    text: str, *, open_tag: str = "<think>", close_tag: str = "</think>", starts_open: bool = False
) -> tuple[str | None, str]:
    """Split the thinking that a turn begins with from the rest.

    Nothing is stripped or joined, so that `open_tag + reasoning + close_tag + content` is the text (without `open_tag`
    where the text starts open, and without `close_tag` where the thinking never closed). The exception is white space
    before the opening tag, which is dropped. Thinking further inside the text is left where it is.

    Args:
        text: the turn as generated, without its end-of-turn token.
        open_tag: what opens thinking.
        close_tag: what closes it; its first occurrence counts.
        starts_open: the generation prompt ended with `open_tag`, so that the text begins inside of it.

    Returns:
        The thinking (None where there is none) and the rest. Thinking that never closes leaves an empty rest.
    """
    if not starts_open:
        stripped = text.lstrip()
        if not stripped.startswith(open_tag):
            return None, text
        text = stripped[len(open_tag) :]
    elif text.lstrip().startswith(open_tag):  # some models open it again although the prompt did
        text = text.lstrip()[len(open_tag) :]
    reasoning, _, content = text.partition(close_tag)
    return reasoning, content
