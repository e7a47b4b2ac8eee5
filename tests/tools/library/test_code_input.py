"""`clean_code`: fences, marks and spaces around a program go, and the program's texts stay."""

import time

import pytest

from toolgym.tools.library.code_input import clean_code, has_fence

README = 'text = """\n# Use\n```python\nprint(1)\n```\n"""\nprint(text)\n'


@pytest.mark.parametrize(
    ("sent", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```py\nprint(1)\n```\n", "print(1)\n"),
        ("\n```\nx = 1\nprint(x)\n```  \n", "x = 1\nprint(x)\n"),
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        ("````python\nprint(1)\n````", "print(1)\n"),
        ("```python\nprint(1)```", "print(1)"),
        ("Let's compute:\n```python\nprint(1)\n```", "print(1)\n"),
        ("First, I'd try \"this:\n\n```Python\nprint(1)\n```\nIt prints 1.", "print(1)\n"),
        ("```python\nprint(1)\n", "print(1)\n"),
        ("print(1)\n```", "print(1)\n"),
        (f"```python\n{README}```", README),
        (f"Here:\n```python\n{README}```\nDone.", README),
        ("\ufeffprint(1)", "print(1)"),
        ("a = 1\r\nif a:\r    print(a)\n", "a = 1\nif a:\n    print(a)\n"),
        ("if 1:\n\xa0\xa0\xa0\xa0print(1)\u200b", "if 1:\n    print(1)"),
        ("x\u3000=\u202f1  # a\xa0comment", "x = 1  # a\xa0comment"),
    ],
)
def test_what_surrounds_a_program_is_removed(sent, program):
    assert clean_code(sent) == program


@pytest.mark.parametrize(
    "program",
    [
        README,
        "print('''\n```\n''')",
        "'a\\\n```\\\nb'",
        "print('a\xa0b')",
        'text = f"""\n\xa0{1}\u200b"""',
        "# ```\nprint(1)\n# ```",
        "print('`' * 3)",
        'a = r"\\"\nb = """\n```\n"""',
        "text = '''it's\n```python\nx\n```\n'''\nother = \"\"\"\n```\n\"\"\"",
    ],
)
def test_texts_of_a_program_never_change(program):
    assert clean_code(program) == program
    assert not has_fence(program)


def test_blocks_that_may_be_two_programs_stay():
    sent = "One:\n```python\nprint(1)\n```\nTwo:\n```python\nprint(2)\n```"
    assert clean_code(sent) == sent
    assert has_fence(sent)


def test_other_languages_lose_only_the_fence_of_the_whole_input():
    heredoc = "cat > README.md <<'END'\n```\nmake\n```\nEND\n"
    assert clean_code("```bash\necho 1\n```", "bash") == "echo 1\n"
    assert clean_code(heredoc, "bash") == heredoc
    assert clean_code("printf 'a\r\n'", "bash") == "printf 'a\r\n'"


@pytest.mark.parametrize("unit", ["```\n", " ", '"', "'''", "\\", "x\xa0", "```python\n'\n", "~~~\n", "#`\n", '"""a'])
def test_cleaning_takes_linear_time(unit):
    def cost(size):
        began = time.process_time()
        clean_code("```\n" + unit * (size // len(unit)))
        clean_code(unit * (size // len(unit)))
        return time.process_time() - began

    assert cost(200_000) < 30 * cost(20_000) + 0.05
