"""Sessions whose root is an image: what they see and change, what layers may not do, and how copies are shared."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from abuse.surroundings import why_not

from tests.tools.sandbox import image_maker
from tests.tools.sandbox.image_maker import docker_save, layer, oci_files, oci_folder, shell_layer, special
from toolgym.tools.errors import SandboxUnavailableError, SandboxUnsupportedError
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.images import cache, unpack
from toolgym.tools.sandbox.local.images.archive import ImageError
from toolgym.tools.sandbox.options import OptionError

pytestmark = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs the level namespaces")

SECOND = layer(
    [
        ("usr/share/.wh.gone", b""),
        ("usr/share/old", b"new\n", 0o4755),
        ("opt/kept/mine", b"mine\n"),
        special("opt/again", tarfile.LNKTYPE, "opt/kept/mine"),
        special("dev/mem", tarfile.CHRTYPE),
    ]
)
TEXT = layer([("etc/marker", b"text\n")])


def with_headers(headers: dict[str, str]) -> tarfile.TarInfo:
    entry = tarfile.TarInfo("file")
    entry.pax_headers = headers
    return entry


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "images"))
    return tmp_path


@pytest.fixture(scope="module")
def shell():
    return shell_layer()


async def look(image: Path | str, command: str) -> str:
    async with (
        LocalSandbox(preload=(), templates=1, warm=0) as sandbox,
        await sandbox.session(image=str(image)) as session,
    ):
        done = await session.exec(command, timeout=20)
        return done.stdout + done.stderr


def unpacked(image: Path | str) -> Path:
    images = cache.Images()
    try:
        return Path(images.open(str(image)).root)
    finally:
        images.close()


async def test_programs_files_and_cells_are_in_the_image(folder, shell):
    image = docker_save(folder / "image.tar", [shell, SECOND])
    async with (
        LocalSandbox(preload=(), templates=1) as sandbox,
        await sandbox.session(image=str(image), files={"given": b"7"}, folders=("/app",)) as session,
    ):
        done = await session.exec("cat /etc/marker; echo $GREETING; pwd; ls; ls -d /app; cat /opt/again", timeout=20)
        assert done.stdout == "from the image\nhello\n/project\ngiven\n/app\nmine\n"
        assert await session.read_file("/usr/share/old") == b"new\n"
        assert not await session.exists("/usr/share/gone")
        cell = await session.run_cell("import xml.dom\nopen('/etc/marker').read(), xml.dom.__file__[:10]")
        assert cell.result == "('from the image\\n', '/.toolgym/')"


async def test_writes_stay_in_their_session(folder, shell):
    image = docker_save(folder / "image.tar", [shell])
    change = "echo more >> /etc/marker; rm -r /usr/share/gone; echo new > /usr/bin/new; cat /etc/marker /usr/bin/new"
    async with LocalSandbox(preload=(), templates=1) as sandbox:
        session, other = [await sandbox.session(image=str(image)) for _ in range(2)]
        async with session, other:
            assert (await session.exec(change, timeout=20)).stdout == "from the image\nmore\nnew\n"
            seen = await other.exec("cat /etc/marker /usr/share/gone/below /usr/bin/new", timeout=20)
            assert seen.stdout == "from the image\nbelow\n"
            assert seen.return_code == 1
    root = unpacked(image)
    assert (root / "etc/marker").read_text() == "from the image\n"
    assert not (root / "usr/bin/new").exists()


CHANGES = """
echo more >> /etc/marker; rm -r /usr/share/gone; mkdir -p /opt/a/b; echo x > /opt/a/b/x; ln -s /etc/marker /opt/link
chmod 700 /opt/a; rm /usr/share/old; mkdir /usr/share/old; echo y > /usr/share/old/y; echo t > /tmp/t
"""
LOOK = "cat /etc/marker /opt/link /opt/a/b/x /usr/share/old/y /tmp/t; ls -d /usr/share/gone; ls /usr/share/old"


async def test_forks_and_checkpoints_have_their_own_changes_to_the_image(folder, shell):
    image = docker_save(folder / "image.tar", [shell])
    async with LocalSandbox(preload=(), templates=1) as sandbox, await sandbox.session(image=str(image)) as session:
        await session.exec(CHANGES, timeout=20)
        await session.run_cell("h = open('/etc/marker', 'a+'); x = 1")
        await session.checkpoint("here")
        before = (await session.exec(LOOK, timeout=20)).stdout
        assert before.startswith("from the image\nmore\nfrom the image\nmore\nx\ny\nt\ny\n")
        await session.exec("echo later >> /etc/marker; rm -r /opt/a /tmp/t; echo back > /usr/share/gone", timeout=20)
        first, second = await session.fork("here", n=2)
        async with first, second:
            deeper = await first.fork()
            for branch in (first, second, deeper):
                assert (await branch.exec(LOOK, timeout=20)).stdout == before
            for one in (session, first):
                for memory in ("/proc/self/mem", "/.toolgym/proc/self/mem"):
                    error = (await one.run_cell(f"open({memory!r}, 'r+b')")).error
                    assert error is not None, "it holds what keeps forks apart"
            await first.run_cell("h.write('mine\\n'); h.flush()")
            await deeper.run_cell("import os; os.remove('/opt/a/b/x')")
            again = await deeper.fork()
            await deeper.close()
            marker = "open('/etc/marker').read().split()[-1], os.path.exists('/opt/a/b/x'), x"
            shown = [(await one.run_cell(f"import os; {marker}")).result for one in (session, first, second, again)]
            assert shown == [
                repr(row) for row in (("later", False, 1), ("mine", True, 1), ("more", True, 1), ("more", False, 1))
            ]
            hidden = await again.exec("ls -A /.toolgym/image/below /.toolgym/image/upper", timeout=20)
            assert hidden.stdout.split() == ["/.toolgym/image/below:", "/.toolgym/image/upper:"]
            await again.close()


async def test_nothing_of_the_host_is_reached(folder, shell):
    (folder / "secret").write_text("secret")
    image = docker_save(folder / "image.tar", [shell, layer([special("etc/out", tarfile.SYMTYPE, f"{folder}/secret")])])
    commands = (
        f"cat /etc/out; cat /proc/1/root{folder}/secret; cat /../../..{folder}/secret; cat /.toolgym{folder}/secret"
    )
    async with LocalSandbox(preload=(), templates=1) as sandbox, await sandbox.session(image=str(image)) as session:
        done = await session.exec(f"{commands}; ls /.toolgym/image/below; echo x > /.toolgym/usr/x", timeout=20)
        assert done.stdout == ""
        assert done.return_code != 0
        mounts = await session.exec("cat /proc/self/mountinfo /proc/1/mountinfo", timeout=20)
        assert "/image/root" in mounts.stdout
        assert str(folder) not in mounts.stdout  # where the one copy lies
        await session.run_cell(
            "import os\nos.mkdir('x')\nos.chroot('x')\nfor _ in range(50): os.chdir('..')\nos.chroot('.')"
        )
        assert (await session.run_cell(f"os.path.exists('{folder}/secret')")).result == "False"
        held = await session.run_cell("sorted(os.listdir('/image')), os.listdir('/image/below')")
        assert held.result == "(['below', 'root', 'upper'], [])"  # out of its root


STORY = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[2])
from abuse.surroundings import enter
from toolgym.tools.sandbox import LocalSandbox
if os.geteuid() == 0:
    enter("user")
os.environ["TOOLGYM_IMAGES"] = f"/tmp/toolgym-images-{os.geteuid()}-{os.getpid()}"

async def main():
    async with LocalSandbox(preload=(), templates=1) as sandbox:
        async with await sandbox.session(image=sys.argv[1]) as session:
            done = await session.exec("cat /etc/marker; echo x > /usr/bin/new && cat /usr/bin/new; id -u", timeout=20)
            print(done.stdout, done.stderr, os.geteuid())

asyncio.run(main())
import shutil
shutil.rmtree(os.environ["TOOLGYM_IMAGES"])
"""


