#include "feedline/gather.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "feedline/cpu.h"
#include "fill.h"
#include "index_bounds.h"

namespace feedline {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSmallRow = 256;     // bytes; rows up to this size are prefetched far ahead
constexpr std::size_t kAheadSmall = 32;    // rows
constexpr std::size_t kAheadLarge = 2;     // rows
constexpr std::size_t kAheadRagged = 4;    // sequences
constexpr std::size_t kAheadOffsets = 16;  // picks
constexpr std::size_t kLargeLines = 8;     // cache lines; the hardware prefetches the rest of a long row
constexpr std::size_t kCheckBlock = 1024;  // entries checked together before the bad one is searched
constexpr std::size_t kBlock = 512;        // rows whose addresses are computed together

static inline void prefetch(const std::byte* from, std::size_t bytes) {
    const std::size_t part = std::min(kLargeLines * kLine, bytes);
    for (std::size_t at = 0; at < part; at += kLine) __builtin_prefetch(from + at);
    // Rows need not start at a cache line, so the last byte may be on one more.
    __builtin_prefetch(from + part - (part != 0));
}

std::ptrdiff_t first_bad_bound(const std::int64_t* bounds, std::size_t n, std::int64_t end) {
    if (bounds[0] != 0) return 0;
    std::uint64_t falls = 0;  // 1 if some bounds[i + 1] < bounds[i]
    for (std::size_t i = 0; i < n; ++i) falls |= static_cast<std::uint64_t>(bounds[i + 1] < bounds[i]);
    if (falls != 0)
        for (std::size_t i = 0; i < n; ++i)
            if (bounds[i + 1] < bounds[i]) return static_cast<std::ptrdiff_t>(i);
    return bounds[n] == end ? -1 : static_cast<std::ptrdiff_t>(n);
}

bool ascends(const std::int64_t* bounds, std::size_t n, std::int64_t first, std::int64_t last) {
    if (n == 0) return first == last;
    std::uint64_t falls = static_cast<std::uint64_t>(bounds[0] < first);
    for (std::size_t i = 0; i + 1 < n; ++i) falls |= static_cast<std::uint64_t>(bounds[i + 1] < bounds[i]);
    return falls == 0 && bounds[n - 1] == last;
}

std::size_t first_bad_span(const std::int64_t* spans, std::size_t n, std::int64_t limit) {
    for (std::size_t i = 0; i < n; ++i)
        if (spans[2 * i] < 0 || spans[2 * i + 1] < spans[2 * i] || limit < spans[2 * i + 1]) return i;
    return n;
}

std::ptrdiff_t first_uneven(const std::int64_t* bounds, const std::int32_t* lengths, std::size_t n) {
    const auto length = [&](std::size_t i) {
        return static_cast<std::uint64_t>(bounds[i + 1]) - static_cast<std::uint64_t>(bounds[i]);
    };
    const auto expected = [&](std::size_t i) { return static_cast<std::uint64_t>(std::int64_t{lengths[i]}); };
    for (std::size_t at = 0; at < n; at += kCheckBlock) {
        const std::size_t stop = std::min(at + kCheckBlock, n);
        std::uint64_t bits = 0;
        for (std::size_t i = at; i < stop; ++i) bits |= length(i) ^ expected(i);
        if (bits == 0) continue;
        for (std::size_t i = at; i < stop; ++i)
            if (length(i) != expected(i)) return static_cast<std::ptrdiff_t>(i);
    }
    return -1;
}

std::ptrdiff_t first_bad_pick(const Picks& picks, const std::int64_t* sequences, std::size_t num_slots) {
    const auto bad = [&](std::size_t i) {
        const std::size_t slot = picks.slots == nullptr ? 0 : picks.slots[i];
        return slot >= num_slots || picks.index[i] < 0 || picks.index[i] >= sequences[slot];
    };
    // The signs of index and limit - 1 - index are or-ed over all picks, and checked once.
    std::int64_t signs = 0;
    if (picks.slots == nullptr) {
        const std::int64_t last = (num_slots == 0 ? 0 : sequences[0]) - 1;
        for (std::size_t i = 0; i < picks.count; ++i) {
            const std::int64_t index = picks.index[i];
            signs |= index | static_cast<std::int64_t>(static_cast<std::uint64_t>(last) -
                                                       static_cast<std::uint64_t>(index));
        }
    } else {
        std::uint32_t top = 0;
        for (std::size_t i = 0; i < picks.count; ++i) top = std::max(top, picks.slots[i]);
        if (picks.count != 0 && top >= num_slots) signs = -1;
        for (std::size_t i = 0; signs >= 0 && i < picks.count; ++i) {
            const std::int64_t index = picks.index[i];
            const std::int64_t last = sequences[picks.slots[i]] - 1;
            signs |= index | static_cast<std::int64_t>(static_cast<std::uint64_t>(last) -
                                                       static_cast<std::uint64_t>(index));
        }
    }
    if (signs >= 0) return -1;
    for (std::size_t i = 0; i < picks.count; ++i)
        if (bad(i)) return static_cast<std::ptrdiff_t>(i);
    return -1;
}

// ---- one row a sequence ---------------------------------------------------------------------------------

// Addresses of picks [begin, begin + n).
static inline void addresses(const Picks& picks, const DenseSource* sources, std::size_t row_bytes,
                             std::size_t begin, std::size_t n, const std::byte** from) {
    if (picks.slots == nullptr) {
        const std::byte* base = sources[0].rows;
        for (std::size_t i = 0; i < n; ++i)
            from[i] = base + static_cast<std::size_t>(picks.index[begin + i]) * row_bytes;
    } else {
        for (std::size_t i = 0; i < n; ++i)
            from[i] = sources[picks.slots[begin + i]].rows +
                      static_cast<std::size_t>(picks.index[begin + i]) * row_bytes;
    }
}

template <std::size_t kBytes>
static void copy_fixed(const std::byte* const* from, std::size_t n, std::size_t, std::byte* out) {
    for (std::size_t i = 0; i < std::min(kAheadSmall, n); ++i) prefetch(from[i], kBytes);
    for (std::size_t i = 0; i < n; ++i) {
        if (i + kAheadSmall < n) prefetch(from[i + kAheadSmall], kBytes);
        std::memcpy(out + i * kBytes, from[i], kBytes);
    }
}

static void copy_small(const std::byte* const* from, std::size_t n, std::size_t row_bytes, std::byte* out) {
    for (std::size_t i = 0; i < std::min(kAheadSmall, n); ++i) prefetch(from[i], row_bytes);
    for (std::size_t i = 0; i < n; ++i) {
        if (i + kAheadSmall < n) prefetch(from[i + kAheadSmall], row_bytes);
        std::memcpy(out + i * row_bytes, from[i], row_bytes);
    }
}

static void copy_large(const std::byte* const* from, std::size_t n, std::size_t row_bytes, std::byte* out) {
    for (std::size_t i = 0; i < std::min(kAheadLarge, n); ++i) prefetch(from[i], row_bytes);
    for (std::size_t i = 0; i < n; ++i) {
        if (i + kAheadLarge < n) prefetch(from[i + kAheadLarge], row_bytes);
        std::memcpy(out + i * row_bytes, from[i], row_bytes);
    }
}

using CopyBlock = void (*)(const std::byte* const*, std::size_t, std::size_t, std::byte*);

static CopyBlock copier(std::size_t row_bytes) {
    switch (row_bytes) {
        case 1: return copy_fixed<1>;
        case 2: return copy_fixed<2>;
        case 4: return copy_fixed<4>;
        case 8: return copy_fixed<8>;
        case 12: return copy_fixed<12>;
        case 16: return copy_fixed<16>;
        case 32: return copy_fixed<32>;
        case 64: return copy_fixed<64>;
        case 128: return copy_fixed<128>;
        case 256: return copy_fixed<256>;
        default: return row_bytes <= kSmallRow ? copy_small : copy_large;
    }
}

void copy_rows(const Picks& picks, const DenseSource* sources, std::size_t row_bytes, std::byte* out,
               std::size_t begin, std::size_t end) {
    if (row_bytes == 0) return;
    const CopyBlock copy = copier(row_bytes);
    const std::byte* from[kBlock];
    for (std::size_t at = begin; at < end; at += kBlock) {
        const std::size_t n = std::min(kBlock, end - at);
        addresses(picks, sources, row_bytes, at, n, from);
        copy(from, n, row_bytes, out + at * row_bytes);
    }
}

// ---- rows that are views --------------------------------------------------------------------------------

RowLayout RowLayout::of(const std::size_t* shape, const std::ptrdiff_t* strides, std::size_t dims,
                        std::size_t item_bytes) {
    RowLayout layout{strides[0], item_bytes, {}};
    for (std::size_t axis = dims; axis-- > 1;) {
        if (shape[axis] == 1) continue;
        const bool follows = strides[axis] == static_cast<std::ptrdiff_t>(layout.run_bytes);
        if (layout.axes.empty() && follows)
            layout.run_bytes *= shape[axis];
        else
            layout.axes.insert(layout.axes.begin(), Axis{shape[axis], strides[axis]});
    }
    return layout;
}

template <std::size_t kBytes>
static std::byte* copy_runs(const std::byte* from, const RowLayout::Axis& axis, std::size_t, std::byte* out) {
    for (std::size_t i = 0; i < axis.count; ++i, out += kBytes, from += axis.stride) std::memcpy(out, from, kBytes);
    return out;
}

static std::byte* copy_any_runs(const std::byte* from, const RowLayout::Axis& axis, std::size_t run_bytes,
                                std::byte* out) {
    for (std::size_t i = 0; i < axis.count; ++i, out += run_bytes, from += axis.stride)
        std::memcpy(out, from, run_bytes);
    return out;
}

using CopyRuns = std::byte* (*)(const std::byte*, const RowLayout::Axis&, std::size_t, std::byte*);

static CopyRuns run_copier(std::size_t run_bytes) {
    switch (run_bytes) {
        case 1: return copy_runs<1>;
        case 2: return copy_runs<2>;
        case 4: return copy_runs<4>;
        case 8: return copy_runs<8>;
        default: return copy_any_runs;
    }
}

// Copies one row, from axis number `axis` of its layout on. Returns the end of the copy.
static std::byte* copy_row(const std::byte* from, const RowLayout& layout, std::size_t axis, CopyRuns copy,
                           std::byte* out) {
    const RowLayout::Axis& here = layout.axes[axis];
    if (axis + 1 == layout.axes.size()) return copy(from, here, layout.run_bytes, out);
    for (std::size_t i = 0; i < here.count; ++i, from += here.stride) out = copy_row(from, layout, axis + 1, copy, out);
    return out;
}

// ---- rows that are windows ------------------------------------------------------------------------------

std::size_t first_bad_window(const RowWindows& windows, std::size_t n) {
    for (std::size_t w = 0; w < n; ++w)
        if (windows.firsts[w] < 0 || windows.ends[w] <= windows.firsts[w] || windows.array_rows < windows.ends[w])
            return w;
    return n;
}

const std::byte* RowWindows::run(const std::byte* array, std::int64_t w) const {
    if (!consecutive) return nullptr;
    std::int64_t from = 0, to = 0;
    if (__builtin_add_overflow(middles[w], steps[0], &from) ||
        __builtin_add_overflow(from, static_cast<std::int64_t>(count), &to))
        return nullptr;
    if (from < std::max<std::int64_t>(firsts[w], 0) || std::min(ends[w], array_rows) < to) return nullptr;
    return array + static_cast<std::size_t>(from) * array_row_bytes;
}

void RowWindows::copy(const std::byte* array, std::int64_t w, std::byte* out) const {
    const std::int64_t first = firsts[w], end = ends[w];
    const bool sound = 0 <= first && first < end && end <= array_rows;
    for (std::size_t k = 0; k < count; ++k, out += array_row_bytes) {
        std::int64_t row = by_place ? middles[static_cast<std::size_t>(w) * count + k] : middles[w];
        // A sum that is too large is far beyond the sequence.
        if (!by_place && __builtin_add_overflow(row, steps[k], &row))
            row = steps[k] < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
        const bool beyond = row < first || end <= row;
        if (!sound || (beyond && zeros))
            std::memset(out, 0, array_row_bytes);
        else
            std::memcpy(out, array + static_cast<std::size_t>(std::clamp(row, first, end - 1)) * array_row_bytes,
                        array_row_bytes);
    }
}

// Copies one row of a source that has windows, or a layout that is not one run.
static void copy_parts(const DenseSource& source, std::int64_t row, const std::byte* from, std::byte* out) {
    if (source.windows != nullptr)
        source.windows->copy(source.rows, row, out);
    else
        copy_row(from, *source.layout, 0, run_copier(source.layout->run_bytes), out);
}

// ---- one row a sequence, of any source ------------------------------------------------------------------

void copy_strided_rows(const Picks& picks, const DenseSource* sources, std::size_t row_bytes, std::byte* out,
                       std::size_t begin, std::size_t end) {
    if (row_bytes == 0) return;
    const CopyBlock copy = copier(row_bytes);
    const std::byte* from[kBlock];
    for (std::size_t at = begin; at < end; at += kBlock) {
        const std::size_t n = std::min(kBlock, end - at);
        bool contiguous = true;
        for (std::size_t i = 0; i < n; ++i) {
            const DenseSource& source = sources[picks.slots == nullptr ? 0 : picks.slots[at + i]];
            const std::int64_t index = picks.index[at + i];
            if (source.windows != nullptr) {
                from[i] = source.windows->run(source.rows, index);
                contiguous &= from[i] != nullptr;
            } else if (source.layout == nullptr) {
                from[i] = source.rows + static_cast<std::size_t>(index) * row_bytes;
            } else {
                from[i] = source.rows + static_cast<std::ptrdiff_t>(index) * source.layout->row_stride;
                contiguous &= source.layout->axes.empty();
            }
        }
        if (contiguous) {
            copy(from, n, row_bytes, out + at * row_bytes);
            continue;
        }
        for (std::size_t i = 0; i < n; ++i) {
            const DenseSource& source = sources[picks.slots == nullptr ? 0 : picks.slots[at + i]];
            const bool in_runs = source.layout != nullptr && !source.layout->axes.empty();
            std::byte* const to = out + (at + i) * row_bytes;
            if (from[i] == nullptr || in_runs)
                copy_parts(source, picks.index[at + i], from[i], to);
            else
                std::memcpy(to, from[i], row_bytes);
        }
    }
}

// ---- ragged ---------------------------------------------------------------------------------------------

static inline std::size_t slot_of(const Picks& picks, std::size_t i) {
    return picks.slots == nullptr ? 0 : picks.slots[i];
}

template <class Source>
static inline void prefetch_offsets(const Picks& picks, const Source* sources, std::size_t i) {
    if (i >= picks.count) return;
    const std::int64_t* offsets = sources[slot_of(picks, i)].offsets;
    if (offsets != nullptr) __builtin_prefetch(offsets + picks.index[i]);
}

// Sets the rows [first, last) of a pick. Returns false if the source's offsets lead outside its rows.
template <class Source>
static inline bool rows_of(const Source& source, std::int64_t index, std::int64_t& first,
                           std::int64_t& last) {
    if (source.offsets == nullptr) {
        first = index;
        last = index + 1;
        return true;
    }
    first = source.offsets[index];
    last = source.offsets[index + 1];
    return 0 <= first && first <= last && last <= source.num_rows;
}

std::ptrdiff_t plan_ragged(const Picks& picks, const DenseSource* sources, std::size_t row_bytes,
                           const std::byte** from, std::int64_t* out_offsets) {
    for (std::size_t i = 0; i < kAheadOffsets; ++i) prefetch_offsets(picks, sources, i);
    std::int64_t total = 0;
    out_offsets[0] = 0;
    for (std::size_t i = 0; i < picks.count; ++i) {
        prefetch_offsets(picks, sources, i + kAheadOffsets);
        const DenseSource& source = sources[slot_of(picks, i)];
        std::int64_t first, last;
        if (!rows_of(source, picks.index[i], first, last) ||
            __builtin_add_overflow(total, last - first, &total))
            return static_cast<std::ptrdiff_t>(i);
        from[i] = source.layout == nullptr  // not used for windows
                      ? source.rows + static_cast<std::size_t>(first) * row_bytes
                      : source.rows + static_cast<std::ptrdiff_t>(first) * source.layout->row_stride;
        out_offsets[i + 1] = total;
    }
    return -1;
}

void copy_ragged(const std::byte* const* from, const std::int64_t* out_offsets, std::size_t row_bytes,
                 std::byte* out, std::size_t begin, std::size_t end) {
    if (row_bytes == 0) return;
    const auto bytes = [&](std::size_t i) {
        return static_cast<std::size_t>(out_offsets[i + 1] - out_offsets[i]) * row_bytes;
    };
    for (std::size_t i = begin; i < std::min(begin + kAheadRagged, end); ++i) prefetch(from[i], bytes(i));
    for (std::size_t i = begin; i < end; ++i) {
        if (i + kAheadRagged < end) prefetch(from[i + kAheadRagged], bytes(i + kAheadRagged));
        const std::size_t size = bytes(i);
        // A chunk without rows may have no memory, and memcpy requires an address even for 0 bytes.
        if (size != 0) std::memcpy(out + static_cast<std::size_t>(out_offsets[i]) * row_bytes, from[i], size);
    }
}

void copy_strided_ragged(const Picks& picks, const DenseSource* sources, const std::byte* const* from,
                         const std::int64_t* out_offsets, std::size_t row_bytes, std::byte* out, std::size_t begin,
                         std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
        const DenseSource& source = sources[slot_of(picks, i)];
        std::byte* const to = out + static_cast<std::size_t>(out_offsets[i]) * row_bytes;
        if (source.windows != nullptr) {
            const std::int64_t rows = out_offsets[i + 1] - out_offsets[i];
            const std::int64_t first = source.offsets == nullptr ? picks.index[i] : source.offsets[picks.index[i]];
            for (std::int64_t row = 0; row < rows && 0 <= first && first < source.num_rows - row; ++row)
                source.windows->copy(source.rows, first + row, to + static_cast<std::size_t>(row) * row_bytes);
        } else if (source.layout != nullptr && !source.layout->axes.empty() && row_bytes != 0) {
            copy_parts(source, 0, from[i], to);
        } else {
            copy_ragged(from, out_offsets, row_bytes, out, i, i + 1);
        }
    }
}

