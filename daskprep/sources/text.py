"""Text files of any encoding and compression, read as UTF-8 bytes, and the ends of records in delimited text."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from daskprep.errors import ConfigError, RejectedValueError
from daskprep.sources.locations import File, explain_read_errors

BLOCK_BYTES = 1 << 20
_BOM = codecs.BOM_UTF8
_UTF8 = "utf-8"
# The first bytes of compressed files.
_COMPRESSED = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bz2>BZh[1-9]1AY&SY)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<xz>\xfd7zXZ\0)|(?P<zip>PK\x03\x04)"
)
_SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}
_MAX_BLOCK_BYTES = (1 << 31) - 1

T = TypeVar("T")
_NEWLINE, _RETURN = 10, 13


def codec_name(encoding: str) -> str:
    """Return Python's name of an encoding; ConfigError if it is unknown, or not of text."""
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
    """Return whether bytes below 128 are always ASCII characters."""
    try:
        decoded = bytes(range(256)).decode(encoding, errors="replace")
    except (UnicodeError, LookupError):
        return False
    return len(decoded) == 256 and decoded[:128].encode("ascii", errors="replace") == bytes(range(128))


@dataclass(frozen=True)
class TextFile:
    """A text file whose parts are read as UTF-8.

    Positions are bytes of the file if it can be split (`can_split`), otherwise bytes of its UTF-8 text. Compressed
    files cannot be split, nor encodings in which a newline byte may be part of another character.
    """

    file: File
    encoding: str
    compression: str | None

    @property
    def is_local(self) -> bool:
        return self.file.is_local

    @property
    def can_split(self) -> bool:
        return self.compression is None and self.file.size is not None and _keeps_ascii(self.encoding)

    def read(self, start: int, stop: int | None = None) -> pa.Buffer:
        """Return the text from `start` to `stop` (None: end) as UTF-8."""
        if self.can_split:
            return self._as_utf8(self.file.read(start, stop), start)
        data = self._as_utf8(self._read_stored(), 0)
        return data.slice(start, (data.size if stop is None else stop) - start)

    def head(self, nbytes: int) -> tuple[bytes, bool]:
        """Return about `nbytes` bytes as UTF-8, and whether that is all; or an error."""
        if self.can_split:
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
        """Return a head as a string, with invalid characters replaced."""
        return head.decode(self.encoding if self.can_split else _UTF8, errors="replace")

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the stored bytes between two positions in blocks."""
        if not self.can_split:
            yield self.read(start, stop).to_pybytes()
            return
        end = (self.file.size or 0) if stop is None else stop
        with explain_read_errors(self.file, "text"), self.file.open() as handle:
            handle.seek(start)
            while start < end and (block := handle.read(min(BLOCK_BYTES, end - start))):
                start += len(block)
                yield block

    def line_number_at(self, position: int) -> int:
        """Return the number of the line, from 1, at a position."""
        return 1 + sum(block.count(b"\n") for block in self.blocks(0, position))

    def skip_byte_order_mark(self, head: bytes) -> int:
        """Return the position after a byte order mark, or 0; RejectedValueError for compressed text."""
        if self.compression is None and (match := _COMPRESSED.match(head)):
            name, kind = self.file.name, str(match.lastgroup)
            remedy = f"rename it to {name}{_SUFFIXES[kind]}" if kind in _SUFFIXES else "unpack it, or use gzip"
            raise RejectedValueError(f"{name}: its content is compressed as {kind}: {remedy}")
        if self.encoding == _UTF8 and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise RejectedValueError(
                f'{self.file.name}: starts with the byte order mark of UTF-16; use encoding="utf-16"'
            )
        return len(_BOM) if head.startswith(_BOM) and (self.encoding == _UTF8 or not self.can_split) else 0

    def _read_stored(self, nbytes: int | None = None) -> pa.Buffer:
        """Return the first `nbytes` bytes (None: all), decompressed."""
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
        """Return bytes as UTF-8; RejectedValueError with the position of an invalid one."""
        if self.encoding == _UTF8 or not stored.size:
            return stored
        try:
            return pa.py_buffer(str(stored, self.encoding).encode())
        except UnicodeError as error:
            raise self.encoding_error(error, start) from error

    def encoding_error(self, error: UnicodeError, start: int) -> RejectedValueError:
        """Return the error for invalid bytes, read from `start`."""
        where = f" at byte {start + error.start:,}" if isinstance(error, UnicodeDecodeError) else ""
        return RejectedValueError(
            f"{self.file.name}: not {self.encoding} text{where}; pass the right encoding: read_files(..., encoding=)"
        )


def parse_in_blocks(parse: Callable[[pa.Buffer, int], T], data: pa.Buffer, block_bytes: int) -> T:
    """Return ``parse(data, block_bytes)``, with larger blocks until the longest record fits in one."""
    if data[: len(_BOM)].to_pybytes() == _BOM:
        data = pa.py_buffer(b"\n" + data.to_pybytes())  # Arrow would drop the mark, also in the middle of a file
    while True:
        try:
            return parse(data, block_bytes)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block_bytes >= min(data.size, _MAX_BLOCK_BYTES):
                raise
            block_bytes = min(16 * block_bytes, _MAX_BLOCK_BYTES)


class _QuoteTracker:
    """The state of the quotes in delimited text, block by block.

    A quote opens a quoted part only at the start of a cell. Inside a quoted part, a doubled quote is a literal quote,
    and a single quote ends the part. Anywhere else a quote is a normal character. So a run of 2n quotes never changes
    whether the next character is quoted. A run of 2n + 1 quotes toggles the state after a delimiter or newline, and
    ends the quoted part after any other character. States are a cumulative sum that restarts at runs of the last kind.
    """

    def __init__(self, delimiter: str, quote: str | None) -> None:
        self._delimiter = ord(delimiter)
        self._quote = None if quote is None else ord(quote)
        self._before = _NEWLINE
        self.inside = False  # whether the end of the last block is in quotes, opened at `opened_at`
        self.opened_at = 0

    def follow(self, block: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions in a block where the state may change, and whether the text after each is quoted.

        The first position is -1, with the state before the block, which starts at `position` in the text. A block must
        not end inside a run of quotes.
        """
        changes = self._uneven_runs(block)
        inside = np.empty(1 + len(changes), bool)
        inside[::2], inside[1::2] = self.inside, not self.inside
        # If every run expected to open a part may open one, the runs open and close in turn: the common case.
        if not self._may_open(block, changes[int(self.inside) :: 2]).all():
            opens = self._may_open(block, changes)
            toggles = np.cumsum(opens) + self.inside
            restarts = np.maximum.accumulate(np.where(opens, -1, np.arange(len(changes))))
            inside[1:] = (toggles - np.where(restarts >= 0, toggles[restarts], 0)) & 1
        self.inside = bool(inside[-1])
        if self.inside and len(opened := np.flatnonzero(inside[1:] & ~inside[:-1])):
            self.opened_at = position + int(changes[opened[-1]])
        if len(block):
            self._before = int(block[-1])
        return np.concatenate([[-1], changes]), inside

    def _uneven_runs(self, block: np.ndarray) -> np.ndarray:
        """Return the starts of the runs of 2n + 1 quotes."""
        if self._quote is None or not (marks := block == self._quote).any():  # any() is far faster than flatnonzero
            return np.empty(0, np.int64)
        quotes = np.flatnonzero(marks)
        follows = np.diff(quotes, prepend=-2) == 1
        if not follows.any():
            return quotes
        first = np.flatnonzero(~follows)
        run_starts: np.ndarray = quotes[first[np.diff(first, append=len(quotes)) & 1 == 1]]
        return run_starts

    def _may_open(self, block: np.ndarray, runs: np.ndarray) -> np.ndarray:
        """Return a mask of the runs of quotes, by their first positions, that are at the start of a cell."""
        before = block[runs - 1]
        if len(runs) and runs[0] == 0:
            before[0] = self._before
        can_open: np.ndarray = (before == self._delimiter) | (before == _NEWLINE) | (before == _RETURN)
        return can_open


