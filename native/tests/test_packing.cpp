// Documents in rows, and sequences in minibatches, on memory that ends where the data ends: rows and minibatches have
// the right documents or sequences, none has too many, and the number of rows of best fit does not depend on the order.
// Meant for ASan + UBSan (`make sanitize`).
#include "feedline/packing.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"

using namespace feedline;

static std::mt19937_64 rng(7);

// Checks that documents are one after another in their rows, and that no row is empty.
static void check_rows(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& row_of,
                       const std::vector<std::int64_t>& offset, std::int64_t rows, std::int64_t row) {
    const std::size_t n = lengths.size();
    CHECK(first_bad_row(row_of.data(), n, rows) == -1);
    std::vector<std::int64_t> starts(static_cast<std::size_t>(rows) + 1), documents(n);
    row_contents(row_of.data(), offset.data(), n, rows, starts.data(), documents.data());
    CHECK(starts.front() == 0 && starts.back() == static_cast<std::int64_t>(n));
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
        CHECK(starts[r] < starts[r + 1]);
        std::int64_t end = 0;
        for (std::int64_t k = starts[r]; k < starts[r + 1]; ++k) {
            const auto document = static_cast<std::size_t>(documents[static_cast<std::size_t>(k)]);
            CHECK(row_of[document] == static_cast<std::int64_t>(r) && offset[document] == end);
            end += lengths[document];
        }
        CHECK(end <= row);
    }
}

static void test_placement() {
    for (const std::int64_t row : {1, 2, 63, 64, 65, 128, 4096, 4097, 262144, 262145, 1 << 24}) {
        for (const std::size_t n : {0, 1, 2, 100, 3000}) {
            std::vector<std::int64_t> lengths(n), row_of(n), offset(n);
            for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(row));
            if (n > 0) lengths[n / 2] = row;
            std::vector<std::int64_t> order(n);
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), rng);
            const std::vector<std::uint32_t> narrow(order.begin(), order.end());
            CHECK(first_repeated(order.data(), n) == -1 && first_repeated(narrow.data(), n) == -1);

            const std::int64_t* in_turn = nullptr;
            const std::int64_t best = best_fit(lengths.data(), in_turn, n, row, row_of.data(), offset.data());
            check_rows(lengths, row_of, offset, best, row);
            CHECK(best_fit(lengths.data(), order.data(), n, row, row_of.data(), offset.data()) == best);
            check_rows(lengths, row_of, offset, best, row);
            CHECK(best_fit(lengths.data(), narrow.data(), n, row, row_of.data(), offset.data()) == best);

            std::int64_t rows = first_fit(lengths.data(), in_turn, n, row, row_of.data(), offset.data());
            check_rows(lengths, row_of, offset, rows, row);
            rows = first_fit(lengths.data(), narrow.data(), n, row, row_of.data(), offset.data());
            check_rows(lengths, row_of, offset, rows, row);
        }
    }
}

static void test_checks() {
    const std::vector<std::int64_t> lengths{1, 5, 6, 0, -1, INT64_MIN, INT64_MAX};
    CHECK(first_bad_length(lengths.data(), 2, 5) == -1);
    CHECK(first_bad_length(lengths.data(), 3, 5) == 2);
    for (std::size_t i = 3; i < lengths.size(); ++i) CHECK(first_bad_length(lengths.data() + i, 1, 5) == 0);
    for (const std::int64_t wrong : {std::int64_t{0}, std::int64_t{3}, std::int64_t{-1}, INT64_MIN}) {
        const std::vector<std::int64_t> order{1, 0, wrong};
        CHECK(first_repeated(order.data(), 3) == 2);
    }
    const std::vector<std::int64_t> rows{0, 2, 3, -1};
    CHECK(first_bad_row(rows.data(), 2, 3) == -1);
    CHECK(first_bad_row(rows.data(), 3, 3) == 2);
    CHECK(first_bad_row(rows.data() + 3, 1, 3) == 0);
}

// Runs have as many sequences as fit, and read no bound beyond the limit.
static void test_runs() {
    for (int turn = 0; turn < 2000; ++turn) {
        const std::size_t n = rng() % 40;
        std::vector<std::int64_t> ends(n + 1);
        for (std::size_t i = 0; i < n; ++i) ends[i + 1] = ends[i] + static_cast<std::int64_t>(rng() % 6);
        const std::size_t begin = rng() % (n + 1);
        const auto room = static_cast<std::int64_t>(rng() % 20);
        std::int64_t out[8];
        const std::size_t count = run_ends(ends.data(), begin, n, room, true, 8, out);
        CHECK(count >= 1 && count <= 8);
        std::size_t at = begin;
        for (std::size_t i = 0; i < count; ++i) {
            const auto stop = static_cast<std::size_t>(out[i]);
            CHECK(stop >= at && stop <= n && (stop > at || at == n));
            CHECK(ends[stop] - ends[at] <= room || stop == at + 1);
            // The next sequence does not fit, or the run was full before it.
            CHECK(stop == n || ends[stop + 1] - ends[at] > room || ends[stop] - ends[at] >= room);
            at = stop;
        }
        CHECK(count == 8 || at == n);
    }
    const std::vector<std::int64_t> ends{0, 1, 2};
    std::int64_t out[1];
    CHECK(run_ends(ends.data(), 1, 2, INT64_MAX, false, 1, out) == 1 && out[0] == 2);
}

int main() {
    test_placement();
    test_checks();
    test_runs();
    std::puts("test_packing: ok");
}
