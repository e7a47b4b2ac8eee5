"""A file of trajectories that runs are killed over, that two runs want at once, on a disk that is full."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.rollout.trajectories import played
from toolgym.rollout import read_trajectories
from toolgym.rollout.trajectory import TrajectoryWriter, locked_file
from toolgym.rollout.trajectory import file as trajectory_file
from toolgym.tools.errors import ConfigError

HOLDER = """
import sys, time
from toolgym.rollout.trajectory import TrajectoryWriter
writer = TrajectoryWriter(sys.argv[1], append=True)
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def three():
    return [replace(played([[(3, 1.0), (2, 0.5)]]), sample_index=number) for number in range(3)]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(locked_file, "PATIENCE", 0.0)


def write(path, trajectories, **kwargs):
    with TrajectoryWriter(path, **kwargs) as writer:
        for one in trajectories:
            writer.write(one)


def test_append_goes_on_behind_what_is_there(tmp_path, three):
    path = tmp_path / "deep" / "t.jsonl"
    write(path, three[:1], append=True)
    write(path, three[1:], append=True)
    assert list(read_trajectories(path)) == three
    write(path, three[:1])
    assert list(read_trajectories(path)) == three[:1]


@pytest.mark.parametrize("block", [7, 1 << 20])
@pytest.mark.parametrize("kept", [1, 40, -2])
def test_a_line_that_was_cut_off_is_cut_away(tmp_path, three, caplog, monkeypatch, kept, block):
    monkeypatch.setattr(trajectory_file, "BLOCK", block)
    path = tmp_path / "t.jsonl"
    write(path, three[:2])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:kept])
    write(path, three[2:], append=True)
    assert list(read_trajectories(path)) == [three[0], three[2]]
    assert "cut off" in caplog.text


@pytest.mark.parametrize("torn", [b"", b"{", b"\n"])
def test_a_file_of_one_torn_line_or_none(tmp_path, three, torn):
    path = tmp_path / "t.jsonl"
    path.write_bytes(torn)
    write(path, three[:1], append=True)
    assert json.loads(path.read_bytes().strip())["sample_index"] == 0


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path, three):
    path = tmp_path / "t.jsonl"
    write(path, three[:1])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    write(path, three[1:], append=True)
    assert list(read_trajectories(path)) == three


@pytest.mark.parametrize("append", [False, True])
def test_a_second_writer_is_refused_and_changes_nothing(tmp_path, three, impatient, append):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        writer.write(three[0])
        with pytest.raises(ConfigError, match="is being written by another run"):
            TrajectoryWriter(path, append=append)
        writer.write(three[1])
    assert list(read_trajectories(path)) == three[:2]
    TrajectoryWriter(path, append=append).close()


def test_a_killed_process_leaves_no_lock_behind(tmp_path, three, impatient):
    path = tmp_path / "t.jsonl"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"locked\n"
            with pytest.raises(ConfigError, match="another run"):
                TrajectoryWriter(path)
        finally:
            process.kill()
    write(path, three, append=True)
    assert list(read_trajectories(path)) == three


def test_what_is_no_file_can_be_written_by_many(three):
    with TrajectoryWriter("/dev/null") as one, TrajectoryWriter("/dev/null") as other:
        one.write(three[0])
        other.write(three[1])


def test_a_full_disk_keeps_whole_lines_and_goes_on_where_there_is_room_again(tmp_path, three):
    """A limit on the size of files stands for the disk: it lets a part of a line through, as a disk does."""
    path = tmp_path / "t.jsonl"
    write(path, three[:1])
    size = path.stat().st_size
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = TrajectoryWriter(path, append=True)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
        with pytest.raises(ConfigError, match="cannot append"):
            writer.write(three[1])
        assert path.stat().st_size == size + 50
        assert list(read_trajectories(path)) == three[:1]
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        writer.write(three[2])
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(read_trajectories(path)) == three


def test_a_folder_that_may_not_be_written_is_told(tmp_path):
    if os.geteuid() == 0:
        os.chmod(tmp_path, 0o555)
        os.seteuid(65534)  # root may write anywhere
    try:
        with pytest.raises(ConfigError, match=r"cannot write trajectories to .*Permission denied"):
            TrajectoryWriter(tmp_path / "t.jsonl")
    finally:
        os.seteuid(os.getuid())
