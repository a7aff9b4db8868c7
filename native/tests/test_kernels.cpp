// Order, gather and pad kernels, compared with plain loops. Memory ends exactly where the data ends, so with
// -DFEEDLINE_SANITIZE=ON any read or write beyond it ends the program.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "feedline/gather.h"
#include "feedline/order.h"
#include "check.h"

using namespace feedline;

static std::mt19937_64 rng(7);
static std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(n));
}

// Memory of exactly n elements. A vector may have more.
template <class T>
struct Exact {
    explicit Exact(std::size_t n) : size(n), data(new T[n]()) {}
    explicit Exact(const std::vector<T>& from) : Exact(from.size()) {
        std::copy(from.begin(), from.end(), get());
    }
    T* get() const { return data.get(); }
    T& operator[](std::size_t i) const { return data[i]; }
    std::size_t size;
    std::unique_ptr<T[]> data;
};

static Exact<std::int64_t> random_bounds(std::size_t n, std::int64_t longest) {
    Exact<std::int64_t> bounds(n + 1);
    for (std::size_t i = 0; i < n; ++i) bounds[i + 1] = bounds[i] + below(longest + 1);
    return bounds;
}

static void test_permutations() {
    for (const std::uint64_t n : {1u, 2u, 3u, 7u, 8u, 9u, 1023u, 1024u, 1025u, 1500u, 70000u}) {
        std::vector<char> seen(n);
        Exact<std::uint32_t> shuffled(n);
        fisher_yates(n, static_cast<std::uint32_t>(n), shuffled.get());
        for (std::size_t i = 0; i < n; ++i) seen.at(shuffled[i]) += 1;
        CHECK(std::count(seen.begin(), seen.end(), 1) == static_cast<std::ptrdiff_t>(n));

        Exact<std::int64_t> images(n);
        feistel(n, n, 0, n, images.get());
        for (std::size_t i = 0; i < n; ++i) seen.at(static_cast<std::size_t>(images[i])) += 1;
        CHECK(std::count(seen.begin(), seen.end(), 2) == static_cast<std::ptrdiff_t>(n));

        const std::size_t first = n / 3, count = n - first - n / 4;
        Exact<std::int64_t> part(count);
        feistel(n, n, first, count, part.get());
        CHECK(std::equal(part.get(), part.get() + count, images.get() + first));
    }
    fisher_yates(0, 0, nullptr);
    Exact<std::int64_t> far(999);
    feistel(5, kFeistelLimit, kFeistelLimit - 999, 999, far.get());
    for (std::size_t i = 0; i < far.size; ++i)
        CHECK(0 <= far[i] && far[i] < static_cast<std::int64_t>(kFeistelLimit));
}

static void test_cntk() {
    for (int round = 0; round < 50; ++round) {
        const auto chunks = static_cast<std::size_t>(below(9));
        Exact<std::int64_t> order(chunks), counts(chunks), begin(chunks), end(chunks);
        cntk_chunk_order(rng(), chunks, order.get());
        std::int64_t total = 0;
        for (std::size_t c = 0; c < chunks; ++c) {
            counts[c] = below(6);
            total += counts[c];
            begin[c] = c < 2 ? 0 : static_cast<std::int64_t>(c) - 2;
            end[c] = std::min(static_cast<std::int64_t>(c) + 2, static_cast<std::int64_t>(chunks));
        }
        CHECK(cntk_windows_fault(begin.get(), end.get(), chunks) == -1);
        Exact<std::int64_t> out(static_cast<std::size_t>(total));
        cntk_sequence_order(rng(), counts.get(), begin.get(), end.get(), chunks, out.get());
        std::sort(out.get(), out.get() + out.size);
        for (std::size_t t = 0; t < out.size; ++t) CHECK(out[t] == static_cast<std::int64_t>(t));
    }
}

static void test_cntk_numbers() {
    for (int round = 0; round < 20; ++round) {
        const auto first = static_cast<std::uint64_t>(below(1000));
        const auto count = static_cast<std::size_t>(below(1000));
        Exact<std::uint64_t> all(static_cast<std::size_t>(first) + count), part(count);
        CntkNumbers(7, 0).draw(all.size, all.get());
        CntkNumbers numbers(7, first);
        numbers.draw(count / 2, part.get());
        numbers.draw(count - count / 2, part.get() + count / 2);
        CHECK(std::equal(part.get(), part.get() + count, all.get() + first));
    }
}

