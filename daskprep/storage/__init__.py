"""Files of a dataset, on any file system of fsspec.

In: arrays, tables and JSON. Out: files that are written atomically, and read only if their checksums match. The layout
and the manifest of a dataset are here.
"""

from __future__ import annotations

from daskprep.storage.arrays import Compression, Output
from daskprep.storage.files import Folder
from daskprep.storage.layout import Layout
from daskprep.storage.manifest import FileEntry, Manifest, read_manifest
