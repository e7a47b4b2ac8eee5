"""The server's settings, from a YAML file and from flags, checked before anything starts.

```yaml
host: 127.0.0.1
port: 8080
workers: 4
max_concurrency: 64
isolation: namespaces
limits: {memory_mb: 2048, processes: 32}
preload: [numpy, sympy]
languages: [python, bash, cpp]
```
"""

from __future__ import annotations

import ipaddress
import shutil
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import Field, PositiveInt

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local import processors
from toolgym.tools.sandbox.local.isolation import Level
from toolgym.tools.sandbox.local.languages import LANGUAGES
from toolgym.tools.sandbox.local.sandbox import PRELOAD


class _Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        if isinstance(value, bool):  # or `yes` would be a 1
            raise ValueError("Input should not be true or false")
        return value


class LimitsConfig(_Settings):
    """`toolgym.tools.sandbox.base.Limits`, as a file gives them."""

    memory_mb: PositiveInt = 1024
    cpu_seconds: Annotated[pydantic.FiniteFloat, Field(gt=0)] | None = None
    processes: PositiveInt = 64
    cores: Annotated[pydantic.FiniteFloat, Field(gt=0)] | None = None
    file_mb: PositiveInt = 64
    disk_mb: PositiveInt = 128
    inodes: PositiveInt = 4096
    open_files: PositiveInt = 256
    output_bytes: PositiveInt = 1024 * 1024