@pytest.mark.skipif(bool(why_not("user")), reason=why_not("user") or "-")
def test_an_ordinary_user_has_images_too(shell):
    image = docker_save(Path(f"/var/tmp/toolgym-image-{os.getpid()}.tar"), [shell])
    try:
        command = [sys.executable, "-c", STORY, str(image), str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    finally:
        image.unlink()
    words = done.stdout.split()
    assert words[:-1] == ["from", "the", "image", "x", "1000"], done
    assert words[-1] != "0"


# ------------------------------------------------------------------ forms


def compressions():
    yield "none", bytes
    yield "gzip", __import__("gzip").compress
    try:
        import zstandard
    except ImportError:
        return
    yield "zstd", zstandard.ZstdCompressor().compress


@pytest.mark.parametrize("compress", [pytest.param(call, id=name) for name, call in compressions()])
@pytest.mark.parametrize("archived", [False, True])
def test_an_oci_layout(folder, compress, archived):
    files = oci_files([TEXT, SECOND], compress)
    place = folder / "oci"
    if archived:
        place.write_bytes(layer([*files.items()]))
    else:
        oci_folder(place, files)
    assert (unpacked(f"{place}#t:1") / "etc/marker").read_text() == "text\n"
    with pytest.raises(ImageError, match=r"called 'other'.*t:1"):
        unpacked(f"{place}#other")


def test_layers_are_merged_as_their_whiteouts_say(folder):
    below = layer(
        [("a/one", b"1"), ("a/b/two", b"2"), ("c", b"3"), ("d/e", b"4"), special("link", tarfile.SYMTYPE, "/d")]
    )
    above = layer([("a/three", b"3"), ("a/.wh..wh..opq", b""), (".wh.c", b""), ("link/new", b"5"), ("d/e/f", b"6")])
    with pytest.raises(ImageError):  # /d/e is a file there
        unpacked(docker_save(folder / "bad.tar", [below, above]))
    above = layer([("a/three", b"3"), ("a/.wh..wh..opq", b""), (".wh.c", b""), ("link/new", b"5")])
    root = unpacked(docker_save(folder / "image.tar", [below, above]))
    assert sorted(os.listdir(root / "a")) == ["three"]
    assert not (root / "c").exists()
    assert sorted(os.listdir(root / "d")) == ["e", "new"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (("../out", b"x"), "leads outside"),
        (("a/../../out", b"x"), "leads outside"),
        (special("hard", tarfile.LNKTYPE, "../../etc/passwd"), "leads outside"),
        (special("hard", tarfile.LNKTYPE, "/etc/shadow"), "cannot be used"),
        ((".wh...", b""), "names no file"),
        (("d/" * 300 + "f", b""), "too deep"),
        (("n" * 256, b""), "name too long"),
        (special("loop/x", tarfile.LNKTYPE, "loop"), "cannot be used"),
        (with_headers({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), "sparse file"),
        (with_headers({"GNU.sparse.map": "0,1", "GNU.sparse.size": f"{1 << 40}"}), "sparse file"),
        (with_headers({"SCHILY.xattr.user.x": "x" * (1 << 20)}), "header of"),
    ],
)
def test_a_layer_that_leads_outside_or_wants_too_much_is_refused(folder, entry, said):
    with pytest.raises(ImageError, match=said):
        unpacked(docker_save(folder / "image.tar", [layer([entry])]))
    assert not [*(folder / "images").glob("*/")]


def test_bombs_are_refused_with_little_memory(folder, monkeypatch):
    monkeypatch.setenv(cache.SIZE_VARIABLE, "0.001")
    with pytest.raises(ImageError, match="more than the 1 MiB"):  # beyond the end of the archive in the layer
        unpacked(oci_folder(folder / "oci", oci_files([TEXT + bytes(50 << 20)])))
    monkeypatch.delenv(cache.SIZE_VARIABLE)
    names = docker_save(folder / "image.tar", [layer([(f"d{n}/f", b"") for n in range(20)])])
    monkeypatch.setattr(unpack, "MOST_ENTRIES", 10)
    with pytest.raises(ImageError, match="more than 10 entries"):
        unpacked(names)
    monkeypatch.setattr(unpack, "MOST_ENTRIES", 20)
    monkeypatch.setattr(unpack, "MOST_NAMES", 39 * 260)  # folders that no entry names count too
    with pytest.raises(ImageError, match="too many files"):
        unpacked(names)
    monkeypatch.setattr(unpack, "MOST_NAMES", 40 * 300)
    assert len([*unpacked(names).glob("d*/f")]) == 20
    assert not [*(folder / "images").glob("*.part")]


def test_a_hard_link_to_a_link_and_names_that_are_no_text(folder):
    entries = [
        special("s", tarfile.SYMTYPE, "/etc/shadow"),
        special("again", tarfile.LNKTYPE, "s"),
        ("d\udce9/f", b"x"),
    ]
    root = unpacked(docker_save(folder / "image.tar", [layer(entries)]))
    assert os.readlink(root / "again") == "/etc/shadow"
    assert (root / "d\udce9/f").read_bytes() == b"x"


def test_links_end_inside_and_special_files_are_left_out(folder):
    (folder / "host").mkdir()
    entries = [
        special("out", tarfile.SYMTYPE, str(folder / "host")),
        ("out/file", b"x"),
        special("up", tarfile.SYMTYPE, "../../../.."),
        ("up/inner", b"x"),
        ("/absolute", b"x", 0o6755),
        special("disk", tarfile.BLKTYPE),
        special("pipe", tarfile.FIFOTYPE),
        special("dev", tarfile.SYMTYPE, "/host-dev"),
    ]
    root = unpacked(docker_save(folder / "image.tar", [layer(entries)]))
    assert os.listdir(folder / "host") == []
    assert {*os.listdir(root)} == {"out", "up", "inner", "absolute", "dev", "proc", "tmp", ".toolgym"}
    assert (root / "absolute").stat().st_mode & 0o7777 == 0o755
    assert not (root / "dev").is_symlink()


# ------------------------------------------------------------------ what is wrong


def test_a_damaged_archive_is_named_and_leaves_nothing(folder):
    whole = docker_save(folder / "image.tar", [TEXT, SECOND]).read_bytes()
    other = layer([("etc/marker", b"evil\n")])
    assert len(other) == len(TEXT)
    assert whole.count(TEXT) == 1
    cases = {
        "changed": (whole.replace(TEXT, other), "other content than its digest"),
        "cut": (whole[: len(whole) // 2], "cannot be used"),
        "text": (b"hello" * 300, "cannot be used"),
        "empty": (layer([]), "neither index.json"),
    }
    for name, (data, said) in cases.items():
        (folder / name).write_bytes(data)
        with pytest.raises(ImageError, match=said):
            unpacked(folder / name)
    with pytest.raises(ImageError, match="is not there"):
        unpacked(folder / "absent")
    files = oci_files([TEXT])
    (digest,) = [name for name, data in files.items() if b'"layers"' in data]
    with pytest.raises(ImageError, match="than its digest says"):
        unpacked(oci_folder(folder / "oci", {**files, digest: files[digest] + b" "}))
    assert not [*(folder / "images").glob("*/")]


def test_an_image_for_another_machine_is_refused(folder, monkeypatch):
    monkeypatch.setattr(image_maker, "ARCHITECTURE", "s390x")
    with pytest.raises(ImageError, match="for linux on s390x"):
        unpacked(docker_save(folder / "image.tar", [TEXT]))


async def test_other_levels_and_values_are_refused(folder):
    async with LocalSandbox(level="landlock", preload=(), templates=1) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="needs the level 'namespaces', and this is 'landlock'"):
            await sandbox.session(image="x.tar")
    with pytest.raises(OptionError, match="FILE or FILE#NAME"):
        await LocalSandbox(preload=()).session(image="")


# ------------------------------------------------------------------ the cache


def test_a_full_disk_leaves_no_half_image(folder, monkeypatch):
    image = docker_save(folder / "image.tar", [TEXT, layer([("big", bytes(3 << 20))])])
    monkeypatch.setenv(cache.SIZE_VARIABLE, "0.001")
    with pytest.raises(ImageError, match="more than the 1 MiB"):
        unpacked(image)
    monkeypatch.delenv(cache.SIZE_VARIABLE)
    mounted = folder / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mounted], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        monkeypatch.setenv(cache.FOLDER_VARIABLE, str(mounted / "images"))
        with pytest.raises(SandboxUnavailableError, match="No space left"):
            unpacked(image)
        assert not [*(mounted / "images").glob("*/")]
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_images_that_nobody_uses_make_room(folder, monkeypatch):
    monkeypatch.setenv(cache.SIZE_VARIABLE, "0.003")
    big = [docker_save(folder / f"{n}.tar", [layer([(f"{n}", bytes(2 << 20))])], tag=f"{n}") for n in range(3)]
    images = cache.Images()
    held = Path(images.open(str(big[0])).root)
    idle = unpacked(big[1])
    assert idle.exists()
    assert held.exists()
    unpacked(big[2])
    assert held.exists()
    assert not idle.exists()
    images.close()


async def test_many_open_at_once_and_unpack_once(folder, shell, monkeypatch):
    image = docker_save(folder / "image.tar", [shell])
    unpackings: list[Path] = []
    make = cache._make
    monkeypatch.setattr(cache, "_make", lambda *rest: (unpackings.append(rest[2]), make(*rest)))
    async with LocalSandbox(preload=(), templates=1) as first, LocalSandbox(preload=(), templates=1) as second:
        opening = [sandbox.session(image=str(image)) for sandbox in (first, second) for _ in range(16)]
        sessions = await asyncio.gather(*opening)
        done = await asyncio.gather(*(session.exec("cat /etc/marker", timeout=30) for session in sessions))
        assert [run.stdout for run in done] == ["from the image\n"] * 32
        await asyncio.gather(*(session.close() for session in sessions))
    assert len(unpackings) == 1
    assert len([*(folder / "images").glob("*/")]) == 1
