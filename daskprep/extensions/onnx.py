"""Export of a fitted Preprocessor to ONNX, as a graph that onnxruntime runs without Python.

The graph is built from the row encoders of `rows`, which `daskprep.serving` runs. A function for each type returns the
mask of missing cells, and the encoded cells by the suffix of the output. `Value` is a tensor of the graph.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from daskprep.errors import ConfigError, MissingPackageError, did_you_mean
from daskprep.rows import make_row_encoder
from daskprep.rows.base import MISSING, NEIGHBOUR_STRATEGIES, RowEncoder, changed_parameters
from daskprep.rows.cells import SECONDS_PER_DAY, number_of, text_of
from daskprep.rows.classes import BinaryRowEncoder, CategoryRowEncoder, TargetEncodingRowEncoder
from daskprep.rows.dates import DateRowEncoder, calendar_parts
from daskprep.rows.numbers import Bins, NumberRowEncoder
from daskprep.rows.series import VectorRowEncoder
from daskprep.rows.tokens import SequenceRowEncoder, SetRowEncoder, TextRowEncoder, TokenRowEncoder

PREFIX = "encoded/"  # of outputs, since a graph has no input and output of one name
_OPSETS, _IR_VERSION = {"": 20, "ai.onnx.ml": 4, "com.microsoft": 1}, 9  # of onnxruntime 1.17
_NAT = np.iinfo(np.int64).min
_DAYS_OF_ERA = 146_097  # 400 years, and a number of whole weeks
_BOOL, _INT, _DOUBLE, _SINGLE, _TEXT = map(np.dtype, (np.bool_, np.int64, np.float64, np.float32, object))


class _UnsupportedError(ConfigError):
    """Error for a feature that no graph can encode."""


def _operator(kind: str, *, is_reflected: bool = False, is_comparison: bool = False) -> Callable[[Value, Any], Value]:
    """Return a method for an operator: booleans become integers."""

    def operate(self: Value, other: Any) -> Value:
        operands = [one.astype(_INT) if isinstance(one, Value) and one.dtype == _BOOL else one for one in (self, other)]
        result = self.graph.add(kind, *(reversed(operands) if is_reflected else operands))
        return Value(self.graph, result.name, _BOOL) if is_comparison else result

    return operate


class Value:
    """Tensor of a graph; operators add nodes, Booleans are integers."""

    __hash__ = None  # type: ignore[assignment]
    __add__, __radd__ = _operator("Add"), _operator("Add")
    __mul__, __rmul__ = _operator("Mul"), _operator("Mul")
    __sub__, __rsub__ = _operator("Sub"), _operator("Sub", is_reflected=True)
    __truediv__, __rtruediv__ = _operator("Div"), _operator("Div", is_reflected=True)
    __floordiv__ = _operator("Div")  # of integers from 0 on
    __lt__, __le__ = _operator("Less", is_comparison=True), _operator("LessOrEqual", is_comparison=True)
    __gt__, __ge__ = _operator("Greater", is_comparison=True), _operator("GreaterOrEqual", is_comparison=True)
    __eq__ = _operator("Equal", is_comparison=True)  # type: ignore[assignment]

    def __init__(self, graph: Graph, name: str, dtype: np.dtype[Any]) -> None:
        self.graph, self.name, self.dtype = graph, name, dtype

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return ~(self == other)

    def __and__(self, other: Any) -> Value:
        return self.graph.add("And" if self.dtype == _BOOL else "BitwiseAnd", self, other)

    def __or__(self, other: Any) -> Value:
        return self.graph.add("Or", self, other)

    def __invert__(self) -> Value:
        return self.graph.add("Not", self)

    def __neg__(self) -> Value:
        return self * -1.0

    def __abs__(self) -> Value:
        return self.apply("Abs")

    def __pow__(self, exponent: float) -> Value:
        return self.apply("Pow", exponent)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any) -> Any:
        return _TRACED[function](*inputs)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        return _TRACED[function](*inputs, **options)

    def any(self) -> bool:
        """Return False: of no value is known that its interpolation is infinite, which graphs refuse."""
        return False

    def astype(self, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        to = self.graph.helper.np_dtype_to_tensor_dtype(dtype)
        return self if dtype == self.dtype else self.graph.add("Cast", self, dtype=dtype, to=to)

    def apply(self, kind: str, *operands: Any, **attributes: Any) -> Value:
        return self.graph.add(kind, self, *operands, **attributes)

    def column(self) -> Value:
        return self.apply("Unsqueeze", np.array([1]))

    def look_up(self, numbers: Mapping[str, int], default: int) -> Value:
        """Return the number of each text, `default` for other texts."""
        keys, values = list(numbers) or [""], [int(number) for number in numbers.values()] or [default]
        attributes = {"keys_strings": keys, "values_int64s": values, "default_int64": default}
        return self.apply("LabelEncoder", dtype=_INT, domain="ai.onnx.ml", **attributes)

    def tokens(self, pattern: str) -> Value:
        """Return the matches of a pattern in each text, and an empty one."""
        attributes = {"mark": 0, "pad_value": "", "mincharnum": 1, "tokenexp": pattern}
        tokens = self.apply("Tokenizer", domain="com.microsoft", **attributes)
        empty = self.graph.constant(np.array("", object)).apply("Expand", self.column().apply("Shape", dtype=_INT))
        return tokens.apply("Concat", empty, axis=1)

    def strip(self) -> Value:
        space = _characters(r"\s")
        return self.tokens(f"(?s)[^{space}](?:.*[^{space}])?").apply("Gather", np.array(0), axis=1)

    def lower(self, tokens: Iterable[str]) -> Value:
        """Return texts in lower case, as far as `tokens` need it."""
        locale = "C" if all(map(str.isascii, tokens)) else "C.UTF-8"
        return self.apply("StringNormalizer", case_change_action="LOWER", locale=locale)


def _import_onnx() -> Any:
    try:
        return importlib.import_module("onnx")
    except ModuleNotFoundError as error:
        raise MissingPackageError("to_onnx needs the package onnx. Install it with: pip install onnx") from error


def read_outputs(content: bytes) -> list[str]:
    """Return the names of the outputs of a model, as `encode` has them; ConfigError if it cannot be read."""
    onnx = _import_onnx()
    try:
        graph = onnx.load_from_string(content).graph
    except Exception as error:  # of protobuf
        raise ConfigError(f"not an ONNX model: {error}") from error
    return [one.name.removeprefix(PREFIX) for one in graph.output]


class Graph:
    """Inputs, nodes and constants of an ONNX graph."""

    def __init__(self) -> None:
        onnx = _import_onnx()
        self.helper, self.to_tensor = onnx.helper, onnx.numpy_helper.from_array
        self.inputs: dict[str, tuple[Value, Any]] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def input(self, column: str, dtype: np.dtype[Any], size: int | None = None) -> Value:
        """Return the input of a column, the same for all features; one dtype each."""
        if column not in self.inputs:
            shape = ["rows"] if size is None else ["rows", size]
            kind = self.helper.np_dtype_to_tensor_dtype(dtype)
            self.inputs[column] = Value(self, column, dtype), self.helper.make_tensor_value_info(column, kind, shape)
        value, _ = self.inputs[column]
        if value.dtype != dtype:
            raise _UnsupportedError(f'another feature reads column "{column}" as {_INPUTS[value.dtype]}')
        return value

    def constant(self, array: np.ndarray) -> Value:
        name = f"constant/{len(self.constants)}"
        self.constants.append(self.to_tensor(array, name))
        return Value(self, name, array.dtype)

    def add(
        self, kind: str, *operands: Any, dtype: Any = None, domain: str = "", index: int = 0, **attributes: Any
    ) -> Value:
        """Add a node, and return its output at `index`."""
        # Numbers have the type of the first value, arrays their own.
        first = next(one for one in operands if isinstance(one, Value))
        values = [
            one if isinstance(one, Value) else self.constant(np.asarray(one, getattr(one, "dtype", first.dtype)))
            for one in operands
        ]
        name = f"node/{len(self.nodes)}"
        outputs = [*(f"{name}/{number}" for number in range(index)), name]
        node = self.helper.make_node(kind, [one.name for one in values], outputs, domain=domain, **attributes)
        self.nodes.append(node)
        return Value(self, name, first.dtype if dtype is None else np.dtype(dtype))

    def where(self, condition: Value, yes: Any, no: Any) -> Value:
        """Return `yes` where the condition holds, else `no`, in the dtype of either."""
        dtype = next((one.dtype for one in (yes, no) if isinstance(one, Value)), _DOUBLE)
        yes, no = (one if isinstance(one, Value) else np.asarray(one, dtype) for one in (yes, no))
        return self.add("Where", condition, yes, no, dtype=dtype)

    def serialize(self, outputs: Mapping[str, Value]) -> bytes:
        """Return the model with these outputs by name as bytes."""
        infos = []
        for name, value in outputs.items():
            self.nodes.append(self.helper.make_node("Identity", [value.name], [PREFIX + name]))
            kind = self.helper.np_dtype_to_tensor_dtype(value.dtype)
            infos.append(self.helper.make_tensor_value_info(PREFIX + name, kind, None))
        inputs = [info for _, info in self.inputs.values()]
        graph = self.helper.make_graph(self.nodes, "daskprep", inputs, infos, self.constants)
        opsets = [self.helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
        model = self.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="daskprep")
        data: bytes = model.SerializeToString(deterministic=True)
        return data


_SUPPORTED = """
    missing_indicator invalid column normalization clip_quantiles encoding bins bin_strategy target target_type
    outlier_strategy outlier_threshold missing_value_strategy fill_value null_values written most_common
    min_frequency lowercase order hash_buckets oov_buckets columns handle_unknown transform_to smooth folds
    fold_group fold_time positive tokenizer ngram_size pattern pretrained_model_name_or_path max_size expand_to
    vocab_file sequence_length max_sequence_length padding truncation add_start_stop special_symbols level
    char_most_common char_max_sequence_length compute_idf datetime_format parts cyclic since since_unit vector_size
