"""The page as a file: what is in it, what is left out, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import sys

import pytest

from tests.front.viewer.page.runs import DEMO, HOSTILE, LINES, changed, hostile, odd_run, write_run
from toolgym.rollout.advantages.advantages import group_advantages
from toolgym.rollout.trajectory.file import read_trajectories
from toolgym.tools.errors import ConfigError
from toolgym.viewer.page import payload
from toolgym.viewer.page.payload import details
from toolgym.viewer.page.write import write_page
from toolgym.viewer.run_index import RunIndex

ENV = "code-interpreter-drawn"


def blocks(path):
    """The data of a page by name, as a browser reads it: up to the first end of the element."""
    text = path.read_text()
    return dict(re.findall(r'<script type="text/plain" id="data-(\w+)">(.*?)</script>', text, re.DOTALL))


def test_a_page_holds_the_lines_and_what_their_groups_add(tmp_path):
    index = RunIndex(DEMO)
    summary = write_page(index, tmp_path / "run.html")
    held = blocks(tmp_path / "run.html")
    assert [json.loads(line) for line in held["lines"].splitlines()] == LINES
    trajectories = [*read_trajectories(DEMO / "0.jsonl"), *read_trajectories(DEMO / "1.jsonl")]
    advantages = [json.loads(line)["advantage"] for line in held["details"].splitlines()]
    assert advantages == pytest.approx(group_advantages(trajectories))
    assert (summary.rows, summary.left_out, summary.bytes) == (45, 0, (tmp_path / "run.html").stat().st_size)
    assert str(summary) == f"45 trajectories, {summary.bytes / 1e6:.1f} MB"
    ids = {token for row in index.rows for token in details(index, [row], {row.number})[row.number].ids}
    assert {int(token) for token in json.loads(held["texts"])} == ids


def test_the_policy_lets_its_own_script_run_and_nothing_load(tmp_path):
    write_page(RunIndex(DEMO), tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert len(scripts) == 1
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert "connect-src 'none'" in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", scripts[0])


def test_no_text_of_a_run_ends_an_element(tmp_path):
    path = tmp_path / "run.html"
    write_page(RunIndex(write_run(tmp_path, hostile(), HOSTILE)), path)
    held = blocks(path)
    assert json.loads(held["lines"].splitlines()[0]) == hostile()
    assert json.loads(held["lines"].splitlines()[1]) == HOSTILE.replace("\ud800", "\ufffd" * 3)
    assert "<!--" not in "".join(held.values())
    write_page(RunIndex(DEMO), tmp_path / "plain.html")
    assert path.read_text().count("</script>") == (tmp_path / "plain.html").read_text().count("</script>")


def test_a_selection_is_the_first_rows_of_the_query_up_to_the_limit(tmp_path):
    path = tmp_path / "run.html"
    index = RunIndex(DEMO).read_all()
    summary = write_page(index, path, query="step=1 sort:-tokens", limit_bytes=50_000)
    wanted = sorted((row for row in index.rows if row.step == 1), key=lambda row: -row.tokens)
    held = [json.loads(line)["id"] for line in blocks(path)["lines"].splitlines()]
    assert held == [row.id for row in wanted[: len(held)]]
    assert sum(row.size for row in wanted[: len(held)]) <= 50_000 < sum(row.size for row in wanted[: len(held) + 1])
    assert summary.left_out == len(wanted) - len(held)
    assert f"the first {len(held)} of {len(wanted)} trajectories" in str(summary)
    members = [json.loads(line)["members"] for line in blocks(path)["details"].splitlines()]
    assert members == [len(index.group(row)) for row in wanted[: len(held)]]
    assert write_page(index, path, limit_bytes=1).rows == 1
    assert write_page(index, path, query="reward>5").rows == 0


def test_a_page_is_replaced_as_a_whole_and_nothing_else_is(tmp_path, monkeypatch):
    path = tmp_path / "run.html"
    write_page(RunIndex(DEMO), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_page(RunIndex(DEMO), path)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, ["run.html"])
    run = write_run(tmp_path / "run", LINES[0])
    with pytest.raises(ConfigError, match=r"a page's name ends in \.html, got '.*1\.jsonl'"):
        write_page(RunIndex(run), run / "1.jsonl")


@pytest.mark.parametrize("query", ["rewrd<1", "/(/"])
def test_a_query_that_makes_no_sense_writes_nothing(tmp_path, query):
    with pytest.raises(ConfigError):
        write_page(RunIndex(DEMO), tmp_path / "run.html", query=query)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_read_is_in_the_page_with_the_reason(tmp_path):
    folder = odd_run(tmp_path)
    bad = changed(2, id="bad", sequences="none")
    write_run(tmp_path, bad, name="2.jsonl")
    infinite = json.dumps(changed(3, id="infinite")).replace('"score": 1.0', '"score": 1e999')
    write_run(tmp_path, infinite, name="3.jsonl")
    write_page(RunIndex(folder), folder / "run.html")
    held = [json.loads(line) for line in blocks(folder / "run.html")["details"].splitlines()]
    problems = [detail["problem"] for detail in held if detail["problem"]]
    assert sum("byte" in problem for problem in problems) == 5  # each says its place
    assert any("not a trajectory of toolgym" in problem for problem in problems)


class Drawn:
    """An env's class, as far as a page looks at it."""

    drawing: object = "<b>drawn</b>"

    @staticmethod
    def render_html(trajectory):
        if isinstance(Drawn.drawing, Exception):
            raise Drawn.drawing
        return Drawn.drawing


@pytest.mark.parametrize(
    ("drawing", "shown", "problem"),
    [
        ("<b>drawn</b>", "<b>drawn</b>", ""),
        (ValueError("no board"), None, "the env's render_html failed: ValueError: no board"),
        (b"bytes", None, "expected HTML as a str, got bytes"),
    ],
)
def test_an_env_may_draw_and_its_errors_are_shown(tmp_path, registry, monkeypatch, drawing, shown, problem):
    registry.register(ENV, Drawn)
    monkeypatch.setattr(Drawn, "drawing", drawing)
    payload._drawing.cache_clear()
    index = RunIndex(write_run(tmp_path, changed(1, env_id=ENV), changed(2))).read_all()
    drawn, other = details(index, index.rows, {0, 1}).values()
    assert (drawn.drawing, other.drawing) == (shown, None)
    assert problem in drawn.problem
    payload._drawing.cache_clear()


def test_the_report_is_in_the_page_or_what_to_install_for_it(tmp_path, monkeypatch):
    write_page(RunIndex(DEMO), tmp_path / "run.html")
    assert "<svg" in json.loads(blocks(tmp_path / "run.html")["report"])["html"]
    for name in ("toolgym.report.page", "toolgym.report.plots"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_page(RunIndex(DEMO), tmp_path / "run.html")
    assert "[report]'" in json.loads(blocks(tmp_path / "run.html")["report"])["problem"]


def test_no_module_that_a_run_names_is_imported(tmp_path):
    index = RunIndex(write_run(tmp_path, changed(1, env_id="antigravity:Env-v0"))).read_all()
    assert details(index, index.rows, {0})[0].drawing is None
    assert "antigravity" not in sys.modules