class ServerConfig(_Settings):
    """Settings of `toolgym serve sandbox`.

    Attributes:
        host: address to listen on. One that others can reach needs a token.
        port: TCP port; 0: any free one.
        workers: processes that share the port. Default: one per four processors.
        max_concurrency: programs and cells that run at once, all workers together. Default: 8 per processor.
        max_queue: requests that wait for a place, all workers together; more are told to come back (429).
        queue_timeout: most seconds that a request waits for a place; then 429.
        max_sessions: sessions that are open at once, all workers together; more are told to come back (429). Each
            worker has its share of them, and a fork lives where its parent does.
        session_idle_timeout: seconds without a call after which a session is closed.
        max_connections: connections at once, per worker; more are closed at once.
        body_limit_mb: MiB of one request's body; a longer one is refused (413).
        bodies_limit_mb: MiB of all bodies that are being received or worked on at once, per worker.
        files_limit_mb: MiB of fetched files in one answer; what does not fit is left out, and the message says so.
        read_timeout: seconds in which a request's head, and then its body, must have come.
        write_timeout: seconds in which a client must have taken its answer.
        keepalive_timeout: seconds that an idle connection is kept.
        drain_timeout: seconds that running programs get to finish when the server is told to stop.
        max_timeout: most seconds that a request may ask for.
        max_memory_mb: most MiB that a request may ask for.
        token: secret that clients must send as `Authorization: Bearer ...`; None: anybody may ask.
        token_file: file that holds the token.
        isolation: weakest isolation level that is acceptable; None takes the strongest that the machine offers.
        network: what programs can reach: `off`, `loopback` (their own) or `host`.
        limits: what one execution or session may use.
        preload: modules that the full template has loaded.
        python: interpreter that runs Python programs; None: the server's.
        languages: those that are offered; None: all that are installed.
    """

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535)
    workers: int = Field(default_factory=lambda: max(1, processors.available() // 4), ge=1, le=256)
    max_concurrency: int = Field(default_factory=lambda: 8 * processors.available(), ge=1)
    max_queue: int = Field(4096, ge=0)
    queue_timeout: pydantic.FiniteFloat = Field(60.0, gt=0)
    max_sessions: int = Field(1024, ge=0)
    session_idle_timeout: pydantic.FiniteFloat = Field(1800.0, gt=0)
    max_connections: int = Field(4096, ge=1)
    body_limit_mb: pydantic.FiniteFloat = Field(64.0, gt=0)
    bodies_limit_mb: pydantic.FiniteFloat = Field(1024.0, gt=0)
    files_limit_mb: pydantic.FiniteFloat = Field(64.0, gt=0)
    read_timeout: pydantic.FiniteFloat = Field(30.0, gt=0)
    write_timeout: pydantic.FiniteFloat = Field(30.0, gt=0)
    keepalive_timeout: pydantic.FiniteFloat = Field(75.0, gt=0)
    drain_timeout: pydantic.FiniteFloat = Field(30.0, ge=0)
    max_timeout: pydantic.FiniteFloat = Field(3600.0, gt=0)
    max_memory_mb: int = Field(4096, gt=0)
    token: pydantic.SecretStr | None = None
    token_file: Path | None = None
    isolation: Level | None = None
    network: Literal["off", "loopback", "host"] = "off"
    limits: LimitsConfig = LimitsConfig()
    preload: tuple[str, ...] = PRELOAD
    python: str | None = None
    languages: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @pydantic.field_validator("python")
    @classmethod
    def _existing_interpreter(cls, python: str | None) -> str | None:
        if python is not None and shutil.which(python) is None:
            raise ValueError("there is no such program; give the path of a Python interpreter")
        return python

    @pydantic.field_validator("languages")
    @classmethod
    def _known_languages(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        known = ["python", *LANGUAGES]
        for name in names or ():
            if name not in known:
                raise ValueError(f"unknown language {name!r}{nearest(name, known) or '.'} Known: {', '.join(known)}.")
        return names

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

    @property
    def sandbox_limits(self) -> Limits:
        """The limits as the sandbox takes them."""
        return Limits(**self.limits.model_dump())

    def share(self, total: int) -> int:
        """One worker's part of what all workers have together, rounded up."""
        return -(-total // self.workers)


def load_config(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> ServerConfig:
    """Settings from a file, and from flags, which win.

    Args:
        path: YAML file.
        flags: by the field's name; None means not given.

    Raises:
        UnknownNameError: the file does not exist, or a setting is not known; names the nearest one.
        ConfigError: the file or a value cannot be used; names the file or flag, and the field.
    """
    values = _read(path) if path is not None else {}
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        config = ServerConfig.model_validate(values | given)
    except pydantic.ValidationError as error:
        raise _problem(error, path, given) from None
    if config.token is None and config.token_file is not None:
        try:
            text = config.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file: cannot read {str(config.token_file)!r}: {error}") from None
        try:
            config = ServerConfig.model_validate(config.model_dump() | {"token": text})
        except pydantic.ValidationError:
            raise ConfigError(
                f"token_file: {str(config.token_file)!r} should hold one line of printable ASCII without spaces"
            ) from None
    if config.token is None and not is_loopback(config.host):
        raise ConfigError(
            f"host: {config.host!r} can be reached from other machines, and anybody there could run programs here: "
            "set a token (token_file, or the environment variable TOOLGYM_SANDBOX_TOKEN), or listen on 127.0.0.1"
        )
    return config


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address. A name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Loader(yaml.SafeLoader):
    """Refuses a setting that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the base class."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice}: is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UnknownNameError(f"no configuration file at {str(path)!r}{nearest(path.name, siblings)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {str(path)!r}: {error}") from None
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: nested too deeply") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(values).__name__}")
    return {str(name): value for name, value in values.items()}


def _problem(error: pydantic.ValidationError, path: Path | None, flags: Mapping[str, Any]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"]]
    place = ".".join(names)
    where = f"--{names[0].replace('_', '-')}" if names[0] in flags else f"{path}: {place}" if path else place
    if first["type"] == "extra_forbidden":
        known = list((LimitsConfig if names[0] == "limits" and len(names) > 1 else ServerConfig).model_fields)
        return UnknownNameError(f"{where}: no such setting{nearest(names[-1], known)}")
    got = "" if names[0] == "token" else f" (got {first['input']!r})"
    return ConfigError(f"{where}: {first['msg'].removeprefix('Value error, ')}{got}")
