"""What is maximised: functions of (model, rows) that return an `AbstractBound`, `value` and `standard`.

    marginal      log p(y), the exact evidence                      N³
    collapsed     the best q(u) integrated out                      N M²   full data, in chunks of rows
    collapsed_orthogonal, collapsed_decoupled: the same with G more points for the mean      N (M + G)²
    collapsed_solve                 the same with G more points for both, in a block of their own
    laplace       an approximation of log p(y) at the mode          N³     any likelihood of one latent function
    elbo          any q(u), any likelihood                          B M²   minibatches
`COLLAPSED` and `ELBO` are `collapsed` and `elbo` as functions of sums over rows that are not all in memory (`Summed`).
All but `elbo` are in closed form: their `Solution` also has the predictor of the best q and, where one is known, an
upper bound on log p(y). Always  standard ≤ value ≤ log p(y) ≤ upper.  A row's weight multiplies its log likelihood.
"""

from .bound import *
from .collapsed import *
from .elbo import *
from .exact import *
from .exact_on_host import *
from .folds import *
from .laplace import *
from .laplace_on_host import *
from .leave_one_out import *
from .scale_mixture import *
from .summed import *
