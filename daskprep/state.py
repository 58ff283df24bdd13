"""Keep parameters and learned state as JSON; vocabularies too large for JSON go to Parquet files beside it."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from sklearn.utils.validation import check_is_fitted

from daskprep.balance import balance_from_dict
from daskprep.described import plain
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError, did_you_mean
from daskprep.features import FEATURES, NAMED, Category, Feature, Learned
from daskprep.features.base import rows_seen
from daskprep.features.checking import empty_arrays
from daskprep.features.given import make_feature
from daskprep.features.golden import check_rows, golden_rows
from daskprep.features.parameters import SAVED_AS, check_fields, check_parameters
from daskprep.serving import saved
from daskprep.serving.large import FILE_KEY, with_vocabularies
from daskprep.split import split_from_dict
from daskprep.storage import Folder
from daskprep.storage.urls import CachedName, ReceivedPath, check_own, path_text
from daskprep.vocabulary import LARGE_VOCABULARY, Vocabulary

METADATA = "metadata.json"
# File systems allow 255 bytes: a letter takes up to 4, and digest, suffix and a temporary name's rest about 70.
_COLUMN_CHARACTERS = 40

# Parameters, and facts that were learned, that name files, folders and URLs.
_MODELS = frozenset({"pretrained_model_name_or_path"})
_NAMING = _MODELS | {"base_dir", "lazy_cache_dir", "vocab_file"}

# Parameters that came later, and what was so before: left out then, they change no state and no version of a dataset.
LATER: dict[str, Any] = dict.fromkeys((
    "order", "null_values", "written", "pixel_statistics", "pack_size", "pack_quality", "librosa_options",
    "hash_buckets", "columns", "clip_quantiles", "encoding", "target", "parts", "cyclic", "since",
    "handle_unknown",
)) | {
    "transform_to": "ids", "resampling": "polyphase", "missing_indicator": False, "oov_buckets": 0, "bins": 48,
    "bin_strategy": "quantile", "target_type": "number", "since_unit": "days", "truncation": "keep_start",
    "across_splits": True, "pre_emphasis": 0.97,
}  # fmt: skip

_PARAMETERS = {saved_as: name for name, saved_as in SAVED_AS.items()}

Place = tuple[str, ...]


class Saved:
    """The part of a Preprocessor that is kept as JSON."""

    if TYPE_CHECKING:
        features_: dict[str, Feature]
        learned_: dict[str, Learned]
        weight: str | None
        split: Any
        balance: Any
        sample: float | None
        sample_seed: int
        fit_on: Literal["train", "all"]

        def __init__(self, features: Any, **parameters: Any) -> None: ...

        def _checked_features(self) -> dict[str, Feature]: ...

        def _targets_among(self, features: Mapping[str, Feature]) -> tuple[str, ...]: ...

        def _set_learned(self, features: Mapping[str, Feature], learned: Mapping[str, Learned]) -> None: ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and fitted state as JSON; very large vocabularies are stored as Parquet beside it.

        The file also holds digests of the state and some encoded rows, which `load` checks.
        """
        check_is_fitted(self)
        write_state(path_text(path, "file"), self.to_state(), golden_rows(self.features_, self.learned_))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> Self:
        """Load what `save` wrote. Raise `CorruptDatasetError` if it was altered. Nothing is unpickled or evaluated.

        Parameters
        ----------
        path : str or path
            The file, local or at a URL of fsspec.
        trusted : bool
            Whether tokenizers that it names may be downloaded from the Hugging Face Hub. By default, they are read from
            local folders and from the cache alone.
        """
        return cls.from_dict(read_state(path_text(path, "file")), trusted=trusted)

    def to_dict(self) -> dict[str, Any]:
        """Return parameters and, once fitted, the fitted state, ready for JSON."""
        state = self.to_state()
        for name, learned in getattr(self, "learned_", {}).items():
            state["features"][name]["learned"] = learned.to_dict()
        return state

    def to_state(self) -> dict[str, Any]:
        """Return the result of `to_dict` with vocabularies as objects, since they may have millions of tokens."""
        if hasattr(self, "learned_"):
            return self._state(self.features_, self.learned_)
        return self._state(self._checked_features(), None)

    def _state(self, features: Mapping[str, Feature], learned: Mapping[str, Learned] | None) -> dict[str, Any]:
        described = {}
        for name, feature in features.items():
            described[name] = {"type": feature.kind, "params": feature_params(name, feature)}
            if learned is not None:
                described[name]["learned"] = learned[name].to_state()
        targets = self._targets_among(features)
        return {
            "format": saved.PLAIN_FORMAT,
            "features": described,
            **({"targets": list(targets)} if targets else {}),
            **({} if self.weight is None else {"weight": self.weight}),
            "split": None if self.split is None else self.split.to_dict(),
            "balance": None if self.balance is None else self.balance.to_dict(),
            **({} if self.sample is None else {"sample": plain(self.sample), "sample_seed": plain(self.sample_seed)}),
            "fit_on": self.fit_on,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], *, trusted: bool = False) -> Self:
        """Create a Preprocessor from the result of `to_dict` or `to_state`, or from the JSON that `save` wrote.

        `trusted` is as for `load`.
        """
        features, learned = restore(state if trusted else _marked(state, _MODELS, CachedName))
        with saved.telling("the split, the balance or a feature"):
            targets = saved.restored_targets(state, features)
            for one in map(features.__getitem__, targets):
                if isinstance(one, Category) and one.handle_unknown is None:
                    one.handle_unknown = "unk"  # targets were saved so before there was a choice
            weight = state.get("weight")
            prep = cls(
                {name: feature for name, feature in features.items() if name != weight},
                targets=targets or None,
                weight=weight,
                split=split_from_dict(state["split"]),
                balance=balance_from_dict(state["balance"]),
                **{key: state[key] for key in ("sample", "sample_seed") if key in state},
                fit_on=state["fit_on"],
            )
            if learned:
                prep._set_learned({name: make_feature(name, one) for name, one in features.items()}, learned)
        return prep


