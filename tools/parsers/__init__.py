"""Tool-call parsers: pure functions from a turn's text to what it asks for."""

from toolgym.tools.parsers.base import ParsedTurn, Parser, split_reasoning
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.parsers.registry import get_parser, parser_for_template, parser_names

__all__ = [
    "ParsedTurn",
    "Parser",
    "get_parser",
    "parse_hermes",
    "parser_for_template",
    "parser_names",
    "split_reasoning",
]
