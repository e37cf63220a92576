"""GPyTorch, used as its tutorials advise: the training loop in Python, NGD and Adam with one backward pass."""

import gpytorch
import numpy as np
import serve
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    NaturalVariationalDistribution,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)
from serve import Curve, Task

CHUNK = 10_000
STRATEGIES = {"whitened": VariationalStrategy, "unwhitened": UnwhitenedVariationalStrategy}


def settings(p):
    """GPyTorch's precision; rows as tensors."""
    torch.set_default_dtype(torch.float64 if p["X"].dtype == np.float64 else torch.float32)
    return torch.as_tensor(p["X"]), torch.as_tensor(p["y"])


def kernel_of(p):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=p["X"].shape[1]))
    kernel.outputscale = float(p["variance"])
    kernel.base_kernel.lengthscale = torch.as_tensor(p["lengthscale"])
    return kernel


def likelihood_of(p, name):
    if name == "bernoulli":
        return gpytorch.likelihoods.BernoulliLikelihood()
    if name == "softmax":
        return gpytorch.likelihoods.SoftmaxLikelihood(num_classes=10, mixing_weights=False)
    if name == "studentt":
        likelihood = gpytorch.likelihoods.StudentTLikelihood()
        likelihood.noise, likelihood.deg_free = float(p["scale"]) ** 2, float(p["degrees"])
        return likelihood
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = float(p["noise"])
    return likelihood


class Sparse(gpytorch.models.ApproximateGP):
    """An SVGP; `several` latent functions share kernel and points."""

    def __init__(self, Z, strategy, distribution, mean, kernel, several=0, **keywords):
        q = distribution(len(Z), batch_shape=torch.Size([several] if several else []))
        strategy = strategy(self, torch.as_tensor(Z), q, learn_inducing_locations=True, **keywords)
        super().__init__(IndependentMultitaskVariationalStrategy(strategy, several) if several else strategy)
        self.q, self.mean, self.kernel = q, mean, kernel

    def forward(self, x):
        return MultivariateNormal(self.mean(x), self.kernel(x))


def put_q(model, p, natural, unwhitened, several):
    """The starting q, in the coordinates of its distribution."""
    m, R = (torch.as_tensor(p[name + ("_u" if unwhitened else "")]) for name in ("mean", "root"))
    m, R = (m, R) if several else (m[0], R[0])
    with torch.no_grad():
        if natural:
            # R⁻ᵀR⁻¹ is positive definite where the inverse of RRᵀ is no longer.
            inverse = torch.linalg.solve_triangular(R, torch.eye(R.shape[-1]), upper=False)
            precision = inverse.mT @ inverse
            model.q.natural_vec.copy_((precision @ m[..., None])[..., 0])
            model.q.natural_mat.copy_(-0.5 * precision)
        else:
            model.q.variational_mean.copy_(m)
            model.q.chol_variational_covar.copy_(R)
    model.variational_strategy.variational_params_initialized.fill_(1)


def steps(p, variant, likelihood, optimiser, steps, gamma, rate):
    """zero_grad, forward, backward, NGD's and Adam's step: one pass for both."""
    X, y = settings(p)
    natural, several = optimiser != "adam", len(p["mean"]) if len(p["mean"]) > 1 else 0
    distribution = NaturalVariationalDistribution if natural else CholeskyVariationalDistribution
    strategy, keywords = STRATEGIES[variant], {"jitter_val": float(p["jitter"])}
    model = Sparse(p["Z"], strategy, distribution, ZeroMean(), kernel_of(p), several, **keywords)
    put_q(model, p, natural, variant == "unwhitened", several)
    observed = likelihood_of(p, likelihood)
    y = y.long() if several else y
    mll = VariationalELBO(observed, model, num_data=len(y))
    optimisers = []
    if natural:
        optimisers.append(gpytorch.optim.NGD(model.variational_parameters(), num_data=len(y), lr=gamma))
    if optimiser != "natural":
        numbers = [*model.hyperparameters()] if natural else [*model.parameters()]
        numbers += [*observed.parameters()]
        if optimiser == "ngd+adam of Z":
            numbers = [model.variational_strategy.inducing_points]
        optimisers.append(torch.optim.Adam(numbers, lr=rate))
    model.train()
    observed.train()
    rows, at = torch.as_tensor(p["rows"]), [0]

    def turn():
        for i in range(at[0], at[0] + steps):
            batch = rows[i % len(rows)]
            for each in optimisers:
                each.zero_grad()
            loss = -mll(model(X[batch]), y[batch])
            loss.backward()
            for each in optimisers:
                each.step()
        at[0] += steps

    def value():
        with torch.no_grad():
            return float(mll(model(X[rows[0]]), y[rows[0]])) * len(y)

    return Task(turn, value, f"{strategy.__name__}, {distribution.__name__}")