static void test_locate() {
    for (int round = 0; round < 200; ++round) {
        const auto slots = static_cast<std::size_t>(1 + below(40));
        const Exact<std::int64_t> starts = random_bounds(slots, 4);
        const std::int64_t end = starts[slots];
        const auto n = static_cast<std::size_t>(end == 0 ? 0 : below(50));
        Exact<std::int64_t> t(n), index(n);
        Exact<std::uint32_t> slot(n);
        for (std::size_t k = 0; k < n; ++k) t[k] = below(end);
        CHECK(locate(starts.get(), slots, t.get(), n, slot.get(), index.get()) == -1);
        for (std::size_t k = 0; k < n; ++k) {
            CHECK(starts[slot[k]] <= t[k] && t[k] < starts[slot[k] + 1]);
            CHECK(index[k] == t[k] - starts[slot[k]]);
        }
        if (n != 0) {
            t[n - 1] = end;
            CHECK(locate(starts.get(), slots, t.get(), n, slot.get(), index.get()) ==
                  static_cast<std::ptrdiff_t>(n) - 1);
        }
    }
}

static void test_gather() {
    for (const std::size_t row_bytes :
         {0u, 1u, 4u, 5u, 8u, 12u, 16u, 24u, 64u, 100u, 256u, 260u, 700u, 3136u}) {
        for (int round = 0; round < 8; ++round) {
            const std::size_t num_slots = 3;
            std::vector<Exact<std::int64_t>> offsets;
            std::vector<Exact<std::byte>> rows;
            DenseSource fixed[num_slots], ragged[num_slots];
            std::int64_t sequences[num_slots];
            for (std::size_t s = 0; s < num_slots; ++s) {
                sequences[s] = s == 1 && round % 2 ? 0 : 1 + below(30);
                offsets.push_back(random_bounds(static_cast<std::size_t>(sequences[s]), 3));
                const std::int64_t total = std::max(offsets[s][offsets[s].size - 1], sequences[s]);
                rows.emplace_back(static_cast<std::size_t>(total) * row_bytes);
                for (std::size_t b = 0; b < rows[s].size; ++b)
                    rows[s][b] = static_cast<std::byte>(below(256));
                fixed[s] = {rows[s].get(), nullptr, total};
                // One slot stays without offsets: ragged and fixed chunks of a stream may be mixed.
                ragged[s] = {rows[s].get(), s == 2 ? nullptr : offsets[s].get(), total};
            }
            const auto n = static_cast<std::size_t>(round == 0 ? 0 : below(1200));
            Exact<std::uint32_t> slots(n);
            Exact<std::int64_t> index(n);
            for (std::size_t i = 0; i < n; ++i) {
                do slots[i] = static_cast<std::uint32_t>(below(num_slots));
                while (sequences[slots[i]] == 0);
                index[i] = below(sequences[slots[i]]);
            }
            const Picks picks{slots.get(), index.get(), n};
            CHECK(first_bad_pick(picks, sequences, num_slots) == -1);

            Exact<std::byte> out(n * row_bytes);
            copy_rows(picks, fixed, row_bytes, out.get(), 0, n / 2);
            copy_rows(picks, fixed, row_bytes, out.get(), n / 2, n);
            for (std::size_t i = 0; i < n && row_bytes != 0; ++i)
                CHECK(std::memcmp(out.get() + i * row_bytes,
                                  rows[slots[i]].get() + static_cast<std::size_t>(index[i]) * row_bytes,
                                  row_bytes) == 0);

            // The rows of one slot in reverse order, in two pieces each, the other slots' rows contiguous.
            if (row_bytes % 2 == 0 && row_bytes != 0 && sequences[0] != 0) {
                const auto step = static_cast<std::ptrdiff_t>(row_bytes);
                const RowLayout turned{-step, row_bytes / 2, {{2, step / 2}}};
                std::vector<DenseSource> mixed(ragged, ragged + num_slots);
                mixed[0] = {fixed[0].rows + (sequences[0] - 1) * step, nullptr, sequences[0], &turned};
                Exact<const std::byte*> begins(n);
                Exact<std::int64_t> bounds(n + 1);
                CHECK(plan_ragged(picks, mixed.data(), row_bytes, begins.get(), bounds.get()) == -1);
                Exact<std::byte> all(static_cast<std::size_t>(bounds[n]) * row_bytes);
                for (const auto& [a, b] : {std::pair{std::size_t{0}, n / 3}, std::pair{n / 3, n}})
                    copy_strided_ragged(picks, mixed.data(), begins.get(), bounds.get(), row_bytes, all.get(), a, b);
                for (std::size_t i = 0; i < n; ++i)
                    CHECK(slots[i] != 0 || std::memcmp(all.get() + static_cast<std::size_t>(bounds[i]) * row_bytes,
                                                       fixed[0].rows + (sequences[0] - 1 - index[i]) * step,
                                                       row_bytes) == 0);
            }

            Exact<const std::byte*> from(n);
            Exact<std::int64_t> out_offsets(n + 1);
            CHECK(plan_ragged(picks, ragged, row_bytes, from.get(), out_offsets.get()) == -1);
            Exact<std::byte> packed(static_cast<std::size_t>(out_offsets[n]) * row_bytes);
            copy_ragged(from.get(), out_offsets.get(), row_bytes, packed.get(), 0, n / 3);
            copy_ragged(from.get(), out_offsets.get(), row_bytes, packed.get(), n / 3, n);
            std::vector<std::byte> expected;
            for (std::size_t i = 0; i < n; ++i) {
                const DenseSource& source = ragged[slots[i]];
                const std::int64_t first = source.offsets ? source.offsets[index[i]] : index[i];
                const std::int64_t last = source.offsets ? source.offsets[index[i] + 1] : index[i] + 1;
                expected.insert(expected.end(), source.rows + static_cast<std::size_t>(first) * row_bytes,
                                source.rows + static_cast<std::size_t>(last) * row_bytes);
            }
            CHECK(std::equal(expected.begin(), expected.end(), packed.get(), packed.get() + packed.size));

            if (n != 0) {
                const std::int64_t kept = index[n - 1];
                for (const std::int64_t bad :
                     {std::int64_t{-1}, sequences[slots[n - 1]], INT64_MAX, INT64_MIN}) {
                    index[n - 1] = bad;
                    CHECK(first_bad_pick(picks, sequences, num_slots) == static_cast<std::ptrdiff_t>(n) - 1);
                }
                index[n - 1] = kept;
                slots[0] = num_slots;
                CHECK(first_bad_pick(picks, sequences, num_slots) == 0);
            }
        }
    }
}

