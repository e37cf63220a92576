"""Optimisers: on minibatches, on all rows, and the papers' own by name."""
