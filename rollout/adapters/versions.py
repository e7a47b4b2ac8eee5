"""The least version of each trainer that its adapter was tested with, and its check before the import."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import contextmanager

from toolgym.tools.errors import MissingExtraError
from toolgym.tools.lazy import missing_extra, missing_package, outdated_package

LEAST = {
    "agentlightning": "1.0.2",
    "areal": "1.0.4",
    "gem-llm": "0.1.0",
    "google-tunix": "0.1.7",
    "nemo-gym": "0.7.0",
    "openrlhf": "0.11.2",
    "skyrl": "0.4.0",
    "skyrl-gym": "0.4.0",
    "tinker-cookbook": "0.6.1",
    "torchrl": "0.14.1",
    "torchtitan": "0.3.0",
    "TransferQueue": "0.1.11",
    "trl": "1.16",
    "verifiers": "0.4.0",
    "verl": "0.9.1",
}
"""From a package to the version in `scripts/trainers`, or, of TRL, in the project's extra."""

_ADVICE = {
    "tinker-cookbook": (
        "tinker-cookbook 0.6.1 requires tml-renderers>=0.4.1. Where the package index has no such version, pip "
        "installs an older tinker-cookbook or fails: use an index that has it"
    )
}
"""What to know about installing a package in the version that its adapter needs."""

_EXTRAS = ("trl", "verl")


def require_version(package: str, feature: str) -> str | None:
    """Check the version of a trainer, and return it; None if none is installed, or if it says none.

    Raises MissingExtraError, with the least version, if it is too old. The package may name an extra: `"skyrl[train]"`.
    """
    name = package.partition("[")[0]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # perhaps a folder on the path
        return None
    if version and _is_older(version, LEAST[name]):
        error = outdated_package(package, feature, LEAST[name], version)
        raise MissingExtraError(f"{error}. {_ADVICE[name]}", name=error.name) if name in _ADVICE else error
    return version


@contextmanager
def needs(package: str, feature: str) -> Iterator[None]:
    """Hold the imports of a trainer; raises MissingExtraError, with the least version, if one is too old or fails."""
    version = require_version(package, feature)
    try:
        yield
    except ImportError as error:
        name = package.partition("[")[0]
        if name in _EXTRAS:
            raise missing_extra(name, feature, error) from error
        # To pip any version that is installed would satisfy ">=".
        raise missing_package(f"{package}{'==' if version else '>='}{LEAST[name]}", feature, error) from error


@contextmanager
def needs_sources(project: str, address: str, feature: str) -> Iterator[None]:
    """Hold the imports of a trainer that no index has; raises MissingExtraError if one fails."""
    try:
        yield
    except ImportError as error:
        text = f"{feature} needs {project} itself, installed from {address}; it cannot be imported: {error}"
        raise MissingExtraError(text, name=error.name) from error


def _is_older(version: str, least: str) -> bool:
    """Compare by the release only: 1.16.0.dev0 is what 1.16 will be."""
    if ".dev" in version and "+" in version:  # counted from the tags of a checkout, which a shallow one lacks
        return False
    numbers = _release(version)
    return bool(numbers) and numbers < _release(least)


def _release(version: str) -> list[int]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return [int(number) for number in re.sub(r"(\.0+)+$", "", match[1]).split(".")] if match else []