// Windows of rows, by steps from a middle or by place, compared with a plain loop, with and without offsets.
static void test_windows() {
    for (int round = 0; round < 600; ++round) {
        const auto row_bytes = static_cast<std::size_t>(below(20));
        const auto count = static_cast<std::size_t>(below(6));
        const std::int64_t rows = 1 + below(30);
        const auto n = static_cast<std::size_t>(below(40));
        const bool by_place = round % 3 == 0, consecutive = round % 3 == 1;
        Exact<std::byte> array(static_cast<std::size_t>(rows) * row_bytes);
        for (std::size_t b = 0; b < array.size; ++b) array[b] = static_cast<std::byte>(1 + below(255));
        Exact<std::int64_t> firsts(n), ends(n), middles(n * (by_place ? count : 1)), steps(count);
        for (std::size_t k = 0; k < count; ++k)
            steps[k] = consecutive ? static_cast<std::int64_t>(k) - 2 : below(9) == 0 ? INT64_MIN : below(11) - 5;
        for (std::size_t w = 0; w < n; ++w) {
            firsts[w] = below(rows);
            ends[w] = firsts[w] + 1 + below(rows - firsts[w]);
        }
        for (std::size_t i = 0; i < middles.size; ++i) middles[i] = below(15) == 0 ? INT64_MAX - 1 : below(rows + 6) - 3;
        const RowWindows windows{middles.get(), firsts.get(), ends.get(), steps.get(),  count,      rows,
                                 row_bytes,     round % 2 == 0,           by_place,     consecutive};
        CHECK(first_bad_window(windows, n) == n);
        const auto expect = [&](std::int64_t w, const std::byte* got) {
            const auto at = static_cast<std::size_t>(w);
            for (std::size_t k = 0; k < count; ++k) {
                const __int128 row =
                    by_place ? middles[at * count + k] : static_cast<__int128>(middles[at]) + steps[k];
                const bool beyond = row < firsts[at] || row >= ends[at];
                const auto near = static_cast<std::size_t>(
                    std::clamp<__int128>(row, firsts[at], ends[at] - 1));
                for (std::size_t b = 0; b < row_bytes; ++b)
                    CHECK(got[k * row_bytes + b] ==
                          (beyond && windows.zeros ? std::byte{0} : array[near * row_bytes + b]));
            }
        };
        const std::size_t window_bytes = count * row_bytes;
        const DenseSource fixed[] = {{array.get(), nullptr, static_cast<std::int64_t>(n), nullptr, &windows}};
        const auto picked = static_cast<std::size_t>(n == 0 ? 0 : below(90));
        Exact<std::int64_t> index(picked);
        for (std::size_t i = 0; i < picked; ++i) index[i] = below(static_cast<std::int64_t>(n));
        const Picks picks{nullptr, index.get(), picked};
        Exact<std::byte> out(picked * window_bytes);
        copy_strided_rows(picks, fixed, window_bytes, out.get(), 0, picked / 2);
        copy_strided_rows(picks, fixed, window_bytes, out.get(), picked / 2, picked);
        for (std::size_t i = 0; i < picked && window_bytes != 0; ++i) expect(index[i], out.get() + i * window_bytes);

        const auto sequences = static_cast<std::size_t>(1 + below(8));
        Exact<std::int64_t> offsets(sequences + 1);
        for (std::size_t s = 0; s <= sequences; ++s)
            offsets[s] = s == 0 ? 0 : s == sequences ? static_cast<std::int64_t>(n) : below(static_cast<std::int64_t>(n) + 1);
        std::sort(offsets.get(), offsets.get() + sequences + 1);
        const DenseSource ragged[] = {{array.get(), offsets.get(), static_cast<std::int64_t>(n), nullptr, &windows}};
        Exact<std::int64_t> which(sequences);
        for (std::size_t s = 0; s < sequences; ++s) which[s] = below(static_cast<std::int64_t>(sequences));
        const Picks whole{nullptr, which.get(), sequences};
        Exact<const std::byte*> from(sequences);
        Exact<std::int64_t> bounds(sequences + 1);
        CHECK(plan_ragged(whole, ragged, window_bytes, from.get(), bounds.get()) == -1);
        Exact<std::byte> all(static_cast<std::size_t>(bounds[sequences]) * window_bytes);
        copy_strided_ragged(whole, ragged, from.get(), bounds.get(), window_bytes, all.get(), 0, sequences);
        for (std::size_t s = 0; s < sequences && window_bytes != 0; ++s)
            for (std::int64_t i = bounds[s]; i < bounds[s + 1]; ++i)
                expect(offsets[static_cast<std::size_t>(which[s])] + i - bounds[s],
                       all.get() + static_cast<std::size_t>(i) * window_bytes);
        // Arrays that change after they were checked cause no wild read.
        if (n != 0 && window_bytes != 0) {
            firsts[0] = -1 - below(5);
            Exact<std::byte> window(window_bytes);
            windows.copy(array.get(), 0, window.get());
            CHECK(std::count(window.get(), window.get() + window_bytes, std::byte{0}) ==
                  static_cast<std::ptrdiff_t>(window_bytes));
            CHECK(first_bad_window(windows, n) == 0);
        }
    }
}

