"""`apply_patch`, beside Git and on what models get wrong."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess

import pytest

from tests.hostile.growth import first_superlinear
from toolgym.envs.families.swe.patch import PatchError, apply_patch, patched_names
from toolgym.envs.families.swe.tree import Node, changed


def patched(files, diff):
    tree = {name: Node(data.encode()) for name, data in files.items()}
    return {name: node.data.decode() for name, node in changed(tree, apply_patch(tree.get, diff)).items()}


ABC = {"a.txt": "a\nb\nc\nd\ne\n"}


def test_a_line_is_replaced():
    diff = "--- a/a.txt\n+++ b/a.txt\n@@ -2,2 +2,2 @@\n b\n-c\n+C\n"
    assert patched(ABC, diff) == {"a.txt": "a\nb\nC\nd\ne\n"}
    assert patched_names(diff) == {"a.txt"}


@pytest.mark.parametrize("header", ["@@ -40,2 +40,2 @@", "@@ -3,9 +3,1 @@", "@@ -1 +1 @@ def f():"])
def test_wrong_numbers_in_a_header_do_not_matter(header):
    assert patched(ABC, f"--- a/a.txt\n+++ b/a.txt\n{header}\n c\n-d\n+D\n") == {"a.txt": "a\nb\nc\nD\ne\n"}


def test_names_may_be_plain_and_text_may_stand_around():
    diff = "Here it is:\n--- a.txt\t2024-01-01\n+++ a.txt\t2024-01-02\n@@ -1 +1 @@\n-a\n+A\n\nThat is all.\n"
    assert patched(ABC, diff) == {"a.txt": "A\nb\nc\nd\ne\n"}


def test_an_empty_line_of_context_may_have_lost_its_space():
    assert patched({"a": "x\n\ny\n"}, "--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n x\n\n-y\n+z\n") == {"a": "x\n\nz\n"}


def test_files_are_made_deleted_and_renamed():
    diff = """\
diff --git a/new.txt b/new.txt
new file mode 100755
--- /dev/null
+++ b/new.txt
@@ -0,0 +1,2 @@
+one
+two
\\ No newline at end of file
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/old.txt b/moved/it.txt
similarity index 100%
rename from old.txt
rename to moved/it.txt
"""
    tree = {"gone.txt": Node(b"x\n"), "old.txt": Node(b"o\n")}
    after = changed(tree, apply_patch(tree.get, diff))
    assert after == {"new.txt": Node(b"one\ntwo", 0o755), "moved/it.txt": Node(b"o\n")}


@pytest.mark.parametrize(
    ("diff", "problem"),
    [
        ("no diff", "no unified diff"),
        ("@@ -1 +1 @@\n-a\n+b\n", "before any"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-z\n+b\n", "hunk 1 of 1 does not apply"),
        ("--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-a\n+b\n", "no such file"),
        ("--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+b\n", "exists already"),
        ("--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+b\n", "stay inside"),
        ("--- /dev/null\n+++ /etc/passwd\n@@ -0,0 +1 @@\n+b\n", "stay inside"),
        ("--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+b\n", "Git's own"),
        ("diff --git a/x b/x\nindex 1..2\nGIT binary patch\n", "binary"),
    ],
)
def test_what_does_not_apply_says_why(diff, problem):
    with pytest.raises(PatchError, match=problem):
        patched(ABC, diff)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_diffs_of_git_give_what_git_compared(tmp_path):
    rng = random.Random(7)
    for at in range(25):
        before, after = tmp_path / f"{at}" / "a", tmp_path / f"{at}" / "b"
        trees = []
        for folder in (before, after):
            folder.mkdir(parents=True)
        for name in ("one.txt", "two words.txt", "drei\u00e9.txt"):
            lines = [f"{rng.randrange(6)}{rng.choice(['', chr(13)])}" for _ in range(rng.randrange(30))]
            other = [line for line in lines if rng.random() > 0.1]
            for _ in range(rng.randrange(4)):
                other.insert(rng.randrange(len(other) + 1), f"new {rng.randrange(9)}")
            for folder, text in ((before, lines), (after, other)):
                if rng.random() < 0.85:
                    (folder / name).write_bytes(("\n".join(text) + rng.choice(["", "\n"])).encode())
        trees = [{one.name: Node(one.read_bytes()) for one in folder.iterdir()} for folder in (before, after)]
        command = ["git", "diff", "--no-index", "--no-renames", "-a", "a", "b"]
        run = subprocess.run(command, cwd=before.parent, capture_output=True, timeout=30, check=False)
        if run.stdout:
            assert changed(trees[0], apply_patch(trees[0].get, _relative(run.stdout))) == trees[1]


def _relative(diff: bytes) -> bytes:
    """Git names the two folders; a repository's diff names files alone."""
    return diff.replace(b"a/a/", b"a/").replace(b"b/b/", b"b/").replace(b"a/b/", b"a/").replace(b"b/a/", b"b/")


FILE, HEADER = {"a.txt": "1\n2\n"}, "--- a/a.txt\n+++ b/a.txt\n"


def test_a_line_number_far_beyond_the_file_ends_at_once():
    assert patched(FILE, f"{HEADER}@@ -999999999 +999999999 @@\n-2\n+3\n") == {"a.txt": "1\n3\n"}
    with pytest.raises(PatchError, match="does not apply"):
        patched(FILE, f"{HEADER}@@ -999999999 +999999999 @@\n-4\n+3\n")


@pytest.mark.parametrize("number", ["9" * 10, "9" * 5000])
def test_a_line_number_with_too_many_digits_is_the_models_mistake(number):
    with pytest.raises(PatchError):
        patched(FILE, f"{HEADER}@@ -{number} +1 @@\n-4\n+3\n")


def test_hunks_that_take_too_long_to_find_are_refused():
    hunk = "@@ -1 +1 @@\n" + " same\n" * 2_000 + "-other\n"
    with pytest.raises(PatchError, match="too long to find"):
        patched({"a.txt": "same\n" * 20_000}, HEADER + hunk)


@pytest.mark.parametrize(
    ("begin", "piece", "end"),
    [
        ("diff --git a/", "b/ ", "\n"),
        ("diff --git a/a b/", '"', "\n"),
        ("", "--- a/a\n+++ b/a\n", ""),
        ("", "@@ -1 +1 @@\n", ""),
        ("--- a/a\n+++ b/a\n", "@@ -1 +1 @@\n", ""),
        ("--- a/a\n+++ b/a\n@@ -1 +1 @@\n", "-a\n", ""),
        ('--- "a/', "\\", '"\n+++ b/a\n'),
    ],
)
def test_a_diff_is_read_in_linear_time(begin, piece, end):
    def read(text):
        with contextlib.suppress(PatchError):
            patched_names(text)

    assert first_superlinear(read, lambda length: begin + piece * (length // len(piece)) + end, 1 << 15, 1 << 17) == ""
