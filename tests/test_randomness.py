"""Random bits against AES itself, against NIST's vectors, and against the laws they should have."""

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy import stats

from dither.randomness import Source, Stream

KEY = bytes(range(32))
LEVEL = 1e-6


def counter_mode(key: bytes, count: int) -> bytes:
    """AES-256 of 0, 1, 2, …, one block at a time in ECB mode: what counter mode is defined as."""
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - the definition
    blocks = (encrypt.update(i.to_bytes(16, "big")) for i in range(-(-count // 16)))
    return b"".join(blocks)[:count]


def uniform_p_value(values: NDArray[np.int64], limit: int) -> float:
    return float(stats.chisquare(np.bincount(values, minlength=limit)).pvalue)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 4099])
def test_a_stream_is_aes_in_counter_mode_from_zero(count: int) -> None:
    assert Stream(KEY).bytes(count).tobytes() == counter_mode(KEY, count)


def test_the_cipher_is_that_of_the_standard() -> None:
    """SP 800-38A, F.1.5: block 1 of ECB-AES256, by the same cipher as the truth above."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - the vector's
    block = encrypt.update(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a"))
    assert block.hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"


def test_a_known_answer_of_the_zero_block() -> None:
    """AESAVS (NIST), appendix C, KeySbox of 256 bits: the zero block is the counter's start."""
    key = bytes.fromhex("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558")
    assert Stream(key).bytes(16).tobytes().hex() == "46f2fb342d6f0ab477476fc501242c5f"


@pytest.mark.parametrize("sizes", [(1, 15, 16), (7, 2**16 + 5, 100_000, 3), (200_001,), (0, 33, 0)])
def test_pieces_join_to_one_long_stream(sizes: tuple[int, ...]) -> None:
    stream = Stream(KEY)
    parts = []
    for size in sizes:
        buffer = np.full(size, 7, np.uint8)
        stream.fill(buffer)
        parts.append(buffer.tobytes())
    assert b"".join(parts) == counter_mode(KEY, sum(sizes))


def test_a_view_is_filled_and_its_neighbours_are_not() -> None:
    buffer = np.zeros(64, np.uint8)
    Stream(KEY).fill(buffer[10:43])
    assert buffer[10:43].tobytes() == counter_mode(KEY, 33)
    assert not buffer[:10].any()
    assert not buffer[43:].any()


def test_words_are_the_bytes() -> None:
    expected = np.frombuffer(counter_mode(KEY, 80_000), np.uint64)
    np.testing.assert_array_equal(Stream(KEY).words(10_000), expected)
    assert Stream(KEY).words(0).size == 0


def test_a_seeded_stream_is_keyed_by_a_hash_of_all_that_names_it() -> None:
    key = hashlib.sha256(b"dither -7 noise 3").digest()
    assert Source(-7).stream("noise", 3).bytes(50).tobytes() == counter_mode(key, 50)


def test_seeded_streams_repeat_and_differ_by_seed_purpose_and_step() -> None:
    seen = set()
    for seed, purpose, step in itertools.product(
        (0, 1, -1, 10**30), ("noise", "sampling"), (0, 1, 11)
    ):
        first, again = (Source(seed).stream(purpose, step).bytes(32).tobytes() for _ in range(2))
        assert first == again
        seen.add(first)
    assert len(seen) == 4 * 2 * 3


def test_streams_of_one_source_do_not_disturb_each_other() -> None:
    source = Source(5)
    first = source.stream("noise", 0)
    first.bytes(1000)
    np.testing.assert_array_equal(
        source.stream("noise", 1).words(9), Source(5).stream("noise", 1).words(9)
    )


def test_unseeded_streams_never_repeat() -> None:
    one = Source()
    assert one.seed is None
    sources = [one] * 50 + [Source() for _ in range(50)]
    seen = {source.stream("noise", 0).bytes(16).tobytes() for source in sources}
    assert len(seen) == 100


@pytest.mark.parametrize("seed", [True, False, 1.5, 1.0, "x", b"1", [1]])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(TypeError, match=r"^seed must be an integer or None, got "):
        Source(seed)


def test_bytes_are_uniform_and_so_are_their_pairs() -> None:
    values = Stream(KEY).bytes(2_000_000).astype(np.int64)
    assert uniform_p_value(values, 256) > LEVEL
    assert uniform_p_value(256 * values[::2] + values[1::2], 256**2) > LEVEL
    assert uniform_p_value(np.maximum(values, 1), 256) < LEVEL
    assert uniform_p_value(256 * values + values, 256**2) < LEVEL


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 10, 256])
def test_numbers_below_a_limit_are_uniform(limit: int) -> None:
    values = Source(limit).stream("test", 0).below(limit, 120_000)
    assert values.dtype == np.int64
    assert values.shape == (120_000,)
    assert values.min() >= 0
    assert values.max() == limit - 1
    if limit > 1:
        assert uniform_p_value(values, limit) > LEVEL
        # Half of one number for another does not pass.
        wrong = np.where((values == limit - 1) & (np.arange(values.size) % 2 == 0), 0, values)
        assert uniform_p_value(wrong, limit) < LEVEL


BINS = 6


def fine_bins(values: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Which sixth of the range each value is in; limit is a multiple of 6."""
    return values // (limit // BINS)


# 2^64 = 2·limit + 2^62: without rejection the smallest of them would be half as likely again.
@pytest.mark.parametrize("limit", [3 * 2**61, 3 * 2**60, 6 * (2**63 // 6), 6 * 10**18])
def test_numbers_below_a_vast_limit_are_uniform(limit: int) -> None:
    values = Source(1).stream("test", 1).below(limit, 60_000)
    assert values.size == 60_000
    assert values.min() >= 0
    assert values.max() < limit
    assert uniform_p_value(fine_bins(values, limit), BINS) > LEVEL


def test_the_same_test_rejects_the_plain_remainder() -> None:
    limit = 3 * 2**61
    words = Source(1).stream("test", 1).words(60_000)
    values = (words % np.uint64(limit)).astype(np.int64)
    assert uniform_p_value(fine_bins(values, limit), BINS) < LEVEL


def test_what_is_rejected_is_drawn_again_from_the_same_stream() -> None:
    """Brute force over single words, in Python's own whole numbers."""
    limit = 3 * 2**61
    words = [int(word) for word in Source(2).stream("test", 0).words(4_000)]
    accepted = [word % limit for word in words if word < 2**64 // limit * limit]
    assert 0.70 < len(accepted) / len(words) < 0.80  # 3/4, within 7 standard deviations
    found = Source(2).stream("test", 0).below(limit, 2_500)
    assert found.tolist() == accepted[:2_500]


def test_powers_of_two_reject_nothing() -> None:
    for limit in (1, 2**20, 2**63):
        words = Source(3).stream("test", 0).words(100)
        found = Source(3).stream("test", 0).below(limit, 100)
        assert found.tolist() == [int(word) % limit for word in words]
    assert Source(3).stream("test", 0).below(5, 0).size == 0


def test_a_stream_splits_into_others_keyed_by_hashes() -> None:
    stream = Stream(KEY)
    parts = [*stream.split(2), *stream.split(3), *stream.split(1)[0].split(2)]
    numbers = [n.to_bytes(8, "big") for n in range(6)]
    keys = [hashlib.sha256(KEY + n).digest() for n in numbers]
    keys[5:] = [hashlib.sha256(keys[5] + n).digest() for n in numbers[:2]]
    assert [each.bytes(40).tobytes() for each in parts] == [counter_mode(k, 40) for k in keys]
    assert stream.bytes(40).tobytes() == counter_mode(KEY, 40)
