"""The searchers.

`base` holds what all share: numbering trials, checking events. `fixed_length` trains every trial to the end
(`single` and `random`; `grid` has a trial for each point). `successive_halving` is `adaptive_asha`: parallel brackets,
each by promotion or by stopping, with rungs that rank their trials.
"""