// ---- CSR ------------------------------------------------------------------------------------------------

SparseTotals plan_sparse(const Picks& picks, const SparseSource* sources, std::size_t value_bytes,
                         SparseRun* runs, std::int64_t* out_offsets) {
    // Two dependent look-ups per sequence (offsets, then indptr), each with its own prefetch distance.
    const auto prefetch_indptr = [&](std::size_t i) {
        if (i >= picks.count) return;
        const SparseSource& source = sources[slot_of(picks, i)];
        std::int64_t row = picks.index[i];
        if (source.offsets != nullptr) row = source.offsets[row];
        if (0 <= row && row <= source.num_rows) __builtin_prefetch(source.indptr + (source.spans ? 2 * row : row));
    };
    for (std::size_t i = 0; i < kAheadOffsets; ++i) prefetch_offsets(picks, sources, i);
    std::int64_t rows = 0, values = 0;
    if (out_offsets != nullptr) out_offsets[0] = 0;
    for (std::size_t i = 0; i < picks.count; ++i) {
        prefetch_offsets(picks, sources, i + kAheadOffsets);
        prefetch_indptr(i + kAheadOffsets / 2);
        const SparseSource& source = sources[slot_of(picks, i)];
        std::int64_t first, last;
        if (!rows_of(source, picks.index[i], first, last)) return {0, 0, static_cast<std::ptrdiff_t>(i)};
        // A span is a row's two bounds, so copying it is copying one row.
        const std::int64_t* bounds = source.indptr + (source.spans ? 2 * first : first);
        const std::int64_t first_value = bounds[0];
        const std::int64_t last_value = bounds[last - first];
        if (first_value < 0 || first_value > last_value || last_value > source.num_values)
            return {0, 0, static_cast<std::ptrdiff_t>(i)};
        const std::int64_t count = last_value - first_value;
        runs[i] = {bounds,
                   source.indices == nullptr ? nullptr : source.indices + first_value,
                   source.values + static_cast<std::size_t>(first_value) * value_bytes,
                   first_value,
                   count,
                   rows,
                   values};
        if (__builtin_add_overflow(rows, last - first, &rows) ||
            __builtin_add_overflow(values, count, &values))
            return {0, 0, static_cast<std::ptrdiff_t>(i)};
        if (out_offsets != nullptr) out_offsets[i + 1] = rows;
    }
    runs[picks.count] = {nullptr, nullptr, nullptr, 0, 0, rows, values};
    return {rows, values, -1};
}