"""
"""Parameters that graphs support: a feature that sets others is refused."""
_INPUTS = {_DOUBLE: "numbers", _SINGLE: "vectors", _TEXT: "text", _INT: "dates"}
Encoded = tuple[Value, dict[str, Value]]


def export(state: Mapping[str, Any], columns: Iterable[str] | None) -> bytes:
    """Return the ONNX model of a Preprocessor's state; ConfigError for features that ONNX cannot encode."""
    features = state["features"]
    if isinstance(columns, str):
        raise ConfigError(f"columns={columns!r}: expected a list of names, such as [{columns!r}]")
    unused = {*state.get("targets", ()), state.get("weight")}
    unused |= {name for name, one in features.items() if one["type"] == "key"}
    names = [name for name in features if name not in unused] if columns is None else list(columns)
    for name in names:
        if name not in features:
            raise ConfigError(f'columns: there is no feature "{name}".{did_you_mean(name, features)}')
    graph, refused = Graph(), {}
    outputs: dict[str, Value] = {}
    for name in names:
        try:
            outputs |= _encode(graph, make_row_encoder(name, features[name]), name, features[name])
        except _UnsupportedError as error:
            refused[name] = error
    if refused:
        reasons = "; ".join(f'"{name}": {reason}' for name, reason in refused.items())
        raise ConfigError(
            f"ONNX cannot encode some features. {reasons}. Name the other features in columns, or encode all by "
            "daskprep.serving"
        )
    return graph.serialize(outputs)


