"""The id of the env for repositories."""

from __future__ import annotations

NAMESPACES: dict[str, str] = {}

IDS = {
    "SWEDev-v0": (
        "toolgym.envs.families.swe.env:swe_dev_env",
        "Repair a repository with a shell and an editor; hidden tests decide.",
    ),
}
