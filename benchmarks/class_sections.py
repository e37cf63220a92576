"""What docs/performance.md says of fits to classes."""

from statistics import mean, median

from sections import FIRST, Row, Section, marked, of, stored, three, value
from speed.tables import show_seconds

WHO = ("default", "boosting", "catboost")


def by_default() -> dict[str, dict[str, list[Row]]]:
    """The last rows of `classes.py --who`, of each table and library, one of each seed."""
    last = {(row["table"], row["who"], row["seed"]): row for row in stored("classes_by_default")}
    found: dict[str, dict[str, list[Row]]] = {}
    for (name, who, _), row in last.items():
        found.setdefault(name, {}).setdefault(who, []).append(row)
    return found


def classes_by_default() -> Section:
    """Our defaults beside trees."""
    lines = []
    for name, each in by_default().items():
        ours = each["default"]
        cells = [name, *(f"{ours[0][key]:,}" for key in ("N", "D", "classes")), str(len(ours))]
        for key in ("test_log_density", "accuracy"):
            first, *others = (mean(row[key] for row in each[who]) for who in WHO)
            cells += [marked(first, others, three, least=False), *map(three, others)]
        cells += [f"{sum(row['near_rows'] for row in ours)} of {len(ours)}"]
        cells += [f"{median(row['seconds'] for row in ours):.0f} s"]
        lines.append((cells, [row for who in WHO for row in each[who]]))
    names = ["boosting", "CatBoost"]
    return Section(
        "How good are predictions of classes, beside trees?",
        """`GPClassifier()`, HistGradientBoosting of scikit-learn (500 rounds with early stopping), and CatBoost (2,000
        rounds, ended early by a tenth held out): means over the splits. The last columns say for how many of them near
        rows were taken ([decision 0091](decisions/0091-near-classes.md), which was made with these test rows in sight),
        and the median of the seconds of our fit in a fresh process, with nothing compiled before; tests ran
        beside those of one split at low priority.""",
        [
            "table",
            "rows",
            "columns",
            "classes",
            "splits",
            "log density: ours",
            *names,
            "accuracy: ours",
            *names,
            "near rows",
            "time",
        ],
        lines,
    )


def newest(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of split 0 of each table, those of its last run, with default settings."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["split"] == 0:
            found.setdefault(row["table"], {}).setdefault(row["commit"], []).append(row)
    plain = lambda group: not any("method" in row.get("settings", {}) for row in group)
    return {name: [group for group in groups.values() if plain(group)][-1] for name, groups in found.items()}


def classes() -> Section:
    """Accuracy and density beside peers and boosting."""
    boosting = {row["table"]: row for row in stored("boosting")}
    lines = []
    for name, rows in newest(stored("classification")).items():
        (ours,) = of(rows, "pseudopoint")
        others = [*of(rows, "gpflow"), *(of(rows, "scikit-learn") or [None]), boosting[name]]
        cells = [name, f"{ours['N_train']:,}"]
        for key in ("accuracy", "test_log_density"):
            values = [value(other, key) for other in others]
            cells.append(marked(ours[key], values, three, least=False))
            cells += ["failed" if o and v is None else three(v) for o, v in zip(others, values, strict=True)]
        lines.append((cells, [*rows, boosting[name]]))
    names = ["GPflow", "scikit-learn GP", "boosting"]
    return Section(
        "How good are predictions of classes?",
        """The same test rows for all. Ours and GPflow have 100 inducing points; GPflow takes 3,000 minibatch steps,
        ours its defaults; scikit-learn is the full Gaussian process, for tables of at most 1,500 training rows.
        Test tables are small: a single row of pima (77 test rows) moves accuracy by 0.013.""",
        ["table", "rows", "accuracy: ours", *names, "log density: ours", *names],
        lines,
    )


def splits() -> Section:
    """Means over five splits, of the run that has them."""
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in stored("classification"):
        if "method" not in row.get("settings", {}) and not row.get("error"):
            runs.setdefault((row["table"], row["commit"]), []).append(row)
    lines = []
    for (name, _), rows in runs.items():
        groups = [of(rows, library) for library in ("pseudopoint", "gpflow", "scikit-learn")]
        if len(groups[0]) < 5:
            continue
        cells = [name]
        for key in ("accuracy", "test_log_density"):
            values = [mean(row[key] for row in group) if group else None for group in groups]
            cells += [marked(values[0] or 0.0, values[1:], three, least=False), *map(three, values[1:])]
        lines.append((cells, rows))
    names = ["GPflow", "scikit-learn GP"]
    return Section(
        "The same over five splits",
        "Means over five divisions into training and test rows.",
        ["table", "accuracy: ours", *names, "log density: ours", *names],
        lines,
    )


def class_seconds() -> Section:
    """Times of the same fits."""
    lines = []
    for name, rows in newest(stored("classification")).items():
        (ours,) = of(rows, "pseudopoint")
        seconds = [value(next(iter(of(rows, library)), None)) for library in ("gpflow", "scikit-learn")]
        lines.append(([name, marked(ours["seconds"], seconds, show_seconds), *map(show_seconds, seconds)], rows))
    return Section(
        "How long do fits of classes take?",
        "The fits of one split above, each in a process of its own, compilation included.",
        ["table", "ours", "GPflow", "scikit-learn GP"],
        lines,
    )


def _by_table(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["table"], []).append(row)
    return found


def defaults_of_classes() -> Section:
    """Default fits of classes beside those of an older version, in the same run, and beside boosting of the same
    rows."""
    boosting = {row["table"]: row for row in stored("boosting")}
    lines = []
    for name, rows in _by_table(stored("classes")).items():
        before, now = sorted(rows, key=lambda row: row["commit"] != FIRST)
        trees = boosting.get(name)
        ratio = f"{before['seconds'] / now['seconds']:.1f}×"
        densities = [f"{row['test_log_density']:.3f}" for row in (now, before)]
        densities.append("–" if trees is None else f"{trees['test_log_density']:.3f}")
        sizes = [f"{now[key]:,}" for key in ("N", "D", "classes")]
        cells = [name, *sizes, *(show_seconds(r["seconds"]) for r in (now, before)), ratio, *densities]
        lines.append((cells, [now] if trees is None else [now, trees]))
    return Section(
        "And beside fits of our first version?",
        """`GPClassifier()` in a fresh process, imports and compilation included, in turn with version fa5e652; without
        near rows ([decision 0091](decisions/0091-near-classes.md)), which are later. Boosting is that of the tables
        above.""",
        ["table", "rows", "columns", "classes", "then", FIRST, "ratio", "log density: then", FIRST, "boosting"],
        lines,
    )
