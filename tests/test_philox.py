"""Philox against the published vectors and whole numbers; its normals against their law."""

import numpy as np
import pytest
import torch
from scipy import stats

from dither.philox import DeviceNormals, _high, philox
from dither.randomness import Source

LEVEL = 1e-6
CPU = torch.device("cpu")
ONES = 2**64 - 1

# kat_vectors of Random123, philox4x64 with 10 rounds: counter, key, words.
VECTORS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


def word(value: int) -> torch.Tensor:
    return torch.from_numpy(np.array([value], np.uint64).view(np.int64))


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    a, b, c, d = map(word, counter)
    assert tuple(int(each) % 2**64 for each in philox((a, b, c, d), key)) == expected


def test_it_is_the_philox_of_numpy() -> None:
    key, counters = (2**64 - 7, 12345), torch.arange(1, 300)
    zero = torch.zeros_like(counters)
    found = torch.stack(philox((counters, zero, zero, zero), key), 1).flatten().numpy()
    # NumPy counts up before its first block.
    expected = np.random.Philox(key=key[0] + (key[1] << 64)).random_raw(found.size)
    np.testing.assert_array_equal(found.view(np.uint64), expected)


def test_products_with_a_constant_are_those_of_whole_numbers() -> None:
    words = Source(1).stream("test", 0).words(2_000)
    factor = 0xD2E7470EE14C6C93
    found = _high(torch.from_numpy(words.view(np.int64)), factor - 2**64).numpy().view(np.uint64)
    assert found.tolist() == [int(each) * factor >> 64 for each in words]


def test_normals_have_their_law_and_no_block_comes_twice() -> None:
    drawn = DeviceNormals(Source(2).stream("noise", 0))
    parts = [drawn.draw(count, CPU) for count in (1, 200_001, 4, 300_000)]
    values = torch.cat(parts).numpy()
    assert np.unique(values).size == values.size
    assert stats.kstest(values, "norm", method="asymp").pvalue > LEVEL
    assert stats.kstest(1.03 * values, "norm", method="asymp").pvalue < LEVEL
    cosines, sines = parts[3].numpy().reshape(2, -1)
    for one, two in ((cosines, sines), (cosines**2, sines**2), (values[1:], values[:-1])):
        assert abs(np.corrcoef(one, two)[0, 1]) * np.sqrt(one.size) < stats.norm.isf(LEVEL / 2)


def test_releases_have_keys_of_their_own() -> None:
    streams = [Source().stream("noise", 0) for _ in range(2)]
    first, second = (DeviceNormals(stream).draw(100, CPU) for stream in streams)
    assert not bool((first == second).any())
