"""Rows of every experiment that judges a finding: rows that hold it, and what contradicts each finding."""

import itertools

from pseudopoint.reproduce import experiments_folder

FOLDER = experiments_folder()
RUNS = (0, 1)


def swapped(key, a, b, where=lambda row: True):
    """Rows whose figures are those of the other: a for b."""
    exchange = {a: b, b: a}

    def change(rows):
        return [row | {key: exchange.get(row[key], row[key])} if where(row) else row for row in rows]

    return change


def changed(where, **figures):
    """Rows with other figures; a function is of the row."""

    def change(rows):
        value = lambda of, row: of(row) if callable(of) else of
        return [row | {k: value(of, row) for k, of in figures.items()} if where(row) else row for row in rows]

    return change


def runs(make):
    """Rows for each run, their figures a little apart."""
    return [row for run in RUNS for row in make(run, 1 + 0.01 * run)]


# --- Salimbeni, Eleftheriadis and Hensman 2018 ---


def line_search():
    first = {"NGD": 1, "GD": 60, "Adam": 60, "L-BFGS": 60}

    def make(run, bit):
        for table, name in itertools.product(("energy", "pima"), ("natural", "mean/var-sqrt")):
            for direction, there in first.items():
                gap = [9.0] * (there - 1) + [0.0] * 5
                step = [1.0] * len(gap)
                if direction == "NGD" and table == "pima":
                    gap, step = [0.05, 0.0], [0.1, 1.0 + 0.001 * run]
                row = {"table": table, "coordinates": name, "split": run, "direction": direction}
                yield row | {"gap": gap, "step_size": step, "config": {"near": [1.0, 0.1, 0.01]}}

    natural = lambda row: row["direction"] == "NGD"
    return runs(make), {
        1: changed(lambda row: natural(row) and row["table"] == "pima", gap=[9.0] * 70, step_size=[1.0] * 70),
        2: changed(lambda row: natural(row) and row["table"] == "pima", step_size=lambda row: [0.1, 0.4]),
        3: changed(lambda row: natural(row) and row["table"] == "energy", step_size=[0.5] * 5),
    }


def ng_vector_field():
    def make(run, bit):
        path = [[0.0, 1.0], [1.0, 0.5]]
        for name in ("mean/var-sqrt", "mean/var", "natural"):
            row = {"data": run, "coordinates": name, "natural_off": 3.0, "ordinary_off": 40.0 * bit}
            row |= {"natural_length": [0.8, 0.9, 1.0], "ordinary_length": [2.0, 3.0 * bit, 4.0]}
            yield row | {"natural_path": path, "ordinary_path": path}

    return runs(make), {
        1: changed(lambda row: True, natural_length=[8.0, 9.0, 10.0]),
        2: changed(lambda row: True, natural_off=80.0),
        3: changed(lambda row: row["coordinates"] != "mean/var-sqrt", natural_path=[[0.0, 1.0], [5.0, 0.5]]),
    }


MARKS = [0, 1, 2, 4, 8, 16, 32, 64]


def timed(rule, figures, **more):
    times = dict.fromkeys((rule, "NGD", "NGD+Adam", "Adam", "GD"), 1.0)
    return {"rule": rule, "steps": MARKS, "milliseconds": times, "rejected": 0} | figures | more


def ng_minibatch():
    def make(run, bit):
        for table in ("energy", "boston", "pima"):
            for rule, scale in {"NGD": 1.0, "Adam": 50.0, "GD": 80.0}.items():
                gap = [100.0] + [scale * bit * 10 / step for step in MARKS[1:]]
                yield timed(rule, {"gap": gap, "config": {"ramp": [1e-4, 0.1, 1]}}, table=table, split=run)

    late = lambda row: row["rule"] == "NGD"
    return runs(make), {
        1: swapped("rule", "NGD", "Adam"),
        2: changed(lambda row: row["rule"] == "GD", gap=[100.0] + [0.001] * 7),
        3: changed(late, gap=[100.0, *[9999.0] * 5, 0.01, 0.001]),
    }


def climbs(levels, table, run, bit, rates=(0.1, 0.01, 0.001)):
    """Rows of rules at three rates, of which the middle one ends highest."""
    for rule, level in levels.items():
        for rate in rates:
            height = level * bit - 5 * (rate != 0.01)
            bound = [-100.0] + [height - 10 / step for step in MARKS[1:]]
            yield rule, rate, bound, {"table": table, "split": run}


def ng_joint():
    def make(run, bit):
        for table in ("energy", "boston", "pima"):
            for rule, rate, bound, row in climbs({"NGD+Adam": 50.0, "Adam": 30.0, "GD": 10.0}, table, run, bit):
                yield timed(rule, {"bound": bound, "rate": rate, "config": {"ramp": [1e-4, 0.1, 1]}}, **row)

    return runs(make), {n: swapped("rule", "NGD+Adam", other) for n, other in enumerate(("Adam", "GD"), 1)}


