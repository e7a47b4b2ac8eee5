"""What the files of a request hold, with errors that name the field that is wrong."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import PurePosixPath

from toolgym.tools.serving.json_bodies import problem

SKIPPED_FILES = "IGNORE_THIS_FILE"
"""Files with this in their name are not written, as in SandboxFusion."""


def decode_files(files: Mapping[str, str | None]) -> dict[str, bytes]:
    """Return the files of a request; those without content are left out, as SandboxFusion does.

    Raises:
        InvalidRequestError: a name leads through another file or is a folder's, or a content is not base64.
            (`RunRequest` and `SessionRequest` check the names.)
    """
    decoded = {}
    for name, content in files.items():
        if content is None or SKIPPED_FILES in name:
            continue
        if name.endswith("/"):
            raise problem(("files", name), "A file's name should not be a folder's", value=name)
        try:
            decoded[name] = base64.b64decode(content)
        except (binascii.Error, ValueError) as error:
            raise problem(("files", name), f"Input should be base64: {error}", "base64_decode") from None
    places = {PurePosixPath(name): name for name in decoded}
    for place, name in places.items():
        if any(folder in places for folder in place.parents):
            raise problem(("files", name), "A file's name should not lead through another file", value=name)
    return decoded
