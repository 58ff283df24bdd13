"""Leading directions of a matrix of integers, with the same bytes on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskprep.columns.permutation import mix
from daskprep.rows.components import FRACTION_BITS

_ITERATIONS = 6
_EXTRA_DIRECTIONS = 10  # of the subspace, which speed up its convergence
_BASIS_BITS, _IMAGE_SHIFT, _SHORT_BITS, _ROTATION_BITS = 14, 6, 18, 20
_SWEEPS = 8


def leading_directions(matrix: Any, size: int) -> np.ndarray:
    """Return the leading right singular vectors as int16 columns, times 2**15.

    Subspace iteration. Factors of matrix products are integers, and sums stay below 2**53, where float64 is exact:
    neither BLAS nor threads change the result. All else is computed by element. Of rows of length 2**12, 2**14 fit.
    Directions beyond the rank are zeros. The largest entry of a direction is positive.
    """
    columns, width = matrix.shape[1], size + _EXTRA_DIRECTIONS
    if not columns:
        return np.zeros((0, size), np.int16)
    signs = (mix(np.arange(1, columns * width + 1, dtype=np.uint64)) >> np.uint64(63)).reshape(columns, width)
    basis = np.rint((signs * 2.0 - 1) * 2**_BASIS_BITS / np.sqrt(columns))
    for _ in range(_ITERATIONS):
        basis = _orthonormalize(matrix.T @ np.rint(np.ldexp(matrix @ basis, -_IMAGE_SHIFT)))
    image = _shorten(matrix @ basis)
    rotation = np.rint(np.ldexp(eigenvectors(image.T @ image)[1], _ROTATION_BITS))
    directions = np.rint(np.ldexp(basis @ rotation[:, :size], FRACTION_BITS - _BASIS_BITS - _ROTATION_BITS))
    strongest = np.abs(directions).argmax(axis=0)
    directions *= np.where(directions[strongest, np.arange(size)] < 0, -1, 1)
    limit = 2**FRACTION_BITS - 1
    clipped: np.ndarray = np.clip(directions, -limit, limit).astype(np.int16)
    return clipped


def _orthonormalize(vectors: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of columns, times 2**14."""
    short = _shorten(vectors, axis=0)
    values, rotation = eigenvectors(short.T @ short)
    known = values > len(short)  # others come from rounding
    lengths = np.sqrt(np.where(known, values, 1.0))
    scale = np.ldexp(np.where(known, 1.0, 0.0) / lengths, _BASIS_BITS - _ROTATION_BITS)
    basis: np.ndarray = np.rint(short @ np.rint(np.ldexp(rotation, _ROTATION_BITS)) * scale)
    return basis


def _shorten(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Return numbers scaled to integers of at most 18 bits."""
    exponents = np.frexp(np.abs(values).max(axis=axis, initial=0.0))[1]
    short: np.ndarray = np.rint(np.ldexp(values, _SHORT_BITS - exponents))
    return short


def eigenvectors(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues of a symmetric matrix, descending, and vectors as columns.

    By Jacobi rotations: each step rotates all pairs of a round of a tournament. LAPACK's results depend on the
    processor.
    """
    size = len(matrix)
    if size % 2:
        values, vectors = eigenvectors(np.pad(matrix, (0, 1)))
        kept = np.sort(np.argsort(np.abs(vectors[size]), kind="stable")[:size])
        return values[kept], vectors[:size, kept]
    matrix, vectors, order = matrix.copy(), np.eye(size), np.arange(size)
    for _ in range(_SWEEPS * (size - 1)):
        first, second = order[: size // 2], order[size // 2 :][::-1]
        off = matrix[first, second]
        with np.errstate(over="ignore"):  # where `off` is almost 0
            ratio = (matrix[second, second] - matrix[first, first]) / np.where(off == 0, 1.0, 2 * off)
            tangent = np.where(ratio < 0, -1.0, 1.0) / (np.abs(ratio) + np.sqrt(ratio * ratio + 1))
        tangent = np.where(off == 0, 0.0, tangent)
        cosine = 1 / np.sqrt(tangent * tangent + 1)
        sine = tangent * cosine
        for table in (matrix.T, matrix, vectors):  # of `matrix`, rows, then columns
            left, right = table[:, first], table[:, second]
            table[:, first], table[:, second] = left * cosine - right * sine, left * sine + right * cosine
        order[1:] = np.roll(order[1:], 1)
    values = np.diag(matrix)
    descending = np.argsort(-values, kind="stable")
    return values[descending], vectors[:, descending]
