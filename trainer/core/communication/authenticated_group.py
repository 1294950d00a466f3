"""Gloo groups whose members have proved, pair by pair, that they know the run's secret.

Gloo takes the first eight bytes of a connection for the number of the pair that it belongs to, and asks for nothing
else: whoever connects before a member does takes its place, and the member waits for what nobody sends.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...base.errors import Explained
from ...base.handshake import NONCE_BYTES, PROOF_BYTES, AuthenticationError, is_proof, new_nonce, proof
from ...base.log import log

UNLIMITED = timedelta(days=30)
"""Timeout of a wait for a peer that may be busy for hours; of a dead one the connection closes at once."""
ATTEMPTS = 3
_TIMEOUT = timedelta(seconds=20)
"""Timeout of one step in which all members take part, once each of them is there."""
_STEPS = 3
"""Steps between two decisions: connecting, the nonces, the proofs."""


class NotAuthenticated(AuthenticationError, Explained):
    """No group of members that know the secret came about."""


def connect_group(store: dist.Store, rank: int, size: int, secret: bytes, protocol: str) -> Any:
    """Connect all members in a gloo group, once each has proved to each other that it knows the secret. Collective.

    The members begin together, since a port that waits for a late member waits for a stranger, too. They also decide
    together: a group in which one member was not authenticated is closed by all, and the next is made.

    Args:
        store: its keys are those of this group alone.
        protocol: of the group, with what distinguishes it from others of the run.

    Returns:
        A ProcessGroupGloo. Each wait for its works needs a timeout of its own: the default is that of connecting.

    Raises:
        NotAuthenticated: in none of three attempts.
        RuntimeError: a member is lost.
    """
    reason = ""
    for attempt in range(ATTEMPTS):
        names = dist.PrefixStore(f"attempt {attempt}", store)
        _gather(names, "ready", rank, size, "", UNLIMITED)
        group, own = _try_to_connect(names, rank, size, secret, protocol)
        reasons = [found for found in _gather(names, "reason", rank, size, own, _TIMEOUT * (_STEPS + 1)) if found]
        if not reasons:
            return group
        reason = own or reasons[0]
        log.warning("%s: attempt %d of %d to connect failed: %s", protocol, attempt + 1, ATTEMPTS, reason)
    raise NotAuthenticated(
        f"{protocol}: {reason}, in {ATTEMPTS} of {ATTEMPTS} attempts to connect (strangers at a run's ports: "
        "docs/security.md, Between processes)"
    )


def _try_to_connect(store: dist.Store, rank: int, size: int, secret: bytes, protocol: str) -> tuple[Any, str]:
    """The group, or None and the reason."""
    try:
        group: Any = dist.ProcessGroupGloo(store, rank, size, _TIMEOUT)
        _authenticate_peers(group, rank, size, secret, protocol)
    except AuthenticationError as error:
        return None, str(error)
    except RuntimeError as error:  # of gloo
        return None, f"a member was silent for {_TIMEOUT.seconds} s, or its connection broke ({_last_words(error)})"
    return group, ""


def _last_words(error: RuntimeError) -> str:
    """The message of an error of gloo, which begins with a place in its source."""
    return str(error).strip().splitlines()[0].rpartition("] ")[2]


def _gather(store: dist.Store, name: str, rank: int, size: int, own: str, timeout: timedelta) -> list[str]:
    """What each member says of something, in the order of their ranks."""
    store.set(f"{name} {rank}", own)
    keys = [f"{name} {member}" for member in range(size)]
    store.wait(keys, timeout)
    return [store.get(key).decode() for key in keys]


def _authenticate_peers(group: Any, rank: int, size: int, secret: bytes, protocol: str) -> None:
    """Prove to every other member of the group that this one knows the secret, and have each prove it. Collective.

    Args:
        group: a ProcessGroupGloo; tag 0 must be unused.
        protocol: of the group, with what distinguishes it from others of the run.

    Raises:
        AuthenticationError: a member does not know the secret.
        RuntimeError: a member is lost, or silent for 20 s.
    """
    others = [other for other in range(size) if other != rank]
    own = {other: new_nonce() for other in others}
    theirs = _exchange(group, own, NONCE_BYTES)
    mine = {other: proof(secret, protocol, f"{rank} to {other}", own[other], theirs[other]) for other in others}
    for other, given in _exchange(group, mine, PROOF_BYTES).items():
        if not is_proof(given, proof(secret, protocol, f"{other} to {rank}", theirs[other], own[other])):
            raise AuthenticationError(f"member {other} does not know the run's secret")


def _exchange(group: Any, own: dict[int, bytes], size: int) -> dict[int, bytes]:
    """Send bytes to each member, and receive as many from each."""
    buffers = {other: torch.empty(size, dtype=torch.uint8) for other in own}
    works = [group.recv([buffer], other, 0) for other, buffer in buffers.items()]
    sent = {other: _tensor(data) for other, data in own.items()}
    works += [group.send([tensor], other, 0) for other, tensor in sent.items()]
    for work in works:
        work.wait(_TIMEOUT)
    return {other: bytes(buffer.tolist()) for other, buffer in buffers.items()}


def _tensor(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)
