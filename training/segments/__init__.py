"""One segment of a training on the ranks: from a checkpoint, or the start, to a step; all ranks act alike.

    driver: decisions <--questions, answers--> verdicts :ranks
    segment --> prepared_rank (Trial, model, feeds) --> training_loop --> evaluation, backend --> checkpoint
    training_loop --> outcome :driver

Start: `segment.train_segment`.
"""
