"""The searchers: `fixed_length` (single, random, grid) and `successive_halving` (adaptive_asha), above `base`."""
