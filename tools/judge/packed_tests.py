"""Reads LiveCodeBench's packed private tests without running the code that a pickle may hold.

They are base64 of zlib of a pickle of a JSON text. A pickle is a program, which may call any function of the machine
that reads it. So nothing is unpickled here: the pickle is taken apart, and must hold one text and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib

from toolgym.tools.errors import ConfigError

MAX_BYTES = 512 * 1024 * 1024
"""Bytes that a packed text may have; the largest of LiveCodeBench have some 100 MB."""

_TEXT = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def packed_text(packed: str) -> str:
    """Return the text that `base64(zlib(pickle(text)))` holds.

    Raises:
        ConfigError: it is no such thing, or holds anything but one text.
    """
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(packed, validate=True), MAX_BYTES)
        if opener.unconsumed_tail:
            raise ConfigError(f"packed tests unpack to more than {MAX_BYTES} bytes")
        texts = []
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name not in _HARMLESS:
                raise ConfigError(f"packed tests must hold one text; their pickle has {opcode.name}, which is not read")
    except (binascii.Error, zlib.error, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"packed tests must be base64 of zlib of a pickled text: {error}") from error
    if len(texts) != 1:
        raise ConfigError(f"packed tests must hold one text, got {len(texts)}")
    return texts[0]
