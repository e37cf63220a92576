"""What is maximised: functions of (model, data), each with the posterior that attains it.

    marginal      log p(y), the exact evidence                      N³
    collapsed     the best q(u) integrated out                      N M²   full data, in chunks of rows
    collapsed_orthogonal, collapsed_decoupled: the same with G more points for the mean      N (M + G)²
    collapsed_solve                 the same with G more points for both, in a block of their own
    elbo          any q(u), any likelihood                          B M²   minibatches
    upper         an upper bound on log p(y)                        N M²   how much could more pseudo-points gain?
Always  VFE ≤ tight ≤ log p(y) ≤ upper.  A row's weight multiplies its log likelihood.
"""

from .collapsed import *
from .elbo import *
from .exact import *
from .laplace import *
