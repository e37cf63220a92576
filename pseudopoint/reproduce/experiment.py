"""What an experiment offers, and how experiments are found: each file of a folder is one."""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

from matplotlib.figure import Figure

import pseudopoint
from pseudopoint.reproduce.findings import Judgement

PACKAGE = "pseudopoint_experiments"  # the name under which the folder is imported, wherever it lies

Case = dict[str, Any]  # small and flat: it identifies a row
Row = dict[str, Any]  # the case, its figures, the config and the versions


class ExperimentError(ValueError):
    """An experiment that is unknown or lacks something. The message says what, where and what to do."""


@runtime_checkable
class Experiment(Protocol):
    """A module NAME.py of the folder of experiments, which uses the public interface of the library.

    The first line of its docstring says what is compared, and from which paper and figure. A module may also have
    COUNTS, the fields of its config that only determine the cases (`splits`): rows stay valid when those change; and
    NOTES, what a reader of its rows needs to know besides.
    """

    __name__: str
    __doc__: str | None
    SOURCE: str  # paper and figure or table
    PUBLISHED: Sequence[str]  # the findings in words, with numbers where the paper prints them, numbered from 1
    CUT: Mapping[str, str]  # what differs from the paper's setting and why, by the field of Config, or "" for the rest
    Config: Callable[..., Any]  # a frozen dataclass, whose defaults are the paper's setting
    FULL: Any  # the config of the stored run
    QUICK: Any  # under 20 seconds on two cores, compilation included
    TABLES: Sequence[str]  # names of data sets

    @staticmethod
    def cases(config: Any) -> list[Case]:
        """The cases to compute, in this order."""
        ...

    @staticmethod
    def run(case: Case, config: Any, folder: Path) -> dict[str, Any]:
        """The figures of one case, as JSON; no key is one of the case."""
        ...

    @staticmethod
    def table(rows: list[Row]) -> list[list[str]]:
        """The header, then lines of cells."""
        ...

    @staticmethod
    def figure(rows: list[Row]) -> Figure:
        """A figure drawn from the rows alone."""
        ...

    @staticmethod
    def verdict(rows: list[Row]) -> Sequence[Judgement]:
        """A judgement of each published finding, in the order of PUBLISHED; some of the rows may be missing."""
        ...


TEXTS = ("SOURCE", "PUBLISHED", "CUT")
FUNCTIONS = ("Config", "cases", "run", "table", "figure", "verdict")
OTHERS = ("FULL", "QUICK", "TABLES")


def experiments_folder(folder: str | Path | None = None) -> Path:
    """`folder`, else the one inside the installed package, else the one beside it in a checkout."""
    if folder is not None:
        if not (Path(folder) / "__init__.py").is_file():
            raise ExperimentError(f"{str(folder)!r} is no folder of experiments: it has no __init__.py")
        return Path(folder).resolve()
    package = Path(pseudopoint.__file__).resolve().parent
    for place in (package / "experiments", package.parent / "experiments"):
        if (place / "settings.py").is_file():
            return place
    raise ExperimentError(f"the folder of experiments is missing: it belongs beside {str(package)!r} or into it")


def names(folder: Path) -> list[str]:
    """The experiments of a folder: its Python files except `settings` and those that begin with an underscore."""
    stems = sorted(path.stem for path in folder.glob("*.py"))
    return [stem for stem in stems if stem != "settings" and not stem.startswith("_")]


def experiment(name: str, folder: Path) -> Experiment:
    """The experiment of this name. `ExperimentError` if there is none, or if it lacks part of the protocol."""
    if name not in names(folder):
        raise ExperimentError(f"there is no experiment {name!r}; the names are {', '.join(names(folder))}, and all")
    _package(folder)
    try:
        module = importlib.import_module(f"{PACKAGE}.{name}")
    except Exception as error:
        raise ExperimentError(f"experiments/{name}.py cannot be imported: {type(error).__name__}: {error}") from error
    return _checked(name, module)


def _package(folder: Path) -> None:
    """Makes the folder importable as `PACKAGE`, in place of another folder of that name."""
    known = sys.modules.get(PACKAGE)
    if known is not None and list(known.__path__) == [str(folder)]:
        return
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    path, places = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location(PACKAGE, path, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def differences(module: Experiment, config: Mapping[str, Any] | None = None) -> list[str]:
    """The fields in which the stored run, or a run of this config, is not at the paper's setting."""
    plain = lambda of: json.loads(json.dumps(asdict(of)))
    paper, ours = plain(module.Config()), config or plain(module.FULL)
    return [name for name, value in ours.items() if value != paper[name]]


def _checked(name: str, module: ModuleType) -> Experiment:
    missing = [part for part in (*TEXTS, *FUNCTIONS, *OTHERS) if not hasattr(module, part)]
    missing += [] if (module.__doc__ or "").strip() else ["a docstring"]
    if missing:
        raise ExperimentError(f"experiments/{name}.py lacks {', '.join(missing)}; docs/reproduce.md says what they are")
    texts = lambda part, wanted: isinstance(part, wanted) and all(isinstance(text, str) for text in part)
    wrong = [] if isinstance(module.SOURCE, str) else ["SOURCE is no text"]
    wrong += [] if texts(module.PUBLISHED, tuple) else ["PUBLISHED is no tuple of texts"]
    wrong += [] if texts(module.CUT, dict) else ["CUT is no dictionary of texts"]
    wrong += [f"{part} cannot be called" for part in FUNCTIONS if not callable(getattr(module, part))]
    wrong += ["TABLES is one text, not a tuple"] if isinstance(module.TABLES, str) else []
    if not wrong:
        fields = set(asdict(module.Config()))
        wrong += [f"CUT names {cut}, which is no field of Config" for cut in module.CUT if cut and cut not in fields]
        unnamed = [field for field in differences(cast(Experiment, module)) if field not in module.CUT]
        wrong += (
            [f"FULL differs from the paper's Config() in {', '.join(unnamed)}: CUT has to say why"] if unnamed else []
        )
    if wrong:
        raise ExperimentError(f"experiments/{name}.py: {'; '.join(wrong)}; docs/reproduce.md says what they are")
    return cast(Experiment, module)
