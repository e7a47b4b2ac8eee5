"""Compressed request bodies: Codex and pi send zstd, other clients gzip or deflate. What they unpack to is bounded."""

from __future__ import annotations

import importlib.util
import io
import zlib

from aiohttp import web

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.transport import MIB, Bodies, RequestRefusedError

_ZLIB = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def codings() -> list[str]:
    """Return the codings of bodies that this process can decode."""
    return [*_ZLIB, *(["zstd"] if importlib.util.find_spec("zstandard") else [])]


class DecodedBodies(Bodies):
    """Receives bodies as clients meant them. The limit on a body's size holds for what it unpacks to as well."""

    def __init__(self, config: ServingConfig) -> None:
        super().__init__(config)
        self._most = int(config.body_limit_mb * MIB)

    async def receive(self, request: web.BaseRequest) -> bytes:
        """As `Bodies.receive`. Also raises RequestRefusedError for an unknown coding (415), for a body that is not of
        its coding (400), and for one that unpacks to more than the limit (413)."""
        body = await super().receive(request)
        coding = request.headers.get("Content-Encoding", "").strip().lower()
        if coding in ("", "identity"):
            return body
        try:
            if coding not in codings():
                known = ", ".join(codings())
                text = f"this server decodes no bodies in {coding[:40]!r}: send them in {known}, or as they are"
                raise RequestRefusedError(415, text, {"Accept-Encoding": known})
            decoded = await in_thread(_decoded, body, coding, self._most)
        except BaseException:
            self.release(body)
            raise
        self._held += len(decoded) - len(body)
        return decoded


def _decoded(body: bytes, coding: str, most: int) -> bytes:
    try:
        decoded = _unzstd(body, most) if coding == "zstd" else _inflated(body, coding, most)
    except (zlib.error, ValueError) as error:
        raise RequestRefusedError(400, f"the body is not {coding}: {error}") from None
    if len(decoded) > most:
        raise RequestRefusedError(413, f"a body has at most {most / MIB:g} MiB here, unpacked")
    return decoded


def _inflated(body: bytes, coding: str, most: int) -> bytes:
    try:
        unpacker = zlib.decompressobj(_ZLIB[coding])
        return unpacker.decompress(body, most + 1)
    except zlib.error:
        if coding != "deflate":
            raise
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, most + 1)  # some clients leave the header out


def _unzstd(body: bytes, most: int) -> bytes:
    import zstandard

    try:
        unpacker = zstandard.ZstdDecompressor(max_window_size=max(most, 1 << 20))
        return bytes(unpacker.stream_reader(io.BytesIO(body), read_across_frames=True).read(most + 1))
    except (zstandard.ZstdError, MemoryError) as error:
        raise ValueError(str(error)) from error
