"""`toolgym export`: what it selects, refuses and replaces, and that half a file is never left."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.front.exports.conftest import DEMO
from toolgym.exports import parquet, sft, verl
from toolgym.exports.command import FILES, FOLDERS


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none", "--to", "atif", "--out", "x"], "no trajectories at 'none'"),
        ([DEMO, "--to", "inspect", "--out", "x.json"], "a file of inspect ends in .eval, got 'x.json'"),
        ([DEMO, "--to", "sft", "--out", "x.parquet"], "ends in .jsonl"),
        ([DEMO, "--to", "atif", "--out", "x", "--ids"], "--ids is for --to sft, got --to atif"),
        ([DEMO, "--to", "verl", "--out", "x", "--min-reward", "0"], "--min-reward is for --to sft"),
        ([DEMO, "--to", "verl", "--out", "x", "--tokenizer", "y"], "--tokenizer is for --to inspect"),
        ([DEMO, "--to", "atif", "--out", "x", "--filter", "rewart>1"], "did you mean 'reward'"),
        ([DEMO, "--to", "atif", "--out", "x", "--filter", "reward>7"], "none of 45 is selected by 'reward>7'"),
        ([DEMO, "--to", "sft", "--out", "x.jsonl", "--min-reward", "7"], "there is no trajectory to write: "),
        ([DEMO, "--to", "nothing", "--out", "x"], "nothing"),
        ([DEMO, "--to", "atif"], "--out"),
    ],
)
def test_mistakes_are_a_line_and_write_nothing(export, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = export(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert names(tmp_path) == []


@pytest.mark.parametrize("to", [*FILES, *FOLDERS])
def test_an_earlier_export_is_replaced_only_when_asked(export, tmp_path, to):
    if to == "inspect":
        pytest.importorskip("inspect_ai", reason="needs the extra inspect")
    out = tmp_path / f"x{FILES.get(to, '')}"
    assert export(DEMO, "--to", to, "--out", out)[0] == 0
    code, _, err = export(DEMO, "--to", to, "--out", out, "--limit", "1")
    assert (code, "is there: name another place with --out, or replace it with --overwrite" in err) == (2, True)
    size = sum(path.stat().st_size for path in (out.iterdir() if out.is_dir() else [out]))
    assert export(DEMO, "--to", to, "--out", out, "--limit", "1", "--filter", "success", "--overwrite")[0] == 0
    assert sum(path.stat().st_size for path in (out.iterdir() if out.is_dir() else [out])) < size
    assert names(tmp_path) == [out.name]


def test_a_folder_with_other_files_is_never_replaced(export, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.tex").write_text("years of work")
    for to, out in (("atif", "x"), ("sft", "x.jsonl")):
        if out == "x.jsonl":
            (tmp_path / out).mkdir()
        code, _, err = export(DEMO, "--to", to, "--out", tmp_path / out, "--overwrite")
        assert (code, "is no earlier export of this format: name another place" in err) == (2, True)
    assert (tmp_path / "x" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("out", ["run", "run/0.jsonl", "."])
def test_the_run_itself_is_never_replaced(export, tmp_path, monkeypatch, out):
    """A run's own files are called as those that verl's format replaces."""
    shutil.copytree(DEMO, tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    monkeypatch.chdir(tmp_path)
    code, _, err = export("run", "--to", "sft" if out.endswith("l") else "verl", "--out", out, "--overwrite")
    assert (code, "is the run itself, or holds it: name another place" in err) == (2, True)
    assert names(tmp_path / "run") == ["0.jsonl", "1.jsonl"]


def test_no_export_becomes_part_of_the_run(export, tmp_path):
    shutil.copytree(DEMO, tmp_path / "run")
    code, _, err = export(tmp_path / "run", "--to", "mooncake", "--out", tmp_path / "run" / "trace.jsonl")
    assert (code, "would be read as part of the run: name a file outside" in err) == (2, True)
    assert not (tmp_path / "run" / "trace.jsonl").exists()


@pytest.mark.parametrize(("to", "module"), [("verl", verl), ("sft", sft), ("parquet", parquet)])
def test_an_error_in_between_leaves_what_was_there(export, tmp_path, monkeypatch, to, module):
    out = tmp_path / f"x{FILES.get(to, '')}"
    assert export(DEMO, "--to", to, "--out", out)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(trajectory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "succeeded", full)
    code, _, err = export(DEMO, "--to", to, "--out", out, "--overwrite")
    assert (code, "No space left on device" in err) == (1, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_filter_order_and_limit_select(export, demo, tmp_path):
    arguments = ["--filter", "step=1 !failed sort:-reward", "--limit", "5"]
    assert export(DEMO, "--to", "verl", "--out", tmp_path / "v", *arguments)[0] == 0
    assert names(tmp_path / "v") == ["1.jsonl"]
    rewards = [json.loads(line)["score"] for line in (tmp_path / "v" / "1.jsonl").read_text().splitlines()]
    best = sorted((t.reward for t in demo if t.training_step == 1 and not t.failed), reverse=True)
    assert rewards == best[:5]


def test_lines_that_cannot_be_read_are_counted(export, tmp_path):
    path = tmp_path / "trajectories.jsonl"
    first, second, *_ = (DEMO / "0.jsonl").read_bytes().splitlines(keepends=True)
    broken = second.replace(b'"logprobs": [', b'"logprobs": [0.5, ')  # a line that only reading it whole finds out
    path.write_bytes(first + b"{}\n" + broken + second[:-40])
    code, out, _ = export(path, "--to", "atif", "--out", tmp_path / "a", "--json")
    tally = json.loads(out)
    assert (code, tally["written"], tally["left_out"]) == (0, 1, {"unreadable": 2})


def test_the_account_as_json_and_as_lines(export, tmp_path):
    code, out, err = export(DEMO, "--to", "sft", "--out", tmp_path / "x.jsonl", "--json")
    tally = json.loads(out)
    assert (code, err, tally["format"], tally["out"]) == (0, "", "sft", str(tmp_path / "x.jsonl"))
    assert tally["written"] + sum(tally["left_out"].values()) == 45
    code, out, _ = export(DEMO, "--to", "sft", "--out", tmp_path / "x.jsonl", "--overwrite", "--ids")
    assert out.splitlines()[0] == f"{tmp_path / 'x.jsonl'}: {tally['written']} rows of 45 trajectories, as sft"
    assert out.splitlines()[2] == "sft cannot hold: nothing"


@pytest.mark.parametrize(
    ("hidden", "to", "extra"),
    [("msgspec", "atif", "export"), ("atif", "atif", "export"), ("pyarrow", "parquet", "export"),
     ("inspect_ai", "inspect", "inspect")],
)  # fmt: skip
def test_a_missing_extra_is_a_line_that_names_it(hidden, to, extra, tmp_path):
    from tests.house.test_extras import run

    out = tmp_path / f"x{FILES.get(to, '')}"
    arguments = ["toolgym", "export", str(DEMO), "--to", to, "--out", str(out)]
    done = run([hidden], f"sys.argv = {arguments!r}\nfrom toolgym.__main__ import main\nmain()")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"needs '{hidden}', which is not installed" in done.stderr
    assert f"[{extra}]'" in done.stderr
    assert names(tmp_path) == []
