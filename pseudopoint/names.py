"""Every setting of a fit and every word that a setting takes, each with its help.

Estimators, recipes, the command line and `pages/settings.py` (of docs/settings.md) read this module. It imports
the standard library alone, so that `--help` answers at once. `Literal` types are for signatures: editors complete them.
"""

import textwrap
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

Kernel = (
    Literal["auto", "matern52", "matern32", "matern12", "rbf", "rational_quadratic", "periodic", "linear"]
    | Literal["additive", "orthogonal_additive", "matern52_linear"]
)
KERNELS: dict[Kernel, str] = {
    "auto": "the one of highest evidence of a sample of rows; matern52 where no search is made (effort)",
    "matern52": "functions with two derivatives; suits most tables",
    "matern32": "functions with one derivative",
    "matern12": "continuous functions without a derivative",
    "rbf": "functions with all derivatives (squared exponential)",
    "rational_quadratic": "a mixture of rbf kernels of many lengthscales",
    "periodic": "functions that repeat along every column; the periods are learned",
    "linear": "linear functions: Bayesian linear regression",
    "additive": "a sum of one smooth function of each column, and matern52 of all columns for what they do together",
    "orthogonal_additive": "a sum of one smooth function of each column, each pair and each three, and matern52 of all",
    "matern52_linear": "a linear function and matern52",
}

RegressionLikelihood = (
    Literal["auto", "gaussian", "heteroscedastic", "heteroscedastic_student_t", "student_t", "laplace"]
    | Literal["poisson", "negative_binomial", "gamma", "exponential", "beta", "ordinal"]
)
REGRESSION: dict[RegressionLikelihood, str] = {
    "auto": "gaussian; student_t, heteroscedastic or both where outliers, and rows left out, show it",
    "gaussian": "real targets, noise of one variance",
    "heteroscedastic": "real targets, noise that depends on the inputs",
    "heteroscedastic_student_t": "real targets, noise that depends on the inputs and has outliers",
    "student_t": "real targets with outliers",
    "laplace": "real targets with outliers, double exponential noise",
    "poisson": "counts",
    "negative_binomial": "counts that scatter more than Poisson's",
    "gamma": "positive amounts",
    "exponential": "positive amounts, such as waiting times",
    "beta": "proportions between 0 and 1, both excluded",
    "ordinal": "a few ordered levels, such as ratings",
}
ClassLikelihood = Literal["auto", "logit", "probit", "softmax", "robustmax"]
CLASSIFICATION: dict[ClassLikelihood, str] = {
    "auto": "logit for two classes, softmax for more",
    "logit": "two classes, P(y = 1 | f) = 1/(1 + e⁻ᶠ)",
    "probit": "two classes, P(y = 1 | f) = Φ(f)",
    "softmax": "any number of classes, P(y = c | f) ∝ exp f_c",
    "robustmax": "any number of classes, labels that may be wrong",
}

