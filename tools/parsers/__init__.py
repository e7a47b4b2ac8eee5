"""Tool-call parsers: pure functions from a turn's text to what it asks for."""

from toolgym.tools.parsers.base import ParsedTurn, Parser
from toolgym.tools.parsers.hermes import parse_hermes
from toolgym.tools.parsers.reasoning import split_reasoning
from toolgym.tools.parsers.registry import get_parser, parser_names
from toolgym.tools.parsers.templates import parser_for_template

__all__ = [
    "ParsedTurn",
    "Parser",
    "get_parser",
    "parse_hermes",
    "parser_for_template",
    "parser_names",
    "split_reasoning",
]