def _encode(graph: Graph, encoder: RowEncoder | None, name: str, feature: Mapping[str, Any]) -> dict[str, Value]:
    """Return the outputs of a feature, with missing cells imputed; _UnsupportedError if graphs cannot."""
    build: Any = next((build for kind, build in _TYPES.items() if type(encoder) is kind), None)
    if encoder is None or build is None:
        tokenizer = feature["params"].get("tokenizer") if feature["type"] in ("set", "sequence", "text") else None
        raise _UnsupportedError(f"type {feature['type']}" + (f" with tokenizer {tokenizer!r}" if tokenizer else ""))
    params = vars(encoder.params)
    if {params["missing_value_strategy"], params.get("outlier_strategy")} & set(NEIGHBOUR_STRATEGIES):
        raise _UnsupportedError("values are imputed from other rows")
    if others := changed_parameters(encoder.params).difference(_SUPPORTED.split()):
        raise _UnsupportedError(f"the parameter {min(others)}")
    if params["invalid"] == "raise":
        raise _UnsupportedError('invalid="raise"')
    if encoder.fill is None:
        raise _UnsupportedError("missing values have no fill value")
    missing, encoded = build(graph, encoder)
    outputs = {}
    for output, row in encoder.to_arrays([encoder.fill]).items():
        value, mask = encoded[output.removeprefix(name)], missing if row.ndim == 1 else missing.column()
        outputs[output] = graph.where(mask, row.astype(value.dtype), value).astype(row.dtype)
    return outputs | ({name + MISSING: missing.astype(np.uint8)} if encoder.has_missing_indicator else {})


