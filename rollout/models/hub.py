from __future__ import annotations

import re
from pathlib import Path

from toolgym.tools.errors import ConfigError, nearest
from toolgym.tools.lazy import missing_extra

try:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
except ImportError as error:
    raise missing_extra("rollout", "Loading a model", error) from error

_NAME = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)


def is_hub_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not Path(name).is_dir()


ANSWER_WITHIN = 10.0


def require_on_hub(source: str | Path) -> None:
    """Ask the model hub once for a model whose files are not here: the loaders would ask, and log, a dozen times.
    Raises `ConfigError` if the hub has no such model, or cannot be reached."""
    try:
        if Path(source).exists() or constants.is_offline_mode() or try_to_load_from_cache(str(source), "config.json"):
            return
        HfApi().model_info(str(source), timeout=ANSWER_WITHIN)
    except HFValidationError:
        return  # the loader says what such a name lacks
    except RepositoryNotFoundError as error:
        raise ConfigError(f"there is no model {str(source)!r}: {why_not_loaded(source, error)}") from error
    except HfHubHTTPError:
        return  # a mirror may have files and no such service
    except Exception as error:
        why = why_not_loaded(source, ConnectionError(str(error)))
        raise ConfigError(f"cannot load the model {str(source)!r}: {why}") from error


def why_not_loaded(source: object, error: BaseException) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    folder = Path(str(source))
    if folder.exists():
        return reason
    siblings = (
        [sibling.name for sibling in folder.parent.iterdir() if sibling.is_dir()] if folder.parent.is_dir() else []
    )
    parts = [f"there is no such folder here{nearest(folder.name, siblings)}"]
    if not _is_unreachable(error):
        parts.append(f"the model hub's answer is: {reason}")
    else:
        offline = constants.is_offline_mode()
        why = "is not asked, because HF_HUB_OFFLINE is set" if offline else "cannot be reached from here"
        parts.append("its files are not in the hub's cache on this machine")
        parts.append(f"the model hub {constants.ENDPOINT} {why}")
    return "; ".join(parts)


def _is_unreachable(error: BaseException | None) -> bool:
    for _ in range(10):
        if error is None:
            return False
        if isinstance(error, LocalEntryNotFoundError | ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False