EVERY = {f"{rule} {rate:g}": 1.0 for rule in ("NGD+Adam", "Adam") for rate in (0.1, 0.01, 0.001)}


def at_rates(levels, table, run, bit):
    for rule, rate, bound, row in climbs(levels, table, run, bit):
        figures = {"bound": bound, "config": {"ramp": [1e-4, 0.1, 1]}, "milliseconds": EVERY}
        yield timed(f"{rule} {rate:g}", figures, **row)


def other_way(a, b):
    """Exchange of two rules that are named with their rates."""
    turn = {a: b, b: a}

    def change(rows):
        name = lambda rule: f"{turn.get(rule.rpartition(' ')[0], rule.rpartition(' ')[0])} {rule.rpartition(' ')[2]}"
        return [row | {"rule": name(row["rule"])} for row in rows]

    return change


def ng_student_t():
    def make(run, bit):
        for table in ("kin8nm", "power", "protein", "kin40k"):
            yield from at_rates({"NGD+Adam": 50.0, "Adam": 30.0}, table, run, bit)

    return runs(make), {1: other_way("NGD+Adam", "Adam"), 2: other_way("NGD+Adam", "Adam")}


def ng_naval():
    def make(run, bit):
        for name in ("Gaussian", "Beta", "ordinal"):
            for row in at_rates({"NGD+Adam": 50.0, "Adam": 30.0}, "naval", run, bit):
                yield row | {"likelihood": name, "test": row["bound"]}

    turn = other_way("NGD+Adam", "Adam")
    of = lambda name: lambda rows: [turn([row])[0] if row["likelihood"] == name else row for row in rows]
    return runs(make), {n: of(name) for n, name in enumerate(("Gaussian", "Beta", "ordinal"), 1)}


def ng_mnist():
    rows = []
    for rule, level in {"NGD+Adam": -0.1, "Adam": -0.9}.items():
        for rate in (0.1, 0.01, 0.001):
            test = [-2.0] + [level - 0.01 / step for step in MARKS[1:]]
            figures = {"test": test, "bound": -1.0 - (rate != 0.01), "milliseconds": EVERY}
            rows.append(timed(f"{rule} {rate:g}", figures))
    late = [-2.0, -1.9, -1.9, -1.9, -1.9, -1.9, -1.9, -0.1]
    return rows, {
        1: other_way("NGD+Adam", "Adam"),
        2: changed(lambda row: row["rule"].startswith("NGD"), test=late),
    }


# --- Salimbeni, Cheng, Boots and Deisenroth 2018 ---

ENDS = {"ORTHNAT": 6.0, "ORTH": 5.0, "COUPLEDNAT": 4.0, "COUPLED": 3.0, "HYBRID": 2.0, "DECOUPLED": 1.0}


def decoupled_elbo():
    ms = dict.fromkeys(ENDS, 1.0)
    rows = [
        {"table": "t", "rule": rule, "steps": [0, 10], "bound": [0.0, end], "test": [0.0, end], "milliseconds": ms}
        for rule, end in ENDS.items()
    ]
    return rows, {
        1: changed(lambda row: True, milliseconds=ms | {"ORTHNAT": 3.0}),
        2: changed(lambda row: row["rule"] == "COUPLED", bound=[0.0, 7.0]),
        3: changed(lambda row: row["rule"] == "HYBRID", test=[0.0, 4.5]),
    }


def decoupled_accuracy():
    """ORTHNAT is first on all sets but the one in the middle, so that ORTH's median is the highest."""
    level, ms = {t: 10.0 * i for i, t in enumerate("abcdefghi")}, dict.fromkeys(ENDS, 1.0)
    rows = [
        {"table": t, "split": run, "rule": rule, "accuracy": level[t] + end + 0.01 * run, "milliseconds": ms}
        for run in RUNS
        for t in level
        for rule, end in ENDS.items()
    ]
    rows = changed(lambda row: (row["table"], row["rule"]) == ("e", "ORTH"), accuracy=level["e"] + 9.0)(rows)
    of = lambda rule: lambda row: row["rule"] == rule
    above = lambda more: lambda row: level[row["table"]] + more
    return rows, {
        1: changed(lambda row: row["rule"].startswith("COUPLED"), accuracy=lambda row: 10 + row["accuracy"]),
        2: changed(of("HYBRID"), accuracy=above(9.5)),
        3: changed(of("DECOUPLED"), accuracy=above(5.5)),
        4: changed(of("ORTH"), accuracy=above(5.0)),
        5: swapped("rule", "COUPLED", "COUPLEDNAT"),
    }