class Sgpr(gpytorch.models.ExactGP):
    """Titsias' sparse regression."""

    def __init__(self, X, y, likelihood, Z, kernel):
        super().__init__(X, y, likelihood)
        self.mean = ZeroMean()
        self.kernel = InducingPointKernel(kernel, torch.as_tensor(Z), likelihood)

    def forward(self, x):
        return MultivariateNormal(self.mean(x), self.kernel(x))


def sgpr(p):
    X, y = settings(p)
    likelihood = likelihood_of(p, "gaussian")
    return Sgpr(X, y, likelihood, p["Z"], kernel_of(p)), likelihood


def collapsed(p, variant):
    """ExactMarginalLogLikelihood of an InducingPointKernel, and its backward pass."""
    model, likelihood = sgpr(p)
    mll = ExactMarginalLogLikelihood(likelihood, model)
    X, y = model.train_inputs[0], model.train_targets
    model.train()
    likelihood.train()
    raw, first, count = model.kernel.inducing_points, model.kernel.inducing_points.detach().clone(), [0]

    def turn():
        with torch.no_grad():
            raw.copy_(first + 1e-9 * count[0])
        count[0] += 1
        model.zero_grad()
        value = mll(model(X), y)
        value.backward()
        return {"value": float(value) * len(y)}

    return Task(turn, None, "InducingPointKernel")


def predict(p, variant):
    """A model in eval mode with its caches, no_grad, fast_pred_var; chunks of 10,000 rows.

    Its diagonal correction, which makes another (FITC's) posterior of it, is off.
    """
    gpytorch.settings.sgpr_diagonal_correction._set_state(False)
    model, likelihood = sgpr(p)
    model.eval()
    likelihood.eval()
    new, out = torch.as_tensor(p["new"]), [None]

    def turn():
        parts = []
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            for i in range(0, len(new), CHUNK):
                y = likelihood(model(new[i : i + CHUNK]))
                parts.append([y.mean.numpy(), y.stddev.numpy()])
        out[0] = tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    return Task(turn, lambda: np.sum(out[0][0][:100] ** 2) + np.sum(out[0][1][:100]), "SGPR prediction cache")


def _standardised(p, task):
    X, Xt = (torch.as_tensor(p[name]) for name in ("X", "X_test"))
    varying = X.std(0) > 1e-12
    mean, scale = X[:, varying].mean(0), X[:, varying].std(0)
    shift, size = (p["y"].mean(), p["y"].std()) if task == "regression" else (0.0, 1.0)
    target = lambda y: torch.as_tensor((y - shift) / size)
    return (X[:, varying] - mean) / scale, target(p["y"]), (Xt[:, varying] - mean) / scale, target(p["y_test"])


