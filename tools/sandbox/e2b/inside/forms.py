"""Forms of a value that E2B's clients know beside those of notebooks: the data of a table, the chart of a figure.

The types and the names of the methods are those of the template of https://github.com/e2b-dev/code-interpreter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

MOST_VALUES = 40_000
"""Values of a data frame that are sent: an answer holds about this many."""


def add_to(names: Mapping[str, Any]) -> None:
    """Make an interpreter show them; `names` are those of its cells, before the first cell."""
    names["display"].__self__.further.update({"e2b/data": data, "e2b/chart": chart})


def data(value: Any) -> Any:
    """Return the columns of a data frame by their names, or what a value of another type offers."""
    pandas: Any = sys.modules.get("pandas")
    if not hasattr(pandas, "DataFrame") or not isinstance(value, pandas.DataFrame):
        return offered(value, "_repr_e2b_data_")
    return clean({str(name): column.tolist() for name, column in value.items()}) if value.size <= MOST_VALUES else None


def chart(value: Any) -> Any:
    """Return what the package `e2b-charts`, if it is there, reads from a figure; or what another value offers."""
    if not isinstance(value, getattr(sys.modules.get("matplotlib.figure"), "Figure", ())):
        return offered(value, "_repr_e2b_chart_")
    try:
        from e2b_charts import chart_figure_to_dict  # type: ignore[import-not-found]

        return clean(chart_figure_to_dict(value)) or None
    except Exception:  # noqa: BLE001  above all, the package is absent; and it does not know every figure
        return None


def offered(value: Any, method: str) -> Any:
    try:
        shown = getattr(value, method)()
    except Exception:  # noqa: BLE001  most values have no such method
        return None
    return shown if isinstance(shown, dict | str) else None


def clean(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=plain))
    except Exception:  # noqa: BLE001  a table can hold any object
        return None


def plain(value: Any) -> Any:
    """Return a value that JSON does not know as one that it knows."""
    convert = getattr(value, "isoformat", None) or getattr(value, "tolist", None)
    return convert() if convert is not None else str(value)
