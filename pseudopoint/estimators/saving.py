"""From a fitted estimator to the tree that a model file holds, and back.

The tree has the settings ("parameters"), what `fit` learned ("state": the attributes that end in an underscore) and
whatever the caller keeps beside them ("extra"). What is learned is declared in the class, so that a file tells by its
names alone whether this version knows all of it. A file may lack what has a default in the class: it is older.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..persistence import ModelFileError
from .frames import restored

# Arrays of objects or of text are lists in the file.
TEXT: dict[str, Callable] = {"feature_names_in_": lambda names: np.asarray(names, object), "classes_": np.asarray}
OPTIONAL = {"feature_names_in_"}  # scikit-learn sets it where columns have names
PARTS = {"parameters", "state", "extra"}
# Settings and attributes by their names in files of earlier versions.
RENAMED: dict[str, str] = {"n_undone_": "n_rejected_", "noise_variance": "initial_noise"}


def tree_of(model: Any, extra: Any) -> dict[str, Any]:
    """What the file of a fitted model holds. A `random_state` that is a generator is not kept.

    Raises ModelFileError, from the verb on, if an attribute is not declared: it would not be known when loaded.
    """
    parameters = {name: _setting(value) for name, value in model.get_params(deep=False).items()}
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None
    state = {name: value for name, value in vars(model).items() if name.endswith("_")}
    if strange := sorted(state.keys() - _declared(type(model))):
        raise ModelFileError(
            f"cannot hold {', '.join(strange)}, which {type(model).__name__} does not learn; use `extra`"
        )
    for name in TEXT.keys() & state.keys():
        state[name] = np.asarray(state[name]).tolist()
    if model.encoder_ is not None:
        state["encoder_"] = model.encoder_.to_dict()
    return {"parameters": parameters, "state": state, "extra": extra}


def rebuilt(cls: Callable[..., Any], tree: dict[str, Any]) -> tuple[Any, Any]:
    """The model of a tree, and the extra. Settings and attributes that the tree lacks have their defaults.

    Raises ModelFileError, from the verb on, if the tree has what the class does not know, or lacks what has no default.
    """
    model, declared = cls(), _declared(cls)
    parameters, state = _renamed(tree["parameters"]), _renamed(tree["state"])
    if "undone" in state.get("history_", ()):
        state["history_"] = {"rejected" if key == "undone" else key: x for key, x in state["history_"].items()}
    settings = model.get_params(deep=False).keys()
    unknown = [*(tree.keys() - PARTS), *(parameters.keys() - settings), *(state.keys() - declared)]
    if unknown:
        what = f"{', '.join(sorted(unknown))} of {cls.__name__}"
        raise ModelFileError(f"has {what}, which this pseudopoint does not know; upgrade pseudopoint")
    if lacking := sorted(name for name in declared - OPTIONAL - state.keys() if not hasattr(cls, name)):
        raise ModelFileError(
            f"lacks {', '.join(lacking)}; load it with the library version that saved it (`describe` tells)"
        )
    model.set_params(**parameters)
    for name, value in state.items():
        setattr(model, name, TEXT[name](value) if name in TEXT else value)
    if model.encoder_ is not None:
        model.encoder_ = restored(model.encoder_)
    return model, tree["extra"]


def _renamed(part: dict[str, Any]) -> dict[str, Any]:
    """Under the names of this version."""
    return {RENAMED.get(name, name): value for name, value in part.items()}


def _declared(cls: Any) -> set[str]:
    """The attributes that `fit` may set."""
    names = {name for base in cls.__mro__ for name in inspect.get_annotations(base) if name.endswith("_")}
    return names | OPTIONAL


def _setting(value: Any) -> Any:
    """A setting as a file can hold it: a search over an array, or a table of points, leaves types of its own."""
    if isinstance(value, str):
        return str.__str__(value)
    return np.asarray(value) if hasattr(value, "__array__") and not isinstance(value, np.generic) else value
