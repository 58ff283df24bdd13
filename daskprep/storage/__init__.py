"""Files of a dataset: written whole or not at all, checked by checksums, on any file system that fsspec knows."""

from __future__ import annotations

from daskprep.storage.arrays import Compression, Output
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import FileEntry, Manifest, read_manifest
