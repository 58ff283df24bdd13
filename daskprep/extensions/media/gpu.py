"""Decoding of JPEG files on a GPU in groups: nvImageCodec decodes, torch resizes.

On a GPU with a hardware JPEG decoder, only that decoder is used. Its pixels do not depend on the other files of a
group, whereas nvImageCodec would distribute files over hardware, GPU and CPU by load. Pixels are copied to CPU memory,
so that caches and batches are independent of the decoder. A separate CUDA stream avoids waiting for a model's kernels.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daskprep.errors import ConfigError
from daskprep.extensions.media.pixels import Pixels

if TYPE_CHECKING:
    import torch

_MAX_BYTES = 1 << 28  # of the files of a group, and of their arrays on the GPU
_MAX_PIXELS = 1 << 26  # of an image, which takes four times its bytes as floats
_MAX_SHRINK_RATIO = 64  # of a side; torch's interpolation kernel supports about 90


class Target(NamedTuple):
    """Shape of decoded images, cropped or interpolated."""

    channels: int
    height: int
    width: int
    crop: bool


class Jpeg(NamedTuple):
    """JPEG file in color or gray, with size and orientation."""

    data: bytes
    size: tuple[int, int]
    orientation: int

    def fits_limits(self, target: Target) -> bool:
        """Return whether the image has few pixels and shrinks little."""
        longest, shortest = max(self.size), min(target.width, target.height)
        return math.prod(self.size) <= _MAX_PIXELS and (target.crop or longest <= _MAX_SHRINK_RATIO * shortest)

    def nbytes(self, target: Target) -> int:
        """Return the approximate bytes of file and arrays."""
        return len(self.data) + 3 * math.prod(self.size) + 24 * target.height * target.width


def group_files(files: Iterable[tuple[int, Jpeg]], target: Target) -> Iterator[dict[int, Jpeg]]:
    """Yield dicts of files by row, of limited size."""
    group: dict[int, Jpeg] = {}
    group_bytes = 0
    for row, file in files:
        nbytes = file.nbytes(target)
        if group and group_bytes + nbytes > _MAX_BYTES:
            yield group
            group, group_bytes = {}, 0
        group[row] = file
        group_bytes += nbytes
    if group:
        yield group


def decode(files: Sequence[Jpeg], target: Target) -> list[Pixels | None]:
    """Return the pixels of each file in CPU memory, upright and of `target` size; None for refused ones."""
    import torch  # noqa: PLC0415 it takes seconds, and only this decoder needs it

    device = _current_device()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    decoded = _get_decoder(device).decode(files, target)
    with torch.cuda.stream(stream), torch.inference_mode():
        images = [None if image is None else torch.from_dlpack(image) for image in decoded]
        pairs = zip(images, files, strict=True)
        fitted = [None if image is None else fit(image, file.orientation, target) for image, file in pairs]
        present = [image for image in fitted if image is not None]
        # One copy to the CPU rounds all images; it also waits for the GPU, before the decoded images are released.
        pixels = iter(torch.stack(present).round_().byte().cpu().numpy() if present else ())
    return [None if image is None else next(pixels) for image in fitted]


def fit(image: torch.Tensor, orientation: int, target: Target) -> torch.Tensor:
    """Return an upright image as floats in the target shape.

    With ``target.crop``, the middle pixels are kept and the edge is repeated where there are too few; otherwise the
    image is resized bilinearly. An alpha channel of 255 is appended if the target has one more channel.
    """
    import torch  # noqa: PLC0415 as above

    if orientation >= 5:
        image = image.transpose(1, 2)
    flip_axes = [axis for axis, orientations in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in orientations]
    image = image.flip(flip_axes) if flip_axes else image
    if target.crop:
        rows, columns = map(_kept_pixels, image.shape[1:], (target.height, target.width))
        image = image[:, torch.from_numpy(rows).to(image.device)][:, :, torch.from_numpy(columns).to(image.device)]
    elif tuple(image.shape[1:]) != (target.height, target.width):
        size = (target.height, target.width)
        image = torch.nn.functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    if len(image) < target.channels:
        image = torch.cat([image, image.new_full((1, *image.shape[1:]), 255)])
    return image.float()


def prepare() -> None:
    """Create the decoder of the current GPU."""
    _get_decoder(_current_device())


class DecodeRequest(NamedTuple):
    """Files that a thread waits for."""

    data: list[bytes]
    nbytes: int
    grey: bool
    images: Future[list[Any]]


class Decoder:
    """Decoder of one GPU that combines the requests of waiting threads.

    A decoder of nvImageCodec supports one thread at a time, and takes half the time per file for hundreds of files.
    The thread that holds the lock also decodes the requests of the waiting threads.
    """

    def __init__(self, device: torch.device) -> None:
        import torch  # noqa: PLC0415 as above

        # It would print a line for each refused file, although Pillow decodes that file next.
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
        try:
            self._library = importlib.import_module("nvidia.nvimgcodec")
            kinds, make = self._library.BackendKind, self._library.Decoder
            try:
                self._decoder = make(device_id=device.index, backends=[self._library.Backend(kinds.HW_GPU_ONLY)])
            except RuntimeError:  # a GPU without a hardware JPEG decoder
                self._decoder = make(device_id=device.index, backends=[self._library.Backend(kinds.HYBRID_CPU_GPU)])
        except (ImportError, RuntimeError) as error:  # RuntimeError: no nvjpeg library, or a driver that is too old
            raise ImportError(
                'Images with jpeg_decoder="gpu" need a package that is not installed, or not for this driver: '
                'pip install "nvidia-nvimgcodec-cu13[nvjpeg]", or with cu12 for CUDA 12'
            ) from error
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._pending: deque[DecodeRequest] = deque()

    def decode(self, files: Sequence[Jpeg], target: Target) -> list[Any]:
        """Return images for DLPack; None for broken files."""
        nbytes = sum(file.nbytes(target) for file in files)
        request = DecodeRequest([file.data for file in files], nbytes, target.channels <= 2, Future())
        self._pending.append(request)
        with self._lock:
            while not request.images.done():
                self._decode_pending()
        return request.images.result()

    def _decode_pending(self) -> None:
        """Decode the oldest request, and others like it; the caller has the lock."""
        requests = [self._pending.popleft()]
        bytes_left, grey = _MAX_BYTES - requests[0].nbytes, requests[0].grey
        while self._pending and self._pending[0].grey == grey and self._pending[0].nbytes <= bytes_left:
            requests.append(self._pending.popleft())
            bytes_left -= requests[-1].nbytes
        data = list(chain.from_iterable(request.data for request in requests))
        try:
            images = self._call_library(data, grey)
            # One broken file may make all others fail.
            for i in [i for i, image in enumerate(images) if image is None and len(data) > 1]:
                [images[i]] = self._call_library([data[i]], grey)
        except BaseException as error:
            for request in requests:
                request.images.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            decoded = iter(images)
            for request in requests:
                request.images.set_result(list(islice(decoded, len(request.data))))

    def _call_library(self, data: list[bytes], grey: bool) -> list[Any]:
        """Return files as gray or RGB planes, None for failed ones."""
        specs, formats = self._library.ColorSpec, self._library.SampleFormat
        params = self._library.DecodeParams(
            apply_exif_orientation=False,
            color_spec=specs.GRAY if grey else specs.SRGB,
            sample_format=formats.P_Y if grey else formats.P_RGB,
        )
        return self._decoder.decode(data, params=params, cuda_stream=self._stream.cuda_stream)


_decoders: dict[torch.device, Decoder] = {}
_decoders_lock = threading.Lock()


def _get_decoder(device: torch.device) -> Decoder:
    """Return the only decoder of a device."""
    with _decoders_lock:
        if device not in _decoders:
            _decoders[device] = Decoder(device)
        return _decoders[device]


def _current_device() -> torch.device:
    """Return the current GPU; ConfigError if there is none."""
    import torch  # noqa: PLC0415 as above

    if not torch.cuda.is_available():
        raise ConfigError(
            'Image: jpeg_decoder="gpu" needs an NVIDIA GPU, and torch finds none here: call '
            'set_params(jpeg_decoder="pillow") on the feature, which changes pixels by about one level'
        )
    return torch.device("cuda", torch.cuda.current_device())


def _kept_pixels(length: int, target_length: int) -> np.ndarray:
    """Return the middle pixel indices of a side, padded."""
    kept = min(length, target_length)
    indices = np.arange(target_length) - (target_length - kept) // 2
    return round((length - kept) / 2) + np.clip(indices, 0, kept - 1)
