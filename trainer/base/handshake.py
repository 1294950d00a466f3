"""Mutual authentication of two processes of one run by its secret: HMAC-SHA256 over fresh nonces of both.

Who proves what, to whom and in which protocol is part of the MAC: a proof that is reflected, replayed, or carried to
another protocol is none. The secret itself never crosses the network. What follows is neither encrypted nor signed.
"""

import hmac
import os
import secrets

SECRET = "LEYDEN_SECRET"
"""Environment variable of a process of the agent: the run's secret in hexadecimal digits."""
SECRET_BYTES = NONCE_BYTES = PROOF_BYTES = 32
HELLO_BYTES = 8 + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
_VERSION = b"leyden/1"


class AuthenticationError(Exception):
    """The other side does not know the secret, or speaks another protocol."""


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def inherited_secret() -> bytes:
    """The secret of the run that this process was started for by its agent."""
    return bytes.fromhex(os.environ[SECRET])


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, protocol: str, sender: str, sender_nonce: bytes, receiver_nonce: bytes) -> bytes:
    """Proof of PROOF_BYTES that the sender knows the secret.

    Args:
        protocol: in which it is sent.
        sender: its role, which no two ends of a connection share.
    """
    names = b"\0".join((_VERSION, protocol.encode(), sender.encode()))
    return hmac.digest(secret, b"\0".join((names, sender_nonce, receiver_nonce)), "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given, expected)


class Connector:
    """The side that connects. It sends `hello`, then `proof` of the answer to it.

    Args:
        protocol: of the connection; the same on both sides.
    """

    def __init__(self, secret: bytes, protocol: str):
        self._secret, self._protocol = secret, protocol
        self._nonce = new_nonce()
        self.hello = _VERSION + self._nonce

    def proof(self, answer: bytes) -> bytes:
        """
        Raises:
            AuthenticationError: the listening side does not know the secret.
        """
        nonce, given = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not is_proof(given, proof(self._secret, self._protocol, "listener", nonce, self._nonce)):
            raise AuthenticationError("wrong secret")
        return proof(self._secret, self._protocol, "connector", self._nonce, nonce)


class Listener:
    """The side that listens. It sends `answer` to a hello, and then expects a proof."""

    def __init__(self, secret: bytes, protocol: str):
        self._secret, self._protocol = secret, protocol
        self._expected: bytes | None = None

    @staticmethod
    def check_start(received: bytes) -> None:
        """
        Raises:
            AuthenticationError: what begins like this is no hello.
        """
        if received[: len(_VERSION)] != _VERSION[: len(received)]:
            raise AuthenticationError("another protocol")

    def answer(self, hello: bytes) -> bytes:
        """
        Raises:
            AuthenticationError: it is no hello.
        """
        self.check_start(hello)
        nonce = hello[len(_VERSION) :]
        own = new_nonce()
        self._expected = proof(self._secret, self._protocol, "connector", nonce, own)
        return own + proof(self._secret, self._protocol, "listener", own, nonce)

    def verify(self, given: bytes) -> None:
        """
        Raises:
            AuthenticationError: the connecting side does not know the secret.
        """
        assert self._expected is not None
        if not is_proof(given, self._expected):
            raise AuthenticationError("wrong secret")
