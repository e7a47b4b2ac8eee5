"""Whatever bytes come in, the answer is an answer: never a server error, never a hang."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolgym.tools.sandbox.base import CellResult, ExecutionStatus
from toolgym.tools.sandbox.names import OptionError
from toolgym.tools.sandbox.protocol import fusion, messages
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.execute import check_limits, run_request, session_request
from toolgym.tools.serving.json_bodies import InvalidRequestError, encode, parse, problem

TEXT = st.text(st.characters(), max_size=20)  # lone surrogates and NUL among them
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*fusion.RunCodeRequest.model_fields, *fusion.RunJupyterRequest.model_fields, "argv", "timeout"})
LIKELY = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6).map(
    lambda fields: {"code": "", "language": "python", "cells": [], "argv": ["x"]} | fields
)
CONFIG = ServerConfig.load()
MODELS = (
    fusion.RunCodeRequest,
    fusion.RunJupyterRequest,
    messages.CreateSessionRequest,
    messages.CellRequest,
    messages.ExecRequest,
)


@pytest.mark.parametrize("model", MODELS)
@given(body=st.binary(max_size=60) | (JSON | LIKELY).map(lambda data: json.dumps(data).encode()))
@settings(deadline=None)
def test_bodies(model, body):
    try:
        request = parse(model, body)
        if isinstance(request, fusion.RunCodeRequest):
            run_request(request, CONFIG)
        elif isinstance(request, fusion.RunJupyterRequest | messages.CreateSessionRequest):
            session_request(request, CONFIG)
        else:
            check_limits(request, CONFIG, "timeout")
    except (InvalidRequestError, OptionError) as error:
        invalid = error if isinstance(error, InvalidRequestError) else problem(error.field, str(error))
        detail = json.loads(encode({"detail": invalid.problems}).decode("utf-8"))["detail"]
        assert detail
        assert all(found["loc"][0] == "body" and found["msg"] and found["type"] for found in detail)


@given(data=JSON)
@settings(deadline=None)
def test_whatever_a_program_displays_can_be_sent(data):
    message = messages.CellResponse(CellResult(ExecutionStatus.OK, display=({"x": data},)))
    json.loads(encode(message).decode("utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@given(fields=LIKELY.map(lambda fields: {"run_timeout": 0.2, "total_timeout": 0.2} | fields))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_requests(shared_url, fields):
    for path in ("run_code", "run_jupyter"):
        request = urllib.request.Request(f"{shared_url}/{path}", data=json.dumps(fields).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, answer = response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                status, answer = error.code, json.load(error)
        assert status in (200, 422), answer
        assert status == 422 or answer["status"] in ("Success", "Failed")
