"""Files of a dataset, on any file system of fsspec: written atomically and verified with checksums."""

from __future__ import annotations

from daskprep.storage.arrays import Compression, Output
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import FileEntry, Manifest, read_manifest
