#include "feedline/balance.h"

#include <array>
#include <limits>
#include <utility>
#include <vector>

namespace feedline {

std::ptrdiff_t first_bad_work(const std::int64_t* work, std::size_t n) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i)
        if (work[i] < 0 || __builtin_add_overflow(sum, work[i], &sum)) return static_cast<std::ptrdiff_t>(i);
    return -1;
}

namespace {

struct Item {
    std::uint64_t shortness;  // falls as work rises
    std::uint32_t number;
};

// Sorts by rising shortness, equal ones in their order: a counting sort for each byte in which items differ.
void sort(std::vector<Item>& items) {
    std::uint64_t same_zeros = 0, same_ones = ~std::uint64_t{0};
    for (const Item& item : items) {
        same_zeros |= item.shortness;
        same_ones &= item.shortness;
    }
    const std::uint64_t differing = same_zeros ^ same_ones;
    std::vector<Item> sorted(items.size());
    for (int shift = 0; shift < 64; shift += 8) {
        if ((differing >> shift & 0xff) == 0) continue;
        std::array<std::uint32_t, 256> starts{};
        for (const Item& item : items) ++starts[item.shortness >> shift & 0xff];
        std::uint32_t start = 0;
        for (std::uint32_t& count : starts) start += std::exchange(count, start);
        for (const Item& item : items) sorted[starts[item.shortness >> shift & 0xff]++] = item;
        items.swap(sorted);
    }
}

// The rank with the least load: a tournament among ranks, in which the lower one of two equals wins.
class Tournament {
public:
    explicit Tournament(std::size_t ranks) {
        while (leaves_ < ranks) leaves_ *= 2;
        loads_.assign(leaves_, kFull);
        winners_.resize(2 * leaves_);
        for (std::size_t i = 0; i < leaves_; ++i) {
            if (i < ranks) loads_[i] = 0;
            winners_[leaves_ + i] = static_cast<std::uint32_t>(i);
        }
        for (std::size_t node = leaves_ - 1; node > 0; --node) play(node);
    }

    std::uint32_t winner() const { return winners_[1]; }

    void add(std::uint32_t rank, std::uint64_t work) {
        loads_[rank] += work;
        replay(rank);
    }

    // The rank takes no more.
    void close(std::uint32_t rank) {
        loads_[rank] = kFull;
        replay(rank);
    }

private:
    static constexpr std::uint64_t kFull = std::numeric_limits<std::uint64_t>::max();  // loads are below 2^63

    void play(std::size_t node) {
        const std::uint32_t left = winners_[2 * node], right = winners_[2 * node + 1];
        winners_[node] = loads_[right] < loads_[left] ? right : left;
    }

    void replay(std::uint32_t rank) {
        for (std::size_t node = (leaves_ + rank) / 2; node > 0; node /= 2) play(node);
    }

    std::size_t leaves_ = 1;
    std::vector<std::uint64_t> loads_;
    std::vector<std::uint32_t> winners_;  // of node 1, and of the nodes 2 i and 2 i + 1 below each node i
};

}  // namespace

void balance(const std::int64_t* work, std::size_t n, const std::int64_t* counts, std::size_t ranks,
             std::int32_t* owner) {
    std::vector<Item> items(n);
    for (std::size_t i = 0; i < n; ++i)
        items[i] = {~static_cast<std::uint64_t>(work[i]), static_cast<std::uint32_t>(i)};
    sort(items);
    Tournament ranks_by_load(ranks);
    std::vector<std::int64_t> room;
    if (counts != nullptr) {
        room.assign(counts, counts + ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank)
            if (room[rank] == 0) ranks_by_load.close(static_cast<std::uint32_t>(rank));
    }
    for (const Item& item : items) {
        const std::uint32_t rank = ranks_by_load.winner();
        owner[item.number] = static_cast<std::int32_t>(rank);
        if (!room.empty() && --room[rank] == 0)
            ranks_by_load.close(rank);
        else
            ranks_by_load.add(rank, ~item.shortness);
    }
}

}  // namespace feedline
