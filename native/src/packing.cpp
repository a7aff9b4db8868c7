#include "feedline/packing.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace feedline {

std::ptrdiff_t first_bad_length(const std::int64_t* lengths, std::size_t n, std::int64_t row) {
    const auto places = static_cast<std::uint64_t>(row);
    for (std::size_t i = 0; i < n; ++i)
        if (static_cast<std::uint64_t>(lengths[i]) - 1 >= places) return static_cast<std::ptrdiff_t>(i);
    return -1;
}

template <class T>
std::ptrdiff_t first_repeated(const T* order, std::size_t n) {
    std::vector<bool> seen(n);
    for (std::size_t i = 0; i < n; ++i) {
        const auto document = static_cast<std::uint64_t>(order[i]);
        if (document >= n || seen[document]) return static_cast<std::ptrdiff_t>(i);
        seen[document] = true;
    }
    return -1;
}

// ---- best fit -------------------------------------------------------------------------------------------

namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

// A set of numbers 1..limit that finds its least number above a bound: a tree of one bit for each number, and for every
// 64 bits one bit on the level above, which is set if any of them is, up to one word.
class Rooms {
public:
    explicit Rooms(std::int64_t limit) {
        std::size_t bits = static_cast<std::size_t>(limit), words = 0;
        do {
            bits = (bits + 63) / 64;
            first_[levels_++] = words;
            words += bits;
        } while (bits > 1);
        first_[levels_] = words;
        words_.resize(words);
    }

    void insert(std::uint32_t room) {
        std::size_t bit = room - 1;
        for (std::size_t level = 0; level < levels_; ++level, bit /= 64) {
            std::uint64_t& word = words_[first_[level] + bit / 64];
            const bool marked = word != 0;
            word |= std::uint64_t{1} << bit % 64;
            if (marked) return;  // as are all words above
        }
    }

    void remove(std::uint32_t room) {
        std::size_t bit = room - 1;
        for (std::size_t level = 0; level < levels_; ++level, bit /= 64) {
            std::uint64_t& word = words_[first_[level] + bit / 64];
            word &= ~(std::uint64_t{1} << bit % 64);
            if (word != 0) return;
        }
    }

    // The least number >= room, or 0 if there is none.
    std::uint32_t at_least(std::uint32_t room) const {
        std::size_t bit = room - 1;
        for (std::size_t level = 0; level < levels_; ++level) {
            const std::size_t at = first_[level] + bit / 64;
            if (at >= first_[level + 1]) return 0;
            if (const std::uint64_t above = words_[at] >> bit % 64; above != 0) {
                bit += lowest(above);
                while (level-- > 0) bit = bit * 64 + lowest(words_[first_[level] + bit]);
                return static_cast<std::uint32_t>(bit + 1);
            }
            bit = bit / 64 + 1;
        }
        return 0;
    }

private:
    static std::size_t lowest(std::uint64_t word) { return static_cast<std::size_t>(__builtin_ctzll(word)); }

    std::size_t first_[5] = {};  // the first word of each level, and the end: up to 64^4 bits
    std::size_t levels_ = 0;
    std::vector<std::uint64_t> words_;
};

// Documents by decreasing length, equal ones in `order`: a counting sort.
template <class T>
std::vector<std::uint32_t> longest_first(const std::int64_t* lengths, const T* order, std::size_t n,
                                         std::int64_t row) {
    std::vector<std::uint32_t> place(static_cast<std::size_t>(row) + 1);
    for (std::size_t i = 0; i < n; ++i) ++place[static_cast<std::size_t>(lengths[i])];
    std::uint32_t longer = 0;
    for (std::size_t length = place.size(); length-- > 1;) {
        const std::uint32_t equal = place[length];
        place[length] = longer;
        longer += equal;
    }
    std::vector<std::uint32_t> sorted(n);
    for (std::size_t i = 0; i < n; ++i) {
        const auto document = order == nullptr ? static_cast<std::uint32_t>(i) : static_cast<std::uint32_t>(order[i]);
        sorted[place[static_cast<std::size_t>(lengths[document])]++] = document;
    }
    return sorted;
}

}  // namespace

template <class T>
std::int64_t best_fit(const std::int64_t* lengths, const T* order, std::size_t n, std::int64_t row,
                      std::int64_t* row_of, std::int64_t* offset) {
    const std::vector<std::uint32_t> documents = longest_first(lengths, order, n, row);
    // Rows of equal room form a stack: `last` has its top by room, `below` the row below each row. Full rows are in
    // none.
    std::vector<std::uint32_t> last(static_cast<std::size_t>(row) + 1, kNone), below;
    Rooms rooms(row);
    for (const std::uint32_t document : documents) {
        const auto length = static_cast<std::uint32_t>(lengths[document]);
        std::uint32_t room = rooms.at_least(length), to;
        if (room == 0) {
            room = static_cast<std::uint32_t>(row);
            to = static_cast<std::uint32_t>(below.size());
            below.push_back(kNone);
        } else {
            to = last[room];
            last[room] = below[to];
            if (last[room] == kNone) rooms.remove(room);
        }
        row_of[document] = to;
        offset[document] = row - room;
        room -= length;
        if (room == 0) continue;
        if (last[room] == kNone) rooms.insert(room);
        below[to] = last[room];
        last[room] = to;
    }
    return static_cast<std::int64_t>(below.size());
}

// ---- first fit ------------------------------------------------------------------------------------------