def _read_numbers(graph: Graph, encoder: RowEncoder) -> tuple[Value, Value]:
    """Return the input of a column of numbers, and its missing cells."""
    cells = graph.input(encoder.column, _DOUBLE)
    missing = np.isnan(cells) | np.isinf(cells)
    for text in sorted(encoder.nulls):
        if (number := number_of(text)) is not None and text_of(number) == text:
            missing |= cells == number
    return cells, missing


def _number(graph: Graph, encoder: NumberRowEncoder) -> Encoded:
    """Return numbers encoded by the row encoder, whose functions of NumPy add nodes; NaN outside of the domain."""
    cells, missing = _read_numbers(graph, encoder)
    if encoder.outlier_fill is not None:
        cells = graph.where(encoder.outliers.contain(cells), encoder.outlier_fill, cells)
    encoded: Any = encoder.encoding.encode(cells)  # type: ignore[arg-type]
    bound, result, _ = encoder.encoding.normalizer._domain
    if result and not isinstance(encoder.encoding, Bins):
        encoded = graph.where(encoder.encoding._clip(cells) > bound, encoded, np.nan)  # type: ignore[arg-type]
    return missing, {"": encoded}


def _count_up_to(points: np.ndarray, cells: Value, side: str = "right") -> Value:
    return (cells.column() >= points[None]).astype(_INT).apply("ReduceSum", np.array([1]), keepdims=0)


def _log1p(values: Value) -> Value:
    """Return log(1 + x) as precisely as NumPy, by Kahan's method."""
    shifted = values + 1.0
    return values.graph.where(shifted == 1.0, values, shifted.apply("Log") * (values / (shifted - 1.0)))


def _expm1(values: Value) -> Value:
    """Return exp(x) - 1 as precisely as NumPy, by Kahan's method."""
    power, where = values.apply("Exp"), values.graph.where
    exact = (power - 1.0) * (values / power.apply("Log"))
    is_extreme = (power == 0.0) | power.apply("IsInf", dtype=_BOOL)
    return where(power == 1.0, values, where(is_extreme, power - 1.0, exact))


def _polynomial(coefficients: Sequence[float], values: Value) -> Value:
    return functools.reduce(lambda total, one: total * values + one, coefficients[1:], values * 0.0 + coefficients[0])


def _interpolate(cells: Value, points: np.ndarray, results: np.ndarray) -> Value:
    """Return interpolated results; _UnsupportedError for too steep slopes."""
    steps, rises = np.diff(points), np.diff(results)
    with np.errstate(over="ignore"):
        slopes = np.divide(rises, steps, out=np.zeros(len(steps)), where=steps > 0)
    if not np.isfinite([*steps, *slopes]).all():
        raise _UnsupportedError("its quantiles are too close or too far apart for the slope between them")
    segment = _count_up_to(points[1:-1], cells)
    start, slope, base = (
        cells.graph.constant(array).apply("Gather", segment) for array in (points[:-1], slopes, results[:-1])
    )
    return slope * (cells - start) + base


