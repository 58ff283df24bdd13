"""How estimators look in notebooks: as a card, where scikit-learn shows a diagram that loads a script."""

from __future__ import annotations

from typing import Any

from daskprep.display.tables import settings_card
from daskprep.display.words import cut

_VALUE_CHARACTERS = 200


class EstimatorCard:
    """Shows the parameters of an estimator of scikit-learn."""

    def _repr_html_(self) -> str:
        parameters = self.get_params(deep=False)  # type: ignore[attr-defined]
        columns = [cut(str(name)) for name in getattr(self, "learned_", ())]
        title = type(self).__name__ + (f", fitted on {', '.join(columns[:5])}" if columns else "")
        more = f" and {len(columns) - 5:,} more" * (len(columns) > 5)
        return settings_card({key: cut(repr(one), _VALUE_CHARACTERS) for key, one in parameters.items()}, title + more)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        # Notebooks call this first, and scikit-learn's returns its diagram.
        del kwargs
        return {"text/plain": repr(self), "text/html": self._repr_html_()}
