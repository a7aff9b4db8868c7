#include "feedline/order.h"

#include <algorithm>
#include <type_traits>

#include "feedline/cpu.h"
#include "order_rounds.h"

namespace feedline {

std::uint64_t hash_key(const std::uint64_t* words, std::size_t count) {
    std::uint64_t h = 0;
    for (std::size_t k = 0; k < count; ++k) h = mix64((h + kGolden) ^ mix64(words[k] + kGolden));
    return h;
}

// ---- Fisher-Yates ---------------------------------------------------------------------------------------

static inline std::uint32_t swap_target(std::uint64_t key, std::uint64_t i) {
    const std::uint64_t u = mix64(key + (i + 1) * kGolden);
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint32_t>((static_cast<Wide>(u) * (i + 1)) >> 64);
}

void fisher_yates(std::uint64_t key, std::uint32_t n, std::uint32_t* out) {
    for (std::uint32_t i = 0; i < n; ++i) out[i] = i;
    if (n < 2) return;
    // Targets depend only on the counter, never on earlier swaps: they are computed ahead, and their cache
    // lines prefetched for the swap.
    constexpr std::uint32_t kAhead = 16;
    std::uint32_t ring[kAhead];
    const std::uint32_t last = n - 1;
    for (std::uint32_t d = 0; d < kAhead && d < last; ++d) {
        ring[d] = swap_target(key, last - d);
        __builtin_prefetch(out + ring[d], 1);
    }
    std::uint32_t i = last;
    std::uint32_t place = 0;
    for (; i > kAhead; --i, place = (place + 1) % kAhead) {
        const std::uint32_t j = ring[place];
        const std::uint32_t ahead = swap_target(key, i - kAhead);
        __builtin_prefetch(out + ahead, 1);
        ring[place] = ahead;
        const std::uint32_t held = out[i];
        out[i] = out[j];
        out[j] = held;
    }
    for (; i > 0; --i, place = (place + 1) % kAhead) {
        const std::uint32_t j = ring[place];
        const std::uint32_t held = out[i];
        out[i] = out[j];
        out[j] = held;
    }
}

// ---- Feistel --------------------------------------------------------------------------------------------

static inline std::uint32_t scramble(std::uint32_t v, std::uint32_t key) {
    std::uint32_t z = v ^ key;
    z ^= z >> 16;
    z *= 0x85ebca6bu;
    z ^= z >> 13;
    z *= 0xc2b2ae35u;
    return z ^ (z >> 16);
}

void feistel_rounds_portable(const FeistelRounds& rounds, std::uint32_t* hi, std::uint32_t* lo,
                             std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t h = hi[i];
        std::uint32_t l = lo[i];
        for (int r = 0; r < 6; r += 2) {
            h ^= scramble(l, rounds.key[r]) & rounds.mask_hi;
            l ^= scramble(h, rounds.key[r + 1]) & rounds.mask_lo;
        }
        hi[i] = h;
        lo[i] = l;
    }
}

static void run_rounds(const FeistelRounds& rounds, std::uint32_t* hi, std::uint32_t* lo, std::size_t count) {
    const std::size_t padded = (count + kFeistelLanes - 1) / kFeistelLanes * kFeistelLanes;
    for (std::size_t i = count; i < padded; ++i) hi[i] = lo[i] = 0;
#ifdef FEEDLINE_X86
    if (cpu().avx2) return feistel_rounds_avx2(rounds, hi, lo, padded);
#endif
    feistel_rounds_portable(rounds, hi, lo, padded);
}

static FeistelRounds feistel_rounds(std::uint64_t key, std::uint64_t n) {
    std::uint32_t width = 0;
    while (width < 64 && (n - 1) >> width != 0) ++width;
    FeistelRounds rounds;
    rounds.low_bits = width / 2;
    rounds.mask_lo = (std::uint32_t{1} << rounds.low_bits) - 1;
    rounds.mask_hi = (std::uint32_t{1} << (width - rounds.low_bits)) - 1;
    for (std::uint64_t r = 0; r < 6; ++r)
        rounds.key[r] = static_cast<std::uint32_t>(mix64(key + (r + 1) * kGolden));
    return rounds;
}

void feistel(std::uint64_t key, std::uint64_t n, std::uint64_t first, std::size_t count, std::int64_t* out) {
    const FeistelRounds rounds = feistel_rounds(key, n);
    const std::uint32_t low_bits = rounds.low_bits;
    std::uint32_t hi[kFeistelBlock];
    std::uint32_t lo[kFeistelBlock];
    std::uint32_t walker[kFeistelBlock];  // place in the block of every index that is still at or above n
    for (std::size_t done = 0; done < count; done += kFeistelBlock) {
        const std::size_t block = count - done < kFeistelBlock ? count - done : kFeistelBlock;
        std::int64_t* place = out + done;
        for (std::size_t i = 0; i < block; ++i) {
            const std::uint64_t x = first + done + i;
            hi[i] = static_cast<std::uint32_t>(x >> low_bits);
            lo[i] = static_cast<std::uint32_t>(x) & rounds.mask_lo;
        }
        run_rounds(rounds, hi, lo, block);
        // Walkers are compacted after every pass, so that a pass costs the remaining ones, not the block.
        std::size_t left = 0;
        for (std::size_t i = 0; i < block; ++i) {
            const std::uint32_t h = hi[i];
            const std::uint32_t l = lo[i];
            const std::uint64_t x = static_cast<std::uint64_t>(h) << low_bits | l;
            place[i] = static_cast<std::int64_t>(x);
            hi[left] = h;
            lo[left] = l;
            walker[left] = static_cast<std::uint32_t>(i);
            left += x >= n;
        }
        while (left != 0) {
            const std::size_t walking = left;
            run_rounds(rounds, hi, lo, walking);
            left = 0;
            for (std::size_t k = 0; k < walking; ++k) {
                const std::uint32_t h = hi[k];
                const std::uint32_t l = lo[k];
                const std::uint32_t i = walker[k];
                const std::uint64_t x = static_cast<std::uint64_t>(h) << low_bits | l;
                place[i] = static_cast<std::int64_t>(x);
                hi[left] = h;
                lo[left] = l;
                walker[left] = i;
                left += x >= n;
            }
        }
    }
}