namespace {

// The rooms of rows, in a tree whose nodes have the largest room below them. Rows that are not open yet are empty, so a
// first row with enough room always exists.
class RowTree {
public:
    explicit RowTree(std::int32_t row) : row_(row), largest_(2 * leaves_, row) {}

    // Takes `length` places of the first row that has them, and sets `offset` to the places taken of it before. Returns
    // the row.
    std::size_t take(std::int32_t length, std::int64_t* offset) {
        if (largest_[1] < length) grow();
        std::size_t node = 1;
        while (node < leaves_) node = 2 * node + (largest_[2 * node] < length);
        const std::size_t to = node - leaves_;
        *offset = row_ - largest_[node];
        largest_[node] -= length;
        while (node > 1) {
            node /= 2;
            const std::int32_t larger = std::max(largest_[2 * node], largest_[2 * node + 1]);
            if (largest_[node] == larger) break;
            largest_[node] = larger;
        }
        return to;
    }

private:
    void grow() {
        std::vector<std::int32_t> larger(4 * leaves_, row_);
        std::copy(largest_.begin() + static_cast<std::ptrdiff_t>(leaves_), largest_.end(),
                  larger.begin() + static_cast<std::ptrdiff_t>(2 * leaves_));
        leaves_ *= 2;
        for (std::size_t node = leaves_; node-- > 1;)
            larger[node] = std::max(larger[2 * node], larger[2 * node + 1]);
        largest_.swap(larger);
    }

    std::int32_t row_;
    std::size_t leaves_ = 64;
    std::vector<std::int32_t> largest_;  // node k is above 2k and 2k + 1; leaves last
};

}  // namespace

template <class T>
std::int64_t first_fit(const std::int64_t* lengths, const T* order, std::size_t n, std::int64_t row,
                       std::int64_t* row_of, std::int64_t* offset) {
    RowTree rooms(static_cast<std::int32_t>(row));
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t document = order == nullptr ? i : static_cast<std::size_t>(order[i]);
        const auto to =
            static_cast<std::int64_t>(rooms.take(static_cast<std::int32_t>(lengths[document]), offset + document));
        row_of[document] = to;
        rows = std::max(rows, to + 1);
    }
    return rows;
}

// ---- the documents of a row -----------------------------------------------------------------------------

std::ptrdiff_t first_bad_row(const std::int64_t* row_of, std::size_t n, std::int64_t rows) {
    for (std::size_t i = 0; i < n; ++i)
        if (row_of[i] < 0 || row_of[i] >= rows) return static_cast<std::ptrdiff_t>(i);
    return -1;
}

void row_contents(const std::int64_t* row_of, const std::int64_t* offset, std::size_t n, std::int64_t rows,
                  std::int64_t* starts, std::int64_t* documents) {
    // A counting sort: starts[r + 1] first counts the documents of row r, then is the place of its next one, and
    // finally is its end.
    std::fill(starts, starts + rows + 1, 0);
    for (std::size_t i = 0; i < n; ++i) ++starts[row_of[i] + 1];
    std::int64_t before = 0;
    for (std::int64_t r = 1; r <= rows; ++r) {
        const std::int64_t count = starts[r];
        starts[r] = before;
        before += count;
    }
    for (std::size_t i = 0; i < n; ++i) documents[starts[row_of[i] + 1]++] = static_cast<std::int64_t>(i);
    for (std::int64_t r = 0; r < rows; ++r)
        std::sort(documents + starts[r], documents + starts[r + 1], [&](std::int64_t a, std::int64_t b) {
            return offset[a] != offset[b] ? offset[a] < offset[b] : a < b;
        });
}

template std::ptrdiff_t first_repeated(const std::int64_t*, std::size_t);
template std::ptrdiff_t first_repeated(const std::uint32_t*, std::size_t);
template std::int64_t best_fit(const std::int64_t*, const std::int64_t*, std::size_t, std::int64_t, std::int64_t*,
                               std::int64_t*);
template std::int64_t best_fit(const std::int64_t*, const std::uint32_t*, std::size_t, std::int64_t, std::int64_t*,
                               std::int64_t*);
template std::int64_t first_fit(const std::int64_t*, const std::int64_t*, std::size_t, std::int64_t, std::int64_t*,
                                std::int64_t*);
template std::int64_t first_fit(const std::int64_t*, const std::uint32_t*, std::size_t, std::int64_t, std::int64_t*,
                                std::int64_t*);

std::size_t run_ends(const std::int64_t* ends, std::size_t at, std::size_t limit, std::int64_t room, bool alone,
                     std::size_t max_runs, std::int64_t* out) {
    std::size_t count = 0;
    while (count < max_runs && at <= limit) {
        // The end of the run is near, so steps double until one passes it, and a binary search finds it.
        std::int64_t target;
        if (__builtin_add_overflow(ends[at], room, &target)) target = std::numeric_limits<std::int64_t>::max();
        std::size_t low = at, step = 1;
        while (low + step <= limit && ends[low + step] < target) {
            low += step;
            step *= 2;
        }
        const std::int64_t* end = std::lower_bound(ends + low, ends + std::min(low + step, limit + 1), target);
        auto stop = static_cast<std::size_t>(end - ends);
        if (stop > limit || *end > target) stop = stop > at ? stop - 1 : at;
        if (stop == at && (alone || count != 0)) ++stop;
        stop = std::min(stop, limit);
        out[count++] = static_cast<std::int64_t>(stop);
        if (stop == limit || stop == at) break;
        at = stop;
    }
    return count;
}

}  // namespace feedline
