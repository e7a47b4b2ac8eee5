"""What a model reads of results: displayed values, errors, ends, limits and the room that they share."""

import signal

import pytest

from toolgym.tools.library.outcome import RECOVERED, find_hints, fit_output, render_cell, render_result
from toolgym.tools.sandbox import ExecutionResult, ExecutionStatus, Limits
from toolgym.tools.sandbox.base import CellError, CellResult
from toolgym.tools.sandbox.facts import SandboxFacts

OK, ERROR, KILLED = ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED
FACTS = SandboxFacts("off", Limits(memory_mb=300, processes=9, open_files=20, disk_mb=7, inodes=3, file_mb=5))
HEADER = "Traceback (most recent call last):\n"
EXIT = CellError("SystemExit", "")
FIGURE = {"text/plain": "<Figure size 640x480 with 1 Axes>", "image/png": "AAAA"}
TABLE = (
    "<style>td {}</style>\n<table><tr><th>a</th><th>b&nbsp;</th></tr>\n<tr><td>0</td> <td>1 &lt; 2</td></tr></table>"
)


def plain(text):
    return {"text/plain": text}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (CellResult(OK, "a\nb\n", display=(plain("x"), plain("y")), display_offsets=(2, 4)), "a\nx\nb\ny"),
        (CellResult(OK, "a\nb", display=(plain("x"),)), "a\nb\nx"),
        (CellResult(OK, "", display=(FIGURE,), display_offsets=(0,)), "<Figure size 640x480 with 1 Axes>"),
        (CellResult(OK, "a", result="5"), "a\n5"),
        (CellResult(OK, "", result="<Figure>", display=(plain("<Figure>"),), display_offsets=(None,)), "<Figure>"),
        (CellResult(OK, "0\n1\n2\n", cleared=4), "2"),
        (CellResult(OK, "0\n1\n", display=(plain("x"),), display_offsets=(4,), cleared=2), "1\nx"),
        (CellResult(OK, display=({"text/plain": "<a.Markdown object>", "text/markdown": "# T"},)), "# T"),
        (CellResult(OK, display=({"text/plain": "<a.Styler object>", "text/html": TABLE},)), "a | b\n0 | 1 < 2"),
        (CellResult(OK, display=({"text/html": "<canvas></canvas>"},)), "<canvas></canvas>"),
        (
            CellResult(ERROR, "Name? ", error=CellError("EOFError", "EOF when reading a line")),
            "Name? \nEOFError: EOF when reading a line\n"
            "[There is no standard input here: put the values into the code]",
        ),
        (CellResult(OK, display=({"image/png": "AAAA"},)), "[shown as image/png]"),
        (CellResult(OK, "1\n", error=EXIT, return_code=0), "1\n[The program ended with exit code 0]"),
        (CellResult(ERROR, "", "bye\n", error=EXIT, return_code=1), "bye\n[The program ended with exit code 1]"),
        (
            CellResult(KILLED, return_code=-int(signal.SIGSEGV), recovered=True),
            f"[The program was killed by SIGSEGV (signal 11)]\n{RECOVERED}",
        ),
        (
            CellResult(KILLED, return_code=7, alive=False),
            "[The program ended with exit code 7]\n[The session ended with it; variables and files are gone]",
        ),
        (
            CellResult(ExecutionStatus.MEMORY_LIMIT, limit="300 MiB"),
            "[Stopped: the program used too much memory (limit: 300 MiB)]",
        ),
    ],
)
def test_the_text_of_a_cell_has_all_that_it_showed(cell, text):
    assert render_cell(cell, 5) == text


def test_a_time_limit_names_the_line_that_it_hit():
    stack = '  File "<cell 1>", line 4, in wait\n    time.sleep(99)\n'
    error = CellError("KeyboardInterrupt", "", (HEADER, stack, "KeyboardInterrupt\n"))
    cell = CellResult(ExecutionStatus.TIMEOUT, "begun\n", error=error)
    assert render_cell(cell, 5) == f"begun\n{stack}[Timed out: the program was stopped after 5 seconds]"


def test_errors_use_the_whole_room_before_anything_is_cut():
    log = "".join(f"line {number} of the log\n" for number in range(100))
    text = render_result(ExecutionResult(ERROR, "out\n", log, return_code=1), 5, 4096)
    assert "line 0 of" in text
    assert "cut" not in text
    assert "[" not in text.replace("[The program ended with exit code 1]", "")