// Views of a block of 5 x 4 x 6 items: axes in any order, each cut, with steps, reversed or windowed.
static void test_strided() {
    for (const std::size_t item : {1u, 2u, 3u, 4u, 8u, 12u}) {
        for (int round = 0; round < 200; ++round) {
            const std::ptrdiff_t counts[] = {5, 4, 6};
            Exact<std::byte> block(5 * 4 * 6 * item);
            for (std::size_t b = 0; b < block.size; ++b) block[b] = static_cast<std::byte>(below(256));
            std::size_t shape[3];
            std::ptrdiff_t strides[3], first = 0;
            for (std::size_t axis = 0; axis < 3; ++axis) {
                const auto which = (axis + static_cast<std::size_t>(round)) % 3;
                const std::ptrdiff_t full = (which == 0 ? 24 : which == 1 ? 6 : 1) * static_cast<std::ptrdiff_t>(item);
                const std::ptrdiff_t step = 1 + below(2);
                shape[axis] = static_cast<std::size_t>((counts[which] + step - 1) / step);
                strides[axis] = full * step;
                if (below(3) == 0) {
                    first += strides[axis] * static_cast<std::ptrdiff_t>(shape[axis] - 1);
                    strides[axis] = -strides[axis];
                } else if (below(4) == 0) {
                    strides[axis] = 0;
                }
            }
            const RowLayout layout = RowLayout::of(shape, strides, 3, item);
            const std::size_t row_bytes = shape[1] * shape[2] * item;
            const auto rows = static_cast<std::int64_t>(shape[0]);
            Exact<std::byte> plain(shape[0] * row_bytes);
            for (std::size_t b = 0; b < plain.size; ++b) plain[b] = static_cast<std::byte>(below(256));
            const DenseSource sources[] = {{block.get() + first, nullptr, rows, &layout},
                                           {plain.get(), nullptr, rows, nullptr}};
            const auto n = static_cast<std::size_t>(below(700));
            Exact<std::uint32_t> slots(n);
            Exact<std::int64_t> index(n);
            for (std::size_t i = 0; i < n; ++i) {
                slots[i] = round % 2 == 0 ? 0 : static_cast<std::uint32_t>(below(2));
                index[i] = below(rows);
            }
            const Picks picks{slots.get(), index.get(), n};
            Exact<std::byte> out(n * row_bytes);
            copy_strided_rows(picks, sources, row_bytes, out.get(), 0, n / 3);
            copy_strided_rows(picks, sources, row_bytes, out.get(), n / 3, n);
            for (std::size_t i = 0; i < n; ++i) {
                const std::byte* got = out.get() + i * row_bytes;
                if (slots[i] == 1) {
                    CHECK(std::memcmp(got, plain.get() + static_cast<std::size_t>(index[i]) * row_bytes, row_bytes) == 0);
                    continue;
                }
                for (std::size_t a = 0; a < shape[1]; ++a)
                    for (std::size_t b = 0; b < shape[2]; ++b, got += item)
                        CHECK(std::memcmp(got,
                                          block.get() + first + index[i] * strides[0] +
                                              static_cast<std::ptrdiff_t>(a) * strides[1] +
                                              static_cast<std::ptrdiff_t>(b) * strides[2],
                                          item) == 0);
            }
        }
    }
}