def decoupled_regression():
    order = ("ORTHNAT", "COUPLEDNAT", "ORTH", "COUPLED", "COUPLEDNAT, 300", "COUPLED, 300", "HYBRID", "DECOUPLED")
    rows = [
        {"table": t, "rule": rule, "split": run, "mae": float(i)}
        for run in RUNS
        for t in "abc"
        for i, rule in enumerate(order)
    ]
    return rows, {
        1: changed(lambda row: row["rule"] == "HYBRID", mae=-1.0),
        2: changed(lambda row: row["rule"] == "ORTH", mae=5.5),
        3: changed(lambda row: row["rule"] == "DECOUPLED", mae=1.5),
    }


def decoupled_optimum():
    natural = ("orthogonal, joint", "coupled", "orthogonal, (16a)", "orthogonal, (17)")
    ordinary = ("decoupled, Adam", "hybrid, Adam", "orthogonal, Adam", "coupled, Adam")
    row = {"optimum": -1000.0, "steps": [0, 10, 20_000]}
    rows = [row | {"rule": rule, "rate": None, "gap": [900.0, 0.0, 0.0]} for rule in natural]
    quick = {0.1: [900.0, 1.0, 1.0], 0.03: [900.0, 0.0, 0.0], 0.01: [900.0, 1.0, 1.0]}
    slow = {0.1: [900.0, 500.0, 8.0], 0.03: [900.0, 500.0, 5.0], 0.01: [900.0, 500.0, 8.0]}
    rows += [row | {"rule": "orthogonal, Adam for a", "rate": r, "gap": quick[r]} for r in quick]
    rows += [row | {"rule": rule, "rate": r, "gap": slow[r]} for rule in ordinary for r in slow]
    return rows, {
        1: changed(lambda row: row["rule"] == "hybrid, Adam", gap=lambda row: quick[row["rate"]]),
        2: changed(lambda row: row["rule"] == "decoupled, Adam", gap=lambda row: quick[row["rate"]]),
    }


def decoupled_classification():
    rows, _ = decoupled_optimum()
    bound = lambda row: [row["optimum"] - gap for gap in row["gap"]]
    rows = [{"rule": row["rule"], "steps": row["steps"], "bound": bound(row), "rate": row["rate"]} for row in rows]
    there = lambda row: [-1900.0, -1000.0, -1000.0 - (row["rate"] != 0.03)]
    return rows, {
        1: changed(lambda row: row["rule"] == "hybrid, Adam", bound=there),
        2: changed(lambda row: row["rule"] == "decoupled, Adam", bound=there),
    }


# --- Kobe 2021 ---


def kobe_one_step():
    def make(run, bit):
        for hyper in ("printed", "exchanged", "fitted"):
            row = {"seed": run, "hyper": hyper, "config": {"steps": 10_000}}
            yield row | {"rule": "NGD", "gap": [50.0, 1e-11 * run], "steps_to": {"0.01": 1}}
            yield row | {"rule": "Adam", "gap": [50.0, 49.0], "steps_to": {"0.01": 2000 + run}}

    return runs(make), {
        1: changed(lambda row: row["rule"] == "NGD", gap=[50.0, 0.1]),
        2: changed(lambda row: row["rule"] == "Adam" and row["hyper"] == "fitted", steps_to={"0.01": 200}),
    }


def kobe_joint():
    names = ("lengthscale", "kernel variance", "noise variance")
    moving = [1.0, 2.0, 3.0, 4.0, 5.0]

    def make(run, bit):
        row = {"points": "fixed", "seed": run, "steps": [0, 100, 300, 600, 10_000], "end": 0.0}
        natural = {"bound": [-100.0, 0.0, 0.0, 0.0, 0.0], "path": dict.fromkeys(names, moving)}
        adam = {"bound": [-100.0, -50.0, -20.0, 0.0, 0.0], "path": dict.fromkeys(names, [1.0, 9.0, 9.0, 4.0, 5.0])}
        return [row | {"rule": "NGD"} | natural, row | {"rule": "Adam"} | adam]

    late = [-100.0, -50.0, -50.0, -50.0, 0.0]
    natural, adam = (lambda row: row["rule"] == "NGD"), (lambda row: row["rule"] == "Adam")
    return runs(make), {
        1: swapped("rule", "NGD", "Adam"),
        2: changed(natural, bound=late),
        3: changed(adam, end=-20.0, bound=[-100.0, -90.0, -80.0, -20.0, -20.0]),
        4: changed(adam, path=dict.fromkeys(names, moving)),
        5: changed(lambda row: True, path=dict.fromkeys(names, [1.0, 5.0, 5.0, 5.0, 5.0])),
    }


