"""Rows of code data sets, written here in the shapes in which their authors publish them."""

from __future__ import annotations

import json

DOUBLE = "print(int(input()) * 2)"
CASES = [{"input": "1\n", "output": "2\n"}, {"input": "4\n", "output": "8\n"}, {"input": "5\n", "output": "10\n"}]
PAIRS = {"input": ["4\n"], "output": ["8\n"]}
NOTHING = {"input": [], "output": []}

TACO = {
    "question": "Print twice the number.", "solutions": json.dumps([DOUBLE]), "starter_code": "",
    "input_output": json.dumps({"inputs": ["1\n", "4\n"], "outputs": ["2\n", "8\n"]}), "difficulty": "EASY",
    "raw_tags": "['math']", "name": None, "source": "own", "tags": "['Mathematics']", "skill_types": "[]",
    "url": None, "Expected Auxiliary Space": None, "time_limit": "2.0 seconds", "date": None, "picture_num": "0",
    "memory_limit": "256.0 megabytes", "Expected Time Complexity": None,
}  # fmt: skip
CODE_CONTESTS = {
    "name": "1_A. Double", "description": "Print twice the number.",
    "public_tests": {"input": ["1\n"], "output": ["2\n"]},
    "private_tests": PAIRS, "generated_tests": {"input": ["5\n", "6\n"], "output": ["10\n", "12\n"]}, "source": 2,
    "difficulty": 7, "solutions": {"language": [2, 3], "solution": ["int main() {}", DOUBLE]},
    "incorrect_solutions": {"language": [3], "solution": ["print(0)"]}, "cf_contest_id": 1, "cf_index": "A",
    "cf_points": 500.0, "cf_rating": 800, "cf_tags": ["math"], "is_description_translated": False,
    "untranslated_description": "", "time_limit": {"seconds": 1, "nanos": 500000000},
    "memory_limit_bytes": 256000000, "input_file": "", "output_file": "",
}  # fmt: skip
CODEFORCES = {
    "id": "1/A", "aliases": None, "contest_id": "1", "contest_name": "Round 1", "contest_type": "CF",
    "contest_start": 1, "contest_start_year": 2010, "index": "A", "time_limit": 2.0, "memory_limit": 256.0,
    "title": "Double", "description": "Print twice the number.", "input_format": "A number.",
    "output_format": "Twice the number.", "interaction_format": None, "note": None, "examples": CASES[:1],
    "editorial": None, "rating": 800, "tags": ["math"], "testset_size": 3, "official_tests": CASES,
    "official_tests_complete": True, "input_mode": "stdio", "generated_checker": None, "executable": True,
    "generated_tests": 0,
}  # fmt: skip
CHECKER = "import sys\nprint(1 if open(sys.argv[2]).read().split() == open(sys.argv[3]).read().split() else 0)\n"
SYNTHETIC = {
    "problem_id": "vcode_1", "source": "apps", "in_source_id": "7", "task_type": "verifiable_code",
    "prompt": "Solve this: print twice the number.", "gold_standard_solution": f"```python\n{DOUBLE}\n```",
    "verification_info": json.dumps({
        "language": "python",
        "test_cases": [{"type": "stdin_stdout", "fn_name": None, **case} for case in CASES],
    }),
    "metadata": json.dumps({"difficulty": "easy"}),
}  # fmt: skip
CALLS = [
    {"type": "function_call", "fn_name": "up", "input": ["a", 2], "output": "AA"},
    {"type": "function_call", "fn_name": "up", "input": ["b", 1], "output": "B"},
]
UP = "def up(word, times):\n    return word.upper() * times"
FUNCTION_CALLS = {
    **SYNTHETIC,
    "gold_standard_solution": UP,
    "verification_info": json.dumps({"language": "python", "test_cases": CALLS}),
}
PRIME = {
    "problem": "Print twice the number.",
    "solutions": [f"```python\n{DOUBLE}\n```"],
    "tests": json.dumps([{"type": "stdin_stdout", "fn_name": None, **case} for case in CASES]),
}
LCB = {
    "problem": "Pick an item.",
    "starter_code": "class Solution:\n    def pick(self, items: List[int], at: int) -> int:\n        ",
    "tests": json.dumps([{"input": "[5, 6]\n1", "output": "6", "testtype": "functional"}]),
    "metadata": {"func_name": "pick"},
}
LEETCODE = {
    "task_id": "sum-of-list", "question_id": 1, "difficulty": "Easy", "tags": ["List"], "estimated_date": "2026-01-01",
    "problem_description": "Add `value` to each number of a linked list, and return it.",
    "starter_code": "class Solution:\n    def addAll(self, head: ListNode, value: int) -> ListNode:\n        ",
    "prompt": (
        "from typing import *\n\nclass ListNode:\n    def __init__(self, val=0, next=None):\n"
        "        self.val, self.next = val, next\n\n"
        "def list_node(values):\n    head = None\n"
        "    for value in reversed(values):\n        head = ListNode(value, head)\n"
        "    return head\n\ndef is_same_list(a, b):\n    return a is b\n"
    ),
    "completion": (
        "class Solution:\n    def addAll(self, head, value):\n        node = head\n        while node:\n"
        "            node.val, node = node.val + value, node.next\n        return head"
    ),
    "entry_point": "Solution().addAll",
    "test": (
        "def check(candidate):\n"
        "    assert is_same_list(candidate(head = list_node([1, 2, 3]), value = 4), list_node([5, 6, 7]))\n"
        "    assert candidate(head = list_node([]), value = 4) is None\n"
        "    assert is_same_list(candidate(list_node([9]), 1), list_node([10]))\n"
    ),
    "input_output": [{"input": "head = [1,2,3], value = 4", "output": "[5,6,7]"}],
    "query": "...", "response": "...",
}  # fmt: skip
MBPP_PLUS = {
    "task_id": 2, "code": "def halve(n):\n    return n / 2", "prompt": "Write a function to halve a number.",
    "source_file": "own.json", "test_imports": [], "test_list": ["assert halve(4) == 2", "assert halve(8) == 4"],
    "test": (
        "def assertion(out, exp):\n    assert abs(out - exp) < 1e-9\n\ninputs = [[3], [5], [12]]\n"
        "results = [1.5, 2.5, 6.0]\nfor inp, exp in zip(inputs, results):\n    assertion(halve(*inp), exp)\n"
    ),
}  # fmt: skip
