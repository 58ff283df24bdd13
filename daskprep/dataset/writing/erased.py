"""Keys of rows that were erased from a dataset, as salted digests: writes to its folder refuse rows that have them."""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daskprep.columns.display import format_count, join_names
from daskprep.columns.permutation import Integers, Uint64Array, hash_strings, make_key
from daskprep.errors import ConfigError, CorruptDatasetError, MissingColumnError
from daskprep.features import Key
from daskprep.passes.engine import PartitionReader, Pass, run_pass
from daskprep.passes.table import Parsed, PartitionContext
from daskprep.rows.saved import parse_json
from daskprep.sources import Source
from daskprep.storage.checksum import json_sha256
from daskprep.storage.files import Folder
from daskprep.storage.manifest import ERASED

Digests = Mapping[tuple[str, ...], Uint64Array]
"""Digests of the keys of erased rows by the columns of the keys."""


@dataclass(frozen=True)
class ErasedKeys:
    """The content of `ERASED`: a salt, and a record of each call of `erase` with the keys of its rows."""

    root: Folder
    salt: str
    records: Mapping[str, Mapping[str, Any]]  # by call
    digests: Digests

    @classmethod
    def read(cls, root: Folder, *, ignored: bool = False) -> ErasedKeys:
        """Return the erased keys of a dataset, or no keys and a new salt; CorruptDatasetError if altered."""
        if ignored or root.size(ERASED) is None:
            return cls(root, secrets.token_hex(16), {}, {})
        try:
            body, digests = parse_json(root.read(ERASED)), dict[tuple[str, ...], set[int]]()
            is_valid = body.pop("sha256") == json_sha256(body) and body["format"] == 1
            for call, one in body["records"].items():
                is_valid &= re.fullmatch("[0-9a-f]{16}", call) is not None
                digests.setdefault(tuple(one["columns"]), set()).update(int(digest, 16) for digest in one["digests"])
            if is_valid:
                arrays = {columns: np.array(sorted(own), np.uint64) for columns, own in digests.items() if columns}
                return cls(root, body["salt"], body["records"], arrays)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            pass
        raise CorruptDatasetError(f"{root.url}/{ERASED} was altered: restore it from a copy")

    def write(self, call: str, record: Mapping[str, Any]) -> None:
        """Write the file with the record of a call."""
        body = {"format": 1, "salt": self.salt, "records": {**self.records, call: record}}
        self.root.write(ERASED, (json.dumps({**body, "sha256": json_sha256(body)}, indent=1) + "\n").encode())

    @property
    def columns(self) -> list[str]:
        """The columns that have keys."""
        return list(dict.fromkeys(column for columns in self.digests for column in columns))

    @contextmanager
    def name_in_errors(self) -> Iterator[None]:
        """Add the reason to the error for rows that lack a column."""
        try:
            yield
        except MissingColumnError as error:
            if error.column not in self.columns:
                raise
            reason = f'rows were erased from {self.root.url} by "{error.column}"'
            remedy = "pass rows with this column, or allow_erased=True if no erased ones are among them"
            raise MissingColumnError(f"{error}. {reason}: {remedy}", error.column) from error

    def refuse(self, source: Source) -> None:
        """Raise ConfigError if the source has rows with erased keys."""
        if not self.digests:
            return
        count = functools.partial(_count_matches, self.salt, self.digests)
        if rows := sum(run_pass(PartitionReader(source), Pass("find-erased", count, columns=self.columns))):
            raise ConfigError(
                f"{format_count(rows, 'row')} of the source have keys ({join_names(self.columns, 5)}) that were erased "
                f"from {self.root.url}: take these rows out of the source, or pass allow_erased=True"
            )


def digest_keys(salt: str, keys: Mapping[str, Integers]) -> Uint64Array:
    """Return the salted digests of keys by column, as `Key` stores them."""
    texts = pc.binary_join_element_wise(*(pa.array(one).cast(pa.string()) for one in keys.values()), ",")
    return hash_strings(texts, make_key(0, "erased", salt, *keys))


def _count_matches(salt: str, digests: Digests, context: PartitionContext, parsed: Parsed, table: pa.Table) -> int:
    """Return the number of rows of a partition that have erased keys."""
    del context, parsed
    keys = {name: Key()._parse_columns([name], table[name]).to_numpy() for name in {*sum(digests, ())}}
    matches = np.zeros(len(table), bool)
    for columns, erased in digests.items():
        matches |= np.isin(digest_keys(salt, {name: keys[name] for name in columns}), erased)
    return int(np.count_nonzero(matches))
