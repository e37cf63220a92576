"""What differs between regression and classification once a model is fitted: predictions, measures, pictures."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pseudopoint import metrics
from pseudopoint.commands.side_columns import SideColumn, exposures
from pseudopoint.commands.tallies import ClassTally, Columns, NumberTally, Result, Scored
from pseudopoint.estimators import GPClassifier, GPRegressor
from pseudopoint.estimators.near import likelihood_of_draws
from pseudopoint.estimators.targets import check_target, regression_likelihood
from pseudopoint.tables import Oddity, TableEncoder
from pseudopoint.tables import describe as in_words

LEVEL = 0.9
BELOW = 0.05  # share of rows whose intervals reach where the target does not: worth a note


class AbstractKind(ABC):
    """A fitted estimator with the encoder of its table; `level` is the probability of its intervals, `exposure` the
    column that counts refer to, if there is one. Rows that are scored count by their weights, where they have any."""

    task: ClassVar[str]
    model: Any
    encoder: TableEncoder
    level: float

    def __init__(self, model: Any, encoder: TableEncoder, level: float = LEVEL, exposure: SideColumn | None = None):
        self.model, self.encoder, self.level, self.exposure = model, encoder, level, exposure

    @property
    def text(self) -> tuple[str, ...]:
        """Further columns that a CSV file must be read with as text."""
        return () if self.exposure is None else self.exposure.text

    def exposures(self, frame: pd.DataFrame) -> np.ndarray | None:
        """The exposure of every row of a table, where the model has one. Raises TableError."""
        return None if self.exposure is None else exposures(frame, self.exposure)

    @abstractmethod
    def predictions(self, X: np.ndarray, exposure: np.ndarray | None = None) -> pd.DataFrame:
        """One row of predictions for every row of X, in named columns."""

    @abstractmethod
    def learned(self, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Which of the targets y, none missing, the model can score. ValueError, by `rows`, if y makes no sense."""

    @abstractmethod
    def columns(self, X: np.ndarray, y: np.ndarray, exposure: np.ndarray | None = None) -> Columns:
        """Arrays, one entry a row, from which `measures` and `pictures` are made."""

    @abstractmethod
    def measures(self, scored: Scored) -> Result:
        """How good predictions are."""

    @abstractmethod
    def pictures(self, scored: Scored) -> dict[str, Any]:
        """The fields of a `Report` that show predictions."""

    @abstractmethod
    def about(self) -> Result:
        """What only such a model has."""

    @abstractmethod
    def surprise(self, scored: Scored) -> np.ndarray:
        """The log density of the truth in each row."""

    def remarks(self, columns: Columns) -> list[str]:
        """Reasons that predictions give to try another model."""
        return []

    @abstractmethod
    def tally(self) -> NumberTally | ClassTally:
        """`measures` of rows that come in chunks and are not kept."""

    def score(
        self,
        frames: Iterable[pd.DataFrame],
        add: Callable[[Columns], None] | None = None,
        keep: bool = False,
        weigh: Callable[[pd.DataFrame], np.ndarray] | None = None,
    ) -> Scored:
        """All rows of the tables that have a target which the model knows, and a weight above 0 where `weigh` tells the
        weights of a table's rows; if they are given to `add`, chunk by chunk, they are not kept. With `keep` their
        inputs and places are kept too."""
        parts: list[Columns] = []
        kept: list[tuple[np.ndarray, np.ndarray]] = []
        oddities: list[Oddity] = []
        strangers: Counter[Any] = Counter()
        missing = rows = unweighted = 0
        for frame in frames:
            y = self.encoder.target(frame)
            there = ~np.asarray(pd.isna(y))
            missing += int((~there).sum())
            frame, y = frame.loc[there], y[there]
            weight = None if weigh is None else weigh(frame)
            if weight is not None:
                unweighted += int(np.sum(weight == 0))
                frame, y, weight = frame.loc[weight > 0], y[weight > 0], weight[weight > 0]
            known = self.learned(y, np.asarray(frame.index) + 1)
            strangers.update(y[~known].tolist())
            if known.any():
                X, odd = self.encoder.encode(frame.loc[known])
                columns = self.columns(X, y[known], self.exposures(frame.loc[known]))
                (add or parts.append)(columns | ({} if weight is None else {"weight": weight[known]}))
                kept += [(X, np.asarray(frame.index[known]))] * keep
                oddities, rows = oddities + odd, rows + len(X)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
        notes = in_words(oddities)
        notes += [f"{missing} rows without a target were not scored"] if missing else []
        notes += [f"{unweighted} rows of weight 0 were not scored"] if unweighted else []
        notes += [_unlearned(strangers)] if strangers else []
        notes += self.remarks(columns) if parts else []
        arrays = [np.concatenate(part) for part in zip(*kept, strict=True)]
        return Scored(columns, rows, notes, *arrays)


