"""What a model is called."""

from __future__ import annotations

from pathlib import Path


def model_name(model: str) -> str:
    """The name clients use for ``model``: a hub id as it is, a folder by its own name.

    ``.../models/demo`` is ``trilby-demo``: "demo" alone would say nothing in a list of models.
    """
    path = Path(model)
    if not path.exists():
        return model
    path = path.resolve()
    return "trilby-demo" if (path.parent.name, path.name) == ("models", "demo") else path.name
