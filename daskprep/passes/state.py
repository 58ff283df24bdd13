"""Parameters and learned state as JSON; vocabularies too large for JSON are stored in Parquet files next to it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from daskprep.columns.parametrized import check_is_fitted, to_json_value
from daskprep.columns.vocabulary import LARGE_VOCABULARY, Vocabulary
from daskprep.errors import ConfigError, CorruptDatasetError, FormatVersionError, did_you_mean
from daskprep.features import FEATURES, USER_KINDS, Feature, Key, Learned
from daskprep.features.base import rows_seen
from daskprep.features.checking import empty_arrays
from daskprep.features.parameter_values import FeatureParams, make_feature
from daskprep.features.parameters import check_parameters, signature_of
from daskprep.passes.encoding import check_golden_rows, make_golden_rows
from daskprep.rows import saved
from daskprep.rows.parameter_names import from_saved_parameters, to_saved_parameters
from daskprep.rows.saved import FILE_KEY, load_vocabularies
from daskprep.rows.typed import earlier_values
from daskprep.sources.balance import balance_from_dict
from daskprep.sources.split import split_from_dict
from daskprep.storage import Folder
from daskprep.storage.security import UntrustedModelName, UntrustedPath, check_trusted_path, path_text

METADATA = "metadata.json"
# File systems allow names of 255 bytes: a letter takes up to 4; digest, suffix and the affixes of temporary names, 70.
_MAX_COLUMN_CHARACTERS = 40

# Parameters and fields of the learned state that name files, folders, URLs and functions.
_MODEL_PARAMETERS = frozenset({"pretrained_model_name_or_path"})
_FUNCTION_PARAMETERS = frozenset({"function"})
_PATH_PARAMETERS = _MODEL_PARAMETERS | _FUNCTION_PARAMETERS | {"base_dir", "lazy_cache_dir", "cache_dir", "vocab_file"}

NO_GOLDEN_ROWS: dict[str, Any] = {"cells": [], "arrays": {}}

# Attributes of a fitted Preprocessor that pickles hold as the files of `save`, and the name of the first file.
_FITTED = frozenset({"learned_", "learned_by_fold_", "features_", "targets_", "feature_names_in_"})
_PICKLED = "preprocessor.json"

KeyPath = tuple[str, ...]


class SerializationMixin(FeatureParams):
    """The methods of a Preprocessor that save it as JSON and load it."""

    if TYPE_CHECKING:
        features_: dict[str, Feature]
        learned_: dict[str, Learned]
        learned_by_fold_: list[dict[str, Learned]]
        n_features_in_: int
        weight: str | None
        sample: float | None
        sample_seed: int
        fit_on: Literal["train", "all"]

        def __init__(self, features: Any, **parameters: Any) -> None: ...

        def _validate_features(self) -> dict[str, Feature]: ...

        def _select_targets(self, features: Mapping[str, Feature]) -> tuple[str, ...]: ...

        def _set_learned(
            self,
            features: Mapping[str, Feature],
            learned: Mapping[str, Learned],
            folds: Sequence[Mapping[str, Learned]] = (),
        ) -> None: ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and fitted state as JSON.

        The file also contains digests of the state and a few encoded rows, which `load` checks.
        """
        check_is_fitted(self)
        write_state(path_text(path, "file"), self.to_state(), make_golden_rows(self.features_, self.learned_))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> Self:
        """Load the Preprocessor in a file of `save`, without pickle.

        Raise `CorruptDatasetError` if the file was altered, and `ConfigError` if it does not exist.

        Parameters
        ----------
        path : str or path
            The file, local or at a URL of fsspec.
        trusted : bool
            Whether tokenizers that the file names may be downloaded from the Hugging Face Hub. By default, they are
            read only from local folders and from the cache.
        """
        return cls.from_dict(read_state(path_text(path, "file")), trusted=trusted)

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters, and the files of each fitted state; ConfigError if JSON cannot represent it."""
        state = {name: value for name, value in vars(self).items() if name not in _FITTED}
        if hasattr(self, "learned_"):
            # Without golden rows: to make and check them takes longer than all else, for each copy.
            state["files_"] = [
                _make_files(_PICKLED, self._state(self.features_, self.split, one), {})
                for one in (self.learned_, *self.learned_by_fold_)
            ]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._restore_attributes(state, trusted=False)

    def __reduce__(self) -> tuple[Any, ...]:
        state = vars(self)
        # JSON would only name a custom type, which may not exist in another process.
        if all(type(one).__module__.startswith("daskprep.") for one in state.get("features_", {}).values()):
            with suppress(ConfigError):
                state = self.__getstate__()
        return _unpickle, (type(self), state)

    def _restore_attributes(self, state: Mapping[str, Any], *, trusted: bool) -> None:
        """Set the attributes of a state of `__getstate__`."""
        vars(self).update({name: value for name, value in state.items() if name != "files_"})
        restored = [
            _restore_targets(state_from_files(files.__getitem__, _PICKLED), trusted=trusted)
            for files in state.get("files_", ())
        ]
        if restored:
            (features, learned, _), *folds = restored
            width = state["n_features_in_"]  # of an array, also the columns of targets
            self._set_learned(features, learned, [own for _, own, _ in folds])
            self.n_features_in_ = width

    def to_dict(self) -> dict[str, Any]:
        """Return parameters, and any fitted state, as JSON values."""
        state = self.to_state()
        for name, learned in getattr(self, "learned_", {}).items():
            state["features"][name]["learned"] = learned.to_dict()
        return state

    def to_state(self) -> dict[str, Any]:
        """Return the result of `to_dict` with `Vocabulary` objects."""
        if hasattr(self, "learned_"):
            return self._state(self.features_, self.split, self.learned_)
        return self._state(self._validate_features(), self.split, None)

    def _state(
        self, features: Mapping[str, Feature], split: Any, learned: Mapping[str, Learned] | None
    ) -> dict[str, Any]:
        """Return the result of `to_state` for features and states."""
        feature_states = {}
        for name, feature in features.items():
            feature_states[name] = {"type": feature.kind, "params": feature_params(name, feature)}
            if learned is not None:
                feature_states[name]["learned"] = learned[name].to_state()
        targets, sample = self._select_targets(features), {}
        if self.sample is not None:
            sample = {"sample": to_json_value(self.sample), "sample_seed": to_json_value(self.sample_seed)}
        return {
            "format": saved.PLAIN_FORMAT,
            "features": feature_states,
            **({"targets": list(targets)} if targets else {}),
            **({} if self.weight is None else {"weight": self.weight}),
            "split": None if split is None else split.to_dict(),
            "balance": None if self.balance is None else self.balance.to_dict(),
            **sample,
            "fit_on": self.fit_on,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], *, trusted: bool = False) -> Self:
        """Create a Preprocessor from `to_dict`, `to_state` or a file; `trusted` is as for `load`."""
        features, learned, targets = _restore_targets(state, trusted=trusted)
        with saved.error_context("the split, the balance or a feature"):
            weight = state.get("weight")
            prep = cls(
                {name: one for name, one in features.items() if name != weight and not isinstance(one, Key)},
                targets=targets or None,
                weight=weight,
                keys=[name for name, one in features.items() if isinstance(one, Key)],
                split=split_from_dict(state["split"]),
                balance=balance_from_dict(state["balance"]),
                **{key: state[key] for key in ("sample", "sample_seed") if key in state},
                fit_on=state["fit_on"],
            )
            if learned:
                prep._set_learned({name: make_feature(name, feature) for name, feature in features.items()}, learned)
        return prep


def _restore_targets(
    state: Mapping[str, Any], *, trusted: bool
) -> tuple[dict[str, Feature], dict[str, Learned], tuple[str, ...]]:
    """Return the features, learned states and targets of a state."""
    if not trusted:
        state = _mark_paths(state, _MODEL_PARAMETERS, UntrustedModelName)
        state = _mark_paths(state, _FUNCTION_PARAMETERS, UntrustedPath)
    features, learned = restore(state)
    with saved.error_context("the targets"):
        targets = saved.read_targets(state, features)
    for target in map(features.__getitem__, targets):
        if getattr(target, "handle_unknown", "") is None:
            target.set_params(handle_unknown="unk")  # saved as None for targets, as before the parameter existed
    return features, learned, targets


def _unpickle(kind: type[Any], state: dict[str, Any]) -> Any:
    """Return the Preprocessor of a pickle, which may run code."""
    prep = object.__new__(kind)
    prep._restore_attributes(state, trusted=True)
    return prep


def feature_params(name: str, feature: Feature) -> dict[str, Any]:
    """Return a feature's parameters as JSON values."""
    raw_parameters: dict[str, Any] = feature.get_params(deep=False)
    params = {key: to_json_value(value, f'feature "{name}": {key}') for key, value in raw_parameters.items()}
    if params.get("handle_unknown") == "unk":
        params["handle_unknown"] = None  # as in states from before the parameter existed
    params = to_saved_parameters(feature.kind, params)
    before = earlier_values(type(feature))
    return {key: value for key, value in params.items() if key not in before or value != before[key]}


