"""Temporary folders of rows that are parsed or streamed once, for later passes."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import pyarrow as pa

from daskprep.errors import ConfigError
from daskprep.storage.files import CallbackWriter, Folder
from daskprep.storage.local_files import make_folder

# The dataset written later may need space on the same disk.
_MIN_FREE_FACTOR = 4


def has_room(folder: str, nbytes: int) -> bool:
    """Return whether the disk of a folder has `_MIN_FREE_FACTOR` times `nbytes` of free space."""
    return shutil.disk_usage(folder).free > _MIN_FREE_FACTOR * nbytes


class Spool:
    """A temporary folder that is removed when this process no longer refers to it; a pickle is its path alone."""

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        if parent is not None:
            if "://" in os.fspath(parent):
                raise ConfigError(
                    f"scratch={os.fspath(parent)!r} is a URL, but rows are kept in a local folder: pass the path of a "
                    "local folder, one that the workers of a cluster share"
                )
            parent = make_folder(parent, "scratch")
        self.path = tempfile.mkdtemp(prefix="daskprep-", dir=parent)
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.path,)

    def write(self, name: str, table: pa.Table) -> Path:
        """Write a table to an Arrow IPC file in the folder, and return its path."""
        with (
            Folder.open(self.path).writer(name, durable=False) as append,
            pa.ipc.new_stream(CallbackWriter(append), table.schema) as file,
        ):
            file.write_table(table)
        return Path(self.path, name)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not in forked processes
        shutil.rmtree(path, ignore_errors=True)