def kobe_grid():
    """The steps to the common level: NGD's over Adam's."""

    def course(there):
        steps = [0, 20, 100, 200, 400, 2000]
        return {"steps": steps, "bound": [-100.0, *(-50.0 if step < there else 0.0 for step in steps[1:])]}

    ways = {(10, 100): (100, 400), (100, 1000): (200, 200), (100, 100): (2000, 400)}
    sizes = [(N, M, batch, noise, way) for (M, batch), way in ways.items() for N in (1000,) for noise in (0.1, 0.01)]

    def make(run, bit):
        for N, M, batch, noise, (natural, adam) in sizes:
            row = {"N": N, "M": M, "batch": batch, "noise": noise, "seed": run}
            quick = course(natural)
            quick["bound"][1] += 1.0  # ahead at the first look
            yield row | {"rule": "NGD"} | quick
            yield row | {"rule": "Adam"} | course(adam)

    case = lambda M, batch: lambda row: (row["M"], row["batch"]) == (M, batch)
    noisy = lambda row: row["noise"] == 0.1 and row["rule"] == "NGD" and row["M"] == 10
    return runs(make), {
        1: changed(noisy, **course(2000)),
        2: swapped("rule", "NGD", "Adam", case(10, 100)),
        3: changed(lambda row: case(100, 1000)(row) and row["rule"] == "NGD", **course(2000)),
        4: swapped("rule", "NGD", "Adam", case(100, 100)),
    }


def diagonal_joint():
    rules = {"thesis, γ → 0.1": [500.0, 1.0, 1.0, 1.0]}
    rules |= {"dense, natural": [500.0, 300.0, 1.0, 1.0], "dense, Adam": [500.0, 300.0, 300.0, 1.0]}

    def make(run, bit):
        for rule, gap in rules.items():
            ours = rule.startswith("thesis")
            learned = [0.05, 0.2, 0.0101] if ours else [0.11, 0.6, 0.0099]
            row = {"points": "held", "seed": run, "rule": rule, "gap": gap}
            row |= {"settled": 100 if ours else 700}
            row |= {"steps": [0, 100, 500, 900]}
            row |= {"learned": learned, "mean": [0.0, 0.01 * ours], "roughness": 10.0 if ours else 2.0}
            yield row

    ours, dense = (lambda row: row["rule"].startswith("thesis")), (lambda row: row["rule"] == "dense, natural")
    return runs(make), {
        1: changed(ours, settled=7000),
        2: changed(ours, gap=[500.0, 80.0, 80.0, 80.0]),
        3: changed(ours, learned=[0.15, 0.9, 0.01]),
        4: changed(dense, learned=[0.11, 0.6, 0.02]),
        5: changed(ours, mean=[5.0, 5.0]),
        6: changed(ours, roughness=0.1),
    }


def naval_diagonal():
    steps, ways = (0, 2000, 5000, 10_000, 20_000), {}
    ways["thesis, Z held"] = (0, 300, 300, 300, 300)
    ways["dense, natural, Z held"] = (0, 300, 400, 400, 400)
    ways["dense, Adam, Z held"] = (0, 10, 50, 80, 100)
    rows = [
        {
            "part": "joint",
            "rule": rule,
            "standard": float(way[-1]),
            "course": [[a, float(b)] for a, b in zip(steps, way, strict=True)],
        }
        for rule, way in ways.items()
    ]
    to = lambda *way: [[a, float(b)] for a, b in zip(steps, way, strict=True)]
    return rows, {
        1: changed(lambda row: row["rule"] == "dense, Adam, Z held", course=to(0, 10, 50, 500, 500)),
        2: changed(lambda row: row["rule"] == "thesis, Z held", course=to(0, 1, 2, 3, 300)),
        3: changed(lambda row: row["rule"] == "thesis, Z held", course=to(0, 450, 450, 450, 450)),
    }


# --- Izmailov ---


def izmailov_means():
    config = {"passes": [3, 10], "big_passes": [3, 10]}
    row = {"set": "boston", "config": config, "made_for": [0, 3, 10], "N": 10, "pass_seconds": None}
    rows = [
        row | {"method": "vi-means", "r2": [0.0, 0.8, 0.9], "bound": [0.0, 5.0, 9.0]},
        row | {"method": "svi-L-BFGS-B", "r2": [0.0, 0.2, 0.5], "bound": [0.0, 1.0, 2.0]},
    ]
    return rows, {1: swapped("method", "vi-means", "svi-L-BFGS-B")}


JUDGED = {
    make.__name__: make
    for make in (
        *(line_search, ng_vector_field, ng_minibatch, ng_joint, ng_student_t, ng_naval, ng_mnist),
        *(decoupled_elbo, decoupled_accuracy, decoupled_regression, decoupled_optimum, decoupled_classification),
        *(kobe_one_step, kobe_joint, kobe_grid, diagonal_joint, naval_diagonal),
        izmailov_means,
    )
}
