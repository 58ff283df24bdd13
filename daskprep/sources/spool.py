"""Folders of rows that were read once, and are read again from there."""

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

# A write may need the same disk.
_MIN_FREE_FACTOR = 4


def has_room(folder: str, nbytes: int) -> bool:
    """Tell whether rows of so many bytes may be kept in a folder: there is room for them several times."""
    return shutil.disk_usage(folder).free > _MIN_FREE_FACTOR * nbytes


class Spool:
    """A folder that is removed when nobody in this process needs it any more."""

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        if parent is not None:
            if "://" in os.fspath(parent):
                raise ConfigError(
                    f"scratch={os.fspath(parent)!r} is a URL, and rows that are read once are kept in a local folder: "
                    "give the path of one, which the workers of a cluster share"
                )
            parent = make_folder(parent, "scratch")
        self.path = tempfile.mkdtemp(prefix="daskprep-", dir=parent)
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.path,)

    def write(self, name: str, table: pa.Table) -> Path:
        """Write rows to a file, and return its path."""
        with (
            Folder.open(self.path).writer(name, durable=False) as append,
            pa.ipc.new_stream(CallbackWriter(append), table.schema) as file,
        ):
            file.write_table(table)
        return Path(self.path, name)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not in forked processes
        shutil.rmtree(path, ignore_errors=True)
