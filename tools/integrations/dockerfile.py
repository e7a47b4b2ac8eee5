"""The parts of a Dockerfile that a session can take: folder, variables and copied files; never the image.

    found = read_dockerfile(Path("environment/Dockerfile"))
    found.left_out     # ["line 3: RUN apt-get install -y jq"]: what only an image could have

Honoured: FROM (a later one begins anew; the image's name alone is kept), ARG with a value, ENV, WORKDIR, and COPY of
files and folders beside the Dockerfile. LABEL, MAINTAINER, EXPOSE, STOPSIGNAL, CMD and USER change nothing for the
programs of a session. All else is left out, and said so.

Source: the Dockerfile reference, https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from toolgym.tools.errors import ConfigError

WITHOUT_EFFECT = ("LABEL", "MAINTAINER", "EXPOSE", "STOPSIGNAL", "CMD", "USER")

_HEREDOC = re.compile(r"<<-?[\"']?(\w+)[\"']?")
_VARIABLES = r"\$(?P<name>\w+)|\$\{(?P<braced>\w+)\}|(?P<other>\$\{)"
_TOKEN = re.compile(
    rf"\\(?P<escaped>.)|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|{_VARIABLES}"
    r"|(?P<space>\s+)|(?P<plain>[^'\"\\\s$]+|\$)|(?P<unclosed>.)"
)
_IN_QUOTES = re.compile(rf"\\(?P<escaped>[\"\\$])|{_VARIABLES}|(?P<plain>[^\\$]+|.)")
_LONGEST = 120


@dataclass(frozen=True)
class FileCopy:
    """One COPY, to an absolute name. A folder's content goes into it; so does a file if `into` is true, or if a folder
    of that name exists."""

    sources: tuple[Path, ...]
    target: str
    into: bool

    @property
    def folder(self) -> str:
        is_folder = self.into or self.sources[0].is_dir()
        return self.target if is_folder else str(PurePosixPath(self.target).parent)


class _NotHonouredError(Exception):
    """An instruction has a form that a session cannot honour."""


def read_dockerfile(path: Path) -> Dockerfile:
    """Return what a session needs of a Dockerfile; raises ConfigError if it, or what it copies, cannot be read."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the Dockerfile {str(path)!r} cannot be read: {error}") from None
    stage = Dockerfile(path.parent)
    for number, name, rest in _instructions(text):
        if name == "FROM":
            stage = Dockerfile(path.parent, {} if stage.image else stage.arguments)
        try:
            stage.take(name, rest)
        except _NotHonouredError:
            stage.left_out.append(f"line {number}: {name} {rest}"[:_LONGEST])
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    return stage


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number of the line, name in capitals, and rest of each instruction."""
    numbered = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = iter([(number, line) for number, line in numbered if line and not line.startswith("#")])
    for first, line in lines:
        parts = [line]
        while parts[-1].endswith("\\"):
            parts[-1] = parts[-1].removesuffix("\\").strip()
            parts.append(next(lines, (0, ""))[1])
        name, _, rest = " ".join(parts).strip().partition(" ")
        yield first, name.upper(), rest.strip()
        for end in _HEREDOC.findall(rest) if name.upper() in ("RUN", "COPY", "ADD") else ():
            next((line for _, line in lines if line == end), None)


@dataclass
class Dockerfile:
    """The parts of a last stage that a session needs; `left_out` are those that it cannot honour, a line each."""

    context: Path = Path()
    arguments: dict[str, str] = field(default_factory=dict)
    image: str = ""
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    copies: list[FileCopy] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def take(self, name: str, rest: str) -> None:
        if name in WITHOUT_EFFECT:
            return
        known = {"FROM": self._from, "ARG": self._arg, "ENV": self._set, "WORKDIR": self._enter, "COPY": self._copy}
        if name not in known:
            raise _NotHonouredError
        known[name](rest)

    def _from(self, rest: str) -> None:
        words = [word for word in rest.split() if not word.startswith("--")]
        self.image = words[0] if words else "scratch"

    def _arg(self, rest: str) -> None:
        self.arguments.update(_pairs(word for word in self._words(rest) if "=" in word))

    def _set(self, rest: str) -> None:
        words = self._words(rest)
        if len(words) > 1 and "=" not in words[0]:  # the older form, `ENV NAME a value`
            self.env[words[0]] = " ".join(words[1:])
            return
        self.env.update([*_pairs(words)])

    def _enter(self, rest: str) -> None:
        self.workdir = self._absolute(" ".join(self._words(rest)))

    def _copy(self, rest: str) -> None:
        if (self.context / ".dockerignore").exists() or _HEREDOC.search(rest):
            raise _NotHonouredError
        words = self._words(rest)
        while words and words[0].startswith("--"):
            if not words.pop(0).startswith(("--chown=", "--link")):
                raise _NotHonouredError
        if len(words) < 2:
            raise _NotHonouredError
        *names, target = words
        sources = tuple(source for name in names for source in self._sources(name))
        into = len(sources) > 1 or target.endswith("/") or PurePosixPath(target).name in ("", "..")
        self.copies.append(FileCopy(sources, self._absolute(target), into))

    def _sources(self, name: str) -> list[Path]:
        relative = name.strip("/")
        plain = self.context / relative
        matches = [plain] if plain.exists() else sorted(self.context.glob(relative)) if relative else []
        root = self.context.resolve()
        if not matches:
            raise ConfigError(f"COPY {name}: there is no such file beside the Dockerfile")
        if not all(path.resolve().is_relative_to(root) for path in matches):
            raise ConfigError(f"COPY {name}: it leads outside of the Dockerfile's folder")
        return matches

    def _absolute(self, name: str) -> str:
        return f"/{posixpath.normpath(posixpath.join(self.workdir or '/', name)).lstrip('/')}"

    def _words(self, text: str) -> list[str]:
        return _words(text, {**self.arguments, **self.env})


def _words(text: str, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a text as a shell would have them, or those of the JSON list that it is."""
    if text.startswith("["):
        return _listed(text)
    words: list[str] = []
    ended = True
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "space":
            ended = True
            continue
        if ended:
            words.append("")
            ended = False
        words[-1] += _value(kind, token[kind or 0], variables)
    return words


def _value(kind: str | None, text: str, variables: Mapping[str, str]) -> str:
    if kind in ("name", "braced"):
        if text not in variables:
            raise _NotHonouredError
        return variables[text]
    if kind == "double":
        parts = _IN_QUOTES.finditer(text)
        return "".join(_value(part.lastgroup, part[part.lastgroup or 0], variables) for part in parts)
    if kind in ("other", "unclosed"):
        raise _NotHonouredError
    return text


def _listed(text: str) -> list[str]:
    try:
        words = json.loads(text)
    except ValueError:
        raise _NotHonouredError from None
    if not all(isinstance(word, str) and "$" not in word for word in words):
        raise _NotHonouredError
    return [*words]


def _pairs(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, is_pair, value = word.partition("=")
        if not is_pair:
            raise _NotHonouredError
        yield name, value
