"""Text files of any encoding and compression, read as UTF-8 bytes."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from daskprep.errors import ConfigError, RejectedValueError
from daskprep.sources.locations import File, explain_read_errors

BLOCK_BYTES = 1 << 20
_BOM = codecs.BOM_UTF8
_UTF8 = "utf-8"
_MAX_SHOWN_BYTES = 8
_MAX_BLOCK_BYTES = (1 << 31) - 1

T = TypeVar("T")


def codec_name(encoding: str) -> str:
    """Return Python's name of an encoding, "utf-8" for all its variants; ConfigError if unknown."""
    try:
        name = codecs.lookup(encoding).name
        "".encode(name)  # raises for codecs not of text, such as base64
    except (LookupError, UnicodeError) as error:
        raise ConfigError(
            f'encoding="{ascii(encoding)[1:-1]}" is unknown; use one of Python, such as "utf-8" or "latin-1"'
        ) from error
    return _UTF8 if name == "utf-8-sig" else name


@functools.lru_cache(maxsize=64)
def _keeps_ascii(encoding: str) -> bool:
    """Return whether every byte below 128 in a text is that ASCII character, so that bytes can be searched."""
    try:
        decoded = bytes(range(256)).decode(encoding, errors="replace")
    except (UnicodeError, LookupError):
        return False
    return len(decoded) == 256 and decoded[:128].encode("ascii", errors="replace") == bytes(range(128))


@dataclass(frozen=True)
class TextFile:
    """A text file whose parts are read as UTF-8.

    Positions are bytes of the file if it can be split (`can_cut`), otherwise bytes of its UTF-8 text. Compressed files
    cannot be split, nor encodings in which a newline byte may be part of another character.
    """

    file: File
    encoding: str
    compression: str | None

    @property
    def is_local(self) -> bool:
        return self.file.is_local

    @property
    def can_cut(self) -> bool:
        return self.compression is None and self.file.size is not None and _keeps_ascii(self.encoding)

    def read(self, start: int, stop: int | None = None) -> pa.Buffer:
        """Return the UTF-8 bytes between two positions."""
        if self.can_cut:
            return self._as_utf8(self.file.read(start, stop), start)
        data = self._as_utf8(self._read_stored(), 0)
        return data.slice(start, (data.size if stop is None else stop) - start)

    def head(self, nbytes: int) -> tuple[bytes, bool]:
        """Return about the first `nbytes` bytes, in the units of positions, and whether they are the complete text."""
        if self.can_cut:
            size = self.file.size or 0
            return self.file.read(0, min(nbytes, size)).to_pybytes(), nbytes >= size
        stored = self._read_stored(nbytes)
        complete = len(stored) < nbytes
        if self.encoding == _UTF8:
            return stored.to_pybytes(), complete
        decoder = codecs.getincrementaldecoder(self.encoding)()
        try:
            return decoder.decode(stored.to_pybytes(), final=complete).encode(), complete
        except UnicodeError as error:
            raise self.encoding_error(error, 0) from error

    def decode_head(self, head: bytes) -> str:
        """Return a head as a string; an invalid character, or a truncated one at the end, is replaced."""
        return head.decode(self.encoding if self.can_cut else _UTF8, errors="replace")

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the bytes between two positions in blocks, not decoded if the file can be split."""
        if not self.can_cut:
            yield self.read(start, stop).to_pybytes()
            return
        end = (self.file.size or 0) if stop is None else stop
        with explain_read_errors(self.file, "text"), self.file.open() as handle:
            handle.seek(start)
            while start < end and (block := handle.read(min(BLOCK_BYTES, end - start))):
                start += len(block)
                yield block

    def line_number_at(self, position: int) -> int:
        """Return the number of the line, counted from 1, that holds a position."""
        return 1 + sum(block.count(b"\n") for block in self.blocks(0, position))

    def skip_byte_order_mark(self, head: bytes) -> int:
        """Return the position after a byte order mark in a head, or 0; RejectedValueError for UTF-16 read as UTF-8."""
        if self.encoding == _UTF8 and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise RejectedValueError(
                f'{self.file.name}: starts with the byte order mark of UTF-16; use encoding="utf-16"'
            )
        return len(_BOM) if head.startswith(_BOM) and (self.encoding == _UTF8 or not self.can_cut) else 0

    def _read_stored(self, nbytes: int | None = None) -> pa.Buffer:
        """Return the first `nbytes` decompressed bytes, or all, in the encoding of the file."""
        if self.compression is None:
            limits = [size for size in (nbytes, self.file.size) if size is not None]
            return self.file.read(0, None if nbytes is None else min(limits))
        with (
            explain_read_errors(self.file, f"{self.compression} text"),
            self.file.open() as handle,
            pa.CompressedInputStream(handle, self.compression) as stream,
        ):
            return pa.py_buffer(stream.read() if nbytes is None else stream.read(nbytes))

    def _as_utf8(self, stored: pa.Buffer, start: int) -> pa.Buffer:
        if self.encoding == _UTF8 or not stored.size:
            return stored
        try:
            return pa.py_buffer(str(stored, self.encoding).encode())
        except UnicodeError as error:
            raise self.encoding_error(error, start) from error

    def encoding_error(self, error: UnicodeError, start: int) -> RejectedValueError:
        """Return the error for bytes not valid in the encoding, read from position `start`."""
        where, shown = "", ""
        if isinstance(error, UnicodeDecodeError):
            where = f" at byte {start + error.start:,}"
            shown = f": {error.object[error.start : error.start + _MAX_SHOWN_BYTES]!r}"
        return RejectedValueError(
            f"{self.file.name}: not {self.encoding} text{where}{shown}; pass the right encoding: "
            "read_files(..., encoding=)"
        )


def parse_in_blocks(parse: Callable[[pa.Buffer, int], T], data: pa.Buffer, block_bytes: int) -> T:
    """Return the result of an Arrow parser, called with larger blocks until the longest record fits in a block."""
    if data[: len(_BOM)].to_pybytes() == _BOM:
        data = pa.py_buffer(b"\n" + data.to_pybytes())  # Arrow would drop the mark, also in the middle of a file
    while True:
        try:
            return parse(data, block_bytes)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block_bytes >= min(data.size, _MAX_BLOCK_BYTES):
                raise
            block_bytes = min(16 * block_bytes, _MAX_BLOCK_BYTES)