static void test_sparse() {
    for (int round = 0; round < 200; ++round) {
        const auto sequences = static_cast<std::size_t>(1 + below(20));
        const Exact<std::int64_t> offsets = random_bounds(sequences, 3);
        const auto num_rows = static_cast<std::size_t>(offsets[sequences]);
        const Exact<std::int64_t> indptr = random_bounds(num_rows, 5);
        const auto nnz = static_cast<std::size_t>(indptr[num_rows]);
        Exact<std::int32_t> indices(nnz);
        Exact<double> values(nnz);
        for (std::size_t k = 0; k < nnz; ++k) {
            indices[k] = static_cast<std::int32_t>(k);
            values[k] = static_cast<double>(k) / 3;
        }
        const SparseSource source{indptr.get(),
                                  indices.get(),
                                  reinterpret_cast<const std::byte*>(values.get()),
                                  offsets.get(),
                                  static_cast<std::int64_t>(num_rows),
                                  static_cast<std::int64_t>(nnz)};
        const auto n = static_cast<std::size_t>(below(60));
        Exact<std::int64_t> index(n), out_offsets(n + 1);
        for (std::size_t i = 0; i < n; ++i) index[i] = below(static_cast<std::int64_t>(sequences));
        const Picks picks{nullptr, index.get(), n};
        Exact<SparseRun> runs(n + 1);
        const SparseTotals totals =
            plan_sparse(picks, &source, sizeof(double), runs.get(), out_offsets.get());
        CHECK(totals.fault == -1);
        Exact<std::int64_t> out_indptr(static_cast<std::size_t>(totals.rows) + 1);
        Exact<std::int32_t> out_indices(static_cast<std::size_t>(totals.values));
        Exact<double> out_values(static_cast<std::size_t>(totals.values));
        auto* bytes = reinterpret_cast<std::byte*>(out_values.get());
        copy_sparse(runs.get(), sizeof(double), out_indptr.get(), out_indices.get(), bytes, 0, n / 2);
        copy_sparse(runs.get(), sizeof(double), out_indptr.get(), out_indices.get(), bytes, n / 2, n);
        std::size_t row = 0, at = 0;
        for (std::size_t i = 0; i < n; ++i) {
            CHECK(out_offsets[i] == static_cast<std::int64_t>(row));
            for (std::int64_t r = offsets[index[i]]; r < offsets[index[i] + 1]; ++r, ++row) {
                CHECK(out_indptr[row] == static_cast<std::int64_t>(at));
                for (std::int64_t k = indptr[r]; k < indptr[r + 1]; ++k, ++at)
                    CHECK(out_indices[at] == k && out_values[at] == static_cast<double>(k) / 3);
            }
        }
        CHECK(static_cast<std::int64_t>(row) == totals.rows &&
              static_cast<std::int64_t>(at) == totals.values);
    }
}

