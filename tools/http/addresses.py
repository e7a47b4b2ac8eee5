"""Checks of servers' URLs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from yarl import URL

from toolgym.tools.errors import ConfigError


def is_address(url: object) -> bool:
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, an open bracket
        return False


def check_address(url: object, what: str = "a server") -> str:
    """Return a server's URL in its normal form: scheme, host, maybe a port and a path, no slashes at its end. `what` is
    the server's name in error messages, with its article."""
    stripped = url.strip() if isinstance(url, str) else url
    if not isinstance(stripped, str) or not is_address(stripped):
        raise ConfigError(f"the address of {what} must look like http://host:8080, got {url!r}")
    try:
        parsed = URL(stripped)
    except ValueError as error:
        raise ConfigError(f"the address of {what} must look like http://host:8080, got {url!r}: {error}") from None
    if parsed.user is not None or parsed.password is not None:
        raise ConfigError(f"the address of {what} must hold no user or password; give a token instead")
    if parsed.query_string or parsed.fragment:
        raise ConfigError(f"the address of {what} must be a scheme, a host and maybe a path, got {url!r}")
    return str(parsed).rstrip("/")


def check_addresses(urls: object, owner: str, check: Callable[[object], str]) -> tuple[str, ...]:
    """Return one address or several as a tuple, each once and checked by `check`; errors name the `owner`, with its
    article."""
    addresses = [urls] if isinstance(urls, str) else urls
    if not isinstance(addresses, Sequence) or not addresses:
        raise ConfigError(f"{owner} needs at least one address, got {urls!r}")
    return tuple(dict.fromkeys(map(check, addresses)))
