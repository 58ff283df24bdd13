"""Files that commands write: whole or not there."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from daskprep.storage import Folder
from daskprep.storage.files import Appended


@contextmanager
def opened(output: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[BinaryIO]:
    """Give a file at a path or URL that is there once the block ends, and not at all if it ends with an exception."""
    if "://" not in output and _is_fixed(Path(output)):
        with Path(output).open("wb") as file:
            yield file
        return
    folder, slash, name = output.rpartition("/")
    writer = Folder.open(folder or slash or ".", storage_options).writer(name)
    with writer as append, io.BufferedWriter(Appended(append)) as file:
        yield file


def _is_fixed(path: Path) -> bool:
    """Tell whether no other file may take its place: it is a pipe, a device, or a link such as /dev/stdout."""
    return path.is_symlink() or (path.exists() and not path.is_file())