// Wrong boundaries are detected, both by a full check and by a plan.
static void test_damage() {
    const Exact<std::int64_t> good(std::vector<std::int64_t>{0, 2, 2, 5});
    CHECK(first_bad_bound(good.get(), 3, 5) == -1);
    CHECK(first_bad_bound(good.get(), 3, 4) == 3);
    CHECK(first_bad_bound(Exact<std::int64_t>(std::vector<std::int64_t>{1, 2, 5}).get(), 2, 5) == 0);
    CHECK(first_bad_bound(Exact<std::int64_t>(std::vector<std::int64_t>{0, 6, 5}).get(), 2, 5) == 1);
    CHECK(first_bad_bound(Exact<std::int64_t>(std::vector<std::int64_t>{0}).get(), 0, 0) == -1);

    const Exact<std::byte> rows(5);
    const Exact<std::int64_t> index(std::vector<std::int64_t>{0, 1, 2});
    const Picks picks{nullptr, index.get(), 3};
    const std::vector<std::vector<std::int64_t>> lies = {
        {0, -2, 2, 5}, {0, 2, 9, 9}, {0, 2, INT64_MAX, 5}, {0, INT64_MIN, 2, 5}, {0, 4, 2, 5}};
    for (const auto& lie : lies) {
        const Exact<std::int64_t> offsets(lie);
        const DenseSource source{rows.get(), offsets.get(), 5};
        Exact<const std::byte*> from(3);
        Exact<std::int64_t> out(4);
        CHECK(plan_ragged(picks, &source, 1, from.get(), out.get()) >= 0);
        const Exact<std::int64_t> indptr(std::vector<std::int64_t>{0, 1, 1, 1, 1, 1});
        const Exact<std::int32_t> indices(1);
        Exact<SparseRun> runs(4);
        const SparseSource by_offsets{indptr.get(), indices.get(), rows.get(), offsets.get(), 5, 1};
        CHECK(plan_sparse(picks, &by_offsets, 4, runs.get(), out.get()).fault >= 0);
        const SparseSource by_indptr{offsets.get(), indices.get(), rows.get(), nullptr, 3, 5};
        CHECK(plan_sparse(picks, &by_indptr, 4, runs.get(), nullptr).fault >= 0);
    }
}

