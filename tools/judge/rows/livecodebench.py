"""Rows of LiveCodeBench, whose private tests are packed."""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ConfigError
from toolgym.tools.judge.cases import Problem
from toolgym.tools.judge.languages import program_request
from toolgym.tools.judge.rows.cases_json import read_cases
from toolgym.tools.judge.rows.columns import RowFormat, names, other_columns, read_json, row_id

MAX_PACKED_BYTES = 512 * 1024 * 1024
"""Most bytes of a packed text; the largest of LiveCodeBench have about 100 MB."""

_TEXT = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def _livecodebench(row: Mapping[str, Any], language: str) -> Problem:
    metadata = read_json("metadata", row.get("metadata") or "{}")
    name, starter = metadata.get("func_name"), row.get("starter_code") or ""
    public = read_cases(read_json("public_test_cases", row["public_test_cases"]), name)
    private = read_cases(_private(row["private_test_cases"]), name)
    return Problem(
        prompt=f"{row['question_content'].strip()}\n\n{starter_request(starter, language)}",
        hidden=(*public, *private),
        visible=public,
        id=row_id(row, "question_id"),
        source="livecodebench",
        labels=other_columns(row, LIVECODEBENCH.uses),
    )


def starter_request(starter: str, language: str) -> str:
    """Return what to ask for: the completion of some Python code, or a program that reads and prints."""
    if starter.strip():
        return f"Complete this Python code.\n\n```python\n{starter.rstrip()}\n```"
    return program_request(language)


def _private(packed: Any) -> Any:
    """Read LiveCodeBench's private tests, which are JSON in its first releases and packed in later ones."""
    if not isinstance(packed, str):
        return packed
    try:
        return json.loads(packed)
    except ValueError:
        return read_json("private_test_cases", packed_text(packed))


def packed_text(packed: str) -> str:
    """Return the text in `base64(zlib(pickle(text)))`, as LiveCodeBench packs its private tests.

    A pickle is a program, which may call any function of the machine that reads it. So the pickle is not loaded but
    taken apart. Raises ConfigError unless it holds one text and nothing else.
    """
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(packed, validate=True), MAX_PACKED_BYTES)
        if opener.unconsumed_tail:
            raise ConfigError(f"packed tests unpack to more than {MAX_PACKED_BYTES} bytes")
        texts = []
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name not in _HARMLESS:
                raise ConfigError(f"packed tests must hold one text; their pickle has {opcode.name}, which is not read")
    except (zlib.error, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"packed tests must be base64 of zlib of a pickled text: {error}") from error
    if len(texts) != 1:
        raise ConfigError(f"packed tests must hold one text, got {len(texts)}")
    return texts[0]


LIVECODEBENCH = RowFormat(
    "LiveCodeBench",
    marks=("private_test_cases",),
    uses=names("question_content, public_test_cases, private_test_cases, metadata, starter_code, question_id"),
    labels=names("question_title, platform, contest_id, contest_date, difficulty"),
    read=_livecodebench,
)
