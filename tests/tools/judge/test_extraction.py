from __future__ import annotations

import time

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


def shifted(text, by):
    return "\n".join(" " * by + line for line in text.split("\n"))


LOOP = "for n in (1, 2):\n    print(n)"
DOCSTRING = 'def f():\n    """Example:\n\n    ```\n    f()\n    ```\n    """\n    return 1'


@pytest.mark.parametrize("by", [1, 2, 3, 4, 7])
def test_the_indentation_of_a_fence_is_taken_off_its_lines(by):
    text = f"1. Count:\n\n{shifted(f'```python{chr(10)}{LOOP}{chr(10)}```', by)}\n2. Done."
    assert extract_program(text) == (LOOP, "fenced")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"- ```python\n{shifted(LOOP, 2)}\n  ```", LOOP),
        (f"12. ```python\n{shifted(LOOP, 4)}\n    ```", LOOP),
        ("> ```python\n> for n in (1, 2):\n>     print(n)\n> ```\nSaid somebody.", LOOP),
        ("\t```python\n\tif 1:\n\t\tprint(1)\n\t```", "if 1:\n\tprint(1)"),
        ("    ```python\n  a = 1\n    if a:\n        a = 2\n    ```", "a = 1\nif a:\n    a = 2"),
        ("```python\r\na = 1\r\nb = 2\r\n```\r\n", "a = 1\nb = 2"),
        ("```python\ra = 1\rb = 2\r```", "a = 1\nb = 2"),
        ("```python\na = 1\nb = 2```\nIt works.", "a = 1\nb = 2"),
        ("```python\nprint('a')``` That is all.", "print('a')"),
        ("```python\nprint(1)  # one```\nOutput:\n```\n1\n```", "print(1)  # one"),
        ("```cpp\nint a;```\nand\n```text\n1\n```", "int a;"),
        ("```python\na = 1\n``` Here it ends.\n```\n1\n```", "a = 1"),
        ("The program is: ```python\na = 1\n```", "a = 1"),
        ("~~~ python\na = 1\n```\n~~~", "a = 1\n```"),
        ("```python\na = 0\n\nI forgot something:\n\n```python\na = 1\n```", "a = 1"),
        ("````markdown\n# Answer\n```python\na = 1\n```\n````", "a = 1"),
        ("```\n```python\na = 1\n```\n```", "a = 1"),
        (f"```python\n{DOCSTRING}\n```", DOCSTRING),
        ('```python\nprint("""```\n```python\n```""")\n```', 'print("""```\n```python\n```""")'),
        ("```python\n# ```\n# f(1)\n# ```\na = 1\n```", "# ```\n# f(1)\n# ```\na = 1"),
        ("```python\na = '```'\n```", "a = '```'"),
        ('```python\na = """\n```\nThat was wrong.\n```python\na = 1\n```', "a = 1"),
        ("```{.python .numberLines}\na = 1\n```\n```\n1\n```", "a = 1"),
        ("```python3.11\na = 1\n```\n```\n1\n```", "a = 1"),
        ("```python:main.py\na = 1\n```\n```\n1\n```", "a = 1"),
    ],
)
def test_fences_as_models_write_them(text, code):
    language = "cpp" if "cpp" in text else "python"
    assert extract_program(text, language) == (code, "fenced")


def test_a_usage_example_is_not_the_program():
    program = "def add(a, b):\n    return a + b"
    text = f"```python\n{program}\n```\nUse it like this:\n```python\nprint(add(1, 2))\n```"
    assert extract_program(text, defines={"add"}).code == program
    assert extract_program(text).code == "print(add(1, 2))"
    assert extract_program(text, defines={"sub"}).code == "print(add(1, 2))"
    assert extract_program(f"```python\nadd = 1\n```\n{text}", defines={"add"}).code == program
    method = text.replace("def add(", "class Solution:\n    async def add(")
    assert "Solution" in extract_program(method, defines={"add"}).code


def test_a_text_without_a_fence_is_only_parsed_on_request():
    assert extract_program("import math", bare=False) == ("", "empty")


HOSTILE = {
    "fences": "```\n",
    "fences with a tag": "```python\n",
    "texts that never end": '```python\n"""\n```\n',
    "backslashes": '```python\n"""' + "\\" * 50,
    "shorter fences": "````python\n" + "x```" * 50,
    "fences in comments": "```python\n" + "x #```" * 50,
    "single ticks": "```cpp\n" + "`a" * 50,
    "list items": "- " * 50,
    "blanks": " " * 50 + "```",
    "nested": "````markdown\n```python\n",
    "sentences": "x```python\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_time_is_linear(name):
    def seconds(length):
        text = (HOSTILE[name] * (length // len(HOSTILE[name]) + 1))[:length]
        begun = time.process_time()
        extract_program(text, defines={"f"}, bare=False)
        return time.process_time() - begun

    short = min(seconds(20_000) for _ in range(3))
    assert seconds(320_000) < 64 * max(short, 0.001)  # 16 times as long; quadratic time would be 256 times as long