class Regression(AbstractKind):
    """Numbers."""

    task = "regression"
    model: GPRegressor

    def predictions(self, X: np.ndarray, exposure: np.ndarray | None = None) -> pd.DataFrame:
        """TARGET_mean, TARGET_std, TARGET_lower_90 and TARGET_upper_90 (at level 0.9)."""
        target, percent = self.encoder.target_name, f"{100 * self.level:g}"
        ends = {"lower": f"lower_{percent}", "upper": f"upper_{percent}"}
        columns = self._beliefs(X, exposure)
        return pd.DataFrame({f"{target}_{ends.get(name, name)}": column for name, column in columns.items()})

    def learned(self, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """All numbers that the likelihood can describe; of an ordinal target, those of the training rows."""
        if self.model.levels_ is not None:
            return np.isin(y, self.model.levels_)
        check_target(regression_likelihood(self.model.likelihood, 1.0), y, rows)
        return np.ones(len(y), bool)

    def columns(self, X: np.ndarray, y: np.ndarray, exposure: np.ndarray | None = None) -> Columns:
        """Truth, mean, standard deviation, ends of the interval and log density; and exposures, where there are any."""
        of_truth = {"density": self.model.log_density(X, y, exposure=exposure)}
        return {"y": y} | self._beliefs(X, exposure) | of_truth | ({} if exposure is None else {"exposure": exposure})

    def measures(self, scored: Scored) -> Result:
        """Errors and log density in units of the target, each beside that of the best prediction without inputs; the
        density also per standard deviation of a target that was scaled."""
        y, mean, lower, upper, density = (scored.columns[name] for name in ("y", "mean", "lower", "upper", "density"))
        weight, scaled = scored.columns.get("weight"), self.model.likelihood_.support == "real"
        log_density, average = metrics.average(density, weight), metrics.average(y, weight)
        gained = float(np.log(self.model.standardiser_.target_scale))
        return {
            "rows": scored.rows,
            "rmse": metrics.rmse(y, mean, weight),
            "rmse_of_mean": metrics.rmse(y, np.full_like(y, average), weight),
            "mae": metrics.mae(y, mean, weight),
            "mae_of_median": metrics.mae(y, np.full_like(y, metrics.median(y, weight)), weight),
            "r2": metrics.r2(y, mean, weight),
            "log_density": log_density,
            "log_density_of_normal": _of_normal(y, weight) if scaled else None,
            "log_density_standardised": log_density + gained if scaled else None,
            "level": self.level,
            "coverage": metrics.coverage(y, lower, upper, weight),
        }

    def pictures(self, scored: Scored) -> dict[str, Any]:
        """Predictions against truths; whether residuals are normal is asked of a Gaussian likelihood only."""
        names = ("y", "mean", "std", "lower", "upper", "weight")
        return {name: scored.columns.get(name) for name in names} | {"gaussian": self._gaussian()}

    def about(self) -> Result:
        """The unit of the scaled target; the standard deviation of the noise, if there is one number that is this: what
        near rows leave of it, where there are such."""
        scale, variance = float(self.model.standardiser_.target_scale), likelihood_of_draws(self.model).gaussian_noise
        noise = None if variance is None else scale * float(np.sqrt(variance))
        return {"target_scale": scale, "noise_std": noise}

    def tally(self) -> NumberTally:
        """Errors in units of the scale of the target, whose squares do not overflow."""
        return NumberTally(self.measures, float(self.model.standardiser_.target_scale))

    def surprise(self, scored: Scored) -> np.ndarray:
        """log p(y)."""
        return scored.columns["density"]

    def remarks(self, columns: Columns) -> list[str]:
        """A target without a value below zero, whose intervals reach there."""
        y, below = columns["y"], columns["lower"] < 0
        if y.min() < 0 or y.max() <= 0 or below.mean() < BELOW:
            return []
        words = "--target-warp log or " if y.min() > 0 else ""
        return [
            f"no target is below zero, but the intervals of {below.sum():,} of {len(y):,} measured rows reach there: "
            f"{words}a likelihood for such numbers may fit better"
        ]

    def _beliefs(self, X: np.ndarray, exposure: np.ndarray | None) -> Columns:
        """Mean, standard deviation and ends of the interval, which a Gaussian's moments tell without a second pass."""
        mean, std = self.model.predict(X, return_std=True, exposure=exposure)
        if self._gaussian():
            ends = metrics.interval(mean, std, self.level)
        else:
            ends = self.model.predict_interval(X, self.level, exposure=exposure).T
        return {"mean": mean, "std": std, "lower": ends[0], "upper": ends[1]}

    def _gaussian(self) -> bool:
        return self.model.likelihood_.gaussian_noise is not None


class Classification(AbstractKind):
    """Labels of classes."""

    task = "classification"
    model: GPClassifier

    def predictions(self, X: np.ndarray, exposure: np.ndarray | None = None) -> pd.DataFrame:
        """TARGET_predicted, and TARGET_p_LABEL for every class; no label makes two names alike."""
        P = self.model.predict_proba(X)
        target = self.encoder.target_name
        columns = {f"{target}_predicted": self.model.classes_[P.argmax(axis=1)]}
        return pd.DataFrame(columns | {f"{target}_p_{c}": p for c, p in zip(self.model.classes_, P.T, strict=True)})

    def learned(self, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Labels of the training rows."""
        return np.isin(y.astype(str), self.model.classes_.astype(str))

    def columns(self, X: np.ndarray, y: np.ndarray, exposure: np.ndarray | None = None) -> Columns:
        """Codes of the true classes, and log probabilities of all classes."""
        codes = np.searchsorted(self.model.classes_.astype(str), y.astype(str))
        return {"y": codes, "log_p": self.model.predict_log_proba(X)}

    def measures(self, scored: Scored) -> Result:
        """Accuracy, also that of always saying the most frequent class of these rows; density; calibration."""
        y, P, weight = scored.columns["y"], self._probabilities(scored), scored.columns.get("weight")
        count = np.bincount(y, weight, minlength=P.shape[1])
        return {
            "rows": scored.rows,
            "accuracy": metrics.accuracy(y, P, weight),
            "majority_class": str(self.model.classes_[count.argmax()]),
            "majority_accuracy": float(count.max() / count.sum()),
            "log_density": metrics.average(self.surprise(scored), weight),
            "log_density_of_shares": metrics.average(np.log(count[y] / count.sum()), weight),
            "brier": metrics.brier(y, P, weight),
            "calibration_error": metrics.calibration_error(y, P, weight=weight),
        }

    def pictures(self, scored: Scored) -> dict[str, Any]:
        """Reliability and confusion."""
        probabilities = {"probabilities": self._probabilities(scored), "classes": self._classes()}
        return {name: scored.columns.get(name) for name in ("y", "weight")} | probabilities

    def about(self) -> Result:
        """The classes, in the order of the columns of probabilities."""
        return {"noise_std": None, "classes": self._classes()}

    def tally(self) -> ClassTally:
        """Shares of rows, and sums over bins of confidence."""
        return ClassTally(self.measures, self._probabilities, self._classes())

    def surprise(self, scored: Scored) -> np.ndarray:
        """The log probability of the true class."""
        y = scored.columns["y"]
        return scored.columns["log_p"][np.arange(len(y)), y]

    def _classes(self) -> list[str]:
        return [str(label) for label in self.model.classes_]

    def _probabilities(self, scored: Scored) -> np.ndarray:
        P = np.exp(scored.columns["log_p"])
        return P / P.sum(axis=1, keepdims=True)


def _of_normal(y: np.ndarray, weight: np.ndarray | None) -> float | None:
    """The mean log density of y under the normal density with its own mean and standard deviation."""
    std = metrics.rmse(y, np.full_like(y, metrics.average(y, weight)), weight)
    return -0.5 * float(np.log(2 * np.pi)) - float(np.log(std)) - 0.5 if std > 0 else None


def _unlearned(values: Counter[Any]) -> str:
    distinct = list(dict.fromkeys(f"{value:g}" if isinstance(value, float) else value for value in values))
    shown = ", ".join([repr(value) for value in distinct[:5]] + ["…"] * (len(distinct) > 5))
    rows = "1 row" if values.total() == 1 else f"{values.total():,} rows"
    return f"{rows} whose target training never had ({shown}) could not be scored"