void copy_sparse(const SparseRun* runs, std::size_t value_bytes, std::int64_t* out_indptr,
                 std::int32_t* out_indices, std::byte* out_values, std::size_t begin, std::size_t end) {
    const auto prefetch_run = [&](std::size_t i) {
        const SparseRun& run = runs[i];
        const auto count = static_cast<std::size_t>(run.num_values);
        if (run.indices != nullptr)
            prefetch(reinterpret_cast<const std::byte*>(run.indices), count * sizeof(std::int32_t));
        prefetch(run.values, count * value_bytes);
    };
    if (begin == 0) out_indptr[0] = 0;
    for (std::size_t i = begin; i < std::min(begin + kAheadRagged, end); ++i) prefetch_run(i);
    for (std::size_t i = begin; i < end; ++i) {
        if (i + kAheadRagged < end) prefetch_run(i + kAheadRagged);
        const SparseRun& run = runs[i];
        const std::int64_t shift = run.out_value - run.first_value;
        const std::int64_t rows = runs[i + 1].out_row - run.out_row;
        std::int64_t* indptr = out_indptr + run.out_row;
        for (std::int64_t r = 1; r <= rows; ++r) indptr[r] = run.indptr[r] + shift;
        if (run.num_values == 0) continue;
        const auto count = static_cast<std::size_t>(run.num_values);
        if (out_indices != nullptr)
            std::memcpy(out_indices + run.out_value, run.indices, count * sizeof(std::int32_t));
        std::memcpy(out_values + static_cast<std::size_t>(run.out_value) * value_bytes, run.values,
                    count * value_bytes);
    }
}

