"""Texts in which a model reads how its program or command ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.library.code_input import FENCE_HINT, has_fence
from toolgym.tools.library.markup import html_text
from toolgym.tools.library.terminal import render_terminal
from toolgym.tools.library.tracebacks import collapse_errors
from toolgym.tools.sandbox.base import BaseResult, CellResult, ExecutionResult, ExecutionStatus
from toolgym.tools.sandbox.facts import SandboxFacts

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

RECOVERED = "[Variables are as before this cell; files are as the cell left them]"

HEADER = "Traceback (most recent call last):"

SOURCE_TYPES = ("text/markdown", "text/latex", "text/html", "application/json", "image/svg+xml")
"""Forms of a displayed value that a model can read, if its plain text does no more than name the object. Of HTML, the
model reads the words."""

BINARY_CHARS, BINARY_SHARE = 400, 0.1
"""Characters that are shown of an output in which at least this share of all characters stands for undecodable
bytes."""

UNKNOWN = SandboxFacts()

_NAMES_OBJECT = re.compile(r"<[\w.]+ object(?: at 0x[0-9a-f]+)?>")

_NO_NETWORK = re.compile(
    r"name resolution|Name or service not known|[Cc]ould not resolve|[Nn]etwork is unreachable|Failed to resolve"
    r"|No address associated with hostname|unable to resolve|Could not connect to server|Failed to establish a new conn"
)
_REFUSED = re.compile(r"(?:Operation not permitted|Permission denied|Errno 1\b|EPERM)")
_SOCKETS = re.compile(
    r"socket|urllib|http|requests|ftp|smtp|start_server|open_connection|\bpip3? install\b|\bcurl\b|\bwget\b"
)
_POOLS = re.compile(r"multiprocessing|ProcessPool|joblib|n_jobs|shared_memory")
_STARTS = re.compile(
    rf"{_POOLS.pattern}|subprocess|os\.(?:system|popen|fork|exec|spawn|posix_spawn)|^[ \t]*!", re.MULTILINE
)
_NO_PROCESSES = {
    "none": (_STARTS, "[No other process can be started here: use threads]"),
    "no pools": (_POOLS, "[There are no process pools and no shared memory here: use threads, or subprocess]"),
}
"""By `SandboxFacts.processes`: what a program uses that cannot start a process, and the remark about it."""

_PROCESSES = re.compile(
    r"Resource temporarily unavailable|can't start new thread|Cannot fork|unable to create .*thread"
)
_OPEN_FILES = re.compile(r"Too many open files")
_TROUBLE = (
    "rror", "rrno", "esol", "not ", "nreachable", "ailed", "No ", "nable", "denied", "EPERM", "unavailable", "can't",
    "Cannot", "Too many", "quota", "too large", "limit", "bad_alloc",
)  # fmt: skip
"""Parts of words of which every text that these patterns match has one. To look for them first takes far less time."""

_NO_INPUT = re.compile(r"^(?:EOFError: EOF when reading a line|EOFError|bdb\.BdbQuit)$", re.MULTILINE)
_DISK = re.compile(r"No space left on device|Disk quota exceeded")
_FILE = re.compile(r"File too large|File size limit exceeded")
_MEMORY = re.compile(r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc|OutOfMemoryError|Unable to allocate")


def render_result(
    result: ExecutionResult, timeout: float, max_chars: int = 4096, *, code: str = "", facts: SandboxFacts = UNKNOWN
) -> str:
    """Return an execution's outcome as a model reads it: standard output, standard error, and in brackets how it ended
    if not well.

    Terminal control is carried out, library frames and repetitions are collapsed (see `collapse_errors`), and what
    remains is cut only if it has more than `max_chars` characters.

    Args:
        result: the result of `Sandbox.run`.
        timeout: wall seconds that the program had.
        max_chars: most characters of standard output and error together.
        code: the program, for hints about its errors.
        facts: those of the sandbox, for hints about its limits.
    """
    endings = {ExecutionStatus.KILLED: "[The program died]"}
    if result.return_code is not None:
        endings = {
            ExecutionStatus.KILLED: f"[The program was killed by {name_signal(result.return_code)}]",
            ExecutionStatus.ERROR: f"[The program ended with exit code {result.return_code}]",
        }
    return _render(result, result.stdout, result.stderr, endings, timeout, max_chars, code, facts)


def render_cell(
    result: CellResult, timeout: float, max_chars: int = 4096, *, code: str = "", facts: SandboxFacts = UNKNOWN
) -> str:
    """Return a cell's outcome as a model reads it, like `render_result`: output with the displayed values where they
    were shown, then the value of the last expression, errors, and how the cell ended."""
    error, number = result.error, result.return_code
    stderr = result.stderr
    if error is not None and error.name == "SystemExit" and not error.traceback:
        pass  # its exit code is told, and its text was printed
    elif error is not None:
        traceback = "".join(error.traceback) or f"{error.name}: {error.value}"
        if result.status is ExecutionStatus.TIMEOUT and error.name == "KeyboardInterrupt":
            traceback = _interrupted_at(traceback)
        stderr = _on_own_line(stderr, traceback)
    endings = {ExecutionStatus.KILLED: "[The program died]", ExecutionStatus.ERROR: ""}
    if number is not None:
        ended = f"[The program ended with exit code {number}]"
        killed = f"[The program was killed by {name_signal(number)}]" if number < 0 else ended
        good = ended if error is not None else ""
        endings = {ExecutionStatus.KILLED: killed, ExecutionStatus.ERROR: ended, ExecutionStatus.OK: good}
    text = _render(result, _notebook_output(result), stderr, endings, timeout, max_chars, code, facts)
    if result.recovered:
        text += f"\n{RECOVERED}"
    elif not result.alive and result.status is not ExecutionStatus.SANDBOX_ERROR:
        text += "\n[The session ended with it; variables and files are gone]"
    return text


def render_outcome(
    noun: str,
    status: ExecutionStatus,
    output: Sequence[str],
    *,
    timeout: float,
    nothing: str,
    endings: Mapping[ExecutionStatus, str],
    limit: str = "",
    hints: Sequence[str] = (),
) -> str:
    """Return the parts of a run's output, and in brackets how it ended if not well. The output is left out if the
    sandbox failed.

    Args:
        noun: what ran, such as `program`.
        status: how it ended.
        output: parts of the output.
        timeout: wall seconds that it had.
        nothing: the text for no output and a good ending.
        endings: the tool's texts, which replace those of `ENDINGS`.
        limit: size of the limit that the status names, see `BaseResult.limit`.
        hints: further sentences about the environment, see `find_hints`.
    """
    ending = (ENDINGS | dict(endings)).get(status, "").format(noun=noun, timeout=timeout)
    if status is ExecutionStatus.SANDBOX_ERROR:
        return ending
    if limit and ending.endswith("]"):
        ending = f"{ending[:-1]} (limit: {limit})]"
    parts = [part for part in (*output, ending, *hints) if part]
    return "\n".join(parts) if parts else nothing


def cut_middle(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n... [{len(text) - 2 * half} characters cut] ...\n{text[-half:] if half else ''}"


def cut_binary(text: str) -> str:
    """Return the beginning of an output that is not text, with a remark. Other outputs are returned unchanged."""
    if len(text) <= BINARY_CHARS or text.count("\ufffd") < len(text) * BINARY_SHARE:
        return text
    return f"{text[:BINARY_CHARS]}\n... [{len(text) - BINARY_CHARS} characters cut: the output is not text] ..."


def fit_output(stdout: str, errors: str, max_chars: int) -> list[str]:
    """Shorten standard output and error to at most `max_chars` together, if they are longer.

    Of an output that is not text, the beginning is shown. Repetitions of the output are collapsed first. The part that
    is shorter than half of the room leaves the remainder to the other part. The middle of the output is cut; of errors,
    the last traceback is kept longest.
    """
    stdout = cut_binary(stdout)
    if len(stdout) + len(errors) > max_chars:
        stdout = collapse_errors(stdout)
    half = max_chars // 2
    for_errors = min(len(errors), max(half, max_chars - len(stdout)))
    return [cut_middle(stdout, max_chars - for_errors), _cut_errors(errors, for_errors)]


def _cut_errors(errors: str, max_chars: int) -> str:
    if len(errors) <= max_chars:
        return errors
    start = errors.rfind(HEADER)
    start = errors.rfind("\n", 0, start) + 1 if start > 0 else start
    traceback = errors[start:] if start > 0 else ""
    if not traceback or len(traceback) > max_chars * 3 // 4:
        if start > 0 and len(traceback) > max_chars:
            return f"... [{start} characters cut] ...\n{cut_middle(traceback, max_chars)}"
        return cut_middle(errors, max_chars)
    return f"{cut_middle(errors[: start - 1], max_chars - len(traceback))}\n{traceback}"


def name_signal(code: int) -> str:
    """Return a signal's name and number for a negative return code, such as `SIGSEGV (signal 11)`."""
    try:
        return f"{signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"signal {-code}"