@pytest.mark.parametrize("size", [200, 1000, 4000])
def test_output_and_errors_share_the_room(size):
    own = f'{HEADER}  File "<cell 1>", line 1, in <module>\n    own()\nValueError: last'
    log = "".join(f"log line {number}\n" for number in range(2000))
    output = "".join(f"row {number}\n" for number in range(2000))
    for stdout, errors in ((output, log + own), (output, own), ("row 0\n", log + own)):
        shown, shown_errors = fit_output(stdout, errors, size)
        assert len(shown) + len(shown_errors) <= size + 200
        assert len(shown) + len(shown_errors) >= min(size, len(stdout + errors)) - 2
        assert shown_errors.endswith("ValueError: last")
        assert "own()" in shown_errors
        assert shown.startswith("row 0\n")


def test_only_the_part_that_is_too_long_is_cut():
    output = "".join(f"row {number}\n" for number in range(2000))
    shown, errors = fit_output(output, "short", 1000)
    assert errors == "short"
    assert len(shown) > 990
    assert fit_output("short", output, 1000)[0] == "short"


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        ("gaierror: Temporary failure in name resolution", "", "[There is no network here]"),
        ("[Errno 1] Operation not permitted", "import urllib.request", "[There is no network here]"),
        ("OSError: [Errno 101] Network is unreachable", "", "[There is no network here]"),
        (
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "",
            "[Limit: 9 processes and threads at once]",
        ),
        ("RuntimeError: can't start new thread", "", "[Limit: 9 processes and threads at once]"),
        ("OSError: [Errno 24] Too many open files: 'x'", "", "[Limit: 20 open files in one process]"),
        ("OSError: [Errno 28] No space left on device", "", "[Limit: 7 MiB and 3 files on disk]"),
        ("OSError: [Errno 27] File too large", "", "[Limit: 5 MiB for one file]"),
        ("caught MemoryError", "", "[Limit: 300 MiB of memory]"),
    ],
)
def test_errors_due_to_the_sandbox_name_the_limit(text, code, hint):
    assert find_hints(text, code, FACTS, met=ERROR) == [hint]
    assert find_hints(text, code, SandboxFacts(), met=ERROR) == []


def test_a_limit_is_named_once_and_other_errors_have_no_hint():
    assert find_hints("MemoryError", "", FACTS, met=ExecutionStatus.MEMORY_LIMIT) == []
    assert find_hints("PermissionError: Operation not permitted: '/etc'", "open('/etc/x', 'w')", FACTS, met=ERROR) == []
    assert find_hints("Network is unreachable", "", SandboxFacts("host"), met=ERROR) == []


def test_terminal_control_is_carried_out_in_both_streams():
    bar = "".join(f"\r{number}%" for number in range(101))
    result = ExecutionResult(OK, f"\x1b[31m{bar}\x1b[0m\n", bar)
    assert render_result(result, 5) == "100%\n100%"


def test_several_blocks_of_code_are_answered_with_a_hint():
    error = CellError("SyntaxError", "x", ("SyntaxError: invalid syntax\n",))
    code = "One:\n```python\n1\n```\nTwo:\n```python\n2\n```"
    assert render_cell(CellResult(ERROR, error=error), 5, code=code).endswith("text around it]")
    assert render_cell(CellResult(ERROR, error=error), 5, code="x = = 1").endswith("invalid syntax")


def test_binary_output_is_cut_to_its_beginning():
    picture = "PNG\n" + "a\ufffdb\ufffd" * 1000
    assert fit_output(picture, "", 4096)[0] == f"{picture[:400]}\n... [3604 characters cut: the output is not text] ..."
    assert fit_output("\ufffd" * 20, "", 4096)[0] == "\ufffd" * 20
    assert fit_output("a" * 3000 + "\ufffd", "", 4096)[0] == "a" * 3000 + "\ufffd"


@pytest.mark.parametrize(
    ("rule", "code", "remark"),
    [
        ("none", "subprocess.run(['ls'])", "[No other process can be started here: use threads]"),
        ("none", "!ls", "[No other process can be started here: use threads]"),
        ("none", "open('/proc/1/environ')", None),
        ("no pools", "pool = multiprocessing.Pool(2)", "[There are no process pools and no shared memory here: use "
         "threads, or subprocess]"),
        ("no pools", "subprocess.run(['/etc'])", None),
        ("all", "subprocess.run(['/etc'])", None),
    ],
)  # fmt: skip
def test_a_refused_process_is_explained(rule, code, remark):
    hints = find_hints(
        "PermissionError: [Errno 1] Operation not permitted", code, SandboxFacts(processes=rule), met=ERROR
    )
    assert hints == ([remark] if remark else [])
