from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pydantic

from toolgym.tools.sandbox.opensandbox.config import OpenSandboxServerConfig
from toolgym.tools.serving.config import flag


class EvaluatingServerConfig(OpenSandboxServerConfig):
    """Settings of the sandbox server, of E2B's and OpenSandbox's APIs, and of the evaluation endpoints beside it.

    Attributes:
        datasets: a folder with data sets for SandboxFusion's evaluation endpoints, a file `NAME.jsonl` each; None: only
            those that requests bring.
    """

    spec = replace(OpenSandboxServerConfig.spec, worker="toolgym.tools.integrations.sandbox_fusion.api")

    datasets: str | None = flag(None)

    @pydantic.field_validator("datasets")
    @classmethod
    def _existing_datasets(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder).is_dir():
            raise ValueError("there is no such folder")
        return folder
