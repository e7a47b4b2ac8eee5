"""Settings that every server has, from a YAML file and from flags, checked before anything starts."""

from __future__ import annotations

import ipaddress
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic
from pydantic import Field

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.yaml_file import read_yaml


class Settings(pydantic.BaseModel):
    """Settings: frozen, without unknown names, and without YAML's `yes` read as the number 1."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("Input should not be true or false")
        return value


class ServingConfig(Settings):
    """Settings of a server. Each server has defaults of its own for `workers` and `max_concurrency`.

    Attributes:
        host: address to listen on. One that others can reach needs a token.
        port: TCP port; 0: any free one.
        workers: processes that share the port.
        max_concurrency: requests that run something at once, all workers together.
        max_queue: requests that wait for a slot, all workers together; more are asked to come back (429).
        queue_timeout: most seconds that a request waits for a slot; then 429.
        max_connections: connections at once, per worker; further ones are closed immediately.
        body_limit_mb: MiB of one request's body; a longer one is refused (413).
        bodies_limit_mb: MiB of all bodies that are being received or worked on at once, per worker.
        read_timeout: seconds for a request's head to arrive, and then for its body.
        write_timeout: seconds for a client to read its answer.
        keepalive_timeout: seconds that an idle connection is kept.
        drain_timeout: seconds that requests have to finish when the server stops.
        token: secret that clients must send as `Authorization: Bearer ...`; None: every client is let in.
        token_file: file that holds the token.
        log_level: least level of the log's lines, which go to standard error: `debug`, `info`, `warning` or `error`.
        access_log: `requests` for one line at the level `info` for each request: client, method, path, status, seconds.
            The ids of sessions are left out. `none` for none.
    """

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535)
    workers: int = Field(ge=1, le=256)
    max_concurrency: int = Field(ge=1)
    max_queue: int = Field(4096, ge=0)
    queue_timeout: pydantic.FiniteFloat = Field(60.0, gt=0)
    max_connections: int = Field(4096, ge=1)
    body_limit_mb: pydantic.FiniteFloat = Field(64.0, gt=0)
    bodies_limit_mb: pydantic.FiniteFloat = Field(1024.0, gt=0)
    read_timeout: pydantic.FiniteFloat = Field(30.0, gt=0)
    write_timeout: pydantic.FiniteFloat = Field(30.0, gt=0)
    keepalive_timeout: pydantic.FiniteFloat = Field(75.0, gt=0)
    drain_timeout: pydantic.FiniteFloat = Field(30.0, ge=0)
    token: pydantic.SecretStr | None = None
    token_file: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: Literal["none", "requests"] = "none"

    @pydantic.field_validator("token")
    @classmethod
    def _usable_token(cls, token: pydantic.SecretStr | None) -> pydantic.SecretStr | None:
        text = token.get_secret_value() if token is not None else None
        if text is not None and (
            not text or set(text) - set(string.ascii_letters + string.digits + string.punctuation)
        ):
            raise ValueError("a token should be printable ASCII without spaces, and not empty")
        return token

    @property
    def secret(self) -> str | None:
        """The token itself."""
        return self.token.get_secret_value() if self.token is not None else None

    def share(self, total: int) -> int:
        """Return one worker's part of what all workers have together, rounded up."""
        return -(-total // self.workers)


C = TypeVar("C", bound=ServingConfig)


def load_settings(
    model: type[C], path: Path | None = None, flags: Mapping[str, Any] | None = None, *, token_variable: str
) -> C:
    """Return settings from a file and from flags, which win.

    Args:
        model: the settings' class.
        path: YAML file.
        flags: by the field's name; None means not given.
        token_variable: environment variable that the command reads the token from, for an error message.

    Raises:
        UnknownNameError: the file does not exist, or a setting is not known; names the nearest one.
        ConfigError: the file or a value cannot be used; names the file or flag, and the field.
    """
    values = _read(path) if path is not None else {}
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        config = model.model_validate(values | given)
    except pydantic.ValidationError as error:
        raise _problem(model, error, path, given) from None
    if config.token is None and config.token_file is not None:
        try:
            text = config.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file: cannot read {str(config.token_file)!r}: {error}") from None
        try:
            config = model.model_validate(config.model_dump() | {"token": text})
        except pydantic.ValidationError:
            raise ConfigError(
                f"token_file: {str(config.token_file)!r} should hold one line of printable ASCII without spaces"
            ) from None
    if config.token is None and not is_loopback(config.host):
        raise ConfigError(
            f"host: {config.host!r} can be reached from other machines, and every client there could use this server: "
            f"set a token (token_file, or the environment variable {token_variable}), or listen on 127.0.0.1"
        )
    return config


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address. A name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path) -> dict[str, Any]:
    values = read_yaml("configuration file", path)
    if not isinstance(values, dict | None):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(values).__name__}")
    return {str(name): value for name, value in (values or {}).items()}


def _problem(
    model: type[Settings], error: pydantic.ValidationError, path: Path | None, flags: Mapping[str, Any]
) -> ConfigError:
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"]]
    place = ".".join(names)
    where = f"--{names[0].replace('_', '-')}" if names[0] in flags else f"{path}: {place}" if path else place
    if first["type"] == "extra_forbidden":
        return UnknownNameError(f"{where}: no such setting{nearest(names[-1], _known_names(model, names))}")
    got = "" if names[0] == "token" else f" (got {first['input']!r})"
    return ConfigError(f"{where}: {first['msg'].removeprefix('Value error, ')}{got}")


def _known_names(model: type[Settings], place: list[str]) -> list[str]:
    """Return the names of the settings where `place`, whose last part is not known, stands."""
    for name in place[:-1]:
        inner = model.model_fields[name].annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            model = inner
    return list(model.model_fields)
