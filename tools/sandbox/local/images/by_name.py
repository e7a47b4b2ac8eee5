"""Images by name in a folder on disk, for tasks that name theirs."""

from __future__ import annotations

from pathlib import Path

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.local.images.archive import ImageArchive, ImageError

_SUFFIXES = ("", ".tar", ".tar.gz")


def image_file(folder: str | Path, name: str) -> str:
    """Return the `image` option of a session for the image called `name`, such as `python:3.12`.

    It is looked for as a file or OCI layout that is called so, with `_` for `/` and `:`, with or without `.tar`; or by
    its name in the folder itself, if that is an OCI layout. Raises ConfigError, which says what to bring.
    """
    place, plain = Path(folder).expanduser(), name.replace("/", "_").replace(":", "_")
    for candidate in (place / f"{stem}{suffix}" for stem in (plain, f"{plain}_latest") for suffix in _SUFFIXES):
        if candidate.exists():
            return str(candidate)
    if (place / "index.json").is_file():
        try:
            with ImageArchive(place) as layout:
                layout.info(name)
        except ImageError as error:
            raise ConfigError(f"{error}; bring it: skopeo copy docker://{name} oci:{place}:{name}") from error
        return f"{place}#{name}"
    raise ConfigError(
        f"the image {name!r} is not in {place}; bring it: docker save {name} -o {place / plain}.tar, or "
        f"skopeo copy docker://{name} oci:{place / plain}"
    )
