"""Decoders of images and audio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from daskprep.columns.deferred.decoders import Failure, MediaDecoder
from daskprep.errors import warn
from daskprep.extensions.media import gpu
from daskprep.extensions.media.audio import AudioRecipe, decode_audio
from daskprep.extensions.media.images import ImageRecipe, decode_image, parse_gpu_jpeg, prepare, shrink
from daskprep.extensions.media.pixels import Encoded, map_to_classes
from daskprep.extensions.media.spectra import compute_features, compute_padding

_GROUP_SAMPLES = 1 << 22  # 16 MB of audio for which spectra are computed together


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

    def pack_file(self, content: pa.Buffer | bytes) -> pa.Buffer | bytes:
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
    min_rows = 16
    recipe: AudioRecipe
    missing: float | None
    broken: float | None

    def _fill_value(self, value: float | None) -> Any:
        return compute_padding(self.recipe) if value is None else value

    def _decode(self, cells: pa.StructArray, out: np.ndarray, failures: list[Failure]) -> None:
        """Decode waves; compute features in groups of limited size."""
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