def quality(p, variant, task, M, batch, budget, **_):
    """SVGP by NGD(0.1) and Adam(0.01) ("ngd") or Adam(0.01) alone ("adam"), batches by a shuffling DataLoader.

    Z: the first M rows of the (shuffled) training part, as the tutorial starts it.
    """
    settings(p)
    out = {}

    def turn():
        curve = Curve(budget)
        out["curve"] = curve.rows
        X, y, Xt, yt = _standardised(p, task)
        kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=X.shape[1]))
        kernel.base_kernel.lengthscale = np.sqrt(X.shape[1])
        natural = variant == "ngd"
        distribution = NaturalVariationalDistribution if natural else CholeskyVariationalDistribution
        model = Sparse(X[:M].clone(), VariationalStrategy, distribution, ConstantMean(), kernel)
        classes = gpytorch.likelihoods.BernoulliLikelihood
        likelihood = gpytorch.likelihoods.GaussianLikelihood() if task == "regression" else classes()
        if task == "regression":
            likelihood.noise = 0.1
        mll = VariationalELBO(likelihood, model, num_data=len(y))
        numbers = [*model.hyperparameters()] if natural else [*model.parameters()]
        optimisers = [torch.optim.Adam([{"params": numbers}, {"params": likelihood.parameters()}], lr=0.01)]
        if natural:
            optimisers.append(gpytorch.optim.NGD(model.variational_parameters(), num_data=len(y), lr=0.1))
        _train(model, likelihood, mll, optimisers, (X, y), (Xt, yt), batch, curve, task)

    return Task(turn, None, f"GPyTorch {variant}", lambda: out)


def _train(model, likelihood, mll, optimisers, train, test, batch, curve, task):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*train), batch_size=batch, shuffle=True)
    torch.manual_seed(0)
    marks, step = set(serve.milestones(25, 100_000, 1.2)), 0
    while True:
        for X, y in loader:
            for each in optimisers:
                each.zero_grad()
            (-mll(model(X), y)).backward()
            for each in optimisers:
                each.step()
            step += 1
            if step in marks and not curve.look(step, lambda: _density(model, likelihood, *test, task)):
                return


def _density(model, likelihood, X, y, task):
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(model(X[i : i + CHUNK])) for i in range(0, len(X), CHUNK)]
        mean = torch.cat([part.mean for part in parts]).numpy()
        variance = torch.cat([part.variance for part in parts]).numpy()
    model.train()
    likelihood.train()
    return serve.log_normal(y, mean, variance) if task == "regression" else serve.log_bernoulli(y, mean)


class Exact(gpytorch.models.ExactGP):
    """The exact model of the first tutorial, with a lengthscale a column."""

    def __init__(self, X, y, likelihood):
        super().__init__(X, y, likelihood)
        self.mean, self.kernel = ConstantMean(), ScaleKernel(MaternKernel(2.5, ard_num_dims=X.shape[1]))

    def forward(self, x):
        return MultivariateNormal(self.mean(x), self.kernel(x))


def cold(p, variant):
    """ExactGP as in the first tutorial: 50 steps of Adam(0.1); one row predicted."""
    settings(p)
    out = [None, None]

    def turn():
        X, y, Xt, _ = _standardised(p, "regression")
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = Exact(X, y, likelihood)
        mll, adam = ExactMarginalLogLikelihood(likelihood, model), torch.optim.Adam(model.parameters(), lr=0.1)
        model.train()
        for _ in range(50):
            adam.zero_grad()
            (-mll(model(X), y)).backward()
            adam.step()
        out[:] = model, likelihood
        model.eval()
        likelihood.eval()
        with torch.no_grad():
            likelihood(model(Xt[:1]))

    def density():
        _, _, Xt, yt = _standardised(p, "regression")
        return _density(*out, Xt, yt, "regression") - np.log(p["y"].std())

    return Task(turn, density, "ExactGP, 50 steps of Adam(0.1)")


if __name__ == "__main__":
    kinds = {"steps": steps, "collapsed": collapsed, "predict": predict, "quality": quality, "cold": cold}
    serve.serve(kinds, {"gpytorch": gpytorch.__version__, "torch": torch.__version__, "numpy": np.__version__})
