"""All the cases."""

from __future__ import annotations

from tests.tools.sandbox.server.golden.api_cases import API, EVALUATION
from tests.tools.sandbox.server.golden.case import Case
from tests.tools.sandbox.server.golden.other_cases import OTHER
from tests.tools.sandbox.server.golden.python_cases import PYTHON

CASES: dict[str, Case] = {}
for _case in (*PYTHON, *OTHER, *API, *EVALUATION):
    assert _case.name not in CASES, _case.name
    CASES[_case.name] = _case
