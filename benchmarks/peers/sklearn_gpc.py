"""Fit one small classification table with scikit-learn's GaussianProcessClassifier and print one line of JSON.

    python benchmarks/peers/sklearn_gpc.py TABLE.csv.gz

The setting is that of gpflow_svgp.py: the same split, the same columns, standardised. The kernel is
1.0 * Matern(nu=2.5) with one lengthscale per column, started at √D, learned by scikit-learn's own L-BFGS-B on
the Laplace evidence. The method is O(N³) an iteration: refused with 1500 training rows or more, unless --rows says so.

BLAS gets --threads threads, 1 unless told: on two cores that others used too, one fit at fixed parameters on pima took
16.8 s with OpenBLAS's own two threads and 0.2 s with one.

`seconds` is the fit from raw arrays, standardising included. There is nothing to trace: `seconds_tracing` is 0.
`bound_per_row` is the Laplace approximation of the evidence over the number of training rows, which is NO bound; with
more than two classes (one against the rest), the mean of it over the classes.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import sklearn
from classification_tables import as_line, error_text, load, name_of, scores, split, standardiser
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import Matern
from threadpoolctl import threadpool_limits


def main() -> int:
    """Run one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=int, default=1500, metavar="N", help="refuse this many training rows or more")
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="of BLAS and OpenMP")
    parser.add_argument("--split", type=int, default=0, metavar="SEED", help="of the rows' permutation")
    options = parser.parse_args()

    X, y = load(options.table)
    train, test = split(y, options.split)
    figures = dict(
        library=f"scikit-learn {sklearn.__version__}",
        table=name_of(options.table),
        split=options.split,
        likelihood="logistic, Laplace",
        N=len(y),
        N_train=len(train),
        classes=len(np.unique(y[train])),
        threads=options.threads,
    )
    start = time.perf_counter()
    try:
        if len(train) >= options.rows:
            raise ValueError(f"not tried: {len(train)} training rows, the limit is below {options.rows}")
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(options.threads):
            warnings.simplefilter("always")
            start = time.perf_counter()
            transform = standardiser(X[train])
            Xs = transform(X[train])
            D = Xs.shape[1]
            kernel = 1.0 * Matern(nu=2.5, length_scale=np.full(D, np.sqrt(D)))
            model = GaussianProcessClassifier(kernel, random_state=0).fit(Xs, y[train])
            seconds = time.perf_counter() - start
        result = dict(
            D=D,
            seconds=seconds,
            seconds_tracing=0.0,
            **scores(model.predict_proba(transform(X[test])), model.classes_, y[test]),
            bound_per_row=float(model.log_marginal_likelihood_value_) / len(train),
            warnings=sorted({" ".join(str(w.message).split())[:200] for w in caught}),
        )
    except Exception as error:  # a crash is a result of the comparison, not of this script
        result = dict(error=error_text(error), seconds_until_error=time.perf_counter() - start)
    print(as_line(figures | result))
    return int("error" in result)


if __name__ == "__main__":
    sys.exit(main())
