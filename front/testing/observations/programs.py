"""40 programs as models write them, of 82 cells, with what their observations must show."""

from __future__ import annotations

from toolgym.testing.observations.case import ObservedProgram, cell, program

_SALES = """
import pandas as pd
sales = pd.DataFrame({
    "region": ["north", "south", "north", "west"],
    "units": [12, 7, 30, 4],
    "price": [2.5, 3.0, 2.5, 9.0],
})
"""

_TABLES = (
    program(
        "table_summary",
        cell(f"{_SALES}display(sales.describe())\nprint('rows:', len(sales))", output=r"13\.25[\s\S]*rows: 4"),
        cell(
            "sales['revenue'] = sales.units * sales.price\nsales.groupby('region').revenue.sum()", value=r"north\s+105"
        ),
        needs=("pandas",),
    ),
    program(
        "table_misspelt_column",
        cell(f"{_SALES}sales.head(2)", value=r"region\s+units"),
        cell("total = (sales['units'] * sales['prize']).sum()  # here", line="# here", error="KeyError: 'prize'"),
        cell("(sales['units'] * sales['price']).sum()", value=r"162\.0"),
        needs=("pandas",),
    ),
    program(
        "table_conversion",
        cell("import pandas as pd\nraw = pd.Series(['1', '2', 'three'])\nlen(raw)", value="3"),
        cell("numbers = pd.to_numeric(raw)  # here", line="# here", error="Unable to parse string .three"),
        cell("pd.to_numeric(raw, errors='coerce').isna().sum()", value=r"\b1\b"),
        needs=("pandas",),
    ),
    program(
        "table_merge",
        cell(f"{_SALES}names = pd.DataFrame({{'area': ['north'], 'boss': ['Ann']}})\nnames", value=r"north\s+Ann"),
        cell(
            "def join(left, right):\n    return left.merge(right, on='region')  # inner\n"
            "joined = join(sales, names)  # here",
            line=r"# inner|join\(left",
            error="KeyError: 'region'",
        ),
        needs=("pandas",),
    ),
    program(
        "table_loop_of_displays",
        cell(
            f"{_SALES}for region, rows in sales.groupby('region'):\n    print(region)\n    display(rows[['units']])",
            output=r"north\n[\s\S]*30[\s\S]*south\n[\s\S]*7",
        ),
        cell("sales.set_index('region').loc['east']  # here", line="# here", error="KeyError: 'east'"),
        needs=("pandas",),
    ),
)

_NUMBERS = (
    program(
        "interest",
        cell("rate = 0.07\nbalance = 1000 * (1 + rate) ** 10\nbalance", value=r"1967\.15"),
        cell("round(balance - 1000, 2)", value=r"967\.15"),
        cell(
            "years = 0\nwhile balance < 4000:\n    balance *= 1 + rate\n    years += 1\nyears, balance > 4000",
            value=r"\(11, True\)",
        ),
    ),
    program(
        "matrix_shapes",
        cell(
            "import numpy as np\nweights = np.ones((3, 4))\ninputs = np.ones((3, 2))\nweights.shape", value=r"\(3, 4\)"
        ),
        cell("outputs = weights @ inputs  # here", line="# here", error="ValueError: matmul"),
        cell("outputs = weights.T @ inputs\noutputs.sum()", value=r"24\.0"),
        needs=("numpy",),
    ),
    program(
        "singular_matrix",
        cell("import numpy as np\nsystem = np.array([[1.0, 2.0], [2.0, 4.0]])\nnp.linalg.det(system)", value=r"0\.0"),
        cell(
            "solution = np.linalg.solve(system, [1.0, 2.0])  # here",
            line="# here",
            error="LinAlgError: Singular matrix",
        ),
        needs=("numpy",),
    ),
    program(
        "division_warning",
        cell(
            "import numpy as np\nratio = np.array([1.0, 2.0]) / np.array([0.0, 4.0])\nratio",
            output="RuntimeWarning: divide by zero",
            value=r"array\(\[inf, 0\.5\]\)",
        ),
        cell("np.nanmax(ratio[np.isfinite(ratio)])", value=r"0\.5"),
        needs=("numpy",),
    ),
    program(
        "equation",
        cell("from sympy import symbols, solve\nx = symbols('x')\nsolve(x**2 - 5*x + 6, x)", value=r"\[2, 3\]"),
        cell(
            "from sympy import sympify\nformula = sympify('2*x + ) 3')  # here",
            line="# here",
            error="SympifyError|SyntaxError",
        ),
        needs=("sympy",),
    ),
    program(
        "shortest_path",
        cell(
            "import networkx as nx\ngraph = nx.Graph([(1, 2), (2, 3), (4, 5)])\nnx.shortest_path(graph, 1, 3)",
            value=r"\[1, 2, 3\]",
        ),
        cell("route = nx.shortest_path(graph, 1, 5)  # here", line="# here", error="NetworkXNoPath"),
        needs=("networkx",),
    ),
    program(
        "mean_of_words",
        cell("import statistics\nstatistics.mean([1, 2, 4])", value=r"2\.33"),
        cell(
            "middle = statistics.mean(['a', 'b'])  # here", line="# here", error="TypeError: can't convert type 'str'"
        ),
    ),
)

