"""The text convention of Search-R1, in which a query between two tags is a call of the tool `search`.

    <search>capital of France</search>

Source: the prompt and the generation loop of Search-R1 (Jin et al. 2025, https://arxiv.org/abs/2503.09516). Decisions,
each with a test:

* The query is the text between the tags, without white space around it; the call's argument is a list of this one.
* Several of them are several calls. (Search-R1 reads the first one, and stops to generate there.)
* An empty query, and one without its closing tag, is an error that the model reads. So a stop string `</search>` must
  stay in the text (`no_stop_trim` of SGLang).
* `<answer>…</answer>` is content. Tags inside of thinking are thought.
"""

from __future__ import annotations

import functools
import re

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import TurnBuilder, region_end, scan
from toolgym.tools.schema import CallProblem

OPEN, CLOSE = "<search>", "</search>"


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    end, closed = region_end(text, mark.end(), CLOSE, OPEN)
    raw = text[mark.end() : end]
    if not closed:
        message = f"The search was not run: its closing {CLOSE} is missing. Send the whole query again."
        turn.add_error(CallProblem.UNCLOSED_TAG, message, raw)
        return end
    query = raw.strip()
    if query:
        turn.add_call("search", {"query_list": [query]})
    else:
        turn.add_error(
            CallProblem.MALFORMED_CALL, f"The query is empty. Write {OPEN}your query{CLOSE}.", raw, name="search"
        )
    return end + len(CLOSE)


parse_search_r1: Parser = functools.partial(scan, opener=OPEN, read=_read, openings=(OPEN,))
