"""An extension of griffe: docstrings as the site needs them, with doctests as programs and lists indented."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docs_api import indented

DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring when it is read; the library itself is not imported."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = for_the_site(obj.docstring.value)


def for_the_site(text: str) -> str:
    """Return a docstring as Markdown: a doctest stands in a fence."""
    fenced = DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)
    return fenced if "\n    " in fenced else indented(fenced)