// ---- fingerprint, locate --------------------------------------------------------------------------------

void fingerprint(std::uint64_t h, const std::int64_t* ordinals, std::size_t count, std::uint64_t* out) {
    for (std::size_t k = 0; k < count; ++k) {
        h = mix64(h ^ mix64(static_cast<std::uint64_t>(ordinals[k]) + 1));
        out[k] = h;
    }
}

namespace {

// For places in buckets of equal size, the slot that the first place of a bucket is in.
class Guesses {
public:
    Guesses(const std::int64_t* starts, std::size_t slots, std::size_t count) {
        constexpr std::size_t kPerSlot = 4;  // buckets
        // The table must cost less than the searches, and stay in the first cache.
        if (slots < 3 || slots * kPerSlot > std::min(count / 4, kMost)) return;
        const auto places = static_cast<std::uint64_t>(starts[slots] - starts[0]);
        while ((places >> shift_) >= slots * kPerSlot) ++shift_;
        const std::size_t buckets = static_cast<std::size_t>((places - 1) >> shift_) + 1;
        std::size_t slot = 0;
        for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
            const std::int64_t place = starts[0] + static_cast<std::int64_t>(std::uint64_t{bucket} << shift_);
            const std::size_t before = slot;
            while (slot + 1 < slots && starts[slot + 1] <= place) ++slot;
            if (bucket != 0 && slot - before > 1) return;  // more than one slot begins within a bucket
            first_[bucket] = static_cast<std::uint32_t>(slot);
        }
        useful_ = slots - 1 - slot <= 1;
    }

    // Whether each place is in the slot of its bucket, or the next one.
    bool useful() const { return useful_; }
    std::size_t first(std::int64_t place) const { return first_[static_cast<std::uint64_t>(place) >> shift_]; }

private:
    static constexpr std::size_t kMost = 2048;
    std::uint32_t first_[kMost];
    unsigned shift_ = 0;
    bool useful_ = false;
};

}  // namespace

template <class T>
static std::ptrdiff_t locate_any(const std::int64_t* starts, std::size_t slots, const T* t, std::size_t count,
                                 std::uint32_t* slot, std::int64_t* index) {
    const std::int64_t begin = starts[0];
    const std::int64_t end = starts[slots];
    unsigned outside = 0;
    for (std::size_t k = 0; k < count; ++k) {
        const auto place = static_cast<std::int64_t>(t[k]);
        outside |= static_cast<unsigned>(place < begin) | static_cast<unsigned>(place >= end);
    }
    if (outside) {
        for (std::size_t k = 0; k < count; ++k) {
            const auto place = static_cast<std::int64_t>(t[k]);
            if (place < begin || place >= end) return static_cast<std::ptrdiff_t>(k);
        }
    }
    if (slots == 1) {
        for (std::size_t k = 0; k < count; ++k) {
            slot[k] = 0;
            index[k] = static_cast<std::int64_t>(t[k]) - begin;
        }
        return -1;
    }
    // Chunks of about the same size are found by their place in a table, without a search.
    const Guesses guesses(starts, slots, count);
    if (guesses.useful()) {
        for (std::size_t k = 0; k < count; ++k) {
            const auto place = static_cast<std::int64_t>(t[k]);
            std::size_t at = guesses.first(place - begin);
            at += static_cast<std::size_t>(starts[at + 1] <= place);
            slot[k] = static_cast<std::uint32_t>(at);
            index[k] = place - starts[at];
        }
        return -1;
    }
    // Every search takes the same steps, and each is an addition of 0 or `half`, never a branch: what a
    // branch would guess is random. Searches of a group go side by side: their loads do not wait in line.
    const auto search = [&](std::size_t k, auto group) {
        constexpr std::size_t kGroup = decltype(group)::value;
        std::size_t base[kGroup] = {};
        for (std::size_t length = slots; length > 1;) {
            const std::size_t half = length / 2;
            for (std::size_t g = 0; g < kGroup; ++g) {
                const bool right = starts[base[g] + half] <= static_cast<std::int64_t>(t[k + g]);
                base[g] += half & (std::size_t{0} - right);
            }
            length -= half;
        }
        for (std::size_t g = 0; g < kGroup; ++g) {
            slot[k + g] = static_cast<std::uint32_t>(base[g]);
            index[k + g] = static_cast<std::int64_t>(t[k + g]) - starts[base[g]];
        }
    };
    constexpr std::size_t kSideBySide = 8;
    std::size_t k = 0;
    for (; k + kSideBySide <= count; k += kSideBySide)
        search(k, std::integral_constant<std::size_t, kSideBySide>{});
    for (; k < count; ++k) search(k, std::integral_constant<std::size_t, 1>{});
    return -1;
}

std::ptrdiff_t locate(const std::int64_t* starts, std::size_t slots, const std::int64_t* t, std::size_t count,
                      std::uint32_t* slot, std::int64_t* index) {
    return locate_any(starts, slots, t, count, slot, index);
}

std::ptrdiff_t locate(const std::int64_t* starts, std::size_t slots, const std::uint32_t* t,
                      std::size_t count, std::uint32_t* slot, std::int64_t* index) {
    return locate_any(starts, slots, t, count, slot, index);
}

}  // namespace feedline
