"""Unpredictable random bits: AES-256 in counter mode, keyed by the operating system.

Every purpose of every step has a stream of its own. Without a seed its key is drawn from the
operating system when the stream is opened and is stored nowhere else, so that there is no state to
save, to copy into a forked process or to repeat. With a seed the key is a hash of seed, purpose and
step: the same run gives the same numbers on every machine, and anyone who knows the seed can
subtract the noise.
"""

import hashlib
import secrets
from functools import cached_property
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from dither import validate

_BLOCK = 16
_CHUNK = bytes(2**16)


@final
class Stream:
    """An endless stream of random bytes.

    Args:
        key: 32 bytes that were never used for another stream.
        is_seeded: whether the key comes from a seed, so that the numbers are needed again.

    Example:
        >>> Stream(bytes(32)).below(10, 5)
        array([6, 7, 9, 7, 8])
    """

    def __init__(self, key: bytes, *, is_seeded: bool = False) -> None:
        self._key, self._splits, self.is_seeded = key, 0, is_seeded

    @cached_property
    def _cipher(self) -> CipherContext:
        return Cipher(algorithms.AES(self._key), modes.CTR(bytes(_BLOCK))).encryptor()

    def split(self, count: int) -> list["Stream"]:
        """Return that many new streams, keyed by hashes of this one's key and their number."""
        numbers = range(self._splits, self._splits + count)
        self._splits += count
        keys = [hashlib.sha256(self._key + n.to_bytes(8, "big")).digest() for n in numbers]
        return [Stream(key, is_seeded=self.is_seeded) for key in keys]

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        """Overwrite a contiguous vector of bytes with random ones."""
        view = buffer.data
        for start in range(0, len(view), len(_CHUNK)):
            part = view[start : start + len(_CHUNK)]
            self._cipher.update_into(_CHUNK[: len(part)], part)

    def bytes(self, count: int) -> NDArray[np.uint8]:
        """Return that many random bytes."""
        buffer = np.empty(count, np.uint8)
        self.fill(buffer)
        return buffer

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return that many random 64-bit words."""
        return self.bytes(8 * count).view(np.uint64)

    def below(self, limit: int, count: int) -> NDArray[np.int64]:
        """Return that many integers from 0 … limit−1, limit ≤ 2^63, all equally likely."""
        end = (2**64 // limit) * limit
        found = np.empty(0, np.uint64)
        while found.size < count:
            words = self.words(count - found.size)
            # The few words that would make small integers more likely are drawn again.
            found = np.concatenate([found, words if end == 2**64 else words[words < end]])
        return (found % np.uint64(limit)).astype(np.int64)


@final
class Source:
    """Opens the streams of a run.

    Args:
        seed: None for bits from the operating system; an integer for tests and experiments,
            where the same numbers are needed again. A seeded run is not private: anybody who knows
            the seed can subtract the noise.

    Example:
        >>> import numpy as np
        >>> first, again = (Source(seed=7).stream("noise", 3).words(4) for _ in range(2))
        >>> bool(np.array_equal(first, again))
        True
        >>> first, again = (Source().stream("noise", 3).words(4) for _ in range(2))
        >>> bool(np.array_equal(first, again))
        False
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise validate.InvalidTypeError(f"seed must be an integer or None, got {seed!r}")
        self.seed = seed

    def stream(self, purpose: str, step: int) -> Stream:
        """Return a new stream for one purpose of one step."""
        if self.seed is None:
            return Stream(secrets.token_bytes(32))
        key = hashlib.sha256(f"dither {self.seed} {purpose} {step}".encode()).digest()
        return Stream(key, is_seeded=True)
