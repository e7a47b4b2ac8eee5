"""`ImageArchive`: an image on disk, as an OCI layout (a folder, or an archive of one) or as `docker save` writes it.

Sources: https://github.com/opencontainers/image-spec, and Docker's image spec v1.2 for `manifest.json`.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import platform
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from toolgym.tools.errors import ConfigError, MissingExtraError, ToolgymError
from toolgym.tools.sandbox.local.images.unpack import bounded_entries

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_MOST_JSON, _MOST_BLOBS = 16 << 20, 100_000
_OF_LAYERS = (None, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.EMLINK,
              errno.ENAMETOOLONG)  # fmt: skip
_ZSTD = b"\x28\xb5\x2f\xfd"


class ImageError(ConfigError):
    """An image is not there, is damaged, or cannot be used here. The message names its file."""


@dataclass(frozen=True)
class ImageInfo:
    """The parts of an image that a session takes. `id` is the SHA-256 of its configuration, which names its layers:
    `layers` are (blob, SHA-256 of the uncompressed layer), the lowest first. `root` is where they are unpacked."""

    id: str
    layers: tuple[tuple[str, str], ...]
    env: Mapping[str, str]
    workdir: str
    root: str = ""


class ImageArchive:
    """Reads one file or folder with images; `with` closes it. Raises ImageError for what cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path, self._tar = path, cast("tarfile.TarFile | None", None)

    def __enter__(self) -> Self:
        if not self._path.exists():
            raise ImageError(f"the image {self._path} is not there: bring the file, or correct the path")
        if not self._path.is_dir():
            with self.failing():
                self._tar = tarfile.open(self._path, tarinfo=bounded_entries(_MOST_BLOBS))
        return self

    def __exit__(self, *_: object) -> None:
        if self._tar is not None:
            self._tar.close()

    def error(self, why: object) -> ImageError:
        return ImageError(f"the image {self._path} cannot be used: {why}")

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise what a damaged archive leads to as ImageError; a full disk stays what it is."""
        try:
            yield
        except Exception as error:  # of any reader: bytes of an archive may be anything
            if isinstance(error, ToolgymError) or (isinstance(error, OSError) and error.errno not in _OF_LAYERS):
                raise
            why = f"it is damaged, or no image ({type(error).__name__}: {error})"
            raise self.error(f"{why}; write it again with `docker save NAME -o FILE`") from error

    def info(self, name: str = "") -> ImageInfo:
        """Return the image with this name or tag; without a name, the only one for this machine."""
        with self.failing():
            if self._has("index.json"):
                index = json.loads(self._bytes("index.json"))
                return self._of_manifest(self._chosen(index["manifests"], name))
            if self._has("manifest.json"):
                return self._of_docker(json.loads(self._bytes("manifest.json")), name)
        raise self.error("it has neither index.json (an OCI layout) nor manifest.json (`docker save`)")

    def _of_manifest(self, descriptor: Mapping[str, Any]) -> ImageInfo:
        manifest = json.loads(self._blob(descriptor["digest"]))
        if "manifests" in manifest:  # of several platforms
            return self._of_manifest(self._chosen(manifest["manifests"], ""))
        config = self._blob(manifest["config"]["digest"])
        return self._info(config, [_blob_name(layer["digest"]) for layer in manifest["layers"]])

    def _of_docker(self, images: list[Mapping[str, Any]], name: str) -> ImageInfo:
        chosen = [image for image in images if not name or any(_same(name, tag) for tag in image.get("RepoTags") or ())]
        if len(chosen) != 1:
            known = [tag for image in images for tag in image.get("RepoTags") or ()]
            raise self._not_one(name, known, len(chosen))
        return self._info(self._bytes(chosen[0]["Config"]), list(chosen[0]["Layers"]))

    def _chosen(self, descriptors: list[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
        fitting, known = [], []
        for descriptor in descriptors:
            annotations = descriptor.get("annotations") or {}
            names = [annotations[key] for key in _NAMES if key in annotations]
            known += names
            if _is_here(descriptor.get("platform")) and (not name or any(_same(name, other) for other in names)):
                fitting.append(descriptor)
        if len({descriptor["digest"] for descriptor in fitting}) != 1:
            raise self._not_one(name, known, len(fitting))
        return fitting[0]

    def _not_one(self, name: str, known: list[str], count: int) -> ImageError:
        which = f"called {name!r} " if name else ""
        there = ", ".join(sorted(set(known))) or "none with a name"
        return self.error(f"expected one image {which}for this machine, and {count} are there ({there}); say FILE#NAME")

    def _info(self, config: bytes, blobs: list[str]) -> ImageInfo:
        about = json.loads(config)
        digests = [digest.removeprefix("sha256:") for digest in about["rootfs"]["diff_ids"]]
        if not _is_here(about):
            raise self.error(f"it is for {about.get('os')} on {about.get('architecture')}, and not for this machine")
        if len(digests) != len(blobs):
            raise self.error(f"its configuration names {len(digests)} layers, and its manifest {len(blobs)}")
        settings = about.get("config") or {}
        env = dict(pair.split("=", 1) for pair in settings.get("Env") or ())
        layers = tuple(zip(blobs, digests, strict=True))
        return ImageInfo(hashlib.sha256(config).hexdigest(), layers, env, settings.get("WorkingDir") or "")

    @contextmanager
    def layer(self, blob: str) -> Iterator[IO[bytes]]:
        """Open a layer, uncompressed."""
        with self._open(blob) as file:
            magic = file.read(4)
            file.seek(0)
            if magic[:2] == b"\x1f\x8b":
                yield cast("IO[bytes]", gzip.GzipFile(fileobj=file))
            elif magic == _ZSTD:
                try:
                    import zstandard
                except ImportError as error:
                    raise MissingExtraError("the image has layers in zstd: run `pip install zstandard`") from error
                yield zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            else:
                yield file

    def _open(self, name: str) -> IO[bytes]:
        if self._tar is not None:
            member = self._tar.extractfile(name)
            if member is None:
                raise KeyError(name)
            return member
        path = self._path / name
        if not path.resolve().is_relative_to(self._path.resolve()) or not path.is_file():
            raise KeyError(f"{name} is missing, or leads outside")
        return path.open("rb")

    def _has(self, name: str) -> bool:
        return name in self._tar.getnames() if self._tar is not None else (self._path / name).is_file()

    def _bytes(self, name: str) -> bytes:
        with self._open(name) as file:
            data = file.read(_MOST_JSON + 1)
        if len(data) > _MOST_JSON:
            raise ValueError(f"{name} is larger than {_MOST_JSON} bytes")
        return data

    def _blob(self, digest: str) -> bytes:
        data = self._bytes(_blob_name(digest))
        if hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:"):
            raise ValueError(f"{digest} has other content than its digest says")
        return data


def _blob_name(digest: str) -> str:
    kind, _, value = digest.partition(":")
    if kind != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"expected a digest sha256:…, got {digest!r}")
    return f"blobs/sha256/{value}"


def _is_here(system: Mapping[str, Any] | None) -> bool:
    here = "linux", _ARCHITECTURES.get(platform.machine(), platform.machine())
    return system is None or (system.get("os"), system.get("architecture")) == here


def _same(name: str, known: str) -> bool:
    """Whether a name fits a known one: whole, by its tag alone, or without Docker's own registry."""
    short = known.removeprefix("docker.io/").removeprefix("library/")
    return name in (known, short) or (":" not in known and name.rpartition(":")[2] == known)
