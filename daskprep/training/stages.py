"""Names of stages, of the roles of loaders in a stage, and of the loaders of each role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daskprep.errors import ConfigError, did_you_mean

ROLES = ("train", "val", "test", "predict")
STAGES = ("fit", "validate", "test", "predict")

# Lightning has a hook `val_dataloader`, with the stage "validate", and "sanity_check" for its run before training.
_ROLE_SPELLINGS = {"fit": "train", "validate": "val", "validation": "val", "sanity_check": "val"}
_STAGE_SPELLINGS = {"train": "fit", "val": "validate", "validation": "validate", "sanity_check": "validate"}
# The roles of the loaders that a stage needs.
ROLES_BY_STAGE = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
# The stages that a manager is opened for, by its role.
STAGES_BY_ROLE = {"train": ("fit",), "val": ("fit", "validate"), "test": ("test",), "predict": ("predict",)}


def parse_role(name: str) -> str:
    """Return the role of a name of a role or stage; raise ConfigError for other names."""
    return _normalize(name, _ROLE_SPELLINGS, ROLES, "role")


def parse_stage(name: str) -> str:
    """Return the stage of a name of a stage or role; raise ConfigError for other names."""
    return _normalize(name, _STAGE_SPELLINGS, STAGES, "stage")


def parse_stages(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the stages of one or several names, without duplicates."""
    return tuple(dict.fromkeys(parse_stage(name) for name in ([names] if isinstance(names, str) else names)))


class LoaderNames(dict[str, list[str]]):
    """Names of loaders by role, in the order of the managers; stages of Lightning are also accepted as keys."""

    def __missing__(self, name: str) -> list[str]:
        return self[parse_role(name)]


def _normalize(name: object, spellings: Mapping[str, str], options: tuple[str, ...], kind: str) -> str:
    """Return the name in this package of a role or stage in either spelling; raise ConfigError for other names."""
    # Stages of Lightning are enum members.
    text = str(getattr(name, "value", name))
    name_in_package = spellings.get(text, text)
    if name_in_package not in options:
        raise ConfigError(
            f'no {kind} "{text}".{did_you_mean(text, options)} Each {kind} is one of: {", ".join(options)}'
        )
    return name_in_package
