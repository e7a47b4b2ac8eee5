from __future__ import annotations

import pytest

from toolgym.tools.judge import extract_program

TWO = "First:\n```python\na = 1\n```\nThen:\n```python\nb = 2\n```\n"


def test_of_several_blocks_the_last_or_the_first():
    assert extract_program(TWO) == ("b = 2", "fenced")
    assert extract_program(TWO, which="first") == ("a = 1", "fenced")


@pytest.mark.parametrize(
    ("text", "language", "code", "kind"),
    [
        ("```\na = 1\n```", "python", "a = 1", "fenced"),
        ("```py\na = 1\n```\n```text\nout\n```", "python", "a = 1", "fenced"),
        ("```Python3\na = 1\n```\n```\nout\n```", "python", "a = 1", "fenced"),
        ("```text\nout\n```", "python", "out", "fenced"),
        ("```c++\nint a;\n```\n```python\na\n```", "cpp", "int a;", "fenced"),
        ("```JavaScript\n1\n```", "nodejs", "1", "fenced"),
        ("~~~python\na = 1\n~~~", "python", "a = 1", "fenced"),
        ("````python\nx = '''\n```\n'''\n````", "python", "x = '''\n```\n'''", "fenced"),
        ("  ```python title=x\r\na = 1\r\n  ```", "python", "a = 1", "fenced"),
        ("```python\n```", "python", "", "fenced"),
        ("Well:\n```python\na = 1\nb = 2", "python", "a = 1\nb = 2", "incomplete_fenced"),
        ("```python", "python", "", "incomplete_fenced"),
        ("```python\na\n```\n```python\nb", "python", "a", "fenced"),
        ("import math\n\ndef f():\n    return 1\n", "python", "import math\n\ndef f():\n    return 1", "heuristic"),
        ("The answer:\ndef f():\n    return 1\n", "python", "def f():\n    return 1", "heuristic"),
        ("I would define a function.", "python", "", "empty"),
        ("def f(: no", "python", "", "empty"),
        ("", "python", "", "empty"),
        ("int main() {}", "cpp", "", "empty"),
        ("a `b` and ```c``` inline", "python", "", "empty"),
    ],
)
def test_a_program_in_a_text(text, language, code, kind):
    assert extract_program(text, language) == (code, kind)


def test_a_long_text_of_fences_is_read_in_no_time():
    assert extract_program("```\n" * 20_000 + "a" * 100_000).kind in ("fenced", "incomplete_fenced")
