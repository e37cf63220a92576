"""A published figure or table a file, on the public interface of the library; `pseudopoint reproduce` runs them."""