_PLOTS = (
    program(
        "plot_shown",
        cell(
            "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('Squares')\nplt.show()\nprint('plotted')",
            figure="Figure size",
            output="plotted",
        ),
        cell(
            "plt.hist([1, 1, 2])\nplt.savefig('histogram.png')\nimport os\nos.path.getsize('histogram.png') > 0",
            figure="Figure size",
            value="True",
        ),
        needs=("matplotlib",),
    ),
    program(
        "plot_at_the_end_of_a_cell",
        cell(
            "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\naxes.bar(['a', 'b'], [3, 5]);",
            figure="Figure size",
        ),
        cell("len(plt.get_fignums())", value=r"\b0\b"),
        needs=("matplotlib",),
    ),
    program(
        "plot_with_an_error",
        cell(
            "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\naxes.plot([1, 2, 3], [1, 2])  # here",
            line="# here",
            error="must have same first dimension",
        ),
        cell("figure, axes = plt.subplots()\naxes.plot([1, 2], [1, 2])\nfigure", figure="Figure size"),
        needs=("matplotlib",),
    ),
)

_SCRIPTS = (
    program(
        "argparse_in_a_cell",
        cell(
            "import argparse\nparser = argparse.ArgumentParser(prog='count')\n"
            "parser.add_argument('--n', type=int, default=3)\n"
            "options = parser.parse_args([])\noptions.n",
            value="3",
        ),
        cell(
            "options = parser.parse_args(['--m', '4'])",
            output="unrecognized arguments: --m",
            exit=r"exit code 2|SystemExit: 2",
        ),
    ),
    program(
        "main_guard",
        cell(
            "def main():\n    print('started')\n    return 0\n\n"
            "if __name__ == '__main__':\n    raise SystemExit(main())",
            output="started",
            exit=r"exit code 0|SystemExit: 0",
        ),
        cell("main()", output="started", value=r"\b0\b"),
    ),
    program(
        "unittest_with_failures",
        cell(
            "import unittest\n\ndef area(width, height):\n    return width + height\n\n"
            "class AreaTest(unittest.TestCase):\n"
            "    def test_square(self):\n        self.assertEqual(area(3, 3), 9)\n"
            "    def test_line(self):\n        self.assertEqual(area(5, 0), 0)\n"
            "    def test_two(self):\n        self.assertEqual(area(2, 2), 4)\n"
            "    def test_tall(self):\n        self.assertEqual(area(1, 8), 8)",
        ),
        cell(
            "unittest.main(argv=['tests'])",
            error=r"AssertionError: 6 != 9",
            line=r"self\.assertEqual\(area\(5, 0\), 0\)",
            output=r"failures=3",
            exit=r"exit code 1|SystemExit: (True|1)",
        ),
        cell(
            "area = lambda width, height: width * height\nunittest.main(argv=['tests'])",
            output="OK",
            exit=r"exit code 0|SystemExit: (False|0)",
        ),
    ),
    program(
        "asyncio_tasks",
        cell(
            "import asyncio\nasync def fetch(number):\n    await asyncio.sleep(0.01)\n    if number == 3:\n"
            "        raise ValueError(f'no item {number}')  # here\n    return number * 2\n"
            "await asyncio.gather(fetch(1), fetch(2))",
            value=r"\[2, 4\]",
        ),
        cell("await asyncio.gather(fetch(1), fetch(3))", line=r"# here", error="ValueError: no item 3"),
        cell("async def one():\n    return await fetch(5)\nasyncio.run(one())", value="10"),
    ),
    program(
        "threads",
        cell(
            "from concurrent.futures import ThreadPoolExecutor\ndef halve(number):\n    return 10 // number  # here\n"
            "with ThreadPoolExecutor(4) as pool:\n    print(list(pool.map(halve, [1, 2, 5])))",
            output=r"\[10, 5, 2\]",
        ),
        cell(
            "with ThreadPoolExecutor(4) as pool:\n    results = list(pool.map(halve, [1, 0]))",
            line="# here",
            error="ZeroDivisionError",
        ),
    ),
    program(
        "command",
        cell(
            "import subprocess\nsubprocess.run(['echo', 'hello'], capture_output=True, text=True).stdout",
            value=r"hello",
        ),
        cell("listing = subprocess.check_output(['ls', 'nowhere'])  # here", line="# here", error="CalledProcessError"),
        cell("subprocess.run(['no-such-program'])  # here", line="# here", error="FileNotFoundError"),
    ),
    program(
        "shell_line",
        cell("!echo from the shell", output="from the shell"),
        cell("lines = !printf 'a\\nb'\nlen(lines)", value="2"),
    ),
)

