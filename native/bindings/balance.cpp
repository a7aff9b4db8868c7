#include "feedline/balance.h"

#include <limits>

#include "arrays.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace {

constexpr std::int64_t kMaxRanks = std::numeric_limits<std::int32_t>::max();

void check_counts(const Ints& counts, std::int64_t ranks, std::size_t n) {
    if (counts.size() != static_cast<std::size_t>(ranks))
        raise<nb::value_error>({"balance: expected a count for each of ", ranks, " ranks, got ", counts.size()});
    std::uint64_t left = n;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        const std::int64_t count = counts.int64()[rank];
        if (count < 0 || static_cast<std::uint64_t>(count) > left)
            raise<nb::value_error>({"balance: expected counts of at least 0 with the sum ", n, ", got counts[", rank,
                                    "] = ", count});
        left -= static_cast<std::uint64_t>(count);
    }
    if (left != 0)
        raise<nb::value_error>({"balance: expected counts with the sum ", n, ", got ", n - left});
}

nb::object py_balance(nb::handle work, std::int64_t ranks, nb::handle counts) {
    const Ints sizes(work, "work", {Ints::kInt64}, "balance");
    const std::size_t n = sizes.size();
    if (ranks < 1 || ranks > kMaxRanks)
        raise<nb::value_error>({"balance: expected 1 to ", kMaxRanks, " ranks, got ", ranks});
    if (n > kMaxBalanced) raise<nb::value_error>({"balance: expected fewer than 2**31 sequences, got ", n});
    const nb::object owner = new_array(n, numpy().int32);
    auto* owners = data_of<std::int32_t>(owner);
    const auto run = [&](const std::int64_t* of_rank) {
        const Unlocked unlocked;
        const std::ptrdiff_t bad = first_bad_work(sizes.int64(), n);
        if (bad < 0) balance(sizes.int64(), n, of_rank, static_cast<std::size_t>(ranks), owners);
        return bad;
    };
    std::ptrdiff_t bad;
    if (counts.is_none()) {
        bad = run(nullptr);
    } else {
        const Ints of_rank(counts, "counts", {Ints::kInt64}, "balance");
        check_counts(of_rank, ranks, n);
        bad = run(of_rank.int64());
    }
    if (bad >= 0)
        raise<nb::value_error>({"balance: expected work of at least 0 with a sum below 2**63, got work[", bad, "] = ",
                                sizes.int64()[bad]});
    return owner;
}

}  // namespace

void bind_balance(nb::module_& m) {
    m.def("balance", &py_balance, "work"_a, "ranks"_a, "counts"_a.none() = nb::none(),
          "Return the rank of each sequence (int32[n]), so that ranks have about as much work each: sequences by\n"
          "falling work, equal ones by number, each to the rank with the least work so far, the lowest of several.\n\n"
          "work: int64[n], at least 0, with a sum below 2**63. ranks: 1 to 2**31-1. counts: int64[ranks] with the\n"
          "sum n, the number of sequences of each rank; None: any numbers. ValueError for other arguments.");
}
