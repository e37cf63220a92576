"""How a fit ends: the bound and the predictor of the model that it found, in one report."""

import jax
import numpy as np

from ..bounds import elbo, marginal, marginal_on_host
from ..compilation import mode_of_one_evaluation, program
from ..data import chunked
from ..optimise.fullbatch import OptimiseResult, converge
from ..posteriors import Model
from .objectives import OfBound, Report, padded_to_bucket
from .settings import Fitted

AT_ONCE = 2e7  # numbers of the features of all rows that may be in memory together
CLOSE = 1e-6  # nats a row: where the search for the best q ends
# Values of latent functions at rows beyond which that search repays the compilation of faster exponentials.
MANY_VALUES = 5000


def at_once(model: Model) -> int:
    """Rows whose features may be in memory together."""
    numbers = 2 * AT_ONCE if model.likelihood.coupled else AT_ONCE  # their steps are few, and worth more
    return max(1024, int(numbers) // (len(model.posterior.Z) * model.likelihood.latents))


def finish(bound, result: OptimiseResult, data, settings, notes) -> Fitted:
    """The report of a closed-form bound, which gives q its best value, in one program."""
    mode = mode_of_one_evaluation(len(data) * len(result.model.posterior.Z))
    _, report = program(OfBound(bound, solved=True), mode)(result.model, padded_to_bucket(data))
    return fitted_by(result, report, notes, settings.tight)


def finish_exact(result: OptimiseResult, data, notes) -> Fitted:
    """The report of the exact evidence: of the host's cores, or in one program on an accelerator."""
    if jax.default_backend() == "cpu":
        at = marginal_on_host(result.model, padded_to_bucket(data))
        report = Report(at.value, at.standard, at.upper(), at.predictor())
    else:
        _, report = program(OfBound(marginal, solved=True), "once")(result.model, padded_to_bucket(data))
        report = report._replace(predictor=report.predictor.first(len(data)))
    return fitted_by(result, report, notes)


def finish_profile(result: OptimiseResult, bound: float, notes=()) -> Fitted:
    """The report of a model that has its best q, and the bound there."""
    return fitted_by(result, Report(bound, bound, np.inf, program(predictor_of, "once")(result.model)), notes)


def settle(result: OptimiseResult, model: Model, data, notes, tight: bool = True, converged: bool = False) -> Fitted:
    """The report at the model's own q, by the tight bound or the standard one; if `converged`, q converges first, which
    takes all rows at once."""
    size = at_once(model)
    if len(data) <= size:
        slow = converged and model.likelihood.latents * len(data) > MANY_VALUES
        mode = "brief" if slow else mode_of_one_evaluation(len(data) * len(model.posterior.Z))
        report, model = program(_converged if converged else _reported, mode)(model, padded_to_bucket(data))
    else:
        stack, chunks = chunked(data, size), program(_reported)
        parts = [chunks(model, jax.tree.map(lambda x, i=i: x[i], stack))[0] for i in range(len(stack.y))]
        # The bound of every chunk has the whole divergence: all but one are added again.
        kl = divergence(model)
        value, standard = (sum(part[i] + kl for part in parts) - kl for i in (0, 1))
        report = Report(value, standard, np.inf, parts[0].predictor)
    return fitted_by(result._replace(model=model), report, notes, tight)


def _reported(model, data):
    bound = elbo(model, data, len(data))
    return Report(bound.value, bound.standard, np.inf, model.predictor()), model


def _converged(model, data):
    return _reported(converge(model, data, tolerance=CLOSE), data)


def predictor_of(model: Model):
    """The predictor of the model's q, as a function that `program` compiles."""
    return model.predictor()


@jax.jit
def divergence(model: Model):
    """KL[q(u) ‖ p(u)]."""
    return model.posterior.project(model.kernel).divergence


def fitted_by(result: OptimiseResult, report: Report, notes, tight: bool = True) -> Fitted:
    """What a fit returns, from where it ended and its report; without the method."""
    value, standard, upper = map(float, report[:3])
    ends = result.history, result.rejected, result.converged
    return Fitted(result.model, report.predictor, "", "", value if tight else standard, standard, upper, *ends, notes)
