"""Archives and layouts the way that docker 20 and 27, buildx, skopeo, buildah and umoci write them."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tools.sandbox.image_maker import Entry, docker_save, layer, oci_files, oci_folder, special
from toolgym.tools.sandbox.local.images import cache
from toolgym.tools.sandbox.local.images.archive import ImageError

LAYERS = (
    layer([("d/gone/x", b"1"), ("opq/old", b"1"), ("marker", b"one"), special("hard", tarfile.LNKTYPE, "marker")]),
    layer([("d/.wh.gone", b""), ("opq/.wh..wh..opq", b""), ("opq/new", b"1"), ("marker", b"two")]),
    layer([("d/.wh.gone", b""), ("opq/.wh..wh..opq", b""), ("opq/new", b"1"), ("marker", b"two")]),  # it repeats
)


def descriptor(files: dict[str, bytes], content: object, **rest: object) -> dict[str, Any]:
    """A blob of JSON, put into the files of a layout, as an index refers to it."""
    data = json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{digest}"] = data
    return {"digest": f"sha256:{digest}", "size": len(data), **rest}


def archived(path: Path, files: Mapping[str, bytes], links: Sequence[tarfile.TarInfo] = ()) -> Path:
    entries: list[Entry] = [*links, *files.items()]
    path.write_bytes(layer(entries))
    return path


def docker_20(path: Path) -> Path:
    """One folder a layer; a layer that is there already is a link to its first folder."""
    docker_save(path, LAYERS, tag="t:2")
    with tarfile.open(path) as tar:
        files = {name: tar.extractfile(name).read() for name in tar.getnames() if name != "2/layer.tar"}
    return archived(path, files, [special("2/layer.tar", tarfile.SYMTYPE, "../1/layer.tar")])


def docker_27(path: Path) -> Path:
    """An OCI layout with a `manifest.json` beside it, and layers as they are."""
    files = oci_files(LAYERS, bytes)
    index = json.loads(files["index.json"])
    names = {"io.containerd.image.name": "docker.io/library/t:2", "org.opencontainers.image.ref.name": "2"}
    del index["manifests"][0]["platform"]
    index["manifests"][0]["annotations"] = names
    return archived(path, {**files, "index.json": json.dumps(index).encode(), "manifest.json": b"[]"})


def buildx(path: Path) -> Path:
    """An index in the index: this platform, another one, and an attestation for each."""
    files = oci_files(LAYERS)
    (here,) = json.loads(files["index.json"])["manifests"]
    unknown = {"architecture": "unknown", "os": "unknown"}
    other = descriptor(files, {"none": 1}, platform={"architecture": "riscv64", "os": "linux"})
    about = {"vnd.docker.reference.digest": here["digest"], "vnd.docker.reference.type": "attestation-manifest"}
    attestation = descriptor(files, {"layers": []}, platform=unknown, annotations=about)
    here.pop("annotations")
    inner = descriptor(files, {"manifests": [other, here, attestation, attestation]})
    inner["annotations"] = {"io.containerd.image.name": "docker.io/library/t:2"}
    return archived(path, {**files, "index.json": json.dumps({"manifests": [inner]}).encode()})


def skopeo(path: Path) -> Path:
    """A file a layer, the folders of older docker as links to them, and names with their registry."""
    docker_save(path, LAYERS, tag="docker.io/library/t:2")
    with tarfile.open(path) as tar:
        files = {name.replace("/layer", ""): tar.extractfile(name).read() for name in tar.getnames()}
    files["manifest.json"] = files["manifest.json"].replace(b"/layer", b"")
    return archived(path, files, [special("a/layer.tar", tarfile.SYMTYPE, "../0.tar")])


def umoci(path: Path) -> Path:
    """A folder with several tags, and no platform beside them."""
    older, files = oci_files(LAYERS[:1], name="t:1"), oci_files(LAYERS, name="t:2")
    rows = [json.loads(index["index.json"])["manifests"][0] for index in (older, files)]
    index = {"manifests": [{key: row[key] for key in row if key != "platform"} for row in rows]}
    return oci_folder(path, {**older, **files, "index.json": json.dumps(index).encode()})


def chunks(data: bytes) -> bytes:
    """A layer in several frames of zstd and one that readers skip, as `zstd:chunked` is."""
    zstandard = pytest.importorskip("zstandard")
    frames = [zstandard.ZstdCompressor().compress(data[at : at + 1024]) for at in range(0, len(data), 1024)]
    return b"".join([*frames, b"\x50\x2a\x4d\x18\x04\x00\x00\x00next"])


def members(data: bytes) -> bytes:
    """A layer in several members of gzip, as eStargz is."""
    return b"".join(gzip.compress(data[at : at + 1024]) for at in range(0, len(data), 1024))


def buildah(compress: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    return lambda path: oci_folder(path, oci_files(LAYERS, compress, name="t:2"))


TOOLS = [docker_20, docker_27, buildx, skopeo, umoci, buildah(gzip.compress), buildah(chunks), buildah(members)]


@pytest.mark.parametrize(
    "write", TOOLS, ids=["docker20", "docker27", "buildx", "skopeo", "umoci", "gzip", "zstd", "stargz"]
)
def test_an_image_is_read_as_its_tool_writes_it(tmp_path, monkeypatch, write):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "unpacked"))
    place = write(tmp_path / "image")
    images = cache.Images()
    try:
        root = Path(images.open(f"{place}#t:2").root)
        with pytest.raises(ImageError, match="t:2"):
            images.open(f"{place}#t:3")
    finally:
        images.close()
    assert {path.name for path in root.iterdir()} == {"d", "opq", "marker", "hard", "tmp", "dev", "proc", ".toolgym"}
    assert [*(root / "d").iterdir()] == []
    assert [path.name for path in (root / "opq").iterdir()] == ["new"]
    assert [(root / name).read_text() for name in ("marker", "hard")] == ["two", "one"]
