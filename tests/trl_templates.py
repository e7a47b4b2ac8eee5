"""The chat templates of real models that come with trl, found without importing it: that takes a second."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDER = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
