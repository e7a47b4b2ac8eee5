"""YAML files that a user wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from toolgym.tools.errors import ConfigError, missing_file


def read_yaml(what: str, path: Path) -> Any:
    """Return the value that a YAML file holds; `what` says in errors what the file is. Raises `UnknownNameError` if
    there is no such file, and `ConfigError` if it cannot be read, is not valid YAML, or gives a name twice."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise missing_file(what, path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what} {str(path)!r}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        why = ": ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{path}{place}: not valid YAML: {why}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{path}: not valid YAML: {error.reason} (character {error.position})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """Refuses a name that is given twice; YAML forbids that, and PyYAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice}: is given twice", node.start_mark)
        return super().construct_mapping(node, deep)
