"""`Shape`: what the values of a field have in common, and the Arrow type that holds them all.

Objects become structs with the keys of all of them, None for a key that an object lacks; values of several types become
JSON texts; objects without any key become None.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

MOST_KEYS = 256
"""Different keys of an object's values, above which they are data and no fields: such objects become JSON texts."""

_INT64 = range(-(2**63), 2**63)


class Shape:
    """The shape of the JSON values that were added: how many (`count`), and the `fields` of objects by their keys."""

    def __init__(self) -> None:
        self.count = 0
        self.fields: dict[str, Shape] = {}
        self._kinds: set[type] = set()
        self._objects = 0
        self._items: Shape | None = None
        self._never = False
        """Whether Arrow has no such value: an integer beyond 64 bits, a text that is no Unicode, too many keys."""

    def add(self, value: Any) -> None:
        self.count += 1
        if value is None:
            return
        kind = list if isinstance(value, tuple) else type(value)
        self._kinds.add(kind)
        if kind is dict:
            self._objects += 1
            for key, inner in value.items():
                if key in self.fields or len(self.fields) < MOST_KEYS:
                    self.fields.setdefault(key, Shape()).add(inner)
                else:
                    self._never = True
        elif kind is list:
            self._items = self._items or Shape()
            for item in value:
                self._items.add(item)
        elif kind is int:
            self._never |= value not in _INT64
        elif kind is str:
            self._never |= not value.isascii() and not is_unicode(value)

    @property
    def as_text(self) -> bool:
        """Whether the values become texts; those that are no texts, JSON texts."""
        return self._never or len(self._kinds) > 1

    @property
    def _empty_objects(self) -> bool:
        """Whether objects have no key at all, for which Parquet has no type."""
        return self._kinds == {dict} and not self.fields

    @property
    def exact(self) -> bool:
        """Whether every value comes back from the Arrow type as it was."""
        if self.as_text or self._empty_objects:
            return False
        if self._kinds == {dict}:
            return all(field.count == self._objects and field.exact for field in self.fields.values())
        return self._items is None or self._items.exact

    def arrow_type(self) -> pyarrow.DataType:
        import pyarrow

        if self.as_text:
            return pyarrow.string()
        if self._empty_objects:
            return pyarrow.null()
        if self._items is not None:
            return pyarrow.list_(self._items.arrow_type())
        if self.fields:
            return pyarrow.struct([(key, field.arrow_type()) for key, field in self.fields.items()])
        types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
        return types[self._kinds.copy().pop()] if self._kinds else pyarrow.null()

    def stored(self, value: Any) -> Any:
        """A value that was added, as `arrow_type` takes it."""
        if value is None or (self._empty_objects and not self.as_text):
            return None
        if self.as_text:
            text = value if isinstance(value, str) else json.dumps(value)
            return text.encode("utf-8", "replace").decode("utf-8")
        if self._items is not None:
            return [self._items.stored(item) for item in value]
        if self.fields:
            return {key: self.fields[key].stored(inner) for key, inner in value.items()}
        return value


def is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
