"""`html_text`: the words of an HTML text, as a browser lays them out roughly."""

from __future__ import annotations

import html
import re

_TOKEN = re.compile(r"<!--|<(?P<close>/?)(?P<name>[A-Za-z][\w-]*)[^<>]*>|<![^<>]*>|[^<]+|<")
_SPACE = re.compile(r"(?:\s|&nbsp;)+")
_HIDDEN = frozenset({"style", "script", "head", "template"})
_CELLS = frozenset({"td", "th"})
_BLOCKS = frozenset(
    {"address", "article", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "footer", "form", "h1", "h2", "h3",
     "h4", "h5", "h6", "header", "hr", "li", "ol", "p", "pre", "section", "table", "tbody", "thead", "tr", "ul"}
)  # fmt: skip
_CELL_END = " | "


def html_text(source: str) -> str:
    """Return the text of an HTML source, one line for each block and each row of a table. Runs in linear time.

    Elements that no browser shows are left out, such as styles and scripts. White space is collapsed, also in `pre`.
    """
    pieces: list[str] = []
    hidden = ""  # the element, or the comment, that is skipped
    for token in _TOKEN.finditer(_SPACE.sub(" ", source)):
        name = (token["name"] or "").lower()
        if hidden:
            if (hidden == "<!--" and "-->" in token[0]) or (token["close"] and name == hidden):
                pieces.append(token[0].partition("-->")[2] if hidden == "<!--" else "")
                hidden = ""
        elif token[0] == "<!--" or (name in _HIDDEN and not token["close"]):
            hidden = name or "<!--"
        elif name in _CELLS:
            pieces.append(_CELL_END if token["close"] else "")
        elif name in _BLOCKS:
            pieces.append("\n")
        elif not token[0].startswith("<") or token[0] == "<":
            pieces.append(token[0])
    lines = (" ".join(line.split()).removesuffix(_CELL_END.rstrip()) for line in "".join(pieces).split("\n"))
    return html.unescape("\n".join(line for line in lines if line))
