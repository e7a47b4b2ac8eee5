"""What the loggers keep, read back with their own packages' readers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import struct
import sys
import threading

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.rollout import RunConfig, RunMetrics, Runner
from toolgym.rollout.runner.metrics import loggers
from toolgym.rollout.runner.metrics.log_to import LogTo
from toolgym.rollout.runner.metrics.loggers import (
    MLflowLogger,
    TensorBoardLogger,
    WandbLogger,
    examples,
    logged,
    open_logger,
)
from toolgym.tools.errors import ConfigError, MissingExtraError

TASKS = [Task(({"role": "user", "content": text},), id=text) for text in ("a", "b")]
CONFIG = {"engine": "tiny", "limits": {"max_turns": 3, "stop": ()}, "env": ToolEnv}


async def played(scripted, observers=()):
    runner = Runner(lambda: ToolEnv([], TASKS), scripted(lambda p, r: "done"), observers=observers,
                    config=RunConfig(seed=0))  # fmt: skip
    return await runner.run(TASKS)


async def fill(logger, scripted):
    metrics = RunMetrics()
    logger.config(CONFIG)
    trajectories = []
    async with logged([logger], metrics, trajectories=trajectories, every=60):
        trajectories += await played(scripted, [metrics])
    logger.close()
    return metrics.metrics(), trajectories


async def test_tensorboard(scripted, tmp_path):
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    figures, trajectories = await fill(TensorBoardLogger(tmp_path / "t"), scripted)
    read = loading.EventAccumulator(str(tmp_path / "t"))
    read.Reload()
    [turns] = read.Scalars("rollout/turns/count")
    assert (turns.step, turns.value) == (2, 2.0)
    assert set(read.Tags()["scalars"]) == {name.replace(" ", "_") for name in figures}
    texts = {name: read.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in read.Tags()["tensors"]}
    assert '"max_turns": 3' in texts["config/text_summary"]
    assert trajectories[0].response_text.splitlines()[0] in texts["examples/0/text_summary"]
    assert "stop_reason: answered" in texts["examples/1/text_summary"]


async def test_wandb_offline(scripted, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    figures, trajectories = await fill(WandbLogger(folder=tmp_path, name="a run"), scripted)
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = list(wandb_records(file))
    configs = {item.key: json.loads(item.value_json) for one in records for item in one.config.update}
    assert configs["limits"]["max_turns"] == 3
    logged_items = {
        "/".join(item.nested_key) or item.key: item.value_json for one in records for item in one.history.item
    }
    assert {name: float(logged_items[name]) for name in figures} == pytest.approx(figures)
    [table] = tmp_path.glob("wandb/offline-run-*/files/media/table/examples_*.json")
    assert trajectories[0].id in table.read_text()


def wandb_records(file):
    """The records of a run's file: LevelDB's log format, in blocks of 32 KiB, behind seven bytes of wandb's own."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole of a record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


