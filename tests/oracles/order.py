"""Orders as plain Python: one loop a function, written from the recipe and not from the C++."""

from __future__ import annotations

import bisect

G = 0x9E3779B97F4A7C15
M64 = 2**64 - 1
M32 = 2**32 - 1


def mix64(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & M64
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def hash_key(words):
    h = 0
    for word in words:
        h = mix64(((h + G) & M64) ^ mix64((word + G) & M64))
    return h


def fisher_yates(key, n):
    a = list(range(n))
    for i in range(n - 1, 0, -1):
        u = mix64((key + (i + 1) * G) & M64)
        j = u * (i + 1) >> 64
        a[i], a[j] = a[j], a[i]
    return a


def round_function(v, k):
    z = v ^ k
    z ^= z >> 16
    z = z * 0x85EBCA6B & M32
    z ^= z >> 13
    z = z * 0xC2B2AE35 & M32
    return z ^ z >> 16


def feistel(key, n, first, count):
    width = (n - 1).bit_length()
    low = width // 2
    mask_low, mask_high = 2**low - 1, 2 ** (width - low) - 1
    keys = [mix64((key + (r + 1) * G) & M64) & M32 for r in range(6)]
    images = []
    for x in range(first, first + count):
        while True:
            hi, lo = x >> low, x & mask_low
            for r in range(6):
                if r % 2 == 0:
                    hi ^= round_function(lo, keys[r]) & mask_high
                else:
                    lo ^= round_function(hi, keys[r]) & mask_low
            x = hi << low | lo
            if x < n:
                break
        images.append(x)
    return images


def fingerprint(h, ordinals):
    running = []
    for ordinal in ordinals:
        h = mix64(h ^ mix64((ordinal + 1) & M64))
        running.append(h)
    return running


def locate(starts, t):
    slots = [bisect.bisect_right(starts, place, 0, len(starts) - 1) - 1 for place in t]
    return slots, [place - starts[slot] for place, slot in zip(t, slots, strict=True)]


class MT19937_64:
    """The 64-bit Mersenne twister (Nishimura and Matsumoto, 2000)."""

    def __init__(self, seed):
        self.state = [seed & M64]
        for i in range(1, 312):
            before = self.state[-1]
            self.state.append((6364136223846793005 * (before ^ before >> 62) + i) & M64)
        self.at = 312

    def __call__(self):
        if self.at == 312:
            for i in range(312):
                x = (self.state[i] & 0xFFFFFFFF80000000) | (self.state[(i + 1) % 312] & 0x7FFFFFFF)
                odd = 0xB5026F5AA96619E9 if x & 1 else 0
                self.state[i] = self.state[(i + 156) % 312] ^ x >> 1 ^ odd
            self.at = 0
        x = self.state[self.at]
        self.at += 1
        x ^= x >> 29 & 0x5555555555555555
        x ^= x << 17 & 0x71D67FFFEDA60000
        x ^= x << 37 & 0xFFF7EEE000000000
        return (x ^ x >> 43) & M64


def cntk_chunk_order(seed, chunks):
    rng = MT19937_64(seed)
    order = list(range(chunks))
    for i in range(chunks):
        j = rng() % chunks
        order[i], order[j] = order[j], order[i]
    return order


def cntk_sequence_order(seed, counts, window_begin, window_end):
    rng = MT19937_64(seed)
    starts = [sum(counts[:c]) for c in range(len(counts) + 1)]
    chunk_of = [c for c, count in enumerate(counts) for _ in range(count)]
    order = list(range(len(chunk_of)))

    def allowed(position_chunk, home):
        return window_begin[position_chunk] <= chunk_of[home] < window_end[position_chunk]

    for t, c in enumerate(chunk_of):
        low, high = starts[window_begin[c]], starts[window_end[c]]
        while True:
            j = low + rng() % (high - low)
            if allowed(c, order[j]) and allowed(chunk_of[j], order[t]):
                break
        order[t], order[j] = order[j], order[t]
    return order


def cntk_windows(samples, in_chunks=None, in_samples=None):
    """Windows of each randomised chunk position, from the samples of each. One of the two sizes is given."""
    chunks = len(samples)
    begins, ends = [], []
    if in_chunks is not None:
        width = in_chunks or 1
        for i in range(chunks):
            half = width // 2
            begin = max(i - half, 0)
            end = begin + width
            if end > chunks:
                begin, end = max(chunks - width, 0), chunks
            begins.append(begin)
            ends.append(end)
        return begins, ends
    starts = [sum(samples[:c]) for c in range(chunks + 1)]
    half = in_samples // 2
    begin, end = 0, 1
    for i in range(chunks):
        while starts[i] - starts[begin] > half:
            begin += 1
        begin = min(begin, i)
        end = max(end, i + 1)
        while end < chunks and starts[end + 1] - starts[i] < half:
            end += 1
        begins.append(begin)
        ends.append(end)
    return begins, ends