Method = Literal["auto", "exact", "laplace", "collapsed", "svgp"]
METHODS: dict[Method, str] = {
    "auto": "chosen by the number of rows and the likelihood; the fit says which and why",
    "exact": "the full Gaussian process, O(N³); normal noise only",
    "laplace": "the full Gaussian process at the mode, O(N³); any other likelihood of one latent function "
    "(Rasmussen and Williams 2006, 3.4)",
    "collapsed": "inducing points; an iteration takes all rows and the best posterior for its hyperparameters, O(NM²) "
    "(Titsias 2009, 2025)",
    "svgp": "inducing points; a step takes a minibatch of B rows and a natural gradient, O(BM²) (Hensman et al. 2013; "
    "Salimbeni et al. 2018)",
}
Optimiser = (
    Literal["auto", "NGD", "NGD+Adam", "Adam", "GD", "L-BFGS"]
    | Literal["svi-natural", "svi-SAG", "svi-FG", "svi-L-BFGS-B", "vi-means", "means-L-BFGS-B", "means-PN"]
    | Literal["NGD+Adam, one pass", "t-SVGP", "sites"]
)
OPTIMISERS: dict[Optimiser, str] = {
    "auto": "that of the method",
    # Salimbeni, Eleftheriadis and Hensman 2018
    "NGD": "natural gradients for q; hyperparameters and points stay",
    "NGD+Adam": "a step of Adam on all but q, then a natural gradient for q from there; two passes over a batch",
    "Adam": "Adam for everything, q by its Cholesky factor",
    "GD": "gradient descent for everything, q by its Cholesky factor",
    "L-BFGS": "L-BFGS-B on all rows for everything, q by its Cholesky factor",
    # Izmailov: pseudo-points fixed
    "svi-natural": "natural gradients for q, gradient descent for hyperparameters; points stay",
    "svi-SAG": "stochastic average gradient, q by its Cholesky factor; points stay",
    "svi-FG": "gradient descent on all rows, q by its Cholesky factor; points stay",
    "svi-L-BFGS-B": "L-BFGS-B on all rows, q by its Cholesky factor; points stay",
    "vi-means": "L-BFGS-B on the collapsed bound; points stay",
    "means-L-BFGS-B": "the same as vi-means",
    "means-PN": "projected Newton on the collapsed bound; points stay",
    # Beyond the papers
    "NGD+Adam, one pass": "a natural gradient for q and Adam for all else, both from the same point",
    "t-SVGP": "the same in one pass, the data's part of q held while hyperparameters move (Adam et al. 2021)",
    "sites": "incremental sites for q, a number or two a row; hyperparameters and points stay",
}
Posterior = Literal["whitened", "unwhitened", "diagonal", "decoupled", "hybrid", "orthogonal", "solve"]
POSTERIORS: dict[Posterior, str] = {
    "whitened": "q(v) = N(m, S), v = L⁻¹u",
    "unwhitened": "q(u) = N(m, S)",
    "diagonal": "p(u) times Gaussian pseudo-observations: N(Kμ, (K⁻¹ + diag g)⁻¹), 2M numbers (Kobe 2021)",
    "decoupled": "mean and covariance from points of their own (Cheng and Boots 2017)",
    "hybrid": "more points for the mean, by ordinary gradients (Salimbeni, Cheng, Boots and Deisenroth 2018)",
    "orthogonal": "more points for the mean, orthogonal to the others (Salimbeni, Cheng, Boots and Deisenroth 2018)",
    "solve": "two blocks of points, independent of each other (Shi, Titsias and Mnih 2020)",
}
Placement = Literal["auto", "kmeans", "rpcholesky", "greedy", "random"]
PLACEMENTS: dict[Placement, str] = {
    "auto": "the best of the three below; kmeans alone beyond 5,000 rows, of several functions, for a named optimiser",
    "kmeans": "centres of clusters",
    "rpcholesky": "rows drawn in proportion to their conditional variance, then steps of k-means (Chen et al. 2022)",
    "greedy": "rows of greatest conditional variance, one after another (Burt et al. 2020)",
    "random": "rows at random",
}
Bound = Literal["tight", "vfe"]
BOUNDS: dict[Bound, str] = {
    "tight": "Titsias 2025: never above the log evidence, never below vfe",
    "vfe": "Titsias 2009",
}
Initial = Literal["warm", "robust", "ulapane"]
INITIALS: dict[Initial, str] = {
    "warm": "robust, then, for the methods with inducing points, an exact fit to a few rows",
    "robust": "lengthscales √D, and the target's variance",
    "ulapane": "mean distances between neighbours (Ulapane et al. 2020)",
}
Mean = Literal["auto", "zero", "constant", "linear"]
MEANS: dict[Mean, str] = {
    "auto": "zero for a real target with normal noise, which is centred; else constant",
    "zero": "none",
    "constant": "a number that is learned; where a likelihood has one, such as a rate, that one",
    "linear": "learned weights of the columns and a constant",
}
InputWarp = Literal["auto", "none", "yeo_johnson", "rank_normal", "log"]
INPUT_WARPS: dict[InputWarp, str] = {
    "auto": "for each column none or one of the others, by the evidence of a sample of rows",
    "none": "columns are standardised, and that is all",
    "yeo_johnson": "a power that makes the column nearly normal (Yeo and Johnson 2000)",
    "rank_normal": "the normal quantile of a row's rank in the column",
    "log": "the logarithm of columns above 0 that span more than a factor of five; refused where there is none",
}
TargetWarp = Literal["auto", "none", "log", "yeo_johnson", "sinh_arcsinh"]
TARGET_WARPS: dict[TargetWarp, str] = {
    "auto": "none or one of the others, by the evidence of a sample of rows",
    "none": "the target is standardised, and that is all",
    "log": "the logarithm, where all values are positive",
    "yeo_johnson": "a power (Yeo and Johnson 2000)",
    "sinh_arcsinh": "a map that changes skewness and tails (Jones and Pewsey 2009)",
}
Outputs = Literal["independent", "coregionalised"]
OUTPUTS: dict[Outputs, str] = {
    "independent": "no output tells of another",
    "coregionalised": "sums of the same latent functions, with learned weights (Álvarez, Rosasco and Lawrence 2012)",
}
Effort = Literal["fast", "balanced", "thorough"]
EFFORTS: dict[Effort, str] = {
    "fast": "no search: matern52 and one noise variance, unless kernel and likelihood name others; a warp by name is "
    "refused, for its numbers come from a search",
    "balanced": "a search by the evidence of 600 rows; of 900 rows or more the last kernels are compared by up to "
    "1,200, fewer beyond 16 columns and not beyond 28",
    "thorough": "a search by the evidence of 1,500 rows; of 2,250 rows or more the last kernels are compared by up to "
    "3,000, fewer beyond 16 columns and not beyond 28",
}
Dtype = Literal["auto", "float64", "float32"]
DTYPES: dict[Dtype, str] = {
    "auto": "float64; but a fit to more than 5,000 rows (exact: 1,500; several latent functions: any "
    "number) starts in float32, twice as fast, where the noise allows it",
    "float64": "double precision throughout",
    "float32": "single precision throughout",
}
ScaleInputs = Literal["auto", True, False]
SCALE_INPUTS: dict[ScaleInputs, str] = {
    "auto": "True for a kernel by name, False for a kernel object",
    True: "to mean 0 and standard deviation 1, in which the numbers of a kernel object are then",
    False: "columns stay as they are",
}
Task = Literal["auto", "regression", "classification"]
TASKS: dict[Task, str] = {
    "auto": "by the likelihood or by what the target holds; the fit says which and why",
    "regression": "the target holds numbers",
    "classification": "the target holds classes",
}


