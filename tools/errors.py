"""Every error that toolgym raises, in one tree.

These are for what a *user* did wrong or what the *infrastructure* failed to do. What a model did wrong is
never raised: it becomes an observation that the model reads (see `toolgym.tools.schema.ToolCallError`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ToolgymError(Exception):
    """Root of the tree: catch this to catch everything that toolgym raises on purpose."""


class ConfigError(ToolgymError, ValueError):
    """A configuration value, file or argument is not usable. Says what was expected and what came."""


class UnknownNameError(ConfigError, LookupError):
    """A name (env id, tool, file, option) is not known. Names the nearest known one."""


class MissingExtraError(ToolgymError, ImportError):
    """A feature needs an optional dependency that is not installed. Names the extra to install."""


class EpisodeError(ToolgymError, RuntimeError):
    """An env was used out of order, for example `step` before `reset` or after the episode ended."""


class ForkNotSupportedError(ToolgymError, NotImplementedError):
    """`fork` was called on an env whose tools cannot be forked."""


class SandboxError(ToolgymError, RuntimeError):
    """A sandbox could not be set up at all (a failed *run* is an `ExecutionResult`, not an error)."""


class EngineError(ToolgymError, RuntimeError):
    """An engine could not generate: unreachable, refused the request, died."""


class EngineUnavailableError(EngineError, ConnectionError):
    """Nothing answers at the engine's address."""


class TemplateError(ToolgymError, ValueError):
    """A chat template cannot be extended turn by turn without changing what the model already saw."""


class BatchError(ToolgymError, ValueError):
    """Trajectories cannot become a batch, or a batch broke one of its invariants."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `", did you mean 'x'?"` for the known name nearest to `name`, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {matches[0]!r}?" if matches else ""


def missing_extra(extra: str, feature: str, cause: ImportError) -> MissingExtraError:
    """Build the error for a feature whose optional dependency is absent.

    Args:
        extra: the extra's name in the project's metadata, for example `"rollout"`.
        feature: what the user wanted, for example `"The embedded engine"`.
        cause: the import error; its `name` tells which module is absent.
    """
    if not isinstance(cause, ModuleNotFoundError):  # it is there, but broken, or of another version
        return MissingExtraError(
            f"{feature} needs the extra {extra!r}, which is broken here: {cause}. Install it again with: "
            f"pip install --force-reinstall 'toolgym[{extra}]'",
            name=cause.name,
        )
    module = cause.name or "a package"
    return MissingExtraError(
        f"{feature} needs {module!r}, which is not installed. Install it with: pip install 'toolgym[{extra}]'",
        name=cause.name,
    )
