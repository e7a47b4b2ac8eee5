"""`MetricLogger`: where a run's figures, its config and a few examples go. Each logger's package is imported when the
logger is made. The calls block, so `logged` makes them in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolgym.rollout.runner.metrics.log_to import LogTo
from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, error_text
from toolgym.tools.lazy import missing_package

PROJECT = "toolgym"

RUN_ID_TAG = "toolgym_run_id"
"""The tag of an MLflow run with toolgym's id of the run."""

PATIENCE = 60.0
"""Seconds that a logger gets for one call while a run goes on."""

COLUMNS = ("id", "task", "reward", "stop_reason", "turns", "prompt", "response")

_log = logging.getLogger("toolgym.rollout")


class MetricLogger(Protocol):
    """Keeps what a run was played with, its figures, and a few of its trajectories. The calls may block."""

    def config(self, values: Mapping[str, Any]) -> None:
        """Keep what the run is played with; any values that JSON can hold."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep figures by name, as `RunMetrics.metrics` and `summarize` give them; `step` never falls."""

    def examples(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Keep trajectories as texts for a person, with the exact text that the policy saw and wrote."""

    def close(self, *, failed: bool = False) -> None:
        """Write out everything. Nothing else may be called afterwards."""


class TensorBoardLogger:
    """Writes event files for TensorBoard to a folder. Raises `MissingExtraError` if tensorboard is missing."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_package("tensorboard", "A TensorBoardLogger", error) from error
        self._writer = SummaryWriter(str(folder))

    def config(self, values: Mapping[str, Any]) -> None:
        self._writer.add_text("config", textwrap.indent(json.dumps(plain(values), indent=2), "    "))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def examples(self, trajectories: Sequence[Trajectory], step: int) -> None:
        for number, row in enumerate(_rows(trajectories)):
            self._writer.add_text(f"examples/{number}", textwrap.indent(_page(row), "    "), step)

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()


class WandbLogger:
    """Writes a run of Weights & Biases, for which wandb's variables such as `WANDB_MODE=offline` hold, as its defaults
    do for what is None. Raises `MissingExtraError` if wandb is missing, and `ConfigError` if it cannot begin a run.

    Args:
        project: the project of the run.
        name: the run's name for a person.
        folder: where wandb keeps its files.
        run_id: the run's id. A logger with the id of an earlier run continues that run.
    """

    def __init__(
        self,
        project: str = PROJECT,
        *,
        name: str | None = None,
        folder: str | Path | None = None,
        run_id: str | None = None,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise missing_package("wandb", "A WandbLogger", error) from error
        self._table = wandb.Table
        try:
            again = {} if run_id is None else {"id": run_id, "resume": "allow"}
            self._run = wandb.init(project=project, name=name, dir=None if folder is None else str(folder), **again)
        except wandb.errors.Error as error:
            raise ConfigError(f"wandb begins no run: {error}; log in, or set WANDB_MODE=offline") from error

    def config(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(plain(values), allow_val_change=True)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def examples(self, trajectories: Sequence[Trajectory], step: int) -> None:
        table = self._table(columns=list(COLUMNS), data=[list(row.values()) for row in _rows(trajectories)])
        self._run.log({"examples": table}, step=step)

    def close(self, *, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


class MLflowLogger:
    """Writes a run of MLflow, without touching the one that MLflow may hold active; its settings, such as
    `MLFLOW_TRACKING_URI`, hold for what is None. Raises `MissingExtraError` if mlflow (or mlflow-skinny) is missing,
    `ConfigError` if the store fails.

    Args:
        experiment: the experiment of the run.
        name: the run's name for a person.
        tracking_uri: where MLflow keeps its runs.
        run_id: our id of the run, kept as the tag `toolgym_run_id`. A logger with the id of an earlier run in the same
            experiment continues that run.
    """

    def __init__(
        self,
        experiment: str = PROJECT,
        *,
        name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
    ) -> None:
        try:
            import mlflow
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise missing_package("mlflow", "An MLflowLogger", error) from error
        self._metric, self._param = Metric, Param
        self._params: frozenset[str] = frozenset()  # the run has them already, and MLflow does not change them
        try:
            self._client = mlflow.MlflowClient(tracking_uri)
            known = self._client.get_experiment_by_name(experiment)
            experiment_id = self._client.create_experiment(experiment) if known is None else known.experiment_id
            self._id = self._run_of(experiment_id, name, run_id)
        except MlflowException as error:
            raise ConfigError(f"MLflow begins no run: {error}") from error

    def _run_of(self, experiment_id: str, name: str | None, run_id: str | None) -> str:
        """Return MLflow's id of the run that has our `run_id`, or of a new run."""
        if run_id is None:
            return str(self._client.create_run(experiment_id, run_name=name).info.run_id)
        earlier = self._client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{run_id}'", max_results=1)
        if earlier:
            self._params = frozenset(earlier[0].data.params)
            self._client.update_run(earlier[0].info.run_id, "RUNNING")
            return str(earlier[0].info.run_id)
        return str(self._client.create_run(experiment_id, run_name=name, tags={RUN_ID_TAG: run_id}).info.run_id)

    def config(self, values: Mapping[str, Any]) -> None:
        flat = [(name, value) for name, value in _flat(plain(values)) if name not in self._params]
        params = [self._param(name, value[:6000]) for name, value in flat]
        for start in range(0, len(params), 100):  # most that MLflow takes at once
            self._client.log_batch(self._id, params=params[start : start + 100])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        rows = [self._metric(name, value, now, step) for name, value in metrics.items()]
        for start in range(0, len(rows), 1000):
            self._client.log_batch(self._id, metrics=rows[start : start + 1000])

    def examples(self, trajectories: Sequence[Trajectory], step: int) -> None:
        for number, row in enumerate(_rows(trajectories)):
            self._client.log_text(self._id, _page(row), f"examples/{step}-{number}.txt")

    def close(self, *, failed: bool = False) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def open_logger(kind: LogTo | str, folder: Path, run_id: str | None = None) -> MetricLogger:
    """Return the logger of that name, with its own defaults; TensorBoard's files are below `folder`. A logger with the
    `run_id` of an earlier run continues that run."""
    match LogTo(kind):
        case LogTo.TENSORBOARD:
            return TensorBoardLogger(folder / "tensorboard")
        case LogTo.WANDB:
            return WandbLogger(folder=folder, run_id=run_id)
        case LogTo.MLFLOW:
            return MLflowLogger(run_id=run_id)


@contextlib.contextmanager
def opened(
    kind: LogTo | str, folder: Path, config: Mapping[str, Any], *, run_id: str | None = None
) -> Iterator[MetricLogger]:
    """A logger with the config logged, which is closed at the end, as failed after an error. Raises `ConfigError`."""
    logger, failed = open_logger(kind, folder, run_id), True
    try:
        try:
            logger.config(config)
        except Exception as error:
            raise ConfigError(f"{type(logger).__name__} cannot keep the config: {error_text(error)}") from error
        yield logger
        failed = False
    finally:
        try:
            logger.close(failed=failed)
        except Exception as error:  # noqa: BLE001  the run is worth more than its figures
            _log.warning("%s was not closed: %s", type(logger).__name__, error_text(error))


def examples(trajectories: Sequence[Trajectory], most: int = 8) -> list[Trajectory]:
    """Up to `most` trajectories for a person to read: those with the best and with the worst rewards."""
    ordered = sorted(
        trajectories, key=lambda trajectory: (-trajectory.reward, trajectory.task_index, trajectory.sample_index)
    )
    return ordered if len(ordered) <= most else ordered[: most - most // 2] + ordered[-(most // 2) :]


@contextlib.asynccontextmanager
async def logged(
    loggers: Sequence[MetricLogger],
    metrics: RunMetrics,
    *,
    trajectories: Sequence[Trajectory] = (),
    every: float = 10.0,
    finished: int | None = None,
) -> AsyncIterator[None]:
    """Log the figures of a run each `every` seconds while the block goes on, and at its end, with a few of the
    `trajectories`, which the block may append to. A logger that fails, or does not return in time, is left out from
    then on, with a warning.

    The step is the number of finished episodes that `metrics` counted. For a run that is resumed, `finished` is the
    number of trajectories in its file at the beginning, and the step is that number and those that were added to
    `trajectories` since, so that steps continue.
    """
    alive = list(loggers)
    before = len(trajectories)

    def step_now() -> int:
        return metrics.counts.episodes if finished is None else finished + len(trajectories) - before

    async def call(ask: Callable[[MetricLogger], None]) -> None:
        for logger in list(alive):
            try:
                await with_deadline(in_thread(ask, logger), PATIENCE)
            except Exception as error:  # noqa: BLE001  the run is worth more than its figures
                alive.remove(logger)
                _log.warning("%s gets nothing further: %s", type(logger).__name__, error_text(error))

    async def log() -> None:
        step, figures = step_now(), metrics.metrics()
        await call(lambda logger: logger.log(figures, step))

    async def often() -> None:
        while True:
            await asyncio.sleep(every)
            await log()

    task = asyncio.create_task(often())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await log()
        if chosen := examples(trajectories):
            await call(lambda logger: logger.examples(chosen, step_now()))


def _rows(trajectories: Sequence[Trajectory]) -> Iterator[dict[str, Any]]:
    for trajectory in trajectories:
        values = (
            trajectory.id,
            trajectory.task_id or str(trajectory.task_index),
            trajectory.reward,
            trajectory.stop_reason.value,
            len(trajectory.turns),
            trajectory.prompt_text,
            trajectory.response_text,
        )
        yield dict(zip(COLUMNS, values, strict=True))


def _page(row: Mapping[str, Any]) -> str:
    head = "\n".join(f"{name}: {value}" for name, value in row.items() if name not in ("prompt", "response"))
    return f"{head}\n\n{row['prompt']}{row['response']}"


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, str(value)
