"""Processes that compute on hostile text: a scorer's work on what a policy wrote never runs in the trainer's process.

`ProcessPool` is the entry point. `child.py` is the program that its processes run.
"""

from toolgym.tools.confined.pool import OverrunError as OverrunError
from toolgym.tools.confined.pool import ProcessPool as ProcessPool
from toolgym.tools.confined.pool import StartError as StartError
from toolgym.tools.confined.pool import WorkError as WorkError
