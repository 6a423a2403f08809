"""Hand a study's work items to a dask.distributed cluster: the same items, the same isolation, the same outcomes.

A task is a group of items. Each thread of a dask worker keeps a process of its own to run them in, so a mutant that
crashes or hangs never takes a dask worker with it; a dask worker that is lost costs its running groups, which the
scheduler hands to another one. Workers need phaseflip installed, in the same version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import BadInput
from ..system.worker_pool import CRASHED, Ended, WorkerPool
from .mutant_run import Item

CONNECT_LIMIT_S = 10.0
_here = threading.local()


def run_on_cluster(
    groups: Sequence[Sequence[Item]], address: str, limit_s: float, runner: str
) -> Iterator[tuple[Item, Ended]]:
    """Yield (item, how it ended) as groups end. BadInput without dask.distributed, or if no scheduler answers."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise BadInput(
            "--dask needs the package dask.distributed: pip install 'phaseflip[dask]'"
        ) from None
    try:
        client = Client(address, timeout=CONNECT_LIMIT_S)
    except (OSError, ValueError, TimeoutError) as error:
        raise BadInput(f"no dask scheduler answers at {address}: {error}") from error
    with client:
        futures = {
            client.submit(run_group, list(group), limit_s, runner, pure=False): group
            for group in groups
        }
        for future in as_completed(futures):
            group = futures.pop(future)
            if future.status == "finished":
                yield from zip(group, future.result(), strict=True)
                continue
            lost = f"the cluster lost this run: {future.exception()}"
            for item in group:
                yield item, Ended(CRASHED, lost)


def run_group(group: list[Item], limit_s: float, runner: str) -> list[Ended]:
    """Run the items of a group one after the other in this thread's own worker process."""
    pool: WorkerPool | None = getattr(_here, "pool", None)
    settings: tuple[float, str] = (limit_s, runner)
    if pool is None or _here.settings != settings:
        if pool is not None:
            pool.close()
        pool = WorkerPool(runner, limit_s=limit_s)
        _here.pool, _here.settings = pool, settings
    ended: list[Any] = [how for _, how in pool.run([group])]
    return ended
