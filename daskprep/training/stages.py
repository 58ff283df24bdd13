"""The names of stages, of the roles that loaders have in them, and of the loaders of each role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daskprep.errors import ConfigError, did_you_mean

ROLES = ("train", "val", "test", "predict")
STAGES = ("fit", "validate", "test", "predict")

# Lightning calls a hook `val_dataloader`, its stage "validate", and the look at it before training "sanity_check".
_ROLE_SPELLINGS = {"fit": "train", "validate": "val", "validation": "val", "sanity_check": "val"}
_STAGE_SPELLINGS = {"train": "fit", "val": "validate", "validation": "validate", "sanity_check": "validate"}
# The roles of the loaders that a stage needs.
ROLES_BY_STAGE = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
# The stages that a manager is opened for, by where it stands.
STAGES_BY_ROLE = {"train": ("fit",), "val": ("fit", "validate"), "test": ("test",), "predict": ("predict",)}


def parse_role(name: str) -> str:
    """Return the role that a name, in either spelling, stands for."""
    return _normalize(name, _ROLE_SPELLINGS, ROLES, "role")


def parse_stage(name: str) -> str:
    """Return the stage that a name, in either spelling, stands for."""
    return _normalize(name, _STAGE_SPELLINGS, STAGES, "stage")


def parse_stages(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the stages that some names stand for."""
    return tuple(dict.fromkeys(parse_stage(name) for name in ([names] if isinstance(names, str) else names)))


class LoaderNames(dict[str, list[str]]):
    """Names of loaders by role, in the order in which they are given; roles may be spelled as Lightning's stages."""

    def __missing__(self, name: str) -> list[str]:
        return self[parse_role(name)]


def _normalize(name: object, spellings: Mapping[str, str], options: tuple[str, ...], kind: str) -> str:
    # Stages of Lightning are members of an enumeration.
    text = str(getattr(name, "value", name))
    known = spellings.get(text, text)
    if known not in options:
        raise ConfigError(
            f'there is no {kind} "{text}".{did_you_mean(text, options)} Each {kind} is one of: {", ".join(options)}'
        )
    return known