// ---- entries --------------------------------------------------------------------------------------------

bool all_below_portable(const std::int32_t* indices, std::size_t n, std::uint32_t width) {
    // The signs of index and last - index, or-ed.
    const std::uint32_t last = width - 1;
    std::uint32_t signs = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto index = static_cast<std::uint32_t>(indices[i]);
        signs |= index | (last - index);
    }
    return signs >> 31 == 0;
}

static auto all_below() {
#ifdef FEEDLINE_X86
    if (cpu().avx2) return all_below_avx2;
#endif
    return all_below_portable;
}

std::size_t first_bad_index(const std::int32_t* indices, std::size_t begin, std::size_t end,
                            std::uint32_t width) {
    static const auto below = all_below();
    if (width == 0) return begin;
    for (std::size_t at = begin; at < end; at += kCheckBlock) {
        const std::size_t stop = std::min(at + kCheckBlock, end);
        if (below(indices + at, stop - at, width)) continue;
        for (std::size_t i = at; i < stop; ++i)
            if (static_cast<std::uint32_t>(indices[i]) >= width) return i;
    }
    return end;
}

std::size_t first_bad_bool(const std::byte* bytes, std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += kCheckBlock) {
        const std::size_t stop = std::min(at + kCheckBlock, end);
        std::byte bits{0};
        for (std::size_t i = at; i < stop; ++i) bits |= bytes[i];
        if (bits <= std::byte{1}) continue;
        for (std::size_t i = at; i < stop; ++i)
            if (bytes[i] > std::byte{1}) return i;
    }
    return end;
}

