"""`toolgym report`, its pages and its pictures."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from tests.front.report.run_files import DEMO, LINE, episodes, line, report, write
from toolgym.cli.app import app
from toolgym.tools.errors import ConfigError, ToolgymError
from toolgym.viewer.run_index import RunIndex


@pytest.fixture(scope="module", autouse=True)
def plots():
    """Imports matplotlib, which takes a second, only where these tests run."""
    global ReportPlots, report_fragment
    from toolgym.report.page import report_fragment
    from toolgym.report.plots import ReportPlots


HOSTILE = "<script>alert(1)</script>\ud800 $x_{$ {0}"
PLOTS = ["reward", "success", "pass", "rewards", "lengths", "turns", "stops", "times", "tools"]


def run(*arguments, fails=None):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "80"})
    if fails is not None:
        assert isinstance(result.exception, fails)
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_demo_is_reported_within_eighty_columns():
    text = run("--demo")
    for part in ("Figures", "By step", "An episode", "Ends", "Tool calls", "code_interpreter", "engine_failed"):
        assert part in text
    assert re.search(r"success +46\.5% \[25\.2, 69\.2\]", text)
    tables = text.split("\n- ")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "2 of 45 episodes count in no reward" in text
    assert "3 of 45 episodes have malformed tool calls, which were not run: 2 malformed_json" in text


def test_no_codes_of_colours_reach_a_pipe(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("--demo")


def test_json_has_every_figure_of_each_run_and_the_differences(tmp_path):
    first = write(tmp_path / "a.jsonl", episodes({"a": [0, 0], "b": [0, 1]}))
    second = write(tmp_path / "b.jsonl", episodes({"a": [1, 0], "b": [1, 1]}))
    value = json.loads(run(first, second, "--json", "-k", "2"))
    assert [item["name"] for item in value["runs"]] == ["a.jsonl", "b.jsonl"]
    assert value["runs"][0] == json.loads(json.dumps(report(first, ks=[2]).to_json()))
    assert set(value["runs"][0]["whole"]["estimates"]) == {"reward", "success", "pass@2", "pass^2"}
    assert value["differences"][str(second)]["success"]["value"] == 0.5


def test_a_filter_selects_episodes_and_parts_follow_by():
    value = json.loads(run("--demo", "--filter", "step=1 !branch", "--json"))
    assert (value["runs"][0]["whole"]["figures"]["episodes"], value["runs"][0]["parts"]) == (16, [])
    assert json.loads(run("--demo", "--by", "env", "--json"))["runs"][0]["by"] is None
    assert json.loads(run("--demo", "--json"))["runs"][0]["by"] == "step"


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name / "out").mkdir(parents=True)
        write(tmp_path / name / "out" / "1.jsonl", episodes({"a": [0, 1]}))
    value = json.loads(run(tmp_path / "x/out", tmp_path / "y/out", "--json"))
    assert [item["name"] for item in value["runs"]] == [str(tmp_path / name / "out") for name in "xy"]


def test_parts_of_runs_that_differ_in_kind_have_their_own_heads(tmp_path):
    path = write(tmp_path / "a.jsonl", [*episodes({"a": [1]}, env_id="A-v0"), *episodes({"a": [0]}, env_id="B-v0")])
    text = run("--demo", path)
    assert re.search(r"By step: demo +\nstep +episodes", text)
    assert re.search(r"By env: a.jsonl +\nenv +episodes", text)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ([], ConfigError, "expected a folder of a run, or a file of trajectories; --demo has one to try"),
        (["--demo", "-k", "1,x"], ConfigError, "-k takes whole numbers, such as 1,4,8, got '1,x'"),
        (["--demo", "-k", "0"], ConfigError, "k must be a whole number, at least 1, got 0"),
        (["--demo", "--png", "a.pdf"], ConfigError, "--png takes a file that ends in .png, got 'a.pdf'"),
        (["--demo", "--filter", "rewrd<1"], ConfigError, "did you mean 'reward'"),
        (["--demo", "--filter", "reward>9"], ToolgymError, "has no episodes to report"),
        (["no-such-run"], ConfigError, "no trajectories at 'no-such-run'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments, error, why):
    text = run(*arguments, fails=error)
    assert why in text
    assert "\n" not in text


def test_a_run_without_an_episode_is_an_error_that_says_why(tmp_path):
    assert "has no episodes to report" in run(write(tmp_path / "a.jsonl", []), fails=ToolgymError)
    broken = write(tmp_path / "b.jsonl", [{"score": 1}])
    assert "neither a trajectory of toolgym nor a row of verl" in run(broken, fails=ToolgymError)


def size_of(path):
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return struct.unpack(">II", head[16:])


def test_plots_are_a_sheet(tmp_path):
    text = run("--demo", "--png", tmp_path / "new/sheet.png")
    assert f"written: {tmp_path / 'new/sheet.png'}" in text
    width, height = size_of(tmp_path / "new/sheet.png")
    assert width > 1500
    assert height > 1000
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["sheet.png"]


def test_plots_without_anything_in_them_are_left_out(tmp_path):
    rows = [{"input": f"p{n}", "output": "", "score": 1.0, "step": 3} for n in range(3)]
    verls = report(write(tmp_path / "3.jsonl", rows))
    assert list(ReportPlots([verls]).svgs()) == ["reward", "success", "pass", "rewards"]
    assert ReportPlots([report(tmp_path / "4.jsonl", [])]).svgs() == {}


@pytest.mark.long
@pytest.mark.parametrize("by", ["step", "env"])
def test_plots_of_many_parts_of_several_runs_are_drawn(tmp_path, by):
    lines = [
        part for n in range(60) for part in episodes({"a": [n % 2], "b": [n / 60]}, step=n, env_id=f"Env{n % 12}-v0")
    ]
    reports = [report(tmp_path / f"{name}.jsonl", lines, by=by) for name in ("a", "b", "c")]
    svgs = ReportPlots(reports).svgs()
    assert {"a.jsonl", "b.jsonl", "c.jsonl"} <= set(texts_of(svgs["reward"]))
    assert ("Env3-v0" in " ".join(texts_of(svgs["reward"]))) == (by == "env")


class Page(HTMLParser):
    """Tags, ids and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            self.ids += [value] if name == "id" else []
            self.addresses += [value] if name in ("src", "href", "xlink:href", "action") else []