def find_hints(text: str, code: str, facts: SandboxFacts, *, met: ExecutionStatus) -> list[str]:
    """Return sentences about limits of the sandbox that errors in an output are due to.

    Programs read of them as an `errno` only, and often print no more than that.

    Args:
        text: what the program printed.
        code: the program, which tells whether a refused operation was one on the network.
        facts: those of the sandbox. Nothing is said about facts that are unknown.
        met: how the program ended. A limit that the status names already is left out.
    """
    hints: list[str] = []
    if not any(word in text for word in _TROUBLE):
        return hints
    network = {"off": "[There is no network here]", "loopback": "[There is no network here but localhost]"}
    if facts.network in network and (
        _NO_NETWORK.search(text) or (_REFUSED.search(text) and (_SOCKETS.search(text) or _SOCKETS.search(code)))
    ):
        hints.append(network[facts.network])
    if facts.processes in _NO_PROCESSES and _REFUSED.search(text):
        pattern, remark = _NO_PROCESSES[facts.processes]
        hints += [remark] if pattern.search(text) or pattern.search(code) else []
    limits = facts.limits
    if limits is not None:
        sizes = (
            (_MEMORY, ExecutionStatus.MEMORY_LIMIT, limits.exceeded(ExecutionStatus.MEMORY_LIMIT) + " of memory"),
            (_DISK, ExecutionStatus.DISK_LIMIT, limits.exceeded(ExecutionStatus.DISK_LIMIT) + " on disk"),
            (_FILE, ExecutionStatus.FILE_LIMIT, limits.exceeded(ExecutionStatus.FILE_LIMIT) + " for one file"),
            (_PROCESSES, None, f"{limits.processes} processes and threads at once"),
            (_OPEN_FILES, None, f"{limits.open_files} open files in one process"),
        )
        hints += [f"[Limit: {size}]" for pattern, status, size in sizes if status is not met and pattern.search(text)]
    return hints


