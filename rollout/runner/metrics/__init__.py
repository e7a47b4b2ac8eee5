"""Figures of a run: while it goes on and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.runner.metrics.loggers import MetricLogger as MetricLogger
    from toolgym.rollout.runner.metrics.loggers import MLflowLogger as MLflowLogger
    from toolgym.rollout.runner.metrics.loggers import TensorBoardLogger as TensorBoardLogger
    from toolgym.rollout.runner.metrics.loggers import WandbLogger as WandbLogger
    from toolgym.rollout.runner.metrics.loggers import logged as logged
    from toolgym.rollout.runner.metrics.progress import Progress as Progress
    from toolgym.rollout.runner.metrics.prometheus import MetricsServer as MetricsServer
    from toolgym.rollout.runner.metrics.prometheus import RunCollector as RunCollector
    from toolgym.rollout.runner.metrics.run_metrics import RunMetrics as RunMetrics
    from toolgym.rollout.runner.scheduling.scheduler import RunCounts as RunCounts
else:
    __getattr__, __dir__ = lazy_names(__name__)