_TRACED: dict[Any, Callable[..., Any]] = {
    np.abs: abs, np.log1p: _log1p, np.expm1: _expm1, np.polyval: _polynomial, np.interp: _interpolate,
    np.searchsorted: _count_up_to, np.sqrt: lambda one: one.apply("Sqrt"), np.log: lambda one: one.apply("Log"),
    np.isnan: lambda one: one.apply("IsNaN", dtype=_BOOL), np.isinf: lambda one: one.apply("IsInf", dtype=_BOOL),
    np.minimum: lambda one, other: one.apply("Min", other), np.maximum: lambda one, other: one.apply("Max", other),
    np.clip: lambda one, low, high: one.apply("Max", low).apply("Min", high),
    np.copysign: lambda size, sign: size * sign.apply("Sign"),
    np.where: lambda condition, yes, no: condition.graph.where(condition, yes, no),
    np.flatnonzero: lambda mask: (),  # rows are unknown while a graph is built
}  # fmt: skip
"""Functions of NumPy in the kernels of `rows.normalization`, for values of a graph."""


def _vector(graph: Graph, encoder: VectorRowEncoder) -> Encoded:
    """Return where a number is no finite one, and the input."""
    cells = graph.input(encoder.column, _SINGLE, encoder.size)
    return (np.isnan(cells) | np.isinf(cells)).astype(_INT).apply("ReduceMax", np.array([1]), keepdims=0) == 1, {
        "": cells
    }


