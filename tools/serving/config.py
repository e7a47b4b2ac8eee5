"""Settings that every server has: one class per server, from which its file, its flags and its workers come."""

from __future__ import annotations

import functools
import inspect
import ipaddress
import re
import string
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import docstring_parser
import pydantic
import yaml
from pydantic import Field

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.yaml_file import read_yaml

_WIDTH = 100


@dataclass(frozen=True)
class ServerSpec:
    """Identity of a server: `toolgym serve COMMAND`, its name in announcements, the module that is run as a worker.

    If `hides_memory`, other processes of the same user cannot read the memory of its workers: for servers whose
    clients may run programs as that user, and that start none themselves.
    """

    command: str
    name: str
    worker: str
    hides_memory: bool = False

    @property
    def token_variable(self) -> str:
        """Environment variable with the token for the command. Workers do not get it."""
        return f"TOOLGYM_{self.command.upper()}_TOKEN"


flag: Callable[..., Any] = functools.partial(Field, json_schema_extra={"flag": True})
"""A pydantic `Field` of a setting that is also a flag of the server's command."""


class StrictSettings(pydantic.BaseModel):
    """Settings: frozen, without unknown names, and without YAML's `yes` read as the number 1."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("Input should not be true or false")
        return value


class ServingConfig(StrictSettings):
    """Settings of a server. Each server has defaults of its own for `workers` and `max_concurrency`.

    The attributes' descriptions are the comments of the printed file and the help of the command's flags.

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
        token: secret that clients must send as `Authorization: Bearer ...`; None: every client is let in. Others can
            see a command line: rather give it in `token_file` or the environment.
        token_file: file that holds the token.
        log_level: least level of the log's lines, which go to standard error: `debug`, `info`, `warning` or `error`.
        access_log: `requests` for one line at the level `info` for each request: client, method, path, status, seconds,
            without the ids of sessions. `none` for none.
    """

    spec: ClassVar[ServerSpec]

    host: str = flag("127.0.0.1", min_length=1)
    port: int = flag(8080, ge=0, le=65535)
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
    drain_timeout: pydantic.FiniteFloat = flag(30.0, ge=0)
    token: pydantic.SecretStr | None = flag(None)
    token_file: Path | None = flag(None)
    log_level: Literal["debug", "info", "warning", "error"] = flag("info")
    access_log: Literal["none", "requests"] = flag("none")

    @pydantic.field_validator("token", "agents_key", check_fields=False)
    @classmethod
    def _usable_token(cls, token: pydantic.SecretStr | None) -> pydantic.SecretStr | None:
        text = token.get_secret_value() if token is not None else None
        if text is not None and (
            not text or set(text) - set(string.ascii_letters + string.digits + string.punctuation)
        ):
            raise ValueError("a token should be printable ASCII without spaces, and not empty")
        return token

    @classmethod
    def flags(cls) -> list[str]:
        return [name for name, field in cls.model_fields.items() if field.json_schema_extra is not None]

    @property
    def secret(self) -> str | None:
        return self.token.get_secret_value() if self.token is not None else None

    @property
    def generated_secret(self) -> str | None:
        """The token, if the server generated it and no file holds it, so that its user must be told."""
        return None

    def share(self, total: int) -> int:
        """Return one worker's part of a total, rounded up."""
        return -(-total // self.workers)

    @classmethod
    def load(cls, path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Self:
        """Make settings from a YAML file and from flags, by the field's name, which win unless they are None.

        Raises ConfigError, with the file or flag and the field; UnknownNameError with the nearest name.
        """
        values = _read(path) if path is not None else {}
        set_flags = {name: value for name, value in (flags or {}).items() if value is not None}
        try:
            config = cls.model_validate(values | set_flags)
        except pydantic.ValidationError as error:
            raise _problem(cls, error, path, set_flags) from None
        if config.token is None and config.token_file is not None:
            config = config._with_token_from(config.token_file)
        config._check_reachable()
        return config

    def secrets(self) -> dict[str, str]:
        """Return the values of the settings that are secrets, which dumps of the settings leave out."""
        return {name: value.get_secret_value() for name, value in self if isinstance(value, pydantic.SecretStr)}

    def _check_reachable(self) -> None:
        """Raise ConfigError if clients on other machines could use this server without a secret."""
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"host: {self.host!r} can be reached from other machines, and every client there could use this "
                "server: set a token (token_file, or the environment variable "
                f"{self.spec.token_variable}), or listen on 127.0.0.1"
            )

    def _with_token_from(self, path: Path) -> Self:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file: cannot read {str(path)!r}: {error}") from None
        try:
            return self.model_validate(dict(self) | {"token": text})
        except pydantic.ValidationError:
            raise ConfigError(
                f"token_file: {str(path)!r} should hold one line of printable ASCII without spaces"
            ) from None

    def as_yaml(self) -> str:
        """Make a file for `load`, each setting with its meaning as a comment.

        A setting that follows the machine and was not set is commented out: the file may go to another machine. The
        token is left out.
        """
        return "\n".join([f"# Settings of `toolgym serve {self.spec.command}`.", *_yaml_lines(self, "")]) + "\n"


def meanings(model: type[StrictSettings]) -> dict[str, str]:
    """Return each setting's meaning, by its name, from the docstrings of the class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        parsed = docstring_parser.parse(inspect.cleandoc(base.__doc__ or ""), docstring_parser.DocstringStyle.GOOGLE)
        texts |= {each.arg_name: " ".join((each.description or "").split()) for each in parsed.params}
    return texts


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address. A name other than localhost counts as reachable."""
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
    model: type[StrictSettings], error: pydantic.ValidationError, path: Path | None, flags: Mapping[str, Any]
) -> ConfigError:
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    if not names:  # it is about several settings together, which it names
        return ConfigError(f"{path}: {message}" if path else message)
    field = ".".join(names)
    where = f"--{names[0].replace('_', '-')}" if names[0] in flags else f"{path}: {field}" if path else field
    if first["type"] == "extra_forbidden":
        return UnknownNameError(f"{where}: no such setting{nearest(names[-1], _known_names(model, names))}")
    got = "" if names[0] in ("token", "agents_key") else f" (got {first['input']!r})"
    return ConfigError(f"{where}: {message}{got}")


def _known_names(model: type[StrictSettings], field: list[str]) -> list[str]:
    """Return the names of the settings beside the last part of `field`, which is not known."""
    for name in field[:-1]:
        inner = model.model_fields[name].annotation
        if isinstance(inner, type) and issubclass(inner, StrictSettings):
            model = inner
    return list(model.model_fields)


def _yaml_lines(config: StrictSettings, indent: str) -> list[str]:
    lines = []
    texts = meanings(type(config))
    plain = config.model_dump(mode="json")
    plain |= {name: None for name in plain if isinstance(getattr(config, name), pydantic.SecretStr)}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        text = re.sub(r"\bNone\b", "null", texts[name])
        comment = f"{indent}# "
        lines += ["", *textwrap.wrap(text, _WIDTH - len(indent), initial_indent=comment, subsequent_indent=comment)]
        if isinstance(value, StrictSettings):
            lines += [f"{indent}{name}:", *_yaml_lines(value, f"{indent}  ")]
        else:
            follows = field.default_factory is not None and name not in config.model_fields_set
            lines.append(f"{indent}{'# ' if follows else ''}{name}: {_yaml(plain[name])}")
    return lines


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
