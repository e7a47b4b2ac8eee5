from __future__ import annotations

import enum


class LogTo(enum.StrEnum):
    """A logger by name."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
