"""One segment of a training on the ranks: from a checkpoint, or the start, to a step; every rank obeys alike.

    driver: decisions <--questions, answers--> verdicts :ranks
    segment --> prepared_rank (Trial, model, feeds) --> training_loop --> epoch_end, rank_state --> checkpoint

Start: `segment.train_segment`.
"""
