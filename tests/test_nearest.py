"""The rows nearest to a new one (`posteriors.AbstractNearRows.nearest`): those of a sort of all distances."""

from dataclasses import replace

import numpy as np
import pytest
from test_near_rows import nearest

from pseudopoint.kernels import Matern32
from pseudopoint.posteriors import NearRows
from pseudopoint.posteriors import near_rows as module


def near_of(N, count, D=3):
    """A third of the rows have weight 0, a third were seen twice, and many of these stand beside each other."""
    rng = np.random.default_rng(N + count)
    weight = np.sort(rng.integers(0, 3, N)).astype(float)
    X, z = rng.normal(size=(N, D)), rng.normal(size=N)
    X[-(N // 3) :] = np.sort(X[-(N // 3) :], axis=0)  # rows of weight 2, of which many of one group are near
    kernel = Matern32(np.geomspace(0.1, 2.0, D), 0.7)
    return NearRows(kernel=kernel, noise=np.asarray(0.2), X=X, z=z, y=z, weight=weight, count=count)


@pytest.mark.parametrize("tile", [1, 50, 4096])
@pytest.mark.parametrize("N, count", [(30, 1), (30, 17), (400, 2), (400, 64), (9000, 3), (9000, 64), (9000, 128)])
def test_they_are_those_of_a_sort(N, count, tile, monkeypatch):
    monkeypatch.setattr(module, "TILE", tile)
    near = near_of(N, count)
    rows = np.r_[np.arange(0, N, N // 10), N - 1]
    for but in (None, rows):
        found = np.asarray(near.nearest(near.X[rows], but))
        assert found.shape == (len(rows), count)
        for row, those in zip(rows, found, strict=True):
            left_out = but is not None and near.weight[row] < 2
            assert set(those.tolist()) == set(nearest(near, near.X[row], row if left_out else None).tolist())


def test_all_rows_may_be_near():
    near = near_of(30, 30)
    near = replace(near, weight=np.ones(30))
    assert np.sort(near.nearest(near.X[:4])).tolist() == [list(range(30))] * 4


def test_the_nearest_is_the_first():
    near = near_of(400, 5)
    found = np.asarray(near.nearest(near.X[-5:]))
    np.testing.assert_array_equal(found[:, 0], np.arange(395, 400))
    np.testing.assert_array_equal(found, [nearest(near, x) for x in near.X[-5:]])


def test_rows_beside_each_other_are_told_apart_far_from_the_middle():
    """Their distances are those of differences: products about the middle would have errors of their size."""
    near = near_of(400, 5)
    X = near.X.copy()
    X[-20:] = 1e4 + 1e-5 * np.arange(20)[:, None]
    found = replace(near, X=X, count=19).nearest(X[-1:])
    np.testing.assert_array_equal(found[0], np.arange(399, 380, -1))


def test_of_rows_at_equal_distances_any_are_taken():
    """Distances to the rows found are those of a sort, where whole numbers make many of them equal."""
    near = near_of(2000, 64)
    near = replace(near, X=np.round(near.X))
    for row in (0, 1000, 1999):
        squared = np.sum(((near.X - near.X[row]) / near.kernel.lengthscale) ** 2, axis=1)
        found = np.asarray(near.nearest(near.X[[row]]))[0]
        assert len(set(found.tolist())) == 64 and (near.weight[found] > 0).all()
        expected = squared[nearest(near, near.X[row])]
        np.testing.assert_allclose(np.sort(squared[found]), expected, rtol=1e-6)