_LOGS = (
    program(
        "log_of_twenty_lines",
        cell(
            "import logging\nlogging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')\n"
            "log = logging.getLogger('train')"
        ),
        cell(
            "for step in range(20):\n    log.info('step %d loss %.2f', step, 1 / (step + 1))",
            output=r"step 0 loss 1\.00[\s\S]*step 19 loss 0\.05",
        ),
    ),
    program(
        "logged_exception",
        cell(
            "import logging\nlogging.basicConfig()\ntry:\n    share = {}['total']  # here\n"
            "except KeyError:\n    logging.exception('no total')",
            output="no total",
            line="# here",
            error="KeyError: 'total'",
        ),
    ),
    program(
        "repeated_warning",
        cell(
            "import sys\nfor name in range(150):\n"
            "    print('findfont: Font family Foo not found.', file=sys.stderr)\nprint('done')",
            output=r"findfont: Font family Foo not found[\s\S]*",
            value="done",
        ),
    ),
    program(
        "progress_bar",
        cell(
            "for step in range(201):\n"
            "    print(f'\\r{step / 2:5.1f}% |' + '#' * (step // 10), end='')\nprint('\\nfinished')",
            output=r"100\.0% \|#{20}[\s\S]*finished",
            absent=r"37\.5%",
        ),
        cell(
            "import sys\nfor step in range(101):\n"
            "    sys.stderr.write(f'\\x1b[2K\\r\\x1b[32mEpoch {step}/100\\x1b[0m')",
            output=r"Epoch 100/100",
            absent=r"\x1b|Epoch 55/",
        ),
    ),
    program(
        "progress_of_tqdm",
        cell(
            "from tqdm import tqdm\ntotal = 0\n"
            "for number in tqdm(range(500), mininterval=0):\n    total += number\ntotal",
            output=r"500/500",
            value="124750",
            absent=r" 250/500",
        ),
        needs=("tqdm",),
    ),
    program(
        "coloured_output",
        cell("print('\\x1b[1;31mFAILED\\x1b[0m test_a - assert 1 == 2')", output=r"FAILED test_a", absent="\x1b"),
    ),
    program(
        "long_output",
        cell(
            "for number in range(3000):\n    print('row', number)\n'end'", output=r"row 0\n[\s\S]*row 2999", value="end"
        ),
    ),
    program(
        "output_before_an_error",
        cell(
            "for number in range(600):\n    print('value', number)\nresult = int('12a')  # here",
            output=r"value 0\n",
            line="# here",
            error="ValueError: invalid literal",
        ),
    ),
)

