"""Tool-call parsers: pure functions from a turn's text to what it asks for."""

from toolgym.tools.parsers.base import ParsedTurn, Parser, get_parser
from toolgym.tools.parsers.hermes import parse_hermes

__all__ = ["ParsedTurn", "Parser", "get_parser", "parse_hermes"]
