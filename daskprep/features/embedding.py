"""Feature type for the vectors of a frozen model, which is called once for each distinct value."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from daskprep.columns.kernels import valid_mask
from daskprep.columns.summaries import Summary
from daskprep.errors import ColumnError, ConfigError
from daskprep.features.feature import Feature, with_parameters
from daskprep.features.vector import LearnedVector, matrix_to_lists
from daskprep.rows.base import Strategy
from daskprep.rows.typed import Count
from daskprep.sources.cells import as_text
from daskprep.storage.security import check_function_name, import_function, path_text
from daskprep.storage.vectors import Value, cached_vectors


@with_parameters
class Embedding(Feature[Summary, LearnedVector]):
    """Embed texts, paths or bytes by a function, such as a frozen model.

    The function is called when rows are encoded, with a list of at most 512 distinct values: text, or bytes if the
    column has bytes. It returns an array of shape (values, size), which must not depend on the other values. It is
    called in one thread of a process at a time. Its results are kept in a file, by value, so that another write, fold
    or split calls it for new values only.

    Parameters
    ----------
    function : str
        Dotted name of the function, such as "mypackage.models.embed". Workers import it, too.
    size : int
        Length of a vector.
    version : str or None
        Version of the function and its model. Another version embeds all values again. None: the content of the
        file that defines the function, without the files that it reads or imports.
    cache_dir : str or None
        Local folder of the vectors. None: "daskprep/embeddings" in the user's cache folder.
    missing_value_strategy : str
        Imputation: "fill_with_const" (with `fill_value`), "fill_with_mode", "ffill", "bfill" or "drop_row".
    fill_value : str or float
        Value that "fill_with_const" embeds for missing values; 0 imputes a vector of zeros.
    missing_indicator, column
        As for `Feature`.
    invalid : {"missing", "raise"}
        Without effect, since all values can be read.

    Examples
    --------
    >>> from daskprep import Embedding
    >>> Embedding(function="mypackage.models.embed", size=384)
    Embedding(function='mypackage.models.embed', size=384)
    """

    kind = "embedding"
    semantic_type = "series"

    function: str | None = None
    size: Count | None = None
    version: str | None = None
    cache_dir: str | None = None
    missing_value_strategy: Strategy = "fill_with_const"
    fill_value: str | float | None = 0.0

    def check(self) -> None:
        """Raise ConfigError without size, or a function to import."""
        if self.function is None or self.size is None:
            raise ConfigError('Embedding needs a function and the size of its vectors, as in function="models.embed"')
        if isinstance(self.fill_value, float | int) and self.fill_value:
            raise ConfigError(f"Embedding: fill_value {self.fill_value!r} must be 0, for zeros, or a value to embed")
        if self.cache_dir is not None:
            path_text(self.cache_dir, "cache_dir")
        import_function("function", check_function_name("function", self.function))
        self.fingerprint()

    def fingerprint(self) -> str:
        """Return a digest of name and version, or its module's code."""
        name = check_function_name("function", self.function)
        if (content := self.version) is None:
            file = getattr(importlib.import_module(name.rpartition(".")[0]), "__file__", None)
            if file is None:
                raise ConfigError(f'Embedding: the module of "{name}" has no file: set version')
            content = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps([name, content]).encode()).hexdigest()

    def parse(self, column: pa.Array) -> pa.Array:
        """Return binary cells as bytes, others as text."""
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self.parse(column.dictionary).take(column.indices)
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        return column.cast(pa.binary()) if is_bytes else as_text(column)

    def summarize(self, parsed: pa.Array) -> Summary:
        return Summary()

    def learn(self, summary: Summary) -> LearnedVector:
        return LearnedVector(vector_size=self.size or 1)

    def _check_learned(self, learned: LearnedVector) -> None:
        if learned.vector_size != self.size:
            raise ValueError(f"vector_size is {learned.vector_size}, not {self.size}")

    def _sample_cells(self, learned: LearnedVector) -> list[str | None]:
        return []  # the function of a saved file is not called when it is loaded

    def parse_fill(self, value: object) -> pa.Array:
        return super().parse_fill(value) if isinstance(value, str | bytes) else pa.nulls(1, pa.string())

    def encode(self, parsed: pa.Array, learned: LearnedVector) -> np.ndarray:
        """Return vectors, cached in a file; zeros for missing cells."""
        out = np.zeros((len(parsed), learned.vector_size), np.float32)
        distinct = parsed.drop_null().dictionary_encode()
        if len(distinct):
            digest, cache_dir = self.fingerprint(), self.cache_dir
            user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            folder = Path(cache_dir) if cache_dir is not None else user_cache / "daskprep" / "embeddings"
            path = folder / f"{self.function}-{digest[:16]}-{learned.vector_size}.sqlite"
            vectors = cached_vectors(path, distinct.dictionary.to_pylist(), learned.vector_size, self._call)
            out[valid_mask(parsed)] = vectors[distinct.indices.to_numpy()]
        return out

    def _call(self, values: Sequence[Value]) -> np.ndarray:
        """Return a finite vector per value, or raise ColumnError."""
        function = import_function("function", check_function_name("function", self.function))
        try:
            result: np.ndarray = np.asarray(function(values), np.float32)
        except Exception as error:
            raise ColumnError(
                f"{self.function} failed on {len(values)} values, such as {values[0]!r:.80}: {error!r}; it must take "
                "any list of values, and return an array"
            ) from error
        if result.shape != (len(values), self.size) or not np.isfinite(result).all():
            raise ColumnError(
                f"{self.function} returned an array of shape {result.shape} for {len(values)} values, such as "
                f"{values[0]!r:.80}: expected finite numbers of shape ({len(values)}, {self.size})"
            )
        return result

    def decode(self, encoded: np.ndarray, learned: LearnedVector) -> pa.Array:
        return matrix_to_lists(encoded)
