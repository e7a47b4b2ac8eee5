"""What every tool-call parser returns, and how one is found by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.schema import ToolCall, ToolCallError, ToolSchema


class ParsedTurn(NamedTuple):
    """One assistant turn, read.

    Attributes:
        content: the text outside of calls, as written. Thinking between tags is part of it: `split_reasoning` parts
            the two.
        calls: the well-formed calls.
        errors: the malformed ones. `index` orders calls and errors together.
        reasoning: the thinking, where the format has no tags for it that could stay in the content (`gpt_oss`).
    """

    content: str
    calls: list[ToolCall]
    errors: list[ToolCallError]
    reasoning: str | None = None


class Parser(Protocol):
    """A pure function from a turn's text, without its end-of-turn token, to what it asks for.

    What all parsers of toolgym hold to:

    * No text makes them raise. The time is linear in the text.
    * Arguments are never invented or repaired. A call that cannot be read is an error that says what was expected and
      what came; it keeps its place among the others.
    * Calls inside of thinking are no calls (see `toolgym.tools.parsers.turn.scan`).
    * The text must still hold its special tokens, as `tokenizer.decode(ids, skip_special_tokens=False)` gives it: most
      formats mark calls with them.
    """

    def __call__(
        self,
        text: str,
        *,
        first_id: int = 0,
        schemas: Mapping[str, ToolSchema] | None = None,
        starts_open: bool = False,
    ) -> ParsedTurn:
        """Parse.

        Args:
            text: what the model generated.
            first_id: number in the id of the first call; ids are `call_N`, counted over the episode. Formats whose
                chat templates want ids of another form (mistral, kimi) have that form, and keep the ids that the model
                wrote; these are unique in the turn, and in the episode as far as the model makes them so.
            schemas: the tools by name. Formats that write every value as text (qwen3_coder, glm) need them to tell
                the number 5 from the text "5"; without them all values stay text. The others ignore them.
            starts_open: the generation prompt ended with `<think>`, so that the text begins inside of thinking. Where
                that is not known, a closing tag tells it, but thinking that never closes looks like content.
        """
        ...


_HOME = "toolgym.tools.parsers."
_PARSERS = {
    "hermes": "hermes:parse_hermes",
    "qwen3_coder": "qwen3_coder:parse_qwen3_coder",
    "llama3": "llama3:parse_llama3",
    "pythonic": "pythonic:parse_pythonic",
    "mistral": "mistral:parse_mistral",
    "deepseekv3": "deepseek:parse_deepseek_v3",
    "deepseekv31": "deepseek:parse_deepseek_v31",
    "deepseekv32": "dsml:parse_deepseek_v32",
    "deepseekv4": "dsml:parse_deepseek_v4",
    "glm45": "glm:parse_glm",
    "kimi_k2": "kimi:parse_kimi",
    "gpt_oss": "gpt_oss:parse_gpt_oss",
}
_ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "step3p5": "qwen3_coder",
    "nanbeige": "qwen3_coder",
    "lfm2": "pythonic",
    "glm": "glm45",
    "glm47": "glm45",
    "gpt-oss": "gpt_oss",
}
_SGLANG = "sglang:"


def parser_names() -> list[str]:
    """The names that `get_parser` knows, aliases included; those of SGLang come on top, as `sglang:NAME`."""
    return [*_PARSERS, *_ALIASES]


def get_parser(name: str) -> Parser:
    """Find a parser by name.

    Args:
        name: the format. Names are those of SGLang's `--tool-call-parser`. `sglang:NAME` is SGLang's own parser.

            | name | models | also called |
            | --- | --- | --- |
            | `hermes` | Hermes, Qwen 2.5, Qwen 3 | `qwen`, `qwen25` |
            | `qwen3_coder` | Qwen 3 Coder, Qwen 3.5 and later, Nemotron 3 | `step3p5`, `nanbeige` |
            | `llama3` | Llama 3.1, 3.2, 3.3 | |
            | `pythonic` | Llama 4, Llama 3.2 with such a prompt, LFM2 | `lfm2` |
            | `mistral` | Mistral and Ministral, old and new form | |
            | `deepseekv3`, `deepseekv31` | DeepSeek V3 and R1; V3.1, V3.2-Exp | |
            | `deepseekv32`, `deepseekv4` | DeepSeek V3.2, V4 | |
            | `glm45` | GLM 4.5, 4.6, 4.7 | `glm`, `glm47` |
            | `kimi_k2` | Kimi K2, K2 Thinking, K2.5 | |
            | `gpt_oss` | gpt-oss | `gpt-oss` |

    Raises:
        UnknownNameError: there is none of that name.
        MissingExtraError: a parser of SGLang was asked for, and SGLang is not installed.
    """
    if name.startswith(_SGLANG):
        from toolgym.tools.parsers.sglang import sglang_parser

        return sglang_parser(name.removeprefix(_SGLANG))
    known = parser_names()
    place = _PARSERS.get(_ALIASES.get(name, name))
    if place is None:
        raise UnknownNameError(
            f"no tool-call parser {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}, "
            "and sglang:NAME for those of SGLang."
        )
    module, _, attribute = place.partition(":")
    parser: Parser = getattr(importlib.import_module(_HOME + module), attribute)
    return parser
