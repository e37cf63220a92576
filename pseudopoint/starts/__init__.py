"""Where a fit starts: inducing points and hyperparameters."""
