#include "feedline/cbf.h"

#include <algorithm>
#include <cstring>

namespace feedline {

namespace {

constexpr std::size_t kAhead = 8;  // sequences, or chunks

template <class T>
T load(const std::uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// A chunk within the arrays of its run.
struct Place {
    const std::uint8_t* bytes;  // of the run
    std::int64_t first, size;   // of the chunk
    std::size_t at, count;      // its first sequence in the arrays, and their number
    std::size_t n;              // entries of a row
    std::int64_t* begin;
    std::uint32_t* samples;
    std::int32_t* stored;

    CbfFault fault(CbfError code, std::int64_t byte, std::int64_t expected, std::int64_t got,
                   std::size_t sequence = ~std::size_t{0}, std::int32_t stream = -1) const {
        CbfFault fault;
        fault.byte = byte;
        fault.expected = expected;
        fault.got = got;
        fault.stream = stream;
        fault.code = static_cast<std::int32_t>(code);
        fault.sequence = static_cast<std::int64_t>(at + (sequence < count ? sequence : 0));
        return fault;
    }

    CbfFault find(const CbfStream* streams, std::size_t num_streams, std::uint32_t expected_samples,
                  bool open_end) const {
        const std::int64_t end = first + size;
        std::int64_t byte = first;
        const auto head = static_cast<std::int64_t>(count) * 4;
        if (head > size) return fault(CbfError::lengths_cut, byte, head, size);
        byte += head;
        for (std::size_t s = 0; s < num_streams; ++s) {
            const CbfStream& stream = streams[s];
            const auto row = static_cast<std::int64_t>(stream.dim) * stream.value_bytes;
            const std::int64_t pair = stream.value_bytes + 4;
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t entry = s * n + at + i;
                const std::int64_t left = end - byte;
                const std::int64_t prefix = stream.sparse ? 8 : 4;
                const auto number = static_cast<std::int32_t>(s);
                if (left < prefix) return fault(CbfError::sequence_cut, byte, prefix, left, i, number);
                const auto length = load<std::uint32_t>(bytes + byte);
                const std::int64_t room = left - prefix;
                std::int64_t taken;
                if (stream.sparse) {
                    const auto nnz = load<std::int32_t>(bytes + byte + 4);
                    if (nnz < 0 || (nnz > 0 && length == 0)) return fault(CbfError::bad_nnz, byte + 4, 0, nnz, i, number);
                    taken = nnz * pair + std::int64_t{length} * 4;
                    stored[entry] = nnz;
                } else {
                    // u32 * (u32 * 8) need not fit 63 bits.
                    if (__builtin_mul_overflow(std::int64_t{length}, row, &taken)) taken = room + 1;
                    stored[entry] = 0;
                }
                if (taken > room) return fault(CbfError::sequence_cut, byte, taken, room, i, number);
                // The lengths that follow are here if sequences are of like size. Without the prefetch each would be a
                // cache miss for which the next one waits.
                if (const auto ahead = static_cast<std::int64_t>(kAhead) * (prefix + taken); ahead < room)
                    __builtin_prefetch(bytes + byte + ahead);
                begin[entry] = byte + prefix;
                samples[entry] = length;
                byte += prefix + taken;
            }
        }
        if (byte != end && !open_end) return fault(CbfError::trailing, byte, byte - first, size);
        std::int64_t total = 0;
        for (std::size_t i = 0; i < count; ++i) {
            std::uint32_t longest = 0;
            for (std::size_t s = 0; s < num_streams; ++s) longest = std::max(longest, samples[s * n + at + i]);
            const std::int64_t length_at = first + static_cast<std::int64_t>(i) * 4;
            const auto stated = load<std::uint32_t>(bytes + length_at);
            if (stated != longest) return fault(CbfError::wrong_length, length_at, longest, stated, i);
            total += longest;
        }
        if (total != expected_samples) return fault(CbfError::wrong_samples, first, expected_samples, total);
        return {};
    }
};

}  // namespace

void find_cbf(const CbfChunks& chunks, const CbfStream* streams, std::size_t num_streams, std::size_t n, bool open_end,
              std::int64_t* begin, std::uint32_t* samples, std::int32_t* stored, CbfFault* faults) {
    std::int64_t first = 0, ahead = 0;
    std::size_t at = 0, next = 0;
    for (std::size_t c = 0; c < chunks.count; ++c) {
        const Place place{chunks.bytes, first, chunks.sizes[c], at, chunks.sequences[c], n, begin, samples, stored};
        const bool last = c + 1 == chunks.count;
        for (; next < std::min(c + kAhead, chunks.count); ahead += chunks.sizes[next++])
            __builtin_prefetch(chunks.bytes + ahead);
        faults[c] = place.find(streams, num_streams, chunks.samples[c], open_end && last);
        if (faults[c].code != 0) {
            for (std::size_t s = 0; s < num_streams; ++s) {
                std::fill_n(begin + s * n + at, place.count, first);
                std::fill_n(samples + s * n + at, place.count, 0U);
                std::fill_n(stored + s * n + at, place.count, 0);
            }
        }
        first += chunks.sizes[c];
        at += place.count;
    }
}

void copy_cbf_dense(const std::uint8_t* bytes, const std::int64_t* begin, const std::uint32_t* samples, std::size_t n,
                    std::size_t row_bytes, std::uint8_t* out) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t size = samples[i] * row_bytes;
        if (size != 0) std::memcpy(out, bytes + begin[i], size);
        out += size;
    }
}

void copy_cbf_sparse(const std::uint8_t* bytes, const std::int64_t* begin, const std::uint32_t* samples,
                     const std::int32_t* stored, std::size_t n, std::size_t value_bytes, std::int64_t* indptr,
                     std::int32_t* indices, std::uint8_t* values, bool* bad) {
    std::int64_t total = 0;
    *indptr++ = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto nnz = static_cast<std::size_t>(stored[i]);
        const std::uint8_t* from = bytes + begin[i];
        if (nnz != 0) {
            std::memcpy(values, from, nnz * value_bytes);
            values += nnz * value_bytes;
            from += nnz * value_bytes;
            std::memcpy(indices, from, nnz * 4);
            indices += nnz;
            from += nnz * 4;
        }
        const std::int64_t end = total + stored[i];
        bool wrong = false;
        for (std::size_t t = 0; t < samples[i]; ++t) {
            const auto count = load<std::int32_t>(from + t * 4);
            if (count < 0 || count > end - total) wrong = true;
            if (!wrong) total += count;
            *indptr++ = total;
        }
        bad[i] = wrong || total != end;
        if (total != end) indptr[-1] = total = end;
    }
}

}  // namespace feedline
