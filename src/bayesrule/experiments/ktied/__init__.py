"""The experiments of the paper on k-tied Normal posteriors (Swiatkowski et al., 2020)."""
