"""Layer 3: one change to an env each."""

from toolgym.wrappers.base import Wrapper
from toolgym.wrappers.truncate_results import TruncateResults

__all__ = ["TruncateResults", "Wrapper"]
