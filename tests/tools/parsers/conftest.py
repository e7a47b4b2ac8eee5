"""Checking one case of a format's table."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import ToolSchema

SCHEMAS = {
    "f": ToolSchema(
        "f",
        "",
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "s": {"type": "string"},
                "o": {"type": "object"},
                "b": {"type": "boolean"},
            },
        },
    )
}


def _check(parser, case):
    """Check a case: its name, the text, the content (None: not looked at), the calls as (name, arguments), the problems
    of the errors, and a word of the first error."""
    _, text, content, calls, problems, said = case
    parsed = get_parser(parser)(text, schemas=SCHEMAS)
    assert [(call.name, call.arguments) for call in parsed.calls] == calls
    assert [str(error.problem) for error in parsed.errors] == problems
    if content is not None:
        assert parsed.content == content
    if said:
        assert said in parsed.errors[0].message
    indices = [one.index for one in (*parsed.calls, *parsed.errors)]
    assert sorted(indices) == list(range(len(indices)))
    ids = [one.id for one in (*parsed.calls, *parsed.errors)]
    assert len(set(ids)) == len(ids)


@pytest.fixture(scope="session")
def check_case():
    return _check