class Setting(NamedTuple):
    """What is said of a setting: help for everybody, the words it takes with their help, what only Python has besides,
    and what infinity means where it means something; its type and its default, which `described` adds."""

    help: str
    words: Mapping[Any, str] = {}
    python: str = ""
    infinite: str = ""
    kind: Any = None
    default: Any = None


class Settings(NamedTuple):
    """What a person may choose of a fit: by an estimator's keyword, or by an option of the command line.

    The type of a field says how `estimators.checks` checks it; Any stands for objects, which whoever reads them checks.
    """

    kernel: Annotated[
        Kernel | Any,
        Setting(
            "Covariance of the function at two rows. A kernel by name has one lengthscale for each column. Words may "
            "be added, multiplied, and given columns and a number, as in matern52 + periodic(day, 7) + linear(day): "
            "the period, or the first lengthscale, in units of the column. Columns without names are x0, x1, ….",
            KERNELS,
            "Or a kernel object such as Periodic(period=7.0) + RBF(30.0), whose numbers are the start. Its "
            "lengthscales and periods are in the units of X, as inputs are then not scaled (scale_inputs); its "
            "variances are shares of the target's variance, unless scale_target=False. RBF(30.0) has one lengthscale "
            "for all columns, RBF(30.0).ard(D) one for each of D.",
        ),
    ] = "auto"
    likelihood: Annotated[
        RegressionLikelihood | ClassLikelihood | Any,
        Setting(
            "How the target scatters around the function.",
            {
                **CLASSIFICATION,
                **REGRESSION,
                "auto": f"for classes {CLASSIFICATION['auto']}; else {REGRESSION['auto']}",
            },
            "Or a likelihood object, which starts from its own numbers, for the scaled target.",
        ),
    ] = "auto"
    mean: Annotated[
        Mean | Any,
        Setting(
            "Mean of the latent function, to which predictions far from all rows return. There is no search (effort), "
            "and kernel auto is matern52, with linear, with an object, and with constant under normal noise.",
            MEANS,
            "Or an object of a class derived from `pseudopoint.means.AbstractMean`, of standardised columns.",
        ),
    ] = "auto"
    input_warp: Annotated[
        InputWarp,
        Setting(
            "Monotone map of every column of the inputs of eight different values or more; "
            "other columns stay as they are. For kernels by name, in a search (effort).",
            INPUT_WARPS,
        ),
    ] = "auto"
    target_warp: Annotated[
        TargetWarp, Setting("Monotone map of the target; for regression with normal noise.", TARGET_WARPS)
    ] = "auto"
    outputs: Annotated[
        Outputs, Setting("How several outputs depend on each other; for a target of several columns.", OUTPUTS)
    ] = "independent"
    num_latents: Annotated[
        int | None, Setting("Number of latent functions of coregionalised outputs. Default: as many as outputs.")
    ] = None
    near_rows: Annotated[
        bool, Setting("Whether near rows may correct predictions of a large table, if kernel and likelihood are auto.")
    ] = True
    effort: Annotated[
        Effort,
        Setting(
            "How much is tried in a search for start, warps and kernel. A budget of arithmetic and not of time: "
            "a seed gives the same model on every machine.",
            EFFORTS,
        ),
    ] = "balanced"
    method: Annotated[Method, Setting("How the model is fitted.", METHODS)] = "auto"
    optimiser: Annotated[
        Optimiser, Setting("One of the papers' optimisers, from a plain start; it implies the method.", OPTIMISERS)
    ] = "auto"
    posterior: Annotated[
        Posterior,
        Setting(
            "Family of the approximate posterior q; all but whitened are for comparison with the papers.", POSTERIORS
        ),
    ] = "whitened"
    num_inducing: Annotated[
        int | None,
        Setting(
            "Number M of inducing points. Default: 2√N, from 50 to 300; fewer for six latent functions or more. Fits "
            "of one function to rows in memory may add points: up to 1,000 (effort thorough: 2,000; fast: none)."
        ),
    ] = None
    num_mean_inducing: Annotated[
        int | None,
        Setting("Points of the mean alone, or the second block of solve, for posteriors that have them. Default: 2M."),
    ] = None
    inducing: Annotated[
        Placement | Any,
        Setting("Where inducing points start.", PLACEMENTS, "Or an array [M, D] of points in the units of X."),
    ] = "auto"
    learn_inducing: Annotated[bool, Setting("Whether inducing points move during the fit.")] = True
    bound: Annotated[
        Bound, Setting("The lower bound on the log evidence that is maximised; for regression.", BOUNDS)
    ] = "tight"
    initial: Annotated[
        Initial,
        Setting(
            "Where lengthscales and variance of a kernel by name start; a search tries several (effort).", INITIALS
        ),
    ] = "warm"
    lengthscale_prior: Annotated[
        float,
        Setting(
            "Standard deviation s of the prior log ℓ ~ N(log ℓ₀, s²) of every lengthscale ℓ that starts at ℓ₀; inf: no "
            "prior. Optimisers by name have none, nor minibatches of a Gaussian likelihood or of another posterior.",
            python="With few rows and many columns the evidence alone switches columns on and off by chance. "
            "With the prior a fit maximises the bound less ½ Σ (log ℓ/ℓ₀)²/s².",
            infinite="is no prior",
        ),
    ] = 1.5
    priors: Annotated[
        str | dict | None,
        Setting(
            "Priors by name, lengthscale=LogNormal(0, 1), noise_variance=HalfNormal(0.1): the fit maximises bound + "
            "log prior (MAP), without a search (effort). Densities Normal(mean, std), LogNormal(mu, sigma), "
            "HalfNormal(scale), Gamma(shape, rate) are of numbers as kernel_ and likelihood_ show them.",
            python='Or a dict of objects of `pseudopoint.priors`, {"kernel.variance": Gamma(2, 1)}, by paths or ends.',
        ),
    ] = None
    initial_noise: Annotated[
        float, Setting("Noise variance at the start, as a share of the target's variance; for real targets.")
    ] = 0.1
    max_iter: Annotated[
        int | None,
        Setting(
            "At most so many iterations, or steps of minibatches. Default: 200 iterations, in collapsed fits under "
            "normal noise 30 to 200, by N M² and effort (default M: fewer than 200 from about 11,400 rows on); 2000 "
            "steps for a Gaussian likelihood or an optimiser by name, else until the bound is flat, at most 3000."
        ),
    ] = None
    batch_size: Annotated[int, Setting("Rows of a minibatch; for classes the default is 512.")] = 1024
    learning_rate: Annotated[
        float | None, Setting("Step size of Adam or gradient descent. Default: the optimiser's own.")
    ] = None
    scale_inputs: Annotated[ScaleInputs, Setting("Whether columns are standardised.", SCALE_INPUTS)] = "auto"
    scale_target: Annotated[
        bool,
        Setting(
            "Whether a real target is standardised; for regression. A target of less than 0.001 has to be.",
            python="Where False, a fit with a Gaussian likelihood has mean 0, which is predicted far from all rows.",
        ),
    ] = True
    dtype: Annotated[Dtype, Setting("Precision of the computation; no global setting changes.", DTYPES)] = "auto"
    random_state: Annotated[
        Any, Setting("Seed of all random choices, a whole number.", python="Or a RandomState of NumPy, or None.")
    ] = 0

    @property
    def tight(self) -> bool:
        """Whether the bound is the tight one."""
        return self.bound == "tight"

    @property
    def warm(self) -> bool:
        """Whether hyperparameters start from an exact fit to a few rows; those of a kernel object never do."""
        return self.initial == "warm" and isinstance(self.kernel, str)

    @property
    def float32_start(self) -> bool:
        """Whether a fit may start in float32."""
        return self.dtype == "auto"

    @property
    def seed(self) -> int:
        """`random_state`, of which `estimators.checks` has made a whole number."""
        return self.random_state


