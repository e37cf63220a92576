"""What is chosen for a user, and what a fit returns."""

from typing import NamedTuple

import numpy as np

from ..compilation import bucket
from ..likelihoods import AbstractLikelihood
from ..names import Settings
from ..optimise.result import Record
from ..posteriors import AbstractNearRows, AbstractOutputs, Joined, Model, Predictor, Predictors

# Rows up to which an exact fit takes one or two minutes on two cores (decision 0054).
EXACT_ROWS = 4000
COLLAPSED_ROWS = 50_000
# Rows up to which likelihoods without a closed form take full passes: for one latent function; for C whose means step
# together, times C; and for C others, times C².
FULL_BATCH, FULL_BATCH_TOGETHER, FULL_BATCH_OF_SEVERAL = 5000, 4000, 2000


STEP_WORK, BATCH = 4e8, 512  # multiplications of a minibatch step that set the number of points, and its rows
# Iterations of full passes; of a large table as many as these multiplications and additions allow, N M² an iteration.
ITERATIONS, FEWEST_ITERATIONS = 200, 30
WORK = {"fast": 1.2e11, "balanced": 1.2e11, "thorough": 1.2e12}


def points_may_grow(settings: Settings) -> bool:
    """Whether pseudo-points may be added in the end (`recipes.growth`): nobody has chosen how many there are."""
    left_open = settings.num_inducing is None and isinstance(settings.inducing, str) and settings.max_iter is None
    return left_open and settings.effort != "fast" and settings.optimiser == "auto" and settings.posterior == "whitened"


def most_iterations(settings: Settings, N: int, M: int) -> int:
    """The limit of a fit by full passes: that of the settings, or what `effort` allows."""
    allowed = int(WORK[settings.effort] / (N * M**2)) if M else ITERATIONS
    return settings.max_iter or int(np.clip(allowed, FEWEST_ITERATIONS, ITERATIONS))


class Trial(NamedTuple):
    """What was tried for a part of the model: its log evidence, or log density of rows left out (nats), whether it was
    taken, and seconds."""

    part: str
    choice: str
    evidence: float
    chosen: bool
    seconds: float


class HeavyTails(NamedTuple):
    """Student-t noise that a search found: its ν, and by how much the bound of the sample exceeds the evidence under
    normal noise, nats a row."""

    degrees: float
    gain: float


class Fitted(NamedTuple):
    """A fitted model, its predictor, and what to tell the user. Bounds are in nats, of the standardised target.

    Only a Gaussian likelihood has an upper bound; for others `upper` is infinite. With the method "laplace", `bound` is
    no bound but Laplace's approximation of the log evidence. `log_prior` is that of the user's priors. `near_rows` are
    what corrects the predictions of `predictor`.
    """

    model: Model
    predictor: Predictor | Predictors | Joined | AbstractOutputs
    method: str
    reason: str
    bound: float
    vfe: float
    upper: float
    history: tuple[Record, ...]
    rejected: int
    converged: bool
    notes: tuple[str, ...]
    trials: tuple[Trial, ...] = ()
    log_prior: float = 0.0
    near_rows: AbstractNearRows | None = None

    def refitted(self, found: "Fitted") -> "Fitted":
        """Where it went on to, `found`, with all that is told of the fit itself."""
        of_end = ("model", "predictor", "bound", "vfe", "upper")
        return self._replace(**{name: getattr(found, name) for name in of_end})


def choose_method(N: int, likelihood: AbstractLikelihood) -> tuple[str, str]:
    """The method for N rows, and the reason."""
    if likelihood.gaussian_noise is None and not likelihood.varying_noise:
        # One function: at 3,760 to 4,860 rows full passes took 0.9 to 1.9 times the processor time of minibatches. Test
        # log densities were better on phoneme and magic by 0.004 and 0.002, worse on adult and abalone by up to 0.003.
        # Several: decision 0079. Where each function steps as if the others stood still, full passes need more steps.
        C = likelihood.latents
        several = FULL_BATCH_TOGETHER // C if likelihood.coupled else FULL_BATCH_OF_SEVERAL // C**2
        most = FULL_BATCH if C == 1 else several
        if N <= most:
            return "collapsed", f"{N} rows: few enough for full passes with the best posterior at every step"
        return "svgp", f"{N} rows: minibatches, as full passes are slow for this likelihood beyond {most}"
    if N <= EXACT_ROWS:
        return "exact", f"{N} rows: the exact Gaussian process is affordable up to {EXACT_ROWS}"
    if N <= COLLAPSED_ROWS:
        return (
            "collapsed",
            f"{N} rows: too many for the exact method, and full passes are affordable up to {COLLAPSED_ROWS}",
        )
    return "svgp", f"{N} rows: minibatches, as full passes are slow beyond {COLLAPSED_ROWS}"


def choose_num_inducing(N: int, latents: int = 1) -> int:
    """M = 2√N, rounded up to a `bucket`, between 50 and 300, and at most N: the error falls fast with M at first, the
    cost rises with M². A step for C latent functions costs some C M²(B + M), for a batch of B rows. So many functions
    have fewer points: at most those with which that is `STEP_WORK`."""
    sizes = np.arange(1, 301)  # 300 are affordable for up to five functions
    affordable = int(np.sum(latents * sizes**2 * (BATCH + sizes) <= STEP_WORK))
    return int(min(N, np.clip(bucket(int(2 * np.sqrt(N))), 50, max(50, affordable))))