async def test_mlflow(scripted, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    logger = MLflowLogger(name="a run", tracking_uri=uri)
    figures, _ = await fill(logger, scripted)
    client = mlflow.MlflowClient(uri)
    [run] = client.search_runs([client.get_experiment_by_name("toolgym").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["limits.max_turns"] == "3"
    assert run.data.metrics == pytest.approx(figures)
    assert {one.path for one in client.list_artifacts(run.info.run_id, "examples")} == {
        "examples/2-0.txt",
        "examples/2-1.txt",
    }
    again = MLflowLogger(tracking_uri=uri)  # in the same experiment
    again.close(failed=True)
    assert client.get_run(again._id).info.status == "FAILED"


class Kept:
    def __init__(self):
        self.steps = []

    def log(self, metrics, step):
        self.steps.append((step, metrics["rollout/episodes/finished"]))


class Broken(Kept):
    def log(self, metrics, step):
        super().log(metrics, step)
        raise OSError("the disk is full")


async def test_figures_are_logged_often_and_at_the_end_also_after_an_error(scripted):
    kept, metrics = Kept(), RunMetrics()
    with contextlib.suppress(ZeroDivisionError):
        async with logged([kept], metrics, every=0.01):
            async with asyncio.timeout(60):
                while len(kept.steps) < 2:
                    await asyncio.sleep(0.01)
            await played(scripted, [metrics])
            raise ZeroDivisionError
    assert kept.steps[0] == (0, 0)
    assert kept.steps[-1] == (2, 2)


async def test_a_logger_that_fails_is_left_out_and_the_others_go_on(scripted, caplog):
    broken, kept, metrics = Broken(), Kept(), RunMetrics()
    with caplog.at_level(logging.WARNING, "toolgym.rollout"):
        async with logged([broken, kept], metrics, every=0.01):
            async with asyncio.timeout(60):
                while len(kept.steps) < 3:
                    await asyncio.sleep(0.01)
    assert len(broken.steps) == 1
    assert "Broken gets nothing further: OSError: the disk is full" in caplog.text


async def test_a_logger_that_hangs_holds_nothing_up(caplog, monkeypatch):
    monkeypatch.setattr(loggers, "PATIENCE", 0.05)
    over = threading.Event()

    class Hangs(Kept):
        def log(self, metrics, step):
            over.wait(120)

    try:
        with caplog.at_level(logging.WARNING, "toolgym.rollout"):
            async with asyncio.timeout(60), logged([Hangs()], RunMetrics()):
                pass
    finally:
        over.set()
    assert "Hangs gets nothing further" in caplog.text


@pytest.mark.parametrize("kind", LogTo)
def test_a_missing_package_is_named_with_the_line_that_installs_it(kind, tmp_path, monkeypatch):
    for name in ("wandb", "mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=f"Logger needs the package '{kind}'.*-m pip install {kind}$"):
        open_logger(kind, tmp_path)


async def test_examples_are_the_best_and_the_worst(scripted):
    trajectories = await played(scripted)
    many = [dataclasses.replace(trajectories[0], reward=float(n), sample_index=n) for n in range(20)]
    assert [one.reward for one in examples(many, 5)] == [19, 18, 17, 1, 0]
    assert examples(many[:3], 5) == many[2::-1]


def test_a_run_that_fails_is_closed_as_failed_and_a_config_that_is_refused_is_an_error(tmp_path, monkeypatch, caplog):
    closed = []

    class Strict(Kept):
        def config(self, values):
            if "bad" in values:
                raise OSError("no room")

        def close(self, *, failed=False):
            closed.append(failed)
            raise OSError("gone")

    monkeypatch.setattr(loggers, "open_logger", lambda kind, folder, run_id: Strict())
    with loggers.opened("mlflow", tmp_path, {}):
        pass
    with pytest.raises(ZeroDivisionError), loggers.opened("mlflow", tmp_path, {}):
        raise ZeroDivisionError
    with (
        pytest.raises(ConfigError, match="Strict cannot keep the config: OSError: no room"),
        loggers.opened("mlflow", tmp_path, {"bad": 1}),
    ):
        pass
    assert closed == [False, True, True]
    assert "Strict was not closed: OSError: gone" in caplog.text


class Steps:
    """Keeps the steps that it was called with."""

    def __init__(self):
        self.steps = []

    def config(self, values):
        pass

    def log(self, metrics, step):
        self.steps.append(step)

    def examples(self, trajectories, step):
        self.steps.append(step)

    def close(self, *, failed=False):
        pass


async def test_steps_of_a_resumed_run_continue(scripted):
    logger, trajectories = Steps(), []
    for _ in range(2):
        metrics = RunMetrics()  # as each call of the command has
        async with logged([logger], metrics, trajectories=trajectories, every=60, finished=len(trajectories)):
            trajectories += await played(scripted, [metrics])
    assert logger.steps == [2, 2, 4, 4]


def test_wandb_continues_the_run_with_the_same_id(tmp_path, monkeypatch):
    begun = []

    class FakeWandb:
        class errors:
            Error = RuntimeError

        Table = object
        init = staticmethod(lambda **arguments: begun.append(arguments))

    monkeypatch.setitem(sys.modules, "wandb", FakeWandb)
    open_logger("wandb", tmp_path, "abc")
    open_logger("wandb", tmp_path)
    assert [(each.get("id"), each.get("resume")) for each in begun] == [("abc", "allow"), (None, None)]


async def test_mlflow_continues_the_run_with_the_same_id(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    for number, engine in enumerate(("tiny", "http://other")):
        logger = open_logger("mlflow", tmp_path, "abc")
        logger.config({"engine": engine})
        logger.log({"rollout/turns/count": 1.0}, 2 + number)
        logger.close()
    client = tracking.MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    experiment = client.get_experiment_by_name("toolgym")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.params["engine"] == "tiny"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "rollout/turns/count")] == [2, 3]
