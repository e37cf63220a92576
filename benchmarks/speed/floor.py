"""The floor: seconds of arithmetic that work cannot avoid, at the rates this machine reached in the same run.

The rates are those of JAX here: the product (M, M) × (M, B) and (M, M) × (M, M), exp of an (M, B) array, and the
Cholesky factor and the inverse of a triangular matrix of size M, in seconds (with one LAPACK thread or all, whichever
is faster). A multiplication and an addition are two operations. Products of triangular matrices, and of symmetric
results, count half, whether or not a library can use that. Nothing of size MB or M² counts but exponentials.

Notation: K = K_uf [M, B], K_uu = LLᵀ, A = L⁻¹K, q(v) = N(m, S), g = −½β and h the slopes in aᵢᵀSaᵢ and in dᵢ.

**Kernel.** Distances by a product, 2DMB and half of 2DM² for K_uu; as much, and all of K_uu, for the derivatives in Z
and the lengthscales, where G = K̄ ∘ K and GᵀX serves both; MB + ½M² exponentials. The derivatives need none.

**A step.** Both arrangements that we know are counted, and the cheaper is the floor.
  grouped (methods g.2), standard bound alone, where g = h:
      CK, C = L⁻ᵀ(S − I)L⁻¹, for q(f) and for K̄_uf = 2CK diag g     2M²B
      G = Σ gᵢkᵢkᵢᵀ, symmetric                                        M²B
      C: (S − I) times triangle M³, triangle times that, symmetric ⅓M³; H = L⁻¹GL⁻ᵀ = ∂E/∂S in the same way
      K̄_uu = −½L⁻ᵀ(Φ + Φᵀ)L⁻¹: Φ = tril of (S − I)H, M³, and 4⁄3 M³        5 M³ in all
  whitened (g.1), any bound:
      A, triangular M²B;  SA 2M²B;  ∂E/∂S = Σ gᵢaᵢaᵢᵀ, symmetric M²B;  K̄_uf = L⁻ᵀĀ, triangular M²B
      Φ = tril(ĀAᵀ) M²B, or for the standard bound M³, from ∂E/∂S;  K̄_uu 4⁄3 M³
  K_uu: a Cholesky factor and a triangular inverse.
  Natural: P: a factor, an inverse, and S = L_P⁻ᵀL_P⁻¹, ⅓M³.
  Adam, S = RRᵀ. Grouped: RRᵀ ⅓M³, R̄ = 2 tril(∂E/∂S R) ⅔M³. Whitened: RᵀA and R(RᵀA), triangular, M²B each, in place of
  SA, and R̄ = tril(A diag g (RᵀA)ᵀ) M²B in place of ∂E/∂S.
  C latent functions share K, A, Ā, K̄ and K_uu; all that knows S is C-fold.
  Likelihoods without a closed form: 20 exponentials a row and latent function.

**Collapsed.** Grouped, VFE: Σλkkᵀ NM², K̄_uf = WK 2NM². Whitened: A NM², Σλaaᵀ NM², 2NM² for Ā, NM² for K̄_uf; tight:
Φ = tril(ĀAᵀ) NM². Factors and inverses of K_uu and B, and 5M³ or 8⁄3 M³ as above. NM exponentials, once: that supposes
memory for all of K_uf, and who has not computes them twice.

**Prediction.** M exponentials, 2DM and the mean a row; the variance is k − ‖Rk‖², R triangular: M².
"""

Rates = dict[str, float]


def read_rates(seconds: dict[str, float], M: int, B: int) -> Rates:
    """Operations a second, and seconds of a factor and of an inverse."""
    return {
        "gemm": 2 * M * M * B / seconds["gemm"],
        "square": 2 * M**3 / seconds["gemm_square"],
        "exp": M * B / seconds["exp"],
        "cholesky": seconds["cholesky"],
        "inverse": seconds["inverse"],
    }


def strict(r: Rates, M: int) -> Rates:
    """With factors and inverses, M³/3 operations each, at the rate of products: what no LAPACK here reaches."""
    seconds = M**3 / 3 / r["square"]
    return r | {"cholesky": min(r["cholesky"], seconds), "inverse": min(r["inverse"], seconds)}


def kernel_floor(r: Rates, M: int, B: int, D: int) -> float:
    """Forward and derivative of K_uf and K_uu."""
    return (4 * D * M * B + 3 * D * M * M) / r["gemm"] + (M * B + 0.5 * M * M) / r["exp"]


def step_floor(r: Rates, M: int, B: int, D: int, natural: bool, tight: bool, latents: int = 1, nodes: int = 0) -> float:
    """One training step, seconds."""
    C = latents
    if natural:
        grouped = 3 * C, C * (4 / 3 + 4 / 3 + 1 + 1 / 3) + 4 / 3
        whitened = [(3 + 3 * C, 4 / 3 + C / 3)]
        if not tight:
            whitened.append((2 + 3 * C, 4 / 3 + C / 3 + C))
    else:
        grouped = 3 * C, C * (1 / 3 + 4 / 3 + 4 / 3 + 1 + 2 / 3) + 4 / 3
        whitened = [(3 + 3 * C, 4 / 3)]
    arrangements = whitened if tight else [grouped, *whitened]
    products = min(wide * M * M * B / r["gemm"] + cubes * M**3 / r["square"] for wide, cubes in arrangements)
    factors = (1 + C * natural) * (r["cholesky"] + r["inverse"])
    return kernel_floor(r, M, B, D) + products + factors + nodes * B * C / r["exp"]


def collapsed_floor(r: Rates, N: int, M: int, D: int, tight: bool) -> float:
    """Value and gradient of the collapsed bound, seconds."""
    arrangements = [(6, 8 / 3)] if tight else [(3, 5), (5, 8 / 3)]
    products = min(wide * N * M * M / r["gemm"] + cubes * M**3 / r["square"] for wide, cubes in arrangements)
    return kernel_floor(r, M, N, D) + products + 2 * (r["cholesky"] + r["inverse"])


def predict_floor(r: Rates, rows: int, M: int, D: int) -> float:
    """Mean and variance of `rows` rows, seconds."""
    return rows * ((M * M + 2 * D * M + 2 * M) / r["gemm"] + M / r["exp"])