def described(settings: Any) -> dict[str, Setting]:
    """The fields of a class of settings, by name."""
    hints = {name: get_args(hint) for name, hint in settings.__annotations__.items()}
    defaults = settings._field_defaults
    return {name: about._replace(kind=kind, default=defaults[name]) for name, (kind, about) in hints.items()}


SETTINGS = described(Settings)
# Parameters of the estimators alone.
ESTIMATORS: dict[str, Setting] = {
    "warm_start": Setting(
        "Whether the next fit starts with the kernel, likelihood, scaling, warps and inducing points of the last one. "
        "Where known noise, the target, or a kernel or likelihood that is named does not suit these, it begins anew.",
        python="Settings that say how these start have no effect then. Columns and classes have to be the same.",
        kind=bool,
        default=False,
    )
}


def parameters(signature: Mapping[str, tuple[Any, Any]]) -> str:
    """The parameters of an estimator for its docstring, in numpydoc's form, from (type, default) of each."""
    lines = []
    for name, (kind, default) in signature.items():
        setting = (SETTINGS | ESTIMATORS)[name]
        lines += _wrapped(f"{name} : default {default!r}", 4) + _wrapped(f"{setting.help} {setting.python}", 8)
        lines += [line for word in literals(kind) for line in _wrapped(f"{word!r}: {setting.words[word]}.", 12)]
    return "\n".join(lines)


def literals(kind: Any) -> list[Any]:
    """The words of a type: of a Literal, or of those in a union."""
    return [word for part in get_args(kind) for word in ([part] if isinstance(part, str | bool) else literals(part))]


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, 120, initial_indent=margin, subsequent_indent=margin)