def feature_params(name: str, feature: Feature) -> dict[str, Any]:
    """Return a feature's parameters, JSON-ready, or raise ConfigError for one that JSON cannot hold."""
    given: dict[str, Any] = feature.get_params(deep=False)  # type: ignore[no-untyped-call]
    params = {key: plain(value, f'feature "{name}": {key}') for key, value in given.items()}
    if params.get("handle_unknown") == "unk":
        params["handle_unknown"] = None  # as states were written before there was a choice
    params = {SAVED_AS.get(key, key): value for key, value in params.items()}
    return {key: value for key, value in params.items() if key not in LATER or value != LATER[key]}


def received(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with marks on the files, folders and URLs that it names: who uses one must refuse to."""
    return _marked(state, _NAMING, ReceivedPath)


def _marked(state: Mapping[str, Any], names: frozenset[str], mark: type[str]) -> dict[str, Any]:
    """Return the state with the texts of some parameters marked, unless they have a mark already."""

    def marked(values: Any) -> Any:
        if not isinstance(values, Mapping) or names.isdisjoint(values):
            return values
        return {key: mark(one) if key in names and type(one) is str else one for key, one in values.items()}

    state = saved.verified(state)
    features = {name: {part: marked(values) for part, values in one.items()} for name, one in state["features"].items()}
    return {**state, "features": features}


def restore(state: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Learned]]:
    """Return the features of a state and what each learned, which is nothing if it was saved before the fit."""
    state = saved.verified(state)
    unlearned = [name for name, one in state["features"].items() if "learned" not in one]
    is_fitted = not unlearned
    if 0 < len(unlearned) < len(state["features"]):
        raise CorruptDatasetError(
            f'feature "{unlearned[0]}" has nothing that it learned, and others have: it was altered since it was saved'
        )
    features, learned = {}, {}
    for name, one in state["features"].items():
        with saved.telling(f'feature "{name}"'):
            features[name] = _restored(name, one)
            if is_fitted:
                learned[name] = _learned(name, features[name], one["learned"])
        if is_fitted and "golden" in one:
            check_rows(name, features[name], learned[name], one["golden"])
    return features, learned


def _restored(name: str, state: Mapping[str, Any]) -> Feature:
    if not isinstance(state.get("type"), str) or state["type"] not in FEATURES:
        raise ConfigError(
            f'feature "{name}": there is no type "{state.get("type")}".{did_you_mean(state.get("type"), NAMED)} '
            "A type of your own must be entered in daskprep.features.FEATURES before loading"
        )
    try:
        made: Any = FEATURES[state["type"]]
        params = {_PARAMETERS.get(name, name): value for name, value in state["params"].items()}
        feature: Feature = made(**{**_earlier(made), **params})
        check_parameters(feature)
        # What it names beside itself need not be there to decode, and may not be looked at.
        if not _names_files(state["params"]):
            feature.check()
    except ConfigError as error:
        raise CorruptDatasetError(f'feature "{name}": {error}; restore the file, or fit again') from error
    except TypeError as error:
        raise FormatVersionError(f'feature "{name}": {error}; it was saved by another version of daskprep') from error
    return feature


def _earlier(made: Any) -> dict[str, Any]:
    """Return the parameters of a type that came later, as they were before, and are where a state lacks them."""
    return {name: LATER[name] for name in inspect.signature(made).parameters if name in LATER}


def _names_files(*parts: Mapping[str, Any]) -> bool:
    return any(part.get(key) for part in parts for key in _NAMING)


def _learned(name: str, feature: Feature, state: Mapping[str, Any]) -> Learned:
    if feature.kind in saved.SIZED:
        saved.check_learned(state)
    learned = feature.learned_type.from_dict(state)
    try:
        with suppress(NameError):  # annotations that only a type checker imports
            check_fields(learned)
        rows = rows_seen(feature, learned)
        if not 0 <= learned.missing <= rows:
            raise ValueError(f"there are {learned.missing:,} missing cells among {rows:,} rows")
        feature._check_learned(learned)
        if not _names_files(vars(feature), state):
            empty_arrays(feature, learned)
    except (TypeError, ValueError) as error:
        raise CorruptDatasetError(f'feature "{name}": {error}; it was altered since it was saved') from error
    return learned


# -- one JSON file, and a folder of large vocabularies beside it


def write_state(path: str, state: Mapping[str, Any], golden: Mapping[str, Any]) -> None:
    """Write JSON at `path`, whole or not at all, and its large vocabularies in a folder beside it.

    `golden` are rows that some cells of each feature become: who reads the file can tell that they still do.
    """
    folder, name = _located(path)
    slim, vocabularies = _without_vocabularies(state, f"{name}.vocab", Vocabulary.to_lists)
    features = {
        key: {**one, "digests": saved.digests_of(one["learned"]), "golden": golden[key]}
        for key, one in slim["features"].items()
    }
    slim = saved.with_digest({**slim, "format": saved.FORMAT, "features": features})
    for file, content in vocabularies.items():
        folder.write(file, content)
    folder.write(name, _to_bytes(slim))
    beside = folder / f"{name}.vocab"
    beside.remove(*(file for file in beside.sizes() if f"{name}.vocab/{file}" not in vocabularies))


def read_state(path: str) -> dict[str, Any]:
    """Read what `write_state` wrote."""
    # What the user names may be a link; the vocabularies beside it are named by the file.
    folder, name = _located(path, follows=True)
    beside, _ = _located(path)
    size = folder.size(name)
    if size is None:
        is_dataset = (folder / name).size("manifest.json") is not None
        hint = "; it is a dataset: use Preprocessor.from_dataset(open_dataset(path))" if is_dataset else ""
        raise ConfigError(f"there is no saved Preprocessor at {folder.url}/{name}{hint}")
    if size > saved.LIMIT_BYTES:
        raise CorruptDatasetError(f"{path} is larger than {saved.LIMIT_BYTES:,} bytes, which no saved Preprocessor is")
    return state_from_files(lambda file: (folder if file == name else beside).read(file), name)


def _located(path: str, *, follows: bool = False) -> tuple[Folder, str]:
    scheme, mark, inner = path.rpartition("://")
    parent, slash, name = inner.rpartition("/")
    if not name:
        raise ConfigError(f'"{path}" is not the name of a file: add one, such as prep.json')
    return Folder.open(f"{scheme}{mark}{parent}" if mark else parent or slash or ".", follows=follows), name


# -- the same in the folder of a dataset


def state_files(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files, by name, that hold a state: metadata.json, and vocabularies too large for it.

    They are in the format of `to_dict`: the manifest has their checksums, which stand in for digests and golden rows.
    """
    slim, vocabularies = _without_vocabularies(state, "vocab", lambda vocabulary: {"vocabulary": vocabulary})
    return {METADATA: _to_bytes(slim), **vocabularies}


def state_from_files(read: Callable[[str], bytes], name: str = METADATA) -> dict[str, Any]:
    """Put together what `state_files` gave; `read` returns the bytes of a file."""
    state = saved.parse_state(read(name), name)
    with saved.telling(name):
        restored: dict[str, Any] = with_vocabularies(saved.verified(state), name, read, _vocabulary)
    return restored


def _to_bytes(state: Mapping[str, Any]) -> bytes:
    _check_own_names(state)
    # A line for each feature; indented throughout, it would take json ten times as long. The order of keys is that of
    # features and ids, and so the same for the same state.
    lines = [f"{_json(key)}: {_json(value)}" for key, value in state.items() if key != "features"]
    features = [f" {_json(name)}: {_json(feature)}" for name, feature in state["features"].items()]
    lines.append('"features": {\n' + ",\n".join(features) + "\n}")
    return ("{" + ",\n".join(lines) + "}\n").encode()


def _check_own_names(state: Mapping[str, Any]) -> None:
    """Raise ConfigError for names that came with a dataset that is not trusted: read again, they would be one's own."""
    for name, feature in state["features"].items():
        for part in feature.values():
            for key in sorted(_NAMING & part.keys()) if isinstance(part, Mapping) else ():
                check_own(part[key], f'feature "{name}": {key}')


def _json(value: Any) -> str:
    if next(_vocabularies(value), None) is None:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    fields = [f"{_json(key)}:{_json(one)}" for key, one in value.items() if not isinstance(one, Vocabulary)]
    fields += [one.to_json()[1:-1] for one in value.values() if isinstance(one, Vocabulary)]
    return f"{{{','.join(fields)}}}"


def _without_vocabularies(
    state: Mapping[str, Any], folder: str, as_json: Callable[[Vocabulary], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the state with vocabularies as JSON, large ones replaced by the names of their files, and these files."""
    large = [(place, one) for place, one in _vocabularies(state) if len(one) > LARGE_VOCABULARY]
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(lambda one: _vocabulary_file(one[0], one[1], folder), large))
    names = {place: name for (place, _), (name, _) in zip(large, files, strict=True)}

    def slim(value: Any, place: Place = ()) -> Any:
        if not isinstance(value, Mapping):
            return value
        if not isinstance(vocabulary := value.get("vocabulary"), Vocabulary):
            return {key: slim(one, (*place, key)) for key, one in value.items()}
        kept = {FILE_KEY: names[place]} if place in names else as_json(vocabulary)
        return {key: one for key, one in value.items() if key != "vocabulary"} | kept

    return slim(state), dict(files)


def _vocabularies(value: Any, place: Place = ()) -> Iterator[tuple[Place, Vocabulary]]:
    """Give every part of a state that has a vocabulary, by its place."""
    if not isinstance(value, Mapping):
        return
    if isinstance(value.get("vocabulary"), Vocabulary):
        yield place, value["vocabulary"]
        return
    for key, one in value.items():
        yield from _vocabularies(one, (*place, key))


def _vocabulary_file(place: Place, vocabulary: Vocabulary, folder: str) -> tuple[str, bytes]:
    content = io.BytesIO()
    vocabulary.write_parquet(content)
    # Named by content, so that an older state beside it goes on naming what it was saved with.
    digest = hashlib.sha256(content.getbuffer()).hexdigest()[:16]
    column = "-".join(part for part in place if part not in ("features", "learned"))
    column = re.sub(r"[^\w.-]", "_", column)[:_COLUMN_CHARACTERS]
    return f"{folder}/{column}-{digest}.parquet", content.getvalue()


def _vocabulary(name: str, content: bytes) -> dict[str, Any]:
    return {"vocabulary": Vocabulary.read_parquet(io.BytesIO(content))}
