"""All the cases."""

from __future__ import annotations

from golden.api_cases import API
from golden.case import Case
from golden.other_cases import OTHER
from golden.python_cases import PYTHON

CASES: dict[str, Case] = {}
for _case in (*PYTHON, *OTHER, *API):
    assert _case.name not in CASES, _case.name
    CASES[_case.name] = _case
