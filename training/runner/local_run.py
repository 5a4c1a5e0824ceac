"""Ranks as processes on the driver."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ..rank.network import loopback_interface
from .placement.conversation import Conversation
from .placement.gpus import driver_gpus, list_driver_gpus, visible_to_rank
from .placement.job import Job, Listener, assignment, horovod_environment, new_record, place, rank_environment
from .processes.gloo_store import LoopbackStore
from .processes.rank_process import RankSpec, temporary_file
from .processes.rank_record import RankEvent
from .processes.return_value import read_value
from .processes.supervisor import Supervisor

_STEP_S = 0.25


def run_on_driver(job: Job, listener: Listener) -> Any:
    """Runs a job as processes on this machine and gives rank 0's value.

    Ranks connect through the loopback interface only. Returns or raises after every process of the job has ended.

    Raises:
        RankFailedError: If a rank fails.
        Exception: Whatever `listener.on_question` raises.
    """
    record = new_record(job)
    conversation = Conversation(
        job.size,
        listener.on_question,
        listener.controls,
        lambda rank, kind, body: supervisor.ranks[rank].send(kind, body),
    )

    def hear(event: RankEvent) -> None:
        record.record(event, conversation.now())
        conversation.hear(event)
        listener.hear(event)

    placements = place(["localhost"] * job.size)
    with contextlib.ExitStack() as stack:
        payload = stack.enter_context(temporary_file(job.payload))
        value = stack.enter_context(temporary_file())
        store = stack.enter_context(contextlib.closing(LoopbackStore(job.size))) if job.size > 1 else None
        with Supervisor(hear) as supervisor:
            available = list_driver_gpus({**os.environ, **job.environment})
            gpus = driver_gpus(job.size, wanted=job.gpus, available=available)
            for placement in placements:
                process = supervisor.start(
                    RankSpec(
                        rank=placement.rank,
                        payload=payload,
                        value=value,
                        environment=rank_environment(job),
                        preload=job.preload,
                        title=job.name,
                    )
                )
                variables = horovod_environment(placement, loopback_interface(), job.stall_timeout_s)
                variables |= visible_to_rank(gpus, placement.local_rank, wanted=job.gpus)
                if store is not None:
                    variables |= store.environment
                variables |= job.environment
                process.assign(assignment(job, placement, variables), job.key)
            while not (record.all_returned and supervisor.gone):
                supervisor.step(_STEP_S)
                conversation.reply()
                listener.controls.raise_if_ended()
                failure = record.failure(conversation.now())
                if failure is not None:
                    if failure.reason == "stalled":
                        supervisor.dump_stacks([failure.rank])
                    # End the other ranks before raising the error, so that nothing still runs.
                    supervisor.end()
                    raise record.error(failure)
                if store is not None and record.all_joined:
                    store.close()
        value.seek(0)
        return read_value(value.read(record.value["pickle"]), record.value["large"], value)
