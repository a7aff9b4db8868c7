#include "feedline/mixture.h"
#include "feedline/order.h"

#include <limits>
#include <vector>

#include "arrays.h"
#include "buffer_view.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

static std::uint64_t py_hash_key(nb::sequence words) {
    std::vector<std::uint64_t> values;
    for (nb::handle word : words) {
        // Any type with __index__, such as numpy's integers.
        const nb::object integer = nb::steal(PyNumber_Index(word.ptr()));
        const std::uint64_t value = integer.is_valid() ? PyLong_AsUnsignedLongLong(integer.ptr()) : 0;
        if (PyErr_Occurred()) {
            nb::python_error cause;
            const std::string message = join({"expected integers from 0 to 2**64-1 in `words`, got ",
                                              text(nb::repr(word)), " at ", values.size()});
            if (cause.matches(PyExc_OverflowError)) raise<nb::value_error>(message);
            raise<nb::type_error>(message);
        }
        values.push_back(value);
    }
    return hash_key(values.data(), values.size());
}

static nb::object py_fisher_yates(std::uint64_t key, std::uint64_t n) {
    if (n > std::numeric_limits<std::uint32_t>::max())
        raise<nb::value_error>({"expected n < 2**32 for fisher_yates, got ", n, "; use feistel for larger ones"});
    nb::object out = new_array(n, numpy().uint32);
    auto* data = data_of<std::uint32_t>(out);
    const Unlocked unlocked;
    fisher_yates(key, static_cast<std::uint32_t>(n), data);
    return out;
}

static nb::object py_feistel(std::uint64_t key, std::uint64_t n, std::uint64_t first, std::uint64_t count) {
    if (n < 1 || n > kFeistelLimit)
        raise<nb::value_error>({"expected 1 <= n <= 2**40 for feistel, got ", n});
    if (first > n || count > n - first)
        raise<nb::value_error>({"expected first + count <= n = ", n, ", got first = ", first, ", count = ", count});
    nb::object out = new_array(count, numpy().int64);
    auto* data = data_of<std::int64_t>(out);
    const Unlocked unlocked;
    feistel(key, n, first, count, data);
    return out;
}

static nb::object py_fingerprint(std::uint64_t h, nb::handle ordinals) {
    const Ints in(ordinals, "ordinals", {Ints::kInt64});
    nb::object out = new_array(in.size(), numpy().uint64);
    auto* data = data_of<std::uint64_t>(out);
    const Unlocked unlocked;
    fingerprint(h, in.int64(), in.size(), data);
    return out;
}

static nb::tuple py_locate(nb::handle starts, nb::handle t) {
    const Ints begins(starts, "starts", {Ints::kInt64});
    const Ints places(t, "t", {Ints::kInt64, Ints::kUint32});
    if (begins.size() < 1 || begins.size() - 1 > std::numeric_limits<std::uint32_t>::max())
        raise<nb::value_error>({"expected slots + 1 numbers in `starts` with 1 <= slots + 1 <= 2**32, got ",
                                begins.size()});
    const std::size_t slots = begins.size() - 1;
    nb::object slot = new_array(places.size(), numpy().uint32);
    nb::object index = new_array(places.size(), numpy().int64);
    auto* slot_data = data_of<std::uint32_t>(slot);
    auto* index_data = data_of<std::int64_t>(index);
    std::ptrdiff_t outside;
    {
        const Unlocked unlocked;
        outside = places.type() == Ints::kInt64
                      ? locate(begins.int64(), slots, places.int64(), places.size(), slot_data, index_data)
                      : locate(begins.int64(), slots, places.uint32(), places.size(), slot_data, index_data);
    }
    if (outside >= 0) {
        const std::int64_t got = places.type() == Ints::kInt64
                                     ? places.int64()[outside]
                                     : static_cast<std::int64_t>(places.uint32()[outside]);
        raise<nb::index_error>({"expected places from ", begins.int64()[0], " to below ", begins.int64()[slots],
                                ", got t[", outside, "] = ", got});
    }
    return nb::make_tuple(slot, index);
}

static nb::object py_cntk_chunk_order(std::uint64_t seed, std::uint64_t chunks) {
    nb::object out = new_array(chunks, numpy().int64);
    auto* data = data_of<std::int64_t>(out);
    const Unlocked unlocked;
    cntk_chunk_order(seed, chunks, data);
    return out;
}

