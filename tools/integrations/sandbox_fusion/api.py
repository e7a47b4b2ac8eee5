"""SandboxFusion's evaluation endpoints, over data sets of a folder and those that requests bring.

Run as a module, it is one worker process of `toolgym serve sandbox`: the sandbox server with these endpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import inspect
import json
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.integrations.sandbox_fusion.config import EvaluatingServerConfig
from toolgym.tools.integrations.sandbox_fusion.datasets import FORMATS, CodeDataset, Row, format_of, row_id
from toolgym.tools.integrations.sandbox_fusion.messages import (
    EvalResult,
    GetMetricsFunctionRequest,
    GetMetricsFunctionResult,
    GetMetricsRequest,
    GetPromptByIdRequest,
    GetPromptsRequest,
    Ids,
    MetricValues,
    Names,
    Prompt,
    PromptList,
    SubmitRequest,
)
from toolgym.tools.sandbox.base import ExecutionResult, Sandbox
from toolgym.tools.sandbox.e2b.service import e2b_routes
from toolgym.tools.sandbox.opensandbox.lifecycle import opensandbox_routes
from toolgym.tools.sandbox.options import RunRequest
from toolgym.tools.sandbox.server import worker
from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.sandbox.server.execute import GRACE, SandboxMetrics
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.json_bodies import parse, problem
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, answer
from toolgym.tools.serving.worker import run_worker

Asked = TypeVar("Asked", bound=GetMetricsFunctionRequest)


def get_metrics(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how many results there are, and which part of them was accepted."""
    accepted = sum(bool(result["accepted"]) for result in results)
    return {"count": len(results), "pass@1": accepted / len(results) if results else 0.0}


