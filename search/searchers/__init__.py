"""One searcher per file.

`base` holds what all share: numbering trials, checking events. `fixed_length` trains every trial to the end
(`single` and `random`; `grid` has a trial for each point). `tournament` is `adaptive_asha`: parallel brackets, each by
promotion (`asha_promote`) or by stopping (`asha_stop`), with rungs (`rung`) that rank their trials.
"""