def _notebook_output(result: CellResult) -> str:
    """Return what a notebook shows below a cell as text, except errors."""
    end = len(result.stdout)
    offsets = [*result.display_offsets, *[end] * len(result.display)]
    shown = [(offset, form) for offset, form in zip(offsets, result.display, strict=False) if offset is not None]
    echoed = [form for offset, form in zip(offsets, result.display, strict=False) if offset is None]
    text, at = "", min(max(result.cleared, 0), end)
    for offset, form in sorted(shown, key=lambda pair: pair[0]):
        if offset >= at:
            text = _on_own_line(text + result.stdout[at:offset], _text_of(form)) + "\n"
            at = min(offset, end)
    text += result.stdout[at:]
    if result.result is not None:
        text = _on_own_line(text, _text_of(echoed[0]) if echoed else result.result)
    return text


def _text_of(form: Mapping[str, Any]) -> str:
    """Return the text of a displayed value: its plain text, or its source where that only names an object."""
    plain = form.get("text/plain")
    if isinstance(plain, str) and plain and not _NAMES_OBJECT.fullmatch(plain):
        return plain
    kind = next((kind for kind in SOURCE_TYPES if isinstance(form.get(kind), str)), "")
    source = form.get(kind)
    if kind == "text/html" and isinstance(source, str):
        source = html_text(source) or source
    return source or (plain if isinstance(plain, str) and plain else f"[shown as {', '.join(map(str, form))}]")


def _interrupted_at(traceback: str) -> str:
    """Return the stack in which the time limit met a cell. The exception itself is ours."""
    text = traceback.rstrip().removesuffix("KeyboardInterrupt").rstrip("\n")
    return text.removeprefix(f"{HEADER}\n") if text.count(HEADER) == 1 else text


def _on_own_line(text: str, addition: str) -> str:
    return f"{text}\n{addition}" if text and not text.endswith("\n") else text + addition


def _render(
    result: BaseResult,
    stdout: str,
    stderr: str,
    endings: Mapping[ExecutionStatus, str],
    timeout: float,
    max_chars: int,
    code: str,
    facts: SandboxFacts,
) -> str:
    hints = find_hints(f"{stdout}\n{stderr}", code, facts, met=result.status)
    if "SyntaxError" in stderr and has_fence(code):
        hints.append(FENCE_HINT)
    if isinstance(result, CellResult) and _NO_INPUT.search(stderr):
        hints.append("[There is no standard input here: put the values into the code]")
    errors = collapse_errors(render_terminal(stderr)).rstrip()
    return render_outcome(
        "program",
        result.status,
        fit_output(render_terminal(stdout).removesuffix("\n"), errors, max_chars),
        timeout=timeout,
        nothing="[The program printed nothing]",
        endings=endings,
        limit=result.limit,
        hints=hints,
    )