@pytest.fixture(scope="module")
def fragment():
    return report_fragment(RunIndex(DEMO).read_all())


def test_the_fragment_of_a_page_asks_for_nothing_and_is_the_same_each_time(fragment):
    page = Page(fragment)
    assert (page.tags.count("svg"), page.tags.count("table")) == (len(PLOTS), 5)
    assert page.ids
    assert len(set(page.ids)) == len(page.ids)
    assert all(address.startswith("#report-") for address in page.addresses)
    assert {address[1:] for address in page.addresses} <= set(page.ids)
    assert set(re.findall(r"url\(([^)]{8})", fragment)) <= {"#report-"}
    assert fragment == report_fragment(RunIndex(DEMO).read_all())
    assert not {"script", "link", "img", "metadata"} & set(page.tags)
    assert "46.5% [25.2, 69.2]" in fragment


def texts_of(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_plots_show_the_figures(fragment):
    plots = dict(re.findall(r'<div role="img" aria-label="(\w+)">(.*?)</div>', fragment, re.DOTALL))
    assert list(plots) == PLOTS
    assert {"policy", "engine", "answered", "engine_failed"} <= set(texts_of(plots["stops"]))
    assert {"in the engine", "in env and tools", "demo"} <= set(texts_of(plots["times"]))
    assert {"code_interpreter", "median", "99 %", "0.1", "1"} <= set(texts_of(plots["tools"]))
    assert {"1", "2", "4", "pass@k", "pass^k"} <= set(texts_of(plots["pass"]))


def test_names_from_a_run_are_shown_harmlessly(tmp_path):
    call = {**LINE["turns"][0]["tool_calls"][0], "name": HOSTILE}
    turns = [{**LINE["turns"][0], "tool_calls": [call]}]
    lines = [line(turns=turns, env_id=HOSTILE), line(turns=turns, env_id="B-v0", task_id="2", group_id="2")]
    path = write(tmp_path / f"{HOSTILE[:8]}.jsonl", lines)
    assert "<script>" in run(path, "--by", "env", "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "script" not in Page(text).tags
    assert text.count("&lt;script&gt;") > 2
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    ("hidden", "arguments", "feature"),
    [("msgspec", [], "toolgym report"), ("matplotlib", ["--png", "plots.png"], "Plotting")],
)
def test_a_missing_package_is_a_line_that_names_the_extra(hidden, arguments, feature, tmp_path):
    code = (
        "import sys\n"
        f"sys.modules[{hidden!r}] = None\n"
        f"sys.argv = ['toolgym', 'report', '--demo', *{arguments!r}]\n"
        "from toolgym.cli.app import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {feature} needs")
    assert "[report]'" in done.stderr
    assert done.stderr.count("\n") == 1
