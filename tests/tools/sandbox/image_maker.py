"""Small images of our own making: a shell with its libraries from this machine, in the forms that images come in."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = ("/bin/bash", "/bin/cat", "/bin/ls", "/bin/rm", "/bin/ln", "/bin/mkdir", "/usr/bin/id", "/usr/bin/env")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]

Entry = tarfile.TarInfo | tuple[str, bytes] | tuple[str, bytes, int]


def special(name: str, kind: bytes, target: str = "", mode: int = 0o755) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, mode
    return entry


def layer(entries: Sequence[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            name, data, *mode = entry
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode[0] if mode else 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def shell_layer() -> bytes:
    """A root with a shell and a few programs, and no Python."""
    libraries: set[str] = set()
    for program in PROGRAMS:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=20, check=True)
        libraries |= {*re.findall(r"(/\S+) \(0x", done.stdout)}
    entries: list[Entry] = [
        special("usr/bin/", tarfile.DIRTYPE),
        special("bin", tarfile.SYMTYPE, "usr/bin"),
        ("etc/marker", b"from the image\n"),
        ("etc/passwd", b"root:x:0:0::/root:/bin/bash\n"),
        ("usr/share/old", b"old\n"),
        ("usr/share/gone/below", b"below\n"),
    ]
    entries += [(f"usr/bin/{Path(program).name}", Path(program).read_bytes(), 0o755) for program in PROGRAMS]
    entries += [special("bin/sh", tarfile.SYMTYPE, "bash")]
    entries += [(library, Path(library).read_bytes(), 0o755) for library in sorted(libraries)]
    return layer(entries)


CONFIG = {"Env": ["PATH=/usr/bin", "GREETING=hello"], "WorkingDir": "/project", "User": "4711", "Entrypoint": ["/none"]}


def _config(layers: Sequence[bytes], settings: Mapping[str, Any]) -> bytes:
    digests = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]
    about = {"architecture": ARCHITECTURE, "os": "linux", "config": settings, "rootfs": {"diff_ids": digests}}
    return json.dumps(about).encode()


def docker_save(path: Path, layers: Sequence[bytes], settings: Mapping[str, Any] = CONFIG, tag: str = "t:1") -> Path:
    config = _config(layers, settings)
    names = [f"{at}/layer.tar" for at in range(len(layers))]
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": names}]
    files: list[Entry] = [(name, config), ("manifest.json", json.dumps(manifest).encode())]
    path.write_bytes(layer([*files, *zip(names, layers, strict=True)]))
    return path


def oci_files(
    layers: Sequence[bytes], compress: Callable[[bytes], bytes] = gzip.compress, name: str = "t:1"
) -> dict[str, bytes]:
    """The files of an OCI layout, by name."""
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    manifest = {"config": blob(_config(layers, CONFIG)), "layers": [blob(compress(data)) for data in layers]}
    annotations = {"org.opencontainers.image.ref.name": name}
    descriptor = {**blob(json.dumps(manifest).encode()), "annotations": annotations}
    index = {"manifests": [{**descriptor, "platform": {"os": "linux", "architecture": ARCHITECTURE}}]}
    files["index.json"] = json.dumps(index).encode()
    return files


def oci_folder(path: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path