def _date(graph: Graph, encoder: DateRowEncoder) -> Encoded:
    """Return the parts of nanoseconds since 1970; NaT is missing."""
    moments = [graph.input(column, _INT) for column in encoder.columns]
    missing = moments[0] == _NAT
    if len(moments) > 1:
        moments[1] = graph.where(moments[1] == _NAT, moments[0], moments[1])
    day = SECONDS_PER_DAY * 10**9
    parts = []
    for moment in map(Value.column, moments):
        rest = moment - moment // day * day  # of the sign of the moment
        is_before = rest < 0
        parts += [moment // day - is_before, (rest + is_before * day) // 10**9]
    if not encoder.compact:
        year, *others = calendar_parts(parts[0] + _DAYS_OF_ERA, parts[1])  # integers from 0 on
        parts = [year - 400, *others[:-1]]
    return missing, {"": parts[0].apply("Concat", *parts[1:], axis=1)}


@functools.cache
def _characters(pattern: str) -> str:
    r"""Return the characters of ``\w`` or ``\s`` in Python as ranges of RE2."""
    characters = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    return "".join(f"\\x{{{ord(run[0]):x}}}-\\x{{{ord(run[-1]):x}}}" for run in re.findall(f"{pattern}+", characters))


def _category(graph: Graph, encoder: CategoryRowEncoder) -> Encoded:
    """Return where cells are missing, and ids; 0 for unseen labels."""
    if len(encoder.columns) > 1:
        raise _UnsupportedError("a cross of columns")
    if encoder.buckets:
        raise _UnsupportedError("hash buckets")
    if not encoder.has_unknown:
        raise _UnsupportedError('handle_unknown="error" or "drop_row", not "unk"')
    cells = graph.input(encoder.column, _TEXT)
    stripped = cells.strip()
    ids = (stripped.lower(encoder.ids) if encoder.lowercase else stripped).look_up(encoder.ids, 0)
    if isinstance(encoder, TargetEncodingRowEncoder):
        table = encoder.table if encoder.table.shape[1] > 1 else encoder.table[:, 0]
        ids = graph.constant(table).apply("Gather", ids)
    missing = cells == ""
    if encoder.nulls:
        missing |= stripped.look_up(dict.fromkeys(sorted(encoder.nulls), 1), 0) == 1
    return missing, {"": ids}


def _binary(graph: Graph, encoder: BinaryRowEncoder) -> Encoded:
    """Return where cells are missing or unreadable, and truths."""
    if encoder.above_zero:
        numbers, missing = _read_numbers(graph, encoder)
        return missing, {"": (numbers > 0.0).astype(_INT)}
    stripped = graph.input(encoder.column, _TEXT).strip()
    truths = stripped.look_up({**encoder.labels, **dict.fromkeys(sorted(encoder.nulls), -2)}, -1)
    if encoder.fallback_labels:
        others = stripped.lower(encoder.fallback_labels).look_up(encoder.fallback_labels, -1)
        truths = graph.where(truths == -1, others, truths)
    return truths < 0, {"": truths}


def _tokens(graph: Graph, encoder: TokenRowEncoder, cells: Value) -> tuple[Value, Value, Value]:
    """Return tokens and ids as tables, and their number by text; or _UnsupportedError."""
    space, word = _characters(r"\s"), _characters(r"\w")
    patterns = {"space": f"[^{space}]+", "space_punct": f"[{word}]+|[^{word}{space}]", "characters": "(?s)."}
    tokenizer = encoder.params.tokenizer
    if tokenizer not in patterns:
        raise _UnsupportedError(f"the tokenizer {tokenizer!r}")
    tokens = (cells.lower(encoder.ids) if encoder.params.lowercase else cells).tokens(patterns[tokenizer])
    count = (tokens != "").astype(_INT).apply("ReduceSum", np.array([1]))
    special = cells.look_up({symbol: encoder.ids[symbol] for symbol in sorted(encoder.special)}, -1).column()
    is_special = special >= 0  # a text that is a special symbol is one token
    ids = graph.where(is_special, special, tokens.look_up(encoder.ids, encoder.unknown))
    return tokens, ids, graph.where(is_special, 1, count)


def _sequence(graph: Graph, encoder: SequenceRowEncoder) -> Encoded:
    """Return where cells are missing, and ids, cut and padded."""
    cells = graph.input(encoder.column, _TEXT)
    _, ids, count = _tokens(graph, encoder, cells)
    first = (count - encoder.max_tokens).apply("Max", 0) if encoder.keeps_end else count * 0
    count = count.apply("Min", encoder.max_tokens)
    start, stop, length = encoder.start, encoder.stop, encoder.length
    total = count + (len(start) + len(stop))
    offset = (total - length if encoder.is_left else total * 0) + np.arange(length)  # in the row without padding
    index = offset - len(start)
    is_token = (index >= 0) & (index < count)
    row = ids.apply("GatherElements", graph.where(is_token, index + first, 0), axis=1)
    row = graph.where(is_token, row, encoder.padding_id)
    if start:
        row = graph.where(offset == 0, start[0], row)
    if stop:
        row = graph.where(offset == total - 1, stop[0], row)
    return cells == "", {"": row}


def _text(graph: Graph, encoder: TextRowEncoder) -> Encoded:
    rows = {suffix: _sequence(graph, level) for suffix, level in encoder.levels.items()}
    return next(iter(rows.values()))[0], {suffix: row[""] for suffix, (_, row) in rows.items()}


def _set(graph: Graph, encoder: SetRowEncoder) -> Encoded:
    """Return the ids of the distinct tokens of each row, in order."""
    cells = graph.input(encoder.column, _TEXT)
    tokens, ids, count = _tokens(graph, encoder, cells)
    shape = tokens.apply("Shape", dtype=_INT)
    numbers = tokens.apply("Unique", dtype=_INT, index=2).apply("Reshape", shape)
    width = shape.apply("Gather", np.array([1]))
    position = graph.constant(np.array(0)).apply("Range", width.apply("Squeeze"), 1)
    equal = numbers.apply("Unsqueeze", np.array([2])) == numbers.apply("Unsqueeze", np.array([1]))
    is_repeated = (equal & (position.column() > position)).astype(_INT).apply(
        "ReduceMax", np.array([2]), keepdims=0
    ) == 1
    is_first = (position < count) & ~is_repeated
    order = graph.where(is_first, position, position + width).apply("TopK", width, index=1, axis=1, largest=0)
    ids = ids.apply("GatherElements", order, axis=1)
    count = is_first.astype(_INT).apply("ReduceSum", np.array([1]))
    offset = count * 0 + np.arange(encoder.size)
    is_token = offset < count
    row = ids.apply("GatherElements", graph.where(is_token, offset, 0), axis=1)
    return cells == "", {"": graph.where(is_token, row, 0)}


_TYPES: dict[type[RowEncoder], Callable[[Graph, Any], Encoded]] = {
    NumberRowEncoder: _number, CategoryRowEncoder: _category, TargetEncodingRowEncoder: _category,
    BinaryRowEncoder: _binary, SetRowEncoder: _set, SequenceRowEncoder: _sequence, TextRowEncoder: _text,
    VectorRowEncoder: _vector, DateRowEncoder: _date,
}  # fmt: skip