static nb::object py_cntk_sequence_order(std::uint64_t seed, nb::handle counts, nb::handle window_begin,
                                         nb::handle window_end) {
    const Ints sizes(counts, "counts", {Ints::kInt64});
    const Ints begin(window_begin, "window_begin", {Ints::kInt64});
    const Ints end(window_end, "window_end", {Ints::kInt64});
    const std::size_t chunks = sizes.size();
    if (begin.size() != chunks || end.size() != chunks)
        raise<nb::value_error>({"expected counts, window_begin and window_end of equal length, got ", chunks, ", ",
                                begin.size(), " and ", end.size()});
    std::int64_t total = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
        if (sizes.int64()[c] < 0 || __builtin_add_overflow(total, sizes.int64()[c], &total))
            raise<nb::value_error>({"expected counts >= 0 with a sum below 2**63, got counts[", c, "] = ",
                                    sizes.int64()[c]});
    }
    if (const std::ptrdiff_t c = cntk_windows_fault(begin.int64(), end.int64(), chunks); c >= 0)
        raise<nb::value_error>({"expected window_begin[c] <= c < window_end[c] <= ", chunks, ", both ascending, got [",
                                begin.int64()[c], ", ", end.int64()[c], ") for c = ", c});
    nb::object out = new_array(static_cast<std::size_t>(total), numpy().int64);
    auto* data = data_of<std::int64_t>(out);
    const Unlocked unlocked;
    cntk_sequence_order(seed, sizes.int64(), begin.int64(), end.int64(), chunks, data);
    return out;
}

static nb::object draw(CntkNumbers& numbers, std::uint64_t count) {
    nb::object out = new_array(count, numpy().uint64);
    numbers.draw(count, data_of<std::uint64_t>(out));
    return out;
}

static nb::tuple py_mixture_schedule(nb::handle quotas) {
    const Ints shares(quotas, "quotas", {Ints::kInt64});
    const std::size_t sources = shares.size();
    std::int64_t period = 0;
    for (std::size_t k = 0; k < sources; ++k) {
        const std::int64_t share = shares.int64()[k];
        if (share < 0 || share > static_cast<std::int64_t>(kMaxPeriod))
            raise<nb::value_error>({"expected quotas from 0 to ", kMaxPeriod, ", got quotas[", k, "] = ", share});
        period += share;
    }
    if (sources > kMaxPeriod || period < 1 || period > static_cast<std::int64_t>(kMaxPeriod))
        raise<nb::value_error>({"expected at most ", kMaxPeriod, " quotas with a sum from 1 to ", kMaxPeriod,
                                ", got ", sources, " with a sum of ", period});
    const auto places = static_cast<std::size_t>(period);
    nb::object source = new_array(places, numpy().uint16);
    nb::object rank = new_array(places, numpy().int32);
    auto* source_data = data_of<std::uint16_t>(source);
    auto* rank_data = data_of<std::int32_t>(rank);
    {
        const Unlocked unlocked;
        mixture_schedule(shares.int64(), sources, places, source_data, rank_data);
    }
    return nb::make_tuple(source, rank);
}

static nb::tuple py_mixture_items(nb::handle quotas, nb::handle source, nb::handle rank, std::uint64_t seed,
                                  std::uint64_t stage, std::uint64_t block, nb::object length, std::uint64_t first,
                                  std::uint64_t count) {
    const Ints shares(quotas, "quotas", {Ints::kInt64});
    const BufferView sources(source), ranks(rank);
    const std::size_t period = sources.size() / sizeof(std::uint16_t);
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < shares.size(); ++k) sum += shares.int64()[k];
    if (period < 1 || period > kMaxPeriod || ranks.size() != period * sizeof(std::int32_t) ||
        sum != static_cast<std::int64_t>(period))
        raise<nb::value_error>({"expected source and rank of a period of ", sum, " places, got ", period, " and ",
                                ranks.size() / sizeof(std::int32_t)});
    constexpr std::uint64_t limit = std::uint64_t{1} << 62;
    const std::int64_t end = length.is_none() ? -1 : nb::cast<std::int64_t>(length);
    if (block < 1 || block > std::numeric_limits<std::uint32_t>::max() || first > limit || count > limit - first ||
        (!length.is_none() && (end < 0 || first + count > static_cast<std::uint64_t>(end))))
        raise<nb::value_error>({"expected places of a stage in blocks of 1 to 2**32 - 1, got ", count, " from ", first,
                                " in blocks of ", block});
    nb::object source_out = new_array(count, numpy().uint16);
    nb::object item_out = new_array(count, numpy().int64);
    auto* source_data = data_of<std::uint16_t>(source_out);
    auto* item_data = data_of<std::int64_t>(item_out);
    const MixtureStage mixture_stage{shares.int64(),
                                     reinterpret_cast<const std::uint16_t*>(sources.data()),
                                     reinterpret_cast<const std::int32_t*>(ranks.data()),
                                     shares.size(),
                                     period,
                                     seed,
                                     stage,
                                     static_cast<std::int64_t>(block),
                                     end};
    bool valid;
    {
        const Unlocked unlocked;
        valid = mixture_items(mixture_stage, static_cast<std::int64_t>(first), count, source_data, item_data);
    }
    if (!valid) raise<nb::value_error>({"expected sources below ", shares.size(), ", got another one in `source`"});
    return nb::make_tuple(source_out, item_out);
}

