"""The store of torchrun, which outlives the processes that it restarts."""

import datetime
import os
import time
import uuid
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

_RUN = "normscope/run"
_PAUSE = 0.05
_PATIENCE = datetime.timedelta(minutes=1)


def launcher_store(timeout: datetime.timedelta) -> Store | None:
    """The store of the torchrun that has started this process; None if none has, or if it keeps none.

    Raises:
        RuntimeError: If the store cannot be reached.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not address or not port.isdecimal():
        return None
    return TCPStore(address, int(port), is_master=False, timeout=timeout)


def begun_run() -> Path | None:
    """The folder of the run that this torchrun has begun before it restarted its processes; None if there is none."""
    try:
        store = launcher_store(_PATIENCE)
        return Path(store.get(_RUN).decode()) if store is not None and store.check([_RUN]) else None
    except RuntimeError:  # the process group will say that it cannot be reached
        return None


def remember_run(store: Store | None, folder: Path) -> None:
    """Note the folder of a run for the processes that replace this one if it dies."""
    if store is not None:
        store.set(_RUN, str(folder.absolute()))


def new_store(store: Store, rank: int, size: int, timeout: datetime.timedelta) -> Store:
    """A part of torchrun's store that no earlier process has used.

    Its other parts hold the addresses of processes that have died. No number that torchrun gives to all processes changes with
    every restart, so the first process draws a name and answers each of the others, which ask with names that they have drawn.

    Raises:
        RuntimeError: If the others do not come in time.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"normscope/asks/{rank}", own)
        name = store.get(f"normscope/answers/{own}").decode()  # waits
        store.set(f"normscope/met/{name}/{rank}", own)
    else:
        name = own
        _answer(store, name, size, timeout)
    return PrefixStore(f"normscope/{name}", store)


def _answer(store: Store, name: str, size: int, timeout: datetime.timedelta) -> None:
    """Answer every process that asks, dead ones included, until all that live have met."""
    end = time.monotonic() + timeout.total_seconds()
    absent = set(range(1, size))
    while absent:
        for rank in sorted(absent):
            asks = f"normscope/asks/{rank}"
            if store.check([asks]):
                store.set(f"normscope/answers/{store.get(asks).decode()}", name)
            if store.check([f"normscope/met/{name}/{rank}"]):
                absent.remove(rank)
        if absent and time.monotonic() > end:
            raise RuntimeError(f"processes {', '.join(map(str, sorted(absent)))} of {size} did not join")
        time.sleep(_PAUSE if absent else 0)
