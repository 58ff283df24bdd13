"""Trained tokenizers of other packages: Hugging Face's and SentencePiece."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from daskprep.errors import ConfigError, DaskprepError, MissingPackageError
from daskprep.rows.tokens import WORD_START_MARK
from daskprep.storage.security import require_safe

BATCH_TEXTS = 4096  # texts in one call of the package tokenizers
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>")
CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_DECODERS = {"ByteLevel": "byte_level", "Metaspace": "metaspace", "WordPiece": "wordpiece"}


_UNLIMITED = 1 << 31


class PretrainedModel(NamedTuple):
    """A trained tokenizer of another package."""

    encode: Callable[[list[str]], Iterable[Sequence[int]]]  # returns the token ids of each text of a list
    vocabulary: list[str]  # by id
    pad_id: int | None  # None: the tokenizer has no such token
    unk_id: int | None
    digest: str  # of the tokenizer, by SHA-256
    decoder: str = ""  # how tokens are joined to text: "byte_level", "metaspace", "wordpiece", or "" for spaces
    added_ids: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of the tokens added before and after each text
    max_length: int = _UNLIMITED  # of a text in tokens, for its model


def import_package(package: str) -> Any:
    """Import a package; MissingPackageError with the pip command."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        hint = f"Install it with: pip install {package}"
        raise MissingPackageError(f"This tokenizer needs the package {package}. {hint}") from error


@lru_cache(maxsize=8)
def load_model(package: str, path: str, stamp: object, cache_only: bool) -> PretrainedModel:
    """Load the model of a file, or of a name if `stamp` is None; ConfigError if it cannot be loaded.

    With `cache_only`, a name is not downloaded. MissingPackageError without the package.
    """
    if package == "tokenizers" and stamp is None:
        return _from_transformers(path, cache_only)
    try:
        return _load_sentencepiece(path) if package == "sentencepiece" else _load_tokenizer_json(path)
    except DaskprepError:
        raise
    except Exception as error:  # both packages raise errors without a common base
        raise ConfigError(f'no tokenizer can be loaded from "{path}": {error}') from error


def _load_sentencepiece(path: str) -> PretrainedModel:
    """Return the model of a file; padding may be a known token."""
    library = import_package("sentencepiece")
    require_safe("sentencepiece")
    model = library.SentencePieceProcessor(model_file=path)
    vocabulary = [model.id_to_piece(token_id) for token_id in range(model.get_piece_size())]
    pad_id, unk_id = (None if token_id < 0 else token_id for token_id in (model.pad_id(), model.unk_id()))
    if pad_id is None:
        pad_id = next((vocabulary.index(token) for token in PAD_TOKENS if token in vocabulary), None)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return PretrainedModel(model.encode, vocabulary, pad_id, unk_id, digest, "metaspace")


def _load_tokenizer_json(path: str) -> PretrainedModel:
    """Return the model of a file; the padding token of transformers' files beside it has precedence."""
    backend = import_package("tokenizers").Tokenizer.from_file(path)
    config = json.loads(backend.to_str())
    padding, model = config["padding"] or {}, config["model"]
    ids = (padding.get("pad_id"), *map(backend.token_to_id, PAD_TOKENS))
    own_id = next((one for one in ids if one is not None), None)
    settings = _read_settings(Path(path).parent)
    named_id = backend.token_to_id(settings.get("pad_token", ""))
    pad_id, content = own_id, Path(path).read_bytes()
    if named_id not in (None, own_id):
        pad_id, content = named_id, content + b"%d" % named_id
    unk_id = model.get("unk_id", backend.token_to_id(model.get("unk_token") or ""))
    loaded = _from_backend(backend, pad_id, unk_id, hashlib.sha256(content).hexdigest())
    return loaded._replace(max_length=min(settings.get("model_max_length", _UNLIMITED), _UNLIMITED))


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return any padding token and length of transformers' files."""
    settings: dict[str, Any] = {}
    for file in (folder / name for name in reversed(CONFIG_FILES)):
        values = json.loads(file.read_bytes()) if file.is_file() else {}
        settings |= {key: values[key] for key in ("pad_token", "model_max_length") if values.get(key) is not None}
    if isinstance(token := settings.get("pad_token"), dict):
        settings["pad_token"] = token["content"]
    return settings


def _from_transformers(name: str, cache_only: bool) -> PretrainedModel:
    """Return the model of a name; ConfigError if not found, or with `cache_only` not in the cache."""
    try:
        load = import_package("transformers").AutoTokenizer.from_pretrained
    except MissingPackageError as error:
        if Path(name).is_dir():
            raise ConfigError(f"no tokenizer.json in {name}: for other files, pip install transformers") from error
        raise MissingPackageError(
            f'no folder "{name}" to load a tokenizer from. For a name on the Hugging Face Hub, this tokenizer needs '
            "the package transformers. Install it with: pip install transformers"
        ) from error
    require_safe("transformers")
    try:
        # If trust_remote_code has no value, transformers prompts on the terminal for models with custom code.
        loaded = load(name, local_files_only=cache_only, trust_remote_code=False)
    except (OSError, ValueError) as error:
        if cache_only:
            raise ConfigError(
                f'the tokenizer "{name}", which a saved Preprocessor names, is not a local folder and not in the cache '
                "of Hugging Face. Download it first, or pass trusted=True to the call that loads the Preprocessor, if "
                "you trust its author"
            ) from error
        raise ConfigError(f'the tokenizer "{name}" cannot be loaded: {error}') from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"The tokenizer {name} has no fast version, which would be a tokenizer.json")
    digest = hashlib.sha256(backend.to_str().encode()).hexdigest()
    model = _from_backend(backend, loaded.pad_token_id, loaded.unk_token_id, digest)
    return model._replace(max_length=min(getattr(loaded, "model_max_length", _UNLIMITED), _UNLIMITED))


def _from_backend(backend: Any, pad_id: int | None, unk_id: int | None, digest: str) -> PretrainedModel:
    """Return a tokenizer's model, without padding and truncation."""
    backend.no_padding()
    backend.no_truncation()
    ids = backend.get_vocab(with_added_tokens=True)
    vocabulary = [f"[no token {token_id}]" for token_id in range(max(ids.values(), default=-1) + 1)]
    for token, token_id in ids.items():
        vocabulary[token_id] = token

    def encode(texts: list[str]) -> Iterable[Sequence[int]]:
        for begin in range(0, len(texts), BATCH_TEXTS):
            yield from (encoding.ids for encoding in backend.encode_batch(texts[begin : begin + BATCH_TEXTS]))

    added_ids = _find_added_ids(backend, vocabulary)
    return PretrainedModel(encode, vocabulary, pad_id, unk_id, digest, _decoder_name(backend), added_ids)


def _find_added_ids(backend: Any, vocabulary: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids added before and after each text, () for none."""
    if backend.num_special_tokens_to_add(is_pair=False):
        for text in vocabulary:
            encoding = backend.encode(text)
            own = [i for i, is_added in enumerate(encoding.special_tokens_mask) if not is_added]
            if own:
                return tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :])
    return (), ()


def _decoder_name(backend: Any) -> str:
    """Return how the decoder of a tokenizer joins tokens, or ""."""
    decoder = json.loads(backend.to_str())["decoder"] or {}
    for one in decoder.get("decoders", [decoder]):
        if one.get("pattern") == {"String": WORD_START_MARK}:
            return "metaspace"
        if one.get("type") in _DECODERS:
            return _DECODERS[one["type"]]
    return ""
