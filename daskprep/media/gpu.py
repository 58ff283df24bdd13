"""JPEG files decoded and brought to size on a GPU, many at once: nvImageCodec decodes, torch resizes.

Of a GPU with circuits for JPEG, these alone decode: they give the same pixels in any company, where nvImageCodec would
share files out by load. Pixels come back to the memory of the CPU, as those of any other decoder do, so that caches and
batches know no difference. All of it runs on a stream of its own, which never waits for what a model has yet to do.
"""

from __future__ import annotations

import importlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daskprep.errors import ConfigError
from daskprep.media.pixels import Pixels

if TYPE_CHECKING:
    import torch

_MOST_PIXELS = 1 << 26  # of images that are decoded at once: 200 MB of colours, on the GPU
_MOST_RATIO = 64  # by which a side shrinks; the kernel of torch takes no more than about 90


class Jpeg(NamedTuple):
    """A JPEG file of colours or of grey: its bytes, and the width, height and EXIF orientation that its header has."""

    data: bytes
    size: tuple[int, int]
    orientation: int


class Target(NamedTuple):
    """What images become: uint8 (channels, height, width), interpolated or else cropped and padded."""

    channels: int
    height: int
    width: int
    crop: bool


def decode(files: Sequence[Jpeg], target: Target) -> Iterator[tuple[int, Pixels]]:
    """Give the pixels of files, each with its place among those given; files that a GPU cannot decode are left out."""
    small = [place for place, file in enumerate(files) if _is_small(file, target)]
    for places in _in_turns(files, small):
        decoded = decode_some([files[place] for place in places], target)
        yield from ((place, image) for place, image in zip(places, decoded, strict=True) if image is not None)


def decode_some(files: Sequence[Jpeg], target: Target) -> list[Pixels | None]:
    """Return the pixels of a few files, and None of those that cannot be decoded."""
    import torch  # noqa: PLC0415 it takes seconds, and few images are decoded here

    device = _device()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    decoded = _decoder_of(device).decode(files, target.channels <= 2)
    with torch.cuda.stream(stream), torch.inference_mode():
        images = [None if image is None else torch.from_dlpack(image) for image in decoded]
        fitted = [
            None if image is None else fit(image, file.orientation, target)
            for image, file in zip(images, files, strict=True)
        ]
        found = [image for image in fitted if image is not None]
        # Whatever was resized is rounded here, all at once. The files' own images are let go when this is done.
        pixels = iter(torch.stack(found).round_().byte().cpu().numpy() if found else ())
    return [None if image is None else next(pixels) for image in fitted]


def fit(image: torch.Tensor, orientation: int, target: Target) -> torch.Tensor:
    """Bring an image (colours, height, width) to the shape of the target as floats: upright, to size, with alpha."""
    import torch  # noqa: PLC0415 as above

    if orientation >= 5:
        image = image.transpose(1, 2)
    flipped = [axis for axis, turns in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if orientation in turns]
    image = image.flip(flipped) if flipped else image
    if target.crop:
        rows, columns = map(_cut, image.shape[1:], (target.height, target.width))
        image = image[:, torch.from_numpy(rows).to(image.device)][:, :, torch.from_numpy(columns).to(image.device)]
    elif tuple(image.shape[1:]) != (target.height, target.width):
        size = (target.height, target.width)
        image = torch.nn.functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    if len(image) < target.channels:
        image = torch.cat([image, image.new_full((1, *image.shape[1:]), 255)])
    return image.float()


def prepare() -> None:
    """Make the decoder of the current GPU, which the first image would else wait for."""
    _decoder_of(_device())


class Order(NamedTuple):
    """Files that a thread waits for: their bytes, how many pixels they have, and whether grey is wanted."""

    data: list[bytes]
    pixels: int
    grey: bool
    images: Future[list[Any]]


