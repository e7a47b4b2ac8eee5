"""The changes that a session made to its image, which a fork of the session makes to its own.

An overlay keeps them in a folder: new and changed files whole, a *whiteout* for each that was removed (a device with
the number 0), and an attribute for a folder that replaces the image's. They are made again through the fork's overlay,
which writes such marks itself.

Source: the kernel's `Documentation/filesystems/overlayfs.rst`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

_OPAQUE = "user.overlay.opaque"
_MARKS = "user.overlay."
_STEP = 1 << 20


def copy(changes: int, writable: tuple[str, ...], copied: dict[tuple[int, int], str]) -> None:
    """Make the changes in the folder behind a descriptor below the current folder, the fork's root.

    Args:
        changes: descriptor of the origin's folder of changes.
        writable: folders that are mounted over the image, and copied elsewhere.
        copied: gets the name of each file that was copied, by device and number of the origin's.
    """
    dated = []
    for folder, folders, files, fd in os.fwalk(".", dir_fd=changes, topdown=True):
        for name in [*folders]:
            target = os.path.normpath(f"{folder}/{name}")
            about = os.lstat(name, dir_fd=fd)
            if f"/{target}" in writable or _is_mount(target):
                folders.remove(name)
            elif stat.S_ISLNK(about.st_mode):
                folders.remove(name)
                files.append(name)
            else:
                _make_folder(fd, name, target)
                dated.append((target, about))
        for name in files:
            target = os.path.normpath(f"{folder}/{name}")
            if _copy_file(fd, name, target):
                with contextlib.suppress(OSError):
                    about = os.lstat(f"/{target}")  # in the origin's root, which this process still has
                    copied[about.st_dev, about.st_ino] = f"/{target}"
    for target, about in reversed(dated):
        os.chmod(target, stat.S_IMODE(about.st_mode))
        os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def _make_folder(parent: int, name: str, target: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        replaces = _OPAQUE in os.listxattr(fd) and os.getxattr(fd, _OPAQUE) == b"y"
        if replaces or not os.path.isdir(target) or os.path.islink(target):
            _remove(target)
            os.mkdir(target)
        _copy_attributes(fd, target)
    finally:
        os.close(fd)


def _copy_file(parent: int, name: str, target: str) -> bool:
    """Copy a file, a link or a removal. Returns whether it is a file that can be open."""
    about = os.lstat(name, dir_fd=parent)
    if stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
        _remove(target)
        return False
    if stat.S_ISLNK(about.st_mode):
        _remove(target)
        os.symlink(os.readlink(name, dir_fd=parent), target)
        os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns), follow_symlinks=False)
        return False
    if not stat.S_ISREG(about.st_mode) or not os.access(name, os.R_OK, dir_fd=parent):
        return False
    _remove(target)
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        with open(target, "xb") as file:
            while data := os.read(source, _STEP):
                file.write(data)
        _copy_attributes(source, target)
    finally:
        os.close(source)
    os.chmod(target, stat.S_IMODE(about.st_mode))
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
    return True


def _copy_attributes(source: int, target: str) -> None:
    for name in os.listxattr(source):
        if not name.startswith(_MARKS):
            with contextlib.suppress(OSError):  # not for its owner to set
                os.setxattr(target, name, os.getxattr(source, name))


def _is_mount(target: str) -> bool:
    """Whether a folder is of another file system than the current one. `os.path.ismount` needs a path from the root."""
    try:
        about = os.lstat(target)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_dev != os.lstat(".").st_dev  # files have that of their layer


def _remove(target: str) -> None:
    if os.path.isdir(target) and not os.path.islink(target):
        shutil.rmtree(target)
    elif os.path.lexists(target):
        os.unlink(target)