static void test_entries() {
    for (int round = 0; round < 400; ++round) {
        const auto n = static_cast<std::size_t>(below(round < 200 ? 80 : 3000));
        const auto width = static_cast<std::uint32_t>(round % 3 == 0 ? std::int64_t{1} << 31 : 1 + below(50));
        Exact<std::int32_t> indices(n);
        for (std::size_t i = 0; i < n; ++i) indices[i] = static_cast<std::int32_t>(below(width));
        Exact<std::byte> bools(n);
        for (std::size_t i = 0; i < n; ++i) bools[i] = static_cast<std::byte>(below(2));
        const auto begin = static_cast<std::size_t>(below(static_cast<std::int64_t>(n) + 1));
        CHECK(first_bad_index(indices.get(), begin, n, width) == n);
        CHECK(first_bad_bool(bools.get(), begin, n) == n);
        CHECK(n == 0 || first_bad_index(indices.get(), begin, n, 0) == begin);
        if (begin == n) continue;
        const std::size_t bad = begin + static_cast<std::size_t>(below(static_cast<std::int64_t>(n - begin)));
        indices[bad] = round % 2 == 0 || width > INT32_MAX ? static_cast<std::int32_t>(-1 - below(1000))
                                                          : static_cast<std::int32_t>(width + below(1000));
        bools[bad] = static_cast<std::byte>(2 + below(254));
        CHECK(first_bad_index(indices.get(), begin, n, width) == bad);
        CHECK(first_bad_bool(bools.get(), begin, n) == bad);
        CHECK(first_bad_index(indices.get(), bad + 1, n, width) == n);
    }
    for (int round = 0; round < 200; ++round) {
        const auto n = static_cast<std::size_t>(below(round < 100 ? 10 : 3000));
        const Exact<std::int64_t> bounds = random_bounds(n, 5);
        Exact<std::int32_t> lengths(n);
        for (std::size_t i = 0; i < n; ++i) lengths[i] = static_cast<std::int32_t>(bounds[i + 1] - bounds[i]);
        CHECK(first_uneven(bounds.get(), lengths.get(), n) == -1);
        CHECK(ascends(bounds.get() + 1, n, 0, bounds[n]));
        CHECK(!ascends(bounds.get() + 1, n, 0, bounds[n] + 1));
        if (n == 0) continue;
        CHECK(!ascends(bounds.get() + 1, n, bounds[1] + 1, bounds[n]));
        const auto at = static_cast<std::size_t>(below(static_cast<std::int64_t>(n)));
        lengths[at] += 1;
        CHECK(first_uneven(bounds.get(), lengths.get(), n) == static_cast<std::ptrdiff_t>(at));
        bounds[at + 1] = -1;
        CHECK(!ascends(bounds.get() + 1, n, 0, bounds[n]));
    }
    const Exact<std::byte> eight(8);
    const Seal seals[2] = {{eight.get(), 0}, {eight.get(), 1}};
    CHECK(first_broken(seals, 1) == nullptr && first_broken(seals, 2) == eight.get());
}

static void test_pad() {
    for (const std::size_t element : {1u, 2u, 4u, 8u, 3u, 16u}) {
        for (const std::size_t width : {0u, 1u, 3u}) {
            const std::size_t row_bytes = element * width;
            const auto n = static_cast<std::size_t>(below(9));
            const Exact<std::int64_t> offsets = random_bounds(n, 5);
            Exact<std::byte> rows(static_cast<std::size_t>(offsets[n]) * row_bytes), fill(element);
            for (std::size_t b = 0; b < rows.size; ++b) rows[b] = static_cast<std::byte>(below(256));
            for (std::size_t b = 0; b < element; ++b) fill[b] = static_cast<std::byte>(b);
            const std::size_t length = 7;
            Exact<std::byte> out(n * length * row_bytes);
            Exact<bool> mask(n * length);
            pad(rows.get(), offsets.get(), n, row_bytes, fill.get(), element, length, out.get(), mask.get());
            for (std::size_t i = 0; i < n; ++i) {
                for (std::size_t t = 0; t < length; ++t) {
                    const auto row = static_cast<std::size_t>(offsets[i]) + t;
                    const bool real = row < static_cast<std::size_t>(offsets[i + 1]);
                    CHECK(mask[i * length + t] == real);
                    for (std::size_t b = 0; b < row_bytes; ++b)
                        CHECK(out[(i * length + t) * row_bytes + b] ==
                              (real ? rows[row * row_bytes + b] : fill[b % element]));
                }
            }
        }
    }
}

