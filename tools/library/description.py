"""Sentences of a tool's description, made from the configuration that holds."""

from __future__ import annotations

from toolgym.tools.sandbox.facts import SandboxFacts


def describe_limits(facts: SandboxFacts, timeout: float, *, memory_mb: int | None = None) -> str:
    """Return the sentences about time, memory, network and processes, for the end of a description.

    Args:
        facts: those of the sandbox. Facts that are unknown are left out.
        timeout: wall seconds that one call may take.
        memory_mb: the tool's own memory limit in MiB. Defaults to the sandbox's limit.
    """
    memory = memory_mb or (facts.limits.memory_mb if facts.limits is not None else None)
    limits = [f"{timeout:g} s per call", *([f"{memory} MiB of memory"] if memory else [])]
    network = {"off": " No network.", "loopback": " No network but localhost."}.get(facts.network or "", "")
    processes = {"none": " No other processes.", "no pools": " No process pools."}.get(facts.processes or "", "")
    return f"Limits: {', '.join(limits)}.{network}{processes}"


def describe_packages(facts: SandboxFacts) -> str:
    """Return the sentence about Python and its packages, or nothing if they are unknown."""
    if not facts.python:
        return ""
    names = facts.packages
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
    return f"Python {facts.python}{f' with {listed}' if listed else ''}."


def join_sentences(*sentences: str) -> str:
    """Join sentences to a description, without the empty ones."""
    return " ".join(sentence for sentence in sentences if sentence)