class EvaluationApi:
    """Answers the seven paths. The app's sandbox runs programs, each run of a test in a slot of its gate."""

    def __init__(self, app: SandboxApp, config: EvaluatingServerConfig) -> None:
        self._sandbox = _GatedSandbox(app.sandbox, app.gate, app.metrics)
        self._config = config
        self._rows = {} if config.datasets is None else load_datasets(Path(config.datasets))
        self._formats = {name: format_of(rows[0]) for name, rows in self._rows.items()}

    def routes(self) -> list[Route]:
        listing = Operation(self._list_datasets, "List the data sets", None, Names)
        ids = Operation(self._list_ids, "List the ids of a data set", GetPromptsRequest, Ids)
        prompts = Operation(self._get_prompts, "Get the prompts of a data set", GetPromptsRequest, PromptList)
        prompt = Operation(self._get_prompt, "Get one prompt", GetPromptByIdRequest, Prompt)
        submit = Operation(self._submit, "Judge what a model answered", SubmitRequest, EvalResult)
        metrics = Operation(self._metrics, "Sum up the results of a data set", GetMetricsRequest, MetricValues)
        about = "Get the source of the function that sums up"
        function = Operation(self._metrics_function, about, GetMetricsFunctionRequest, GetMetricsFunctionResult)
        return [
            Route("/list_datasets", {"GET": listing}),
            Route("/list_ids", {"POST": ids}),
            Route("/get_prompts", {"POST": prompts}),
            Route("/get_prompt_by_id", {"POST": prompt}),
            Route("/submit", {"POST": submit}, runs=True),
            Route("/get_metrics", {"POST": metrics}),
            Route("/get_metrics_function", {"POST": function}),
        ]

    # ------------------------------------------------------------------ handlers

    async def _list_datasets(self, call: Call) -> web.Response:
        return answer(Names(sorted(self._rows)))

    async def _list_ids(self, call: Call) -> web.Response:
        asked, _ = self._read(GetPromptsRequest, call)
        return answer(Ids([row_id(row) for row in self._some(asked)]))

    async def _get_prompts(self, call: Call) -> web.Response:
        asked, dataset = self._read(GetPromptsRequest, call)
        return answer(PromptList([dataset.prompt(row, asked.config) for row in self._some(asked)]))

    async def _get_prompt(self, call: Call) -> web.Response:
        asked, dataset = self._read(GetPromptByIdRequest, call)
        return answer(dataset.prompt(self._one(asked), asked.config))

    async def _submit(self, call: Call) -> web.Response:
        asked, dataset = self._read(SubmitRequest, call)
        for name in ("run_timeout", "compile_timeout"):
            seconds = getattr(asked.config, name)
            if seconds is not None and seconds > self._config.max_timeout:
                most = f"Input should be less than or equal to {self._config.max_timeout:g}"
                raise problem(("config", name), most, "less_than_equal", seconds)
        try:
            return answer(await dataset.submit(self._one(asked), asked, self._sandbox))
        except SandboxError as error:
            raise RequestRefusedError(500, str(error)) from None

    async def _metrics(self, call: Call) -> web.Response:
        asked, _ = self._read(GetMetricsRequest, call)
        return answer(MetricValues(get_metrics([{"accepted": result.accepted} for result in asked.results])))

    async def _metrics_function(self, call: Call) -> web.Response:
        self._read(GetMetricsFunctionRequest, call)
        source = "from collections.abc import Mapping, Sequence\nfrom typing import Any\n\n\n"
        return answer(GetMetricsFunctionResult(function=source + inspect.getsource(get_metrics)))

    # ------------------------------------------------------------------ data sets

    def _read(self, model: type[Asked], call: Call) -> tuple[Asked, CodeDataset]:
        """Return a request, and the format of its data set: the server's own, or else the one that it names."""
        asked = parse(model, call.body)
        kind = self._formats.get(asked.dataset) or asked.config.dataset_type
        if kind is None:
            raise RequestRefusedError(400, f"no eval class found for dataset {asked.dataset}")
        if kind not in FORMATS:
            known_kinds = ", ".join(FORMATS)
            raise RequestRefusedError(400, f"eval class {kind} not found; this server has {known_kinds}")
        return asked, FORMATS[kind]

    def _some(self, asked: GetPromptsRequest) -> Sequence[Row]:
        provided = asked.config.provided_data
        if isinstance(provided, dict):
            raise RequestRefusedError(400, "config.provided_data must be a list of rows here", reason="bad_config")
        rows = provided if provided is not None else self._rows_of(asked.dataset)
        return rows[asked.offset : asked.offset + asked.limit]

    def _one(self, asked: GetPromptByIdRequest | SubmitRequest) -> Row:
        provided = asked.config.provided_data
        if isinstance(provided, list):
            raise RequestRefusedError(400, "config.provided_data must be one row here", reason="bad_config")
        if provided is not None:
            return provided
        for row in self._rows_of(asked.dataset):
            if str(row_id(row)) == str(asked.id):
                return row
        raise RequestRefusedError(404, f"the data set {asked.dataset} has no row {asked.id!r}", reason="no_row")

    def _rows_of(self, name: str) -> Sequence[Row]:
        if name not in self._rows:
            raise RequestRefusedError(
                400, f"there is no data set {name}, and config.provided_data is empty", reason="no_rows"
            )
        return self._rows[name]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    rows, place = [], str(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                place = f"{path}, line {number}"
                if not line.isspace():
                    rows.append(json.loads(line.decode("utf-8-sig")))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ConfigError(f"{place}: expected a JSON object in each line: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path}: expected JSON objects, and at least one")
    return rows


def load_datasets(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the files `NAME.jsonl` or `NAME.jsonl.gz` of a folder. A `ConfigError` names one that cannot be used."""
    paths = {path.name.partition(".jsonl")[0]: path for path in sorted(folder.glob("*.jsonl*"))}
    if not paths:
        raise ConfigError(f"the folder of data sets {str(folder)!r} has no file NAME.jsonl")
    datasets = {name: _read_rows(path) for name, path in paths.items()}
    for name, rows in datasets.items():
        for number, row in enumerate(rows, start=1):
            kind = format_of(row)
            if kind is None or kind != format_of(rows[0]):
                raise ConfigError(
                    f"{paths[name]}, row {number}: the rows must all be of one format of {', '.join(FORMATS)}, this "
                    f"one is of {kind or 'none'}; see docs/sandboxfusion.md"
                )
            try:
                row_id(row)
            except RequestRefusedError as error:
                raise ConfigError(f"{paths[name]}: {error}") from None
    return datasets


class _GatedSandbox(Sandbox):
    """The server's sandbox, with each run waiting for a slot as a request to `/run_code` does."""

    def __init__(self, sandbox: Sandbox, gate: Gate, metrics: SandboxMetrics) -> None:
        self._sandbox, self._gate, self._metrics = sandbox, gate, metrics

    async def execute(self, request: RunRequest) -> ExecutionResult:
        patience = request.timeout + (request.compile_timeout or request.timeout) + GRACE
        async with self._gate.slot() as waited:
            self._metrics.queue_seconds.observe(waited)
            try:
                async with asyncio.timeout(patience):
                    result = await self._sandbox.execute(request)
            except TimeoutError:
                raise RequestRefusedError(500, f"the sandbox did not answer within {patience:g} s") from None
        self._metrics.ran("/submit", result.status.value)
        return result


@contextlib.asynccontextmanager
async def open_app(
    config: EvaluatingServerConfig, number: int, folder: Path | None
) -> AsyncIterator[tuple[SandboxApp, str]]:
    async with worker.open_app(config, number, folder) as (app, about):
        app.add_routes(EvaluationApi(app, config).routes())
        async with opensandbox_routes(app, config), e2b_routes(app, config):  # E2B's last route takes all paths
            yield app, about


if __name__ == "__main__":
    run_worker(EvaluatingServerConfig, open_app)
