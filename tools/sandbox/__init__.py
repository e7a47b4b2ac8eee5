"""Sandboxes: where tools run code."""

from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from toolgym.tools.sandbox.fusion import FusionSandbox
from toolgym.tools.sandbox.process import ProcessSandbox

__all__ = ["ExecutionResult", "ExecutionStatus", "FusionSandbox", "ProcessSandbox", "Sandbox"]