// ---- text -----------------------------------------------------------------------------------------------

// The number of ASCII bytes at the start of text[0 .. n), rounded down to a multiple of 8.
static std::size_t ascii(const std::byte* text, std::size_t n) {
    constexpr std::uint64_t kHigh = 0x8080808080808080u;
    std::size_t at = 0;
    for (; at + 8 <= n; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, text + at, sizeof word);
        if ((word & kHigh) != 0) break;
    }
    return at;
}

std::size_t first_bad_utf8(const std::byte* text, std::size_t n) {
    const auto byte = [&](std::size_t at) { return std::to_integer<unsigned>(text[at]); };
    const auto follows = [&](std::size_t at) { return at < n && (byte(at) & 0xC0u) == 0x80u; };
    for (std::size_t at = 0; at < n;) {
        const unsigned lead = byte(at);
        if (lead < 0x80u) {
            const std::size_t skipped = ascii(text + at, n - at);
            at += skipped == 0 ? 1 : skipped;
            continue;
        }
        // After these, the second byte's range is narrower. It excludes overlong forms, surrogates and code points
        // above U+10FFFF.
        unsigned low = 0x80u, high = 0xBFu;
        std::size_t following;
        if (lead >= 0xC2u && lead <= 0xDFu) {
            following = 1;
        } else if ((lead & 0xF0u) == 0xE0u) {
            following = 2;
            if (lead == 0xE0u) low = 0xA0u;
            if (lead == 0xEDu) high = 0x9Fu;
        } else if (lead >= 0xF0u && lead <= 0xF4u) {
            following = 3;
            if (lead == 0xF0u) low = 0x90u;
            if (lead == 0xF4u) high = 0x8Fu;
        } else {
            return at;
        }
        if (at + 1 >= n || byte(at + 1) < low || byte(at + 1) > high) return at;
        for (std::size_t k = 2; k <= following; ++k)
            if (!follows(at + k)) return at;
        at += following + 1;
    }
    return n;
}