def _outside_quotes(positions: np.ndarray, changes: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the positions that no quote encloses."""
    if len(changes) == 1:
        return positions[:0] if inside[0] else positions
    outside: np.ndarray = positions[~inside[np.searchsorted(changes, positions) - 1]]
    return outside


def join_quote_runs(blocks: Iterable[bytes], quote: str | None) -> Iterator[bytes]:
    """Yield blocks that do not end inside a run of quotes."""
    mark = b"" if quote is None else quote.encode()
    rest = b""
    for raw_block in blocks:
        block = rest + raw_block if rest else raw_block
        complete = len(block.rstrip(mark)) if mark else len(block)
        rest = block[complete:]
        if complete:
            yield block[:complete] if rest else block
    if rest:
        yield rest


def _join_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks that end with lines, and the rest after the last line end."""
    waiting: list[bytes] = []
    for block in blocks:
        if end := max(block.rfind(b"\n"), block.rfind(b"\r")) + 1:
            yield b"".join([*waiting, block[:end]])
            waiting = []
        waiting.append(block[end:])
    yield b"".join(waiting)


def blank_out_comments(blocks: Iterable[bytes], delimiter: str, quote: str | None, comment: str) -> Iterator[bytes]:
    """Yield blocks of lines, with comments outside of quotes overwritten by carriage returns."""
    quotes = _QuoteTracker(delimiter, quote)
    line = re.compile(rb"(?<![^\r\n])" + re.escape(comment.encode()) + rb"[^\r\n]*")
    for block in _join_lines(blocks):
        view, out, start = np.frombuffer(block, np.uint8), bytearray(block), 0
        for match in line.finditer(block):
            quotes.follow(view[start : match.start()], 0)
            start = match.start()
            if not quotes.inside:
                start = match.end()
                out[slice(*match.span())] = b"\r" * len(match[0])
        quotes.follow(view[start:], 0)
        yield bytes(out)


class RecordCuts(NamedTuple):
    """Positions at which a text is split between records."""

    positions: list[int]  # positions after the ends of records
    # Number of records before each position, and in total; None for texts with quotes, carriage returns or blank lines,
    # in which a newline may not end a record.
    counts: list[int] | None
    unclosed_quote: int | None  # position of a quote that is never closed


def cut_records(
    blocks: Iterable[bytes], start: int, targets: Sequence[int], delimiter: str, quote: str | None
) -> RecordCuts:
    """Return the ends of records first at or after targets, each once."""
    quotes, positions, waiting = _QuoteTracker(delimiter, quote), list[int](), list(targets)[::-1]
    counts, lines, at_start, plain = list[int](), 0, True, True
    for block in join_quote_runs(blocks, quote):
        view = np.frombuffer(block, np.uint8)
        changes, inside = quotes.follow(view, start)
        ends = view == _NEWLINE
        blank = (at_start and ends[0]) or (ends[1:] & ends[:-1]).any()
        plain = plain and len(changes) == 1 and b"\r" not in block and not blank
        if waiting and waiting[-1] <= start + len(view):
            new_positions = take_ends(start + 1 + _outside_quotes(np.flatnonzero(ends), changes, inside), waiting)
            counts += [lines + int(np.count_nonzero(ends[: position - start])) for position in new_positions]
            positions += new_positions
        lines, at_start = lines + int(np.count_nonzero(ends)), bool(ends[-1])
        start += len(view)
    counts.append(lines + (not at_start))
    return RecordCuts(positions, counts if plain else None, quotes.opened_at if quotes.inside else None)


def take_ends(ends: np.ndarray, waiting: list[int]) -> list[int]:
    """Return the first of sorted `ends` at or after each target, and pop these from descending `waiting`."""
    taken: list[int] = []
    while waiting and (reached := int(np.searchsorted(ends, waiting[-1]))) < len(ends):
        taken.append(int(ends[reached]))
        while waiting and waiting[-1] <= taken[-1]:
            waiting.pop()
    return taken


def record_starts(text: bytes, delimiter: str, quote: str | None) -> np.ndarray:
    """Return the positions at which records start; blank lines are none."""
    view = np.frombuffer(text, np.uint8)
    changes, inside = _QuoteTracker(delimiter, quote).follow(view, 0)
    starts = np.concatenate([[0], _outside_quotes(np.flatnonzero(view == _NEWLINE), changes, inside) + 1])
    ends = np.append(starts[1:], len(view))
    return starts[[bool(text[a:b].strip(b"\r\n")) for a, b in zip(starts, ends, strict=True)]]


def first_record_end(text: bytes, delimiter: str, quote: str | None) -> int | None:
    """Return the position after the first record; None if it does not end."""
    view = np.frombuffer(text, np.uint8)
    changes, inside = _QuoteTracker(delimiter, quote).follow(view, 0)
    ends = _outside_quotes(np.flatnonzero((view == _NEWLINE) | (view == _RETURN)), changes, inside)
    if not len(ends):
        return None
    end = int(ends[0]) + 1
    return end + 1 if text[end - 1 : end + 1] == b"\r\n" else end