_ERRORS = (
    program(
        "json_text",
        cell("import json\njson.loads('{\"a\": [1, 2]}')['a']", value=r"\[1, 2\]"),
        cell("settings = json.loads('{\"a\": 1,}')  # here", line="# here", error="JSONDecodeError"),
    ),
    program(
        "pattern",
        cell("import re\nre.findall(r'\\d+', 'a1b22')", value=r"\['1', '22'\]"),
        cell("numbers = re.compile('(\\\\d+')  # here", line="# here", error=r"missing \), unterminated subpattern"),
    ),
    program(
        "files",
        cell("with open('notes.csv', 'w') as file:\n    file.write('a,b\\n1,2\\n')", value=r"|8"),
        cell(
            "import csv\nwith open('notes.csv') as file:\n    rows = list(csv.DictReader(file))\nrows",
            value=r"'b': '2'",
        ),
        cell("open('absent.csv')  # here", line="# here", error="FileNotFoundError.*absent.csv"),
    ),
    program(
        "dates",
        cell("from datetime import datetime\n(datetime(2026, 3, 1) - datetime(2026, 2, 1)).days", value="28"),
        cell(
            "start = datetime.strptime('2026-13-01', '%Y-%m-%d')  # here", line="# here", error="does not match format"
        ),
    ),
    program(
        "attributes",
        cell(
            "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int = 0\nPoint(3)",
            value=r"Point\(x=3, y=0\)",
        ),
        cell("Point(3).z  # here", line="# here", error="AttributeError: 'Point' object has no attribute 'z'"),
    ),
    program(
        "database",
        cell(
            "import sqlite3\nbase = sqlite3.connect(':memory:')\nbase.execute('create table t (n int)')\n"
            "base.executemany('insert into t values (?)', [(1,), (5,)])\n"
            "base.execute('select sum(n) from t').fetchone()",
            value=r"\(6,\)",
        ),
        cell("base.execute('select m from t')  # here", line="# here", error="no such column: m"),
    ),
    program(
        "chained_errors",
        cell(
            "def load(text):\n    try:\n        return int(text)  # first\n    except ValueError as error:\n"
            "        raise RuntimeError('bad input') from error  # second\nload('x')  # third",
            line=r"# first[\s\S]*# second",
            error=r"ValueError: invalid literal[\s\S]*RuntimeError: bad input",
        ),
    ),
    program(
        "group_of_errors",
        cell(
            "raise ExceptionGroup('two failed', [ValueError('left'), TypeError('right')])  # here",
            line="# here",
            error=r"two failed[\s\S]*ValueError: left[\s\S]*TypeError: right",
        ),
    ),
    program(
        "recursive_function",
        cell(
            "def depth(tree):\n    return 1 + max(depth(child) for child in tree)  # here\ndepth([[], [[]]])",
            line="# here",
            error="ValueError: max()",
        ),
        cell(
            "def depth(tree):\n    return 1 + max((depth(child) for child in tree), default=0)\ndepth([[], [[]]])",
            value="3",
        ),
    ),
    program(
        "notebook_habits",
        cell("6 * 7", value="42"),
        cell("_ + 1", value="43"),
        cell("%matplotlib inline\ntotal = 5;", absent="Error"),
        cell("total\ntotal * 2", value=r"\b10\b"),
    ),
)

PROGRAMS: tuple[ObservedProgram, ...] = (*_TABLES, *_NUMBERS, *_PLOTS, *_SCRIPTS, *_LOGS, *_ERRORS)
"""All programs."""
