"""The ids of BFCL's four executable sets."""

from __future__ import annotations

from typing import Any

NAMESPACES = {"BFCL": "Executable multi-turn tasks of the Berkeley Function-Calling Leaderboard."}

IDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    f"BFCL/{category}-v0": (
        "toolgym.envs.families.bfcl.env:BFCLEnv",
        f"Do what a user asks for, one thing after another, with functions that have state: {about}.",
        {"category": category},
    )
    for category, about in {
        "multi_turn_base": "all that is needed is there",
        "multi_turn_miss_func": "a function comes later",
        "multi_turn_miss_param": "an argument comes later",
        "multi_turn_long_context": "long results",
    }.items()
}