static void test_strings() {
    for (int round = 0; round < 200; ++round) {
        const auto n = static_cast<std::size_t>(below(40));
        const Exact<std::int64_t> bounds = random_bounds(n, round % 3 == 0 ? 0 : 30);
        Exact<std::byte> text(static_cast<std::size_t>(bounds[n]));
        for (std::size_t i = 0; i < text.size; ++i) text[i] = static_cast<std::byte>(below(128));
        CHECK(first_bad_text(text.get(), 0, bounds.get() + 1, n) == n);

        // A gather: byte strings are sparse rows without indices.
        const auto count = n == 0 ? 0 : static_cast<std::size_t>(below(60));
        Exact<std::int64_t> index(count);
        std::int64_t bytes = 0;
        for (std::size_t k = 0; k < count; ++k) {
            index[k] = below(static_cast<std::int64_t>(n));
            bytes += bounds[static_cast<std::size_t>(index[k]) + 1] - bounds[static_cast<std::size_t>(index[k])];
        }
        const SparseSource source{bounds.get(), nullptr, text.get(), nullptr, static_cast<std::int64_t>(n), bounds[n]};
        const Picks picks{nullptr, index.get(), count};
        Exact<SparseRun> runs(count + 1);
        const SparseTotals totals = plan_sparse(picks, &source, 1, runs.get(), nullptr);
        CHECK(totals.fault == -1 && totals.values == bytes && totals.rows == static_cast<std::int64_t>(count));
        Exact<std::int64_t> ends(count + 1);
        Exact<std::byte> out(static_cast<std::size_t>(bytes));
        copy_sparse(runs.get(), 1, ends.get(), nullptr, out.get(), 0, count);
        for (std::size_t k = 0; k < count; ++k) {
            const auto from = static_cast<std::size_t>(bounds[static_cast<std::size_t>(index[k])]);
            const auto to = static_cast<std::size_t>(ends[k]), size = static_cast<std::size_t>(ends[k + 1]) - to;
            CHECK(size == 0 || std::memcmp(out.get() + to, text.get() + from, size) == 0);
        }

        // The same strings as spans, in memory of exactly their size: equal bytes.
        Exact<std::int64_t> spans(2 * n);
        for (std::size_t i = 0; i < n; ++i) {
            spans[2 * i] = bounds[i];
            spans[2 * i + 1] = bounds[i + 1];
        }
        CHECK(first_bad_span(spans.get(), n, bounds[n]) == n);
        const SparseSource apart{spans.get(), nullptr, text.get(), nullptr, static_cast<std::int64_t>(n), bounds[n], true};
        CHECK(plan_sparse(picks, &apart, 1, runs.get(), nullptr).values == bytes);
        Exact<std::int64_t> again(count + 1);
        Exact<std::byte> copy(static_cast<std::size_t>(bytes));
        copy_sparse(runs.get(), 1, again.get(), nullptr, copy.get(), 0, count);
        CHECK(bytes == 0 || std::memcmp(copy.get(), out.get(), static_cast<std::size_t>(bytes)) == 0);
        for (std::size_t k = 0; k <= count; ++k) CHECK(again[k] == ends[k]);
        if (n != 0) {
            spans[2 * n - 1] = bounds[n] + 1;
            CHECK(first_bad_span(spans.get(), n, bounds[n]) == n - 1);
        }

        // One byte that is invalid at its place.
        if (text.size == 0) continue;
        const auto at = static_cast<std::size_t>(below(static_cast<std::int64_t>(text.size)));
        text[at] = std::byte{0xE2};
        std::size_t bad = 0;
        while (static_cast<std::size_t>(bounds[bad + 1]) <= at) ++bad;
        CHECK(first_bad_text(text.get(), 0, bounds.get() + 1, n) == bad);
        const auto first = static_cast<std::size_t>(bounds[bad]);
        CHECK(first_bad_utf8(text.get() + first, static_cast<std::size_t>(bounds[bad + 1]) - first) == at - first);
    }
}

int main() {
    test_permutations();
    test_cntk();
    test_cntk_numbers();
    test_locate();
    test_gather();
    test_strided();
    test_windows();
    test_sparse();
    test_strings();
    test_damage();
    test_entries();
    test_pad();
    std::puts("kernels: ok");
    return 0;
}
