"""Gaussian processes for tables of any size."""
