"""Decoders of media cells to arrays, with fill values for missing and broken cells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.errors import MediaError, warn
from daskprep.kernels import only_where
from daskprep.media import gpu
from daskprep.media.audio import AudioRecipe, decode_audio
from daskprep.media.images import ImageRecipe, decode_image, parse_gpu_jpeg, prepare, shrink
from daskprep.media.pixels import Encoded, map_to_classes
from daskprep.media.reader import MediaReader
from daskprep.media.spectra import compute_features, compute_padding
from daskprep.permutation import Integers
from daskprep.storage.checksum import json_sha256
from daskprep.storage.security import redact_url

# A cell as stored in the tables of a dataset: at most one field is present.
STORED_TYPE = pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])
_GROUP_SAMPLES = 1 << 22  # 16 MB of audio for which spectra are computed together

Result = TypeVar("Result")


class Failure(NamedTuple):
    """Cell that cannot be decoded: its row, path, and the reason."""

    row: int
    cell: str
    reason: str


@dataclass(frozen=True)
class MediaDecoder(ABC):
    """Base class of thread-safe decoders to rows of one shape."""

    dtype: ClassVar[str]
    max_threads: ClassVar[int] = 16  # number of threads beyond which decoding is no faster
    reader: MediaReader
    # Whether the caller raises for failures or uses fill values; `decode` returns failures and fills in both cases.
    on_error: Literal["raise", "fill"]
    recipe: Any
    missing: Any  # fill value for missing cells
    broken: Any  # fill value for cells that cannot be decoded

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a decoded row."""
        shape: tuple[int, ...] = self.recipe.shape
        return shape

    def decode(self, cells: pa.StructArray, out: np.ndarray) -> list[Failure]:
        """Decode or fill each row of `out`; return the failures."""
        failures: list[Failure] = []
        self._decode(cells, out, failures)
        if cells.null_count:
            out[cells.is_null().to_numpy(zero_copy_only=False)] = self._fill_value(self.missing)
        for failure in failures:
            out[failure.row] = self._fill_value(self.broken)
        return failures

    @abstractmethod
    def _decode(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        """Decode the cells that are not missing, and append to `failures`."""

    def _fill_value(self, value: Any) -> Any:
        """Return `missing` or `broken` as a value that broadcasts to a row."""
        return value

    def digest(self, **parameters: Any) -> str:
        """Return the SHA-256 of all parameters that the decoded values depend on."""
        broken = self.broken if self.on_error == "fill" else None
        return json_sha256({"recipe": self.recipe.digest(), "fill": [self.missing, broken]} | parameters)

    @abstractmethod
    def prepare(self) -> None:
        """Import libraries and compute tables before the first cell."""

    def pack(self, cells: pa.StructArray) -> tuple[pa.StructArray, list[Failure]]:
        """Return cells with bytes in place of paths, and the failures."""
        failures: list[Failure] = []
        contents: list[bytes | None] = [None] * len(cells)
        for row, content in self._apply_each(cells, lambda content, _: self._pack_content(content), failures):
            # pyarrow 26 leaks views that are converted to arrays.
            contents[row] = content if isinstance(content, bytes) else content.to_pybytes()
        data = pa.array(contents, pa.large_binary())
        path = only_where(data.is_null(), pc.struct_field(cells, "path"))
        return pa.StructArray.from_arrays([data, path], fields=list(STORED_TYPE), mask=cells.is_null()), failures

    def _pack_content(self, content: pa.Buffer | bytes) -> pa.Buffer | bytes:
        """Return the bytes to store of a file; subclasses may reduce them."""
        return content

    def _apply_each(
        self, cells: pa.StructArray, function: Callable[[pa.Buffer | bytes, int], Result], failures: list[Failure]
    ) -> Iterator[tuple[int, Result]]:
        """Yield row and result of a function for each cell, without failures."""
        data, path_column = (pc.struct_field(cells, name) for name in ("bytes", "path"))
        # As lists: scalars of Arrow for each row took 1 % of an epoch of photos.
        paths, has_bytes = path_column.to_pylist(), data.is_valid().to_pylist()
        for row in np.flatnonzero(cells.is_valid()).tolist():
            path = paths[row]
            try:
                result = function(data[row].as_buffer() if has_bytes[row] else self.reader.read(path), row)
            except MediaError as error:
                name = self.reader.bytes_name if path is None else redact_url(path)
                failures.append(Failure(row, name, str(error).removeprefix(f"{name}: ")))
            else:
                yield row, result


def read_content(cell: pa.StructScalar, reader: MediaReader) -> pa.Buffer | bytes:
    """Return the bytes of a cell or of its file."""
    data = cell["bytes"]
    return data.as_buffer() if data.is_valid else reader.read(cell["path"].as_py())


def decode_cells(
    decoder: MediaDecoder, cells: pa.StructArray, out: np.ndarray, column: str, row_ids: Callable[[], Integers]
) -> list[Failure]:
    """Decode the cells of a column into `out`; return filled failures, else raise one."""
    failures = decoder.decode(cells, out)
    check_failures(failures, decoder.on_error, column, row_ids)
    return failures


def check_failures(failures: Sequence[Failure], on_error: str, column: str, row_ids: Callable[[], Integers]) -> None:
    """Raise MediaError for the first failure, unless filled."""
    if not failures or on_error == "fill":
        return
    first = failures[0]
    others = f" (and {len(failures) - 1:,} more)" if len(failures) > 1 else ""
    raise MediaError(
        f'column "{column}", row {row_ids()[first.row]}: {first.cell}: {first.reason}{others}; correct it, or use '
        'on_error="fill" or "drop"'
    )


@dataclass(frozen=True)
class ImageDecoder(MediaDecoder):
    """Decoder of images to uint8 planes, or of masks to class ids."""

    dtype = "uint8"
    max_threads = 8  # more threads only wait for the interpreter lock, as does the training thread
    recipe: ImageRecipe
    missing: tuple[int, ...]
    broken: tuple[int, ...]
    # Colors of the classes of masks; other colors are class 0. None: no masks.
    colours: tuple[tuple[int, ...], ...] | None = None
    two_levels: bool = False  # whether channels of masks are rounded to 0 and 255 before the lookup
    # Maximum of the shorter side, and JPEG quality, of packed files. None: files are packed unchanged.
    packing: tuple[int | None, int | None] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.recipe.shape if self.colours is None else self.recipe.shape[1:]

    def _decode(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        decode = self._decode_on_gpu if self.recipe.decoder == "gpu" else self._decode_each
        decode(cells, out, failures)

    def _decode_on_gpu(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        """Decode JPEG files on the GPU, and others on the CPU."""
        target = gpu.Target(*self.recipe.shape, crop=self.recipe.resize_method == "crop_or_pad")

        def read_jpeg(content: Encoded, row: int) -> gpu.Jpeg | None:
            """Return a file for the GPU; decode other files into `out`."""
            jpeg = parse_gpu_jpeg(content, self.recipe)
            if jpeg is not None and jpeg.fits_limits(target):
                return jpeg
            decode_image(content, self.recipe, out[row])
            return None

        jpegs = ((row, jpeg) for row, jpeg in self._apply_each(cells, read_jpeg, failures) if jpeg is not None)
        refused_rows = []
        for group in gpu.group_files(jpegs, target):
            for row, image in zip(group, gpu.decode(list(group.values()), target), strict=True):
                if image is None:
                    refused_rows.append(row)
                else:
                    out[row] = image
        # Pillow decodes some files that the GPU refuses, and explains the failure of the rest.
        retry_failures: list[Failure] = []
        retried = np.empty((len(refused_rows), *out.shape[1:]), out.dtype)
        self._decode_each(cells.take(pa.array(refused_rows, pa.int64())), retried, retry_failures)
        out[refused_rows] = retried
        failures += [failure._replace(row=refused_rows[failure.row]) for failure in retry_failures]
        failures.sort()

    def _decode_each(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        """Decode cells one by one on the CPU."""
        palette = None if self.colours is None else np.array(self.colours, np.uint8)

        def decode_one(content: Encoded, row: int) -> int:
            """Decode a file into its row; return the number of pixels of unknown colors."""
            if palette is None:
                decode_image(content, self.recipe, out[row])
                return 0
            out[row], unknown_pixels = map_to_classes(decode_image(content, self.recipe), palette, self.two_levels)
            return unknown_pixels

        if sum(unknown_pixels for _, unknown_pixels in self._apply_each(cells, decode_one, failures)):
            # The message has no number of pixels, so that Python shows it once.
            warn(
                f"masks have pixels of other colors than the {len(self.colours or ())} class colors, which become "
                "class 0; a larger sample_size finds more colors"
            )

    def _pack_content(self, content: pa.Buffer | bytes) -> pa.Buffer | bytes:
        return content if self.packing is None else shrink(content, self.recipe, *self.packing)

    def _fill_value(self, colour: tuple[int, ...]) -> np.ndarray:
        fill = np.array(colour, np.uint8)
        return fill[:, None, None] if self.colours is None else fill[0]

    def prepare(self) -> None:
        prepare(self.recipe)

    def digest(self, **parameters: Any) -> str:
        return super().digest(colours=self.colours, two_levels=self.two_levels, **parameters)


@dataclass(frozen=True)
class AudioDecoder(MediaDecoder):
    """Decoder of audio to float32; None fills with padding."""

    dtype = "float32"
    recipe: AudioRecipe
    missing: float | None
    broken: float | None

    def _fill_value(self, value: float | None) -> Any:
        return compute_padding(self.recipe) if value is None else value

    def _decode(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        """Decode waves, and compute their features in groups of limited size."""
        # Rows without a wave are computed as silence and overwritten later, so that a group is one slice of `out`.
        waves: list[np.ndarray] = []
        first = samples = 0
        for row, wave in self._apply_each(cells, lambda content, _: decode_audio(content, self.recipe), failures):
            waves += [np.empty(0, np.float32)] * (row - first - len(waves))
            waves.append(wave)
            samples += len(wave)
            if samples >= _GROUP_SAMPLES:
                compute_features(waves, self.recipe, out[first : row + 1])
                first, samples, waves = row + 1, 0, []
        if waves:
            compute_features(waves, self.recipe, out[first : first + len(waves)])

    def prepare(self) -> None:
        compute_features([np.zeros(self.recipe.window, np.float32)], self.recipe)