class Decoder:
    """The decoder of one GPU, which serves all who wait for it at once.

    A decoder of nvImageCodec is for one thread at a time, and takes half as long for each file if there are hundreds.
    Whoever has the lock decodes for those who came before, and leaves to them what they ordered.
    """

    def __init__(self, device: torch.device) -> None:
        import torch  # noqa: PLC0415 as above

        try:
            self._library = importlib.import_module("nvidia.nvimgcodec")
        except ImportError as error:
            raise ImportError(
                'Images with jpeg_decoder="gpu" need a package that is not installed: pip install '
                '"nvidia-nvimgcodec-cu13[nvjpeg]", or of cu12 for CUDA 12'
            ) from error
        self._decoder = self._made(device.index)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._waiting: deque[Order] = deque()

    def _made(self, device: int) -> Any:
        def made(kind: Any) -> Any:
            return self._library.Decoder(device_id=device, backends=[self._library.Backend(kind)])

        try:
            return made(self._library.BackendKind.HW_GPU_ONLY)
        except RuntimeError:  # a GPU without such circuits
            return made(self._library.BackendKind.HYBRID_CPU_GPU)

    def decode(self, files: Sequence[Jpeg], grey: bool) -> list[Any]:
        """Return images (colours, height, width) that torch takes, and None of those that cannot be decoded."""
        pixels = sum(file.size[0] * file.size[1] for file in files)
        order = Order([file.data for file in files], pixels, grey, Future())
        self._waiting.append(order)
        with self._lock:
            while not order.images.done():
                self._serve()
        return order.images.result()

    def _serve(self) -> None:
        """Decode what was ordered first, and what else of its kind there is room for."""
        orders = [self._waiting.popleft()]
        room, grey = _MOST_PIXELS - orders[0].pixels, orders[0].grey
        while self._waiting and self._waiting[0].grey == grey and self._waiting[0].pixels <= room:
            orders.append(self._waiting.popleft())
            room -= orders[-1].pixels
        try:
            images = iter(self._decoded(list(chain.from_iterable(order.data for order in orders)), grey))
        except Exception as error:
            for order in orders:
                order.images.set_exception(error)
        else:
            for order in orders:
                order.images.set_result(list(islice(images, len(order.data))))

    def _decoded(self, data: list[bytes], grey: bool) -> list[Any]:
        specs, formats = self._library.ColorSpec, self._library.SampleFormat
        params = self._library.DecodeParams(
            apply_exif_orientation=False,
            color_spec=specs.GRAY if grey else specs.SRGB,
            sample_format=formats.P_Y if grey else formats.P_RGB,
        )
        images: list[Any] = self._decoder.decode(data, params=params, cuda_stream=self._stream.cuda_stream)
        return images


_decoders: dict[torch.device, Decoder] = {}
_making = threading.Lock()


def _decoder_of(device: torch.device) -> Decoder:
    with _making:
        if device not in _decoders:
            _decoders[device] = Decoder(device)
        return _decoders[device]


def _device() -> torch.device:
    import torch  # noqa: PLC0415 as above

    if not torch.cuda.is_available():
        raise ConfigError(
            'Image: jpeg_decoder="gpu" needs an NVIDIA GPU, and torch finds none here: call '
            'set_params(jpeg_decoder="pillow") of the feature, which changes pixels by about one level'
        )
    return torch.device("cuda", torch.cuda.current_device())


def _is_small(file: Jpeg, target: Target) -> bool:
    sides = zip(file.size, sorted((target.width, target.height))[:1] * 2, strict=True)
    return file.size[0] * file.size[1] <= _MOST_PIXELS and (
        target.crop or all(found <= _MOST_RATIO * wanted for found, wanted in sides)
    )


def _in_turns(files: Sequence[Jpeg], places: Sequence[int]) -> Iterator[list[int]]:
    """Give places of files in groups of no more pixels than are decoded at once."""
    group: list[int] = []
    pixels = 0
    for place in places:
        width, height = files[place].size
        if group and pixels + width * height > _MOST_PIXELS:
            yield group
            group, pixels = [], 0
        group.append(place)
        pixels += width * height
    if group:
        yield group


def _cut(found: int, wanted: int) -> np.ndarray:
    """Return which pixels of a side are kept: those in the middle, with the outermost ones repeated beside them."""
    kept = min(found, wanted)
    kept_pixels: np.ndarray = round((found - kept) / 2) + np.clip(np.arange(wanted) - (wanted - kept) // 2, 0, kept - 1)
    return kept_pixels