void bind_order(nb::module_& m) {
    m.def("hash_key", &py_hash_key, "words"_a,
          "Hash integers from 0 to 2**64-1 into a 64-bit key. ValueError for any other integer.");
    m.def("fisher_yates", &py_fisher_yates, "key"_a, "n"_a,
          "Return a permutation of 0 … n-1, uint32[n]. ValueError unless n < 2**32.");
    m.def("feistel", &py_feistel, "key"_a, "n"_a, "first"_a, "count"_a,
          "Return the images of first … first+count-1, int64[count], under a permutation of 0 … n-1 that is\n"
          "never stored. ValueError unless 1 <= n <= 2**40 and first + count <= n.");
    m.def("fingerprint", &py_fingerprint, "h"_a, "ordinals"_a.none(),
          "Return the order's fingerprint after each of `ordinals` (int64[n]), uint64[n]. h: the fingerprint\n"
          "before them.");
    m.def("locate", &py_locate, "starts"_a.none(), "t"_a.none(),
          "Return the slot (uint32[n]) and the index within it (int64[n]) of each place in `t` (int64[n] or\n"
          "uint32[n]).\n\n"
          "starts: int64[slots + 1], ascending: the first place of each slot, and the end of the last.\n"
          "IndexError for a place outside them.");
    m.def("mixture_schedule", &py_mixture_schedule, "quotas"_a.none(),
          "Return one period of a mixture's schedule: the source of each place, uint16[D], and the number of that\n"
          "source's items before it, int32[D], for D = sum(quotas).\n\n"
          "quotas: int64[sources], at least 0. ValueError unless 1 <= D <= 2**16.");
    m.def("mixture_items", &py_mixture_items, "quotas"_a.none(), "source"_a, "rank"_a, "seed"_a, "stage"_a, "block"_a,
          "length"_a.none(), "first"_a, "count"_a,
          "Return the source, uint16[count], of places first … first+count-1 of a stage of a mixture, and the number\n"
          "of its item there, int64[count].\n\n"
          "quotas: int64[sources]. source, rank: from mixture_schedule() for these quotas. Blocks of `block` places\n"
          "are shuffled under keys of seed and stage. length: places of the stage, or None. ValueError if the places\n"
          "are not in the stage.");
    m.def("cntk_chunk_order", &py_cntk_chunk_order, "seed"_a, "chunks"_a,
          "Return CNTK 2.7's order of the chunks in a sweep, int64[chunks]. seed: the source's seed plus the\n"
          "sweep.");
    m.def("cntk_sequence_order", &py_cntk_sequence_order, "seed"_a, "counts"_a.none(),
          "window_begin"_a.none(), "window_end"_a.none(),
          "Return CNTK 2.7's order of the sequences in a sweep, int64[sum(counts)]: the original position of\n"
          "the sequence at each position.\n\n"
          "counts, window_begin, window_end: int64[chunks], in the shuffled order of the chunks. ValueError\n"
          "unless each chunk is in its own window and windows ascend.");
    nb::class_<CntkNumbers>(m, "CntkNumbers",
                            "The numbers of an mt19937_64 generator with this seed, after the first `position`.")
        .def(nb::init<std::uint64_t, std::uint64_t>(), "seed"_a, "position"_a = 0)
        .def("draw", &draw, "count"_a, "Return the next numbers, uint64[count].");
}
