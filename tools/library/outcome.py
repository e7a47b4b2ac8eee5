"""Texts in which a model reads how its program or command ended."""

from __future__ import annotations

from collections.abc import Mapping

from toolgym.tools.sandbox.base import ExecutionStatus

ENDINGS = {
    ExecutionStatus.SANDBOX_ERROR: "[The sandbox failed; your {noun} is not to blame]",
    ExecutionStatus.TIMEOUT: "[Timed out: the {noun} was stopped after {timeout:g} seconds]",
    ExecutionStatus.OUTPUT_LIMIT: "[Stopped: the {noun} printed too much]",
    ExecutionStatus.CPU_LIMIT: "[Stopped: the {noun} used up its CPU time]",
    ExecutionStatus.MEMORY_LIMIT: "[Stopped: the {noun} used too much memory]",
    ExecutionStatus.DISK_LIMIT: "[Stopped: the {noun} filled its disk space]",
    ExecutionStatus.FILE_LIMIT: "[Stopped: the {noun} wrote too large a file]",
    ExecutionStatus.COMPILE_ERROR: "[The {noun} could not be compiled]",
}


def render_outcome(
    noun: str,
    status: ExecutionStatus,
    output: list[str],
    *,
    timeout: float,
    nothing: str,
    endings: Mapping[ExecutionStatus, str],
) -> str:
    """Return the parts of a run's output, which is left out if the sandbox failed, and in brackets how it ended if not
    well.

    `noun` says what ran, such as `program`; `nothing` is the text for no output and a good ending; `endings` of the
    tool win over `ENDINGS`.
    """
    ending = (ENDINGS | dict(endings)).get(status, "").format(noun=noun, timeout=timeout)
    if status is ExecutionStatus.SANDBOX_ERROR:
        return ending
    parts = [part for part in (*output, ending) if part]
    return "\n".join(parts) if parts else nothing


def cut_middle(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n... [{len(text) - 2 * half} characters cut] ...\n{text[-half:]}"