std::size_t first_bad_text(const std::byte* text, std::int64_t first, const std::int64_t* ends, std::size_t n) {
    for (std::size_t at = 0; at < n; ++at) {
        // Strings are mostly short, so all are checked together as far as they are ASCII.
        const std::int64_t from = at == 0 ? first : ends[at - 1];
        const std::size_t bytes = static_cast<std::size_t>(ends[n - 1] - from);
        if (bytes == 0) return n;
        const std::int64_t reached = from + static_cast<std::int64_t>(ascii(text + from, bytes));
        at = static_cast<std::size_t>(std::upper_bound(ends + at, ends + n, reached) - ends);
        if (at == n) return n;
        const std::int64_t begin = at == 0 ? first : ends[at - 1];
        const auto size = static_cast<std::size_t>(ends[at] - begin);
        if (first_bad_utf8(text + begin, size) < size) return at;
    }
    return n;
}

std::uint64_t read_seal(const std::byte* bytes) {
    std::uint64_t now;
    std::memcpy(&now, bytes, sizeof now);
    return now;
}

const std::byte* first_broken(const Seal* seals, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
        if (read_seal(seals[i].bytes) != seals[i].expected) return seals[i].bytes;
    return nullptr;
}

// ---- padding --------------------------------------------------------------------------------------------

void pad(const std::byte* rows, const std::int64_t* offsets, std::size_t n, std::size_t row_bytes,
         const std::byte* fill, std::size_t element_bytes, std::size_t length, std::byte* out, bool* mask) {
    for (std::size_t i = 0; i < n; ++i) {
        const auto first = static_cast<std::size_t>(offsets[i]);
        const std::size_t real = static_cast<std::size_t>(offsets[i + 1]) - first;
        std::byte* to = out + i * length * row_bytes;
        if (real * row_bytes != 0) std::memcpy(to, rows + first * row_bytes, real * row_bytes);
        fill_elements(to + real * row_bytes, (length - real) * row_bytes, fill, element_bytes);
        std::memset(mask + i * length, 1, real);
        std::memset(mask + i * length + real, 0, length - real);
    }
}

}  // namespace feedline
