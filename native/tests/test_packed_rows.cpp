// Rows filled from pieces, on memory that ends where the data ends: every place is written, and compared with its
// expected value. Meant for ASan + UBSan (`make sanitize`).
#include "feedline/packed_rows.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"

using namespace feedline;

static std::mt19937_64 rng(7);
static std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(n));
}

// Arrays of pieces that Pieces points into, each exactly as long as needed.
struct Columns {
    std::vector<std::int64_t> row, offset, start, length, position;
    std::vector<std::uint8_t> goes_on;

    Pieces pieces() {
        for (auto* column : {&row, &offset, &start, &length, &position}) column->shrink_to_fit();
        goes_on.shrink_to_fit();
        return {row.data(),      offset.data(),  start.data(), length.data(),
                position.data(), goes_on.data(), row.size()};
    }
};

static Columns random_columns(std::int64_t count, std::int64_t row, std::int64_t tokens) {
    Columns columns;
    for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t at = below(3); at < row; at += below(2)) {
            const std::int64_t length = 1 + below(std::min(row - at, tokens)), start = below(tokens - length + 1);
            columns.row.push_back(r);
            columns.offset.push_back(at);
            columns.start.push_back(start);
            columns.length.push_back(length);
            columns.position.push_back(below(2) != 0 ? 0 : (std::int64_t{1} << 31) - length);
            columns.goes_on.push_back(start + length < tokens && below(2) != 0);
            at += length;
        }
    }
    return columns;
}

template <class In, class Out>
static void test_rows() {
    for (int round = 0; round < 100; ++round) {
        const std::int64_t count = below(5), row = 1 + below(40), size = 1 + below(60);
        Columns columns = random_columns(count, row, size);
        const Pieces pieces = columns.pieces();
        CHECK(first_bad_piece(pieces, count, row, size).rule == PieceRule::none);
        const auto rows = static_cast<std::size_t>(count), places = static_cast<std::size_t>(count * row);
        std::vector<In> tokens(static_cast<std::size_t>(size));
        for (In& token : tokens) token = static_cast<In>(rng());
        std::vector<std::int64_t> first(rows + 1), sequences(rows + 1), labels(places, 77);
        const std::int64_t longest = plan_rows(pieces, count, row, first.data(), sequences.data());
        std::vector<std::int32_t> segment(places, 77), positions(places, 77),
            bounds(static_cast<std::size_t>(sequences.back()) + 1, 77);
        std::vector<Out> out(places, 77);
        const PackedRows job{pieces,        first.data(),  sequences.data(), count,          row,
                                      tokens.data(), 3,             -100,             out.data(),     labels.data(),
                                      segment.data(), positions.data(), bounds.data()};
        const std::int64_t middle = below(count + 1);
        fill_rows<In, Out>(job, middle, count);
        fill_rows<In, Out>(job, 0, middle);

        std::vector<std::byte> values(tokens.size() * sizeof(In)), fill(sizeof(In)), moved(places * sizeof(In));
        std::memcpy(values.data(), tokens.data(), values.size());
        fill.back() = std::byte{1};
        fill_values(pieces, first.data(), row, values.data(), sizeof(In), fill.data(), sizeof(In), moved.data(), 0,
                    count);
        fill_values(pieces, first.data(), row, nullptr, 0, fill.data(), sizeof(In), nullptr, 0, count);

        std::size_t i = 0, begun = 0;
        std::int64_t most = 0;
        CHECK(bounds.front() == 0 && bounds.back() == count * row);
        for (std::size_t place = 0; place < places; ++place) {
            const auto r = static_cast<std::int64_t>(place) / row, t = static_cast<std::int64_t>(place) % row;
            while (i < pieces.size &&
                   (pieces.row[i] < r || (pieces.row[i] == r && pieces.offset[i] + pieces.length[i] <= t)))
                ++i;
            const bool real = i < pieces.size && pieces.row[i] == r && pieces.offset[i] <= t;
            const std::int64_t k = real ? t - pieces.offset[i] : 0;
            const auto at = static_cast<std::size_t>(real ? pieces.start[i] + k : 0);
            const bool follows = real && (k + 1 < pieces.length[i] || pieces.goes_on[i]);
            CHECK(out[place] == (real ? static_cast<Out>(tokens[at]) : Out{3}));
            CHECK(labels[place] == (follows ? static_cast<std::int64_t>(tokens[at + 1]) : -100));
            CHECK(segment[place] == (real ? static_cast<std::int64_t>(i) - first[static_cast<std::size_t>(r)] + 1 : 0));
            CHECK(positions[place] == (real ? pieces.position[i] + k : 0));
            CHECK(std::memcmp(moved.data() + place * sizeof(In), real ? values.data() + at * sizeof(In) : fill.data(),
                              sizeof(In)) == 0);
            const bool begins = t == 0 || segment[place] != segment[place - 1];
            if (t == 0) CHECK(sequences[static_cast<std::size_t>(r)] == static_cast<std::int64_t>(begun));
            if (begins) CHECK(bounds[begun++] == static_cast<std::int64_t>(place));
            most = std::max<std::int64_t>(most, bounds[begun] - bounds[begun - 1]);
        }
        CHECK(begun + 1 == bounds.size() && most == longest);
    }
}

// Each rule, with one wrong number at a time. Sums of the extreme ones would overflow.
static void test_rules() {
    const auto fault = [](std::int64_t row, std::int64_t offset, std::int64_t start, std::int64_t length,
                          std::int64_t position, bool goes_on) {
        Columns columns{{0, row}, {0, offset}, {0, start}, {4, length}, {0, position}, {0, goes_on}};
        const PieceFault found = first_bad_piece(columns.pieces(), 2, 8, 10);
        CHECK(found.rule == PieceRule::none || found.piece == 1);
        return found.rule;
    };
    CHECK(fault(0, 4, 6, 4, (std::int64_t{1} << 31) - 4, false) == PieceRule::none);
    CHECK(fault(1, 0, 2, 8, 0, false) == PieceRule::none);
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{2}, INT64_MIN, INT64_MAX})
        CHECK(fault(wrong, 4, 0, 4, 0, false) == PieceRule::row);
    for (const std::int64_t wrong : {std::int64_t{3}, std::int64_t{8}, INT64_MIN, INT64_MAX})
        CHECK(fault(0, wrong, 0, 1, 0, false) == PieceRule::offset);
    for (const std::int64_t wrong : {std::int64_t{0}, std::int64_t{5}, INT64_MIN, INT64_MAX})
        CHECK(fault(0, 4, 0, wrong, 0, false) == PieceRule::length);
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{7}, INT64_MIN, INT64_MAX})
        CHECK(fault(0, 4, wrong, 4, 0, false) == PieceRule::start);
    CHECK(fault(0, 4, 6, 4, 0, true) == PieceRule::start);
    for (const std::int64_t wrong : {std::int64_t{-1}, (std::int64_t{1} << 31) - 3, INT64_MIN, INT64_MAX})
        CHECK(fault(0, 4, 6, 4, wrong, false) == PieceRule::position);
}

int main() {
    test_rows<std::uint8_t, std::uint8_t>();
    test_rows<std::int8_t, std::int64_t>();
    test_rows<std::uint16_t, std::int64_t>();
    test_rows<std::int16_t, std::int16_t>();
    test_rows<std::uint32_t, std::uint32_t>();
    test_rows<std::int32_t, std::int64_t>();
    test_rows<std::int64_t, std::int64_t>();
    test_rules();
    std::puts("test_packed_rows: ok");
}