def mark_received_paths(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose paths code must refuse to open."""
    return _mark_paths(state, _PATH_PARAMETERS, UntrustedPath)


def _mark_paths(state: Mapping[str, Any], names: frozenset[str], path_type: type[str]) -> dict[str, Any]:
    """Return a state with the parameters `names` as `path_type`."""

    def mark_values(values: Any) -> Any:
        if not isinstance(values, Mapping) or names.isdisjoint(values):
            return values
        marked = {key: path_type(values[key]) for key in names & values.keys() if type(values[key]) is str}
        return {**values, **marked}

    state = saved.verify(state)
    features = {
        name: {section: mark_values(values) for section, values in sections.items()}
        for name, sections in state["features"].items()
    }
    return {**state, "features": features}


def restore(state: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Learned]]:
    """Return features and learned states by name, of an unfitted state none; CorruptDatasetError if altered."""
    state = saved.verify(state)
    unlearned = [name for name, sections in state["features"].items() if "learned" not in sections]
    is_fitted = not unlearned
    if 0 < len(unlearned) < len(state["features"]):
        raise CorruptDatasetError(
            f'feature "{unlearned[0]}" has no learned state, but others have one: it was altered since it was saved'
        )
    features, learned = {}, {}
    for name, sections in state["features"].items():
        with saved.error_context(f'feature "{name}"'):
            features[name] = _restore_feature(name, sections)
            if is_fitted:
                learned[name] = _restore_learned(name, features[name], sections["learned"])
        if is_fitted and "golden" in sections:
            check_golden_rows(name, features[name], learned[name], sections["golden"])
    return features, learned


def _restore_feature(name: str, state: Mapping[str, Any]) -> Feature:
    """Return the feature of a saved state.

    ConfigError for an unknown type; CorruptDatasetError or FormatVersionError for its parameters.
    """
    if not isinstance(state.get("type"), str) or state["type"] not in FEATURES:
        raise ConfigError(
            f'feature "{name}": no type "{state.get("type")}".{did_you_mean(state.get("type"), USER_KINDS)} '
            "A custom type must be added to daskprep.features.FEATURES before loading"
        )
    try:
        feature_type: Any = FEATURES[state["type"]]
        params = from_saved_parameters(state["type"], state["params"])
        own = signature_of(feature_type).parameters
        before = {name: value for name, value in earlier_values(feature_type).items() if name in own}
        feature: Feature = feature_type(**before | params)
        check_parameters(feature)
        # Decoding needs none of the named files, which may be missing here or not trusted: check would open them.
        if not _names_files(state["params"]):
            feature.check()
    except ConfigError as error:
        raise CorruptDatasetError(f'feature "{name}": {error}; restore the file, or fit again') from error
    except TypeError as error:
        raise FormatVersionError(f'feature "{name}": {error}; it was saved by another version of daskprep') from error
    return feature


def _names_files(*sections: Mapping[str, Any]) -> bool:
    return any(section.get(key) for section in sections for key in _PATH_PARAMETERS)


def _restore_learned(name: str, feature: Feature, state: Mapping[str, Any]) -> Learned:
    """Return the learned state of a feature; CorruptDatasetError if its values are impossible."""
    try:
        learned = feature.learned_type.from_dict(state)
        rows = rows_seen(feature, learned)
        if not 0 <= learned.missing <= rows:
            raise ValueError(f"{learned.missing:,} missing cells among {rows:,} rows")
        feature._check_learned(learned)
        if not _names_files(vars(feature), state):
            empty_arrays(feature, learned)
    except (TypeError, ValueError) as error:
        raise CorruptDatasetError(f'feature "{name}": {error}; it was altered since it was saved') from error
    return learned


def write_state(path: str, state: Mapping[str, Any], golden: Mapping[str, Any]) -> None:
    """Write a state as JSON at `path`, atomically.

    `golden` has golden rows by feature: example cells with their encoded values, to verify the encoding after loading.
    """
    folder, name = open_parent_folder(path)
    files = _make_files(name, state, golden)
    for file, content in files.items():
        folder.write(file, content)
    vocabulary_folder = folder / f"{name}.vocab"
    vocabulary_folder.remove(*(file for file in vocabulary_folder.sizes() if f"{name}.vocab/{file}" not in files))


def _make_files(name: str, state: Mapping[str, Any], golden: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a saved state, the JSON last."""
    slim, vocabularies = _extract_vocabularies(state, f"{name}.vocab", Vocabulary.to_lists)
    features = {
        key: {
            **sections,
            "digests": saved.compute_digests(sections["learned"]),
            "golden": golden.get(key, NO_GOLDEN_ROWS),
        }
        for key, sections in slim["features"].items()
    }
    slim = saved.add_digest({**slim, "format": saved.FORMAT, "features": features})
    return {**vocabularies, name: _to_bytes(slim)}


def read_state(path: str) -> dict[str, Any]:
    """Return the state that `write_state` wrote at `path`.

    Raise ConfigError if there is no file, CorruptDatasetError if it is damaged or over 1 GiB.
    """
    # The user's path may be a link, but vocabularies, which the file itself names, may not be links.
    folder, name = open_parent_folder(path, follow_links=True)
    vocabulary_folder, _ = open_parent_folder(path)
    size = folder.size(name)
    if size is None:
        is_dataset = (folder / name).size("manifest.json") is not None
        hint = "it is a dataset: use Preprocessor.from_dataset(path)" if is_dataset else "check the path"
        raise ConfigError(f"no saved Preprocessor at {folder.url}/{name}: {hint}")
    if size > saved.MAX_BYTES:
        raise CorruptDatasetError(f"{path} is larger than {saved.MAX_BYTES:,} bytes, which no saved Preprocessor is")
    return state_from_files(lambda file: (folder if file == name else vocabulary_folder).read(file), name)


def open_parent_folder(path: str, *, follow_links: bool = False) -> tuple[Folder, str]:
    """Return the folder of a path or URL, and the file name in it.

    With `follow_links`, files that are read from the folder may be links. ConfigError without a name.
    """
    scheme, mark, inner = path.rpartition("://")
    parent, slash, name = inner.rpartition("/")
    if not name:
        raise ConfigError(f'"{path}" is not the name of a file: add one, such as prep.json')
    return Folder.open(f"{scheme}{mark}{parent}" if mark else parent or slash or ".", follow_links=follow_links), name


def state_files(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a state in a dataset, bytes by name.

    They are in the format of `to_dict`, without digests and golden rows: the manifest of the dataset has checksums.
    """
    slim, vocabularies = _extract_vocabularies(state, "vocab", lambda vocabulary: {"vocabulary": vocabulary})
    return {METADATA: _to_bytes(slim), **vocabularies}


def state_from_files(
    read: Callable[[str], bytes], name: str = METADATA, parsed: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state in the files of `state_files`; `parsed` is the content of `name`, if known."""
    state = saved.parse_state(read(name), name) if parsed is None else parsed
    with saved.error_context(name):
        restored: dict[str, Any] = load_vocabularies(
            saved.verify(state),
            name,
            read,
            lambda _, content: {"vocabulary": Vocabulary.read_parquet(io.BytesIO(content))},
        )
    return restored


def _to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return the JSON of a state, a line per feature; ConfigError if it names an untrusted path."""
    # When read again, names from an untrusted dataset would seem trusted.
    for name, feature in state["features"].items():
        for section in feature.values():
            for key in sorted(_PATH_PARAMETERS & section.keys()) if isinstance(section, Mapping) else ():
                check_trusted_path(section[key], f'feature "{name}": {key}')
    # One line per feature: indented JSON takes ten times as long. Keys are not sorted: the order of features and ids
    # is part of the state, and the same for equal states.
    lines = [f"{_to_json(key)}: {_to_json(value)}" for key, value in state.items() if key != "features"]
    features = [f" {_to_json(name)}: {_to_json(feature)}" for name, feature in state["features"].items()]
    lines.append('"features": {\n' + ",\n".join(features) + "\n}")
    return ("{" + ",\n".join(lines) + "}\n").encode()


def _to_json(value: Any) -> str:
    """Return a value as compact JSON, with vocabularies in it."""
    if not isinstance(value, dict) or next(_find_vocabularies(value), None) is None:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    fields = [f"{_to_json(key)}:{_to_json(item)}" for key, item in value.items() if not isinstance(item, Vocabulary)]
    fields += [item.to_json()[1:-1] for item in value.values() if isinstance(item, Vocabulary)]
    return f"{{{','.join(fields)}}}"


def _extract_vocabularies(
    state: Mapping[str, Any], folder: str, as_json: Callable[[Vocabulary], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return a state without large vocabularies, and their files.

    Large vocabularies are replaced by the names of their files, and small ones by ``as_json(vocabulary)``.
    """
    large = [(path, vocabulary) for path, vocabulary in _find_vocabularies(state) if len(vocabulary) > LARGE_VOCABULARY]
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(lambda item: _make_vocabulary_file(item[0], item[1], folder), large))
    names = {key_path: name for (key_path, _), (name, _) in zip(large, files, strict=True)}

    def slim(value: Mapping[str, Any], key_path: KeyPath = ()) -> dict[str, Any]:
        if not isinstance(vocabulary := value.get("vocabulary"), Vocabulary):
            items = value.items()
            return {key: slim(item, (*key_path, key)) if isinstance(item, dict) else item for key, item in items}
        replacement = {FILE_KEY: names[key_path]} if key_path in names else as_json(vocabulary)
        return {key: item for key, item in value.items() if key != "vocabulary"} | replacement

    return slim(state), dict(files)


def _find_vocabularies(value: Mapping[str, Any], key_path: KeyPath = ()) -> Iterator[tuple[KeyPath, Vocabulary]]:
    """Yield the vocabularies in a state with their path of keys."""
    if isinstance(value.get("vocabulary"), Vocabulary):
        yield key_path, value["vocabulary"]
        return
    for key, item in value.items():
        if isinstance(item, dict):  # in a state, all mappings are; `Mapping` takes ten times as long
            yield from _find_vocabularies(item, (*key_path, key))


def _make_vocabulary_file(key_path: KeyPath, vocabulary: Vocabulary, folder: str) -> tuple[str, bytes]:
    """Return name and content of a vocabulary's Parquet file."""
    content = io.BytesIO()
    vocabulary.write_parquet(content)
    # Named by content, so that an older state in the same folder still refers to its own vocabulary.
    digest = hashlib.sha256(content.getbuffer()).hexdigest()[:16]
    column = "-".join(part for part in key_path if part not in ("features", "learned"))
    column = re.sub(r"[^\w.-]", "_", column)[:_MAX_COLUMN_CHARACTERS]
    return f"{folder}/{column}-{digest}.parquet", content.getvalue()
