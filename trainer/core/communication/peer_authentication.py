"""Authentication of the members of a gloo group, pair by pair: gloo and the store take whoever comes first."""

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from ...base.handshake import NONCE_BYTES, PROOF_BYTES, AuthenticationError, is_proof, new_nonce, proof

_TIMEOUT = timedelta(seconds=60)


def authenticate_peers(group: Any, rank: int, size: int, secret: bytes, protocol: str) -> None:
    """Prove to every other member of the group that this one knows the secret, and have each prove it. Collective.

    Args:
        group: a ProcessGroupGloo; tag 0 must be unused.
        protocol: of the group, with what distinguishes it from others of the run.

    Raises:
        AuthenticationError: a member does not know the secret.
        RuntimeError: a member is lost, or silent for a minute.
    """
    others = [other for other in range(size) if other != rank]
    own = {other: new_nonce() for other in others}
    theirs = _exchange(group, own, NONCE_BYTES)
    mine = {other: proof(secret, protocol, f"{rank} to {other}", own[other], theirs[other]) for other in others}
    for other, given in _exchange(group, mine, PROOF_BYTES).items():
        if not is_proof(given, proof(secret, protocol, f"{other} to {rank}", theirs[other], own[other])):
            raise AuthenticationError(f"{protocol}: member {other} does not know the run's secret")


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
