"""The messages of SandboxFusion's evaluation endpoints (its OpenAPI description at commit 469de08)."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
from pydantic import Field, FiniteFloat

from toolgym.tools.sandbox.protocol.fusion import Language, RunCodeResponse
from toolgym.tools.sandbox.protocol.messages import MAX_ITEMS, WireMessage


class Prompt(WireMessage):
    id: int | str
    prompt: str
    labels: dict[str, Any] = Field({})


class EvaluationConfig(WireMessage):
    """Options for reading a data set and judging a program; SandboxFusion's `TestConfig`."""

    dataset_type: str | None = Field(None, description="the format, for a data set that the server does not have")
    language: Language | None = Field(None, description="the language of programs, for CommonOJDataset")
    locale: str | None = None
    is_fewshot: bool | None = None
    compile_timeout: FiniteFloat | None = Field(None, gt=0)
    run_timeout: FiniteFloat | None = Field(None, gt=0)
    custom_extract_logic: str | None = Field(
        None, description="Python that calls `submit_code_blocks` with what it finds in `completion`"
    )
    provided_data: list[dict[str, Any]] | dict[str, Any] | None = Field(
        None, description="rows instead of the server's own: a list, or one row where one is asked for"
    )
    extra: dict[str, Any] = Field({})


class GetMetricsFunctionRequest(WireMessage):
    dataset: str
    config: EvaluationConfig


class GetPromptsRequest(GetMetricsFunctionRequest):
    offset: int = Field(0, ge=0)
    limit: int = Field(1_000_000, ge=0)


class GetPromptByIdRequest(GetMetricsFunctionRequest):
    id: int | str


class SubmitRequest(GetMetricsFunctionRequest):
    id: int | str
    completion: str


class EvalTestCase(WireMessage):
    passed: bool
    exec_info: RunCodeResponse
    test_info: dict[str, Any] | None = None


class EvalResult(WireMessage):
    id: int | str
    accepted: bool
    extracted_code: str
    full_code: str | None = None
    test_code: str | None = None
    tests: list[EvalTestCase] = Field(max_length=MAX_ITEMS)
    extracted_type: Literal["fenced", "incomplete_fenced", "heuristic", "empty"] | None = None
    extra: dict[str, Any] | None = None


class GetMetricsRequest(GetMetricsFunctionRequest):
    results: list[EvalResult]


class GetMetricsFunctionResult(WireMessage):
    function: str | None = Field(description="source of a function `get_metrics(results)`")


class Names(pydantic.RootModel[list[str]]): ...


class Ids(pydantic.RootModel[list[int | str]]): ...


class PromptList(pydantic.RootModel[list[Prompt]]): ...


class MetricValues(pydantic.RootModel[dict[str, float]]): ...
