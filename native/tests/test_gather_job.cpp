// Tables of chunks, and gathers from them, compared with plain loops.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "feedline/background.h"
#include "feedline/chunk_table.h"
#include "feedline/gather_job.h"
#include "feedline/threads.h"

using namespace feedline;

static std::mt19937 rng(5);
static std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(rng() % static_cast<std::uint32_t>(n)); }

// A chunk of three streams: rows of 3 bools, ragged or one per sequence, sparse rows of 9 classes, and texts.
struct Chunk {
    explicit Chunk(std::int64_t n, bool is_ragged) : sequences(n), ragged(is_ragged) {
        offsets.push_back(0);
        for (std::int64_t i = 0; i < n; ++i) offsets.push_back(offsets.back() + (ragged ? below(4) : 1));
        for (std::int64_t i = 0; i < 3 * offsets.back(); ++i) bools.push_back(static_cast<std::byte>(below(2)));
        indptr.push_back(0);
        bounds.push_back(0);
        for (std::int64_t i = 0; i < n; ++i) {
            indptr.push_back(indptr.back() + below(5));
            const std::string text = std::string(static_cast<std::size_t>(below(3)), 'a') + "\xc3\xa9";
            texts += text;
            bounds.push_back(static_cast<std::int64_t>(texts.size()));
        }
        for (std::int64_t i = 0; i < indptr.back(); ++i) {
            indices.push_back(static_cast<std::int32_t>(below(9)));
            values.push_back(static_cast<float>(below(100)));
        }
    }

    std::vector<ChunkSource> sources() const {
        std::vector<ChunkSource> all(3);
        all[0].dense = {bools.data(), ragged ? offsets.data() : nullptr, offsets.back(), nullptr};
        all[0].item_bytes = 3;
        all[0].bools = true;
        all[1].sparse = {indptr.data(), indices.data(), bytes_of(values.data()), nullptr, sequences, indptr.back(), false};
        all[1].item_bytes = sizeof(float);
        all[2].sparse = {bounds.data(), nullptr, bytes_of(texts.data()), nullptr, sequences, bounds.back(), false};
        all[2].item_bytes = 1;
        return all;
    }
    static const std::byte* bytes_of(const void* at) { return static_cast<const std::byte*>(at); }

    std::int64_t sequences;
    bool ragged;
    std::vector<std::int64_t> offsets, indptr, bounds;
    std::vector<std::byte> bools;
    std::vector<std::int32_t> indices;
    std::vector<float> values;
    std::string texts;
};

static const std::vector<std::int64_t> kClasses{kDense, 9, kText};

// The outputs of a gather, allocated as bindings do.
struct Outputs {
    Outputs(const ChunkTable& table, const Picks& picks, GatherOutcome& outcome) : offsets(3), indptr(3), rows(3) {
        for (std::size_t s = 0; s < 3; ++s) {
            if (needs_offsets(table, s, picks)) offsets[s].resize(picks.count + 1);
            jobs.push_back(plan_gather(table, s, picks, offsets[s].empty() ? nullptr : offsets[s].data(), outcome));
            GatherJob& job = jobs.back();
            rows[s].resize(job.item_memory());
            job.rows = rows[s].data();
            if (job.is_sparse) {
                indptr[s].resize(static_cast<std::size_t>(job.num_rows) + 1);
                job.indptr = indptr[s].data();
            }
            if (job.classes >= 0) {
                indices.resize(static_cast<std::size_t>(job.num_values));
                job.indices = indices.data();
            }
            bytes += job.item_memory() + job.index_memory();
        }
    }

    std::vector<std::vector<std::int64_t>> offsets, indptr;
    std::vector<std::vector<std::byte>> rows;
    std::vector<std::int32_t> indices;
    std::vector<GatherJob> jobs;
    std::size_t bytes = 0;
};

static bool same_bytes(const void* a, const void* b, std::int64_t n) {
    return n == 0 || std::memcmp(a, b, static_cast<std::size_t>(n)) == 0;
}

// Whether place i of the outputs is sequence `at` of a chunk.
static bool same(const Outputs& out, std::size_t i, const Chunk& chunk, std::int64_t at) {
    const auto k = static_cast<std::size_t>(at);
    const auto part = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const std::size_t first = out.offsets[0].empty() ? i : part(out.offsets[0][i]);
    const std::size_t rows = part(chunk.offsets[k + 1] - chunk.offsets[k]);
    if (!out.offsets[0].empty() && part(out.offsets[0][i + 1]) != first + rows) return false;
    if (!std::equal(chunk.bools.begin() + 3 * chunk.offsets[k], chunk.bools.begin() + 3 * chunk.offsets[k + 1],
                    out.rows[0].begin() + static_cast<std::ptrdiff_t>(3 * first)))
        return false;
    const std::int64_t size = chunk.indptr[k + 1] - chunk.indptr[k], value = out.indptr[1][i];
    const std::int64_t bytes = chunk.bounds[k + 1] - chunk.bounds[k], text = out.indptr[2][i];
    return out.indptr[1][i + 1] == value + size && out.indptr[2][i + 1] == text + bytes &&
           std::equal(chunk.indices.begin() + chunk.indptr[k], chunk.indices.begin() + chunk.indptr[k + 1],
                      out.indices.begin() + value) &&
           same_bytes(out.rows[1].data() + 4 * value, chunk.values.data() + chunk.indptr[k], 4 * size) &&
           same_bytes(out.rows[2].data() + text, chunk.texts.data() + chunk.bounds[k], bytes);
}

static void test_gathers(bool background) {
    for (const bool ragged : {false, true}) {
        const std::vector<Chunk> chunks{Chunk(40, false), Chunk(7, ragged), Chunk(900, ragged)};
        ChunkTable table(kClasses);
        for (std::size_t c = 0; c < chunks.size(); ++c) table.hold(2 * c, chunks[c].sources(), chunks[c].sequences, {});
        CHECK(table.slots() == 5 && table.holds(4) && !table.holds(3) && !table.holds(5) && !table.holds(-1));
        CHECK(table.sequences()[1] == 0 && table.sequences()[4] == 900);
        for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{2000}}) {
            std::vector<std::uint32_t> slots;
            std::vector<std::int64_t> index;
            for (std::size_t i = 0; i < n; ++i) {
                slots.push_back(static_cast<std::uint32_t>(2 * below(3)));
                index.push_back(below(table.sequences()[slots[i]]));
            }
            const auto work = std::make_shared<GatherWork>(Picks{slots.data(), index.data(), n});
            Outputs out(table, work->picks, work->outcome);
            CHECK(work->outcome.good());
            for (GatherJob& job : out.jobs)
                if (job.is_sparse) job.indptr[0] = 0;
            if (background) {
                work->jobs = std::move(out.jobs);
                const auto task = start_gather(work, table, out.bytes);
                while (!Background::of_this_process().finish(*task, std::chrono::milliseconds(1000))) {}
            } else {
                run_all(out.jobs, table, work->picks, std::size_t{2} << 20, 3, work->outcome);
            }
            CHECK(work->outcome.good());
            for (std::size_t i = 0; i < n; ++i) CHECK(same(out, i, chunks[slots[i] / 2], index[i]));
        }
    }
}

// Each kind of bad entry is listed once for its sequence, with its source, and set to zero.
static void test_bad_entries() {
    Chunk chunk(20, true);
    const auto first_of = [&](const std::vector<std::int64_t>& ends) {
        std::size_t k = 0;
        while (ends[k + 1] == ends[k]) ++k;
        return k;
    };
    const std::size_t bool_at = first_of(chunk.offsets), index_at = first_of(chunk.indptr);
    const auto bool_byte = static_cast<std::size_t>(3 * chunk.offsets[bool_at]) + 1;
    chunk.bools[bool_byte] = std::byte{7};
    chunk.bools[bool_byte + 1] = std::byte{9};
    chunk.indices[static_cast<std::size_t>(chunk.indptr[index_at])] = 9;
    const auto text_byte = static_cast<std::size_t>(chunk.bounds[4]) - 1;  // the end of the fourth text
    chunk.texts[text_byte] = 'x';
    ChunkTable table(kClasses);
    table.hold(0, chunk.sources(), chunk.sequences, {});
    std::vector<std::int64_t> index;
    for (std::int64_t i = 0; i < chunk.sequences; ++i) index.push_back(chunk.sequences - 1 - i);
    const Picks picks{nullptr, index.data(), index.size()};
    GatherOutcome outcome;
    const Outputs out(table, picks, outcome);
    run_jobs(out.jobs, table, picks, 0, picks.count, outcome);
    CHECK(outcome.intact() && !outcome.good());
    const std::vector<BadEntry> found = blank_bad_entries(out.jobs, table, picks);
    CHECK(found.size() == 3);
    CHECK(found[0].place == 19 - bool_at && found[0].stream == 0 && found[0].entry == 7 && found[0].classes == kDense);
    CHECK(found[0].source == &chunk.bools[bool_byte]);
    CHECK(found[1].place == 19 - index_at && found[1].stream == 1 && found[1].entry == 9 && found[1].classes == 9);
    CHECK(found[1].source == &chunk.indices[static_cast<std::size_t>(chunk.indptr[index_at])]);
    CHECK(found[2].place == 16 && found[2].stream == 2 && found[2].entry == 0xc3 && found[2].classes == kText);
    CHECK(found[2].source == &chunk.texts[text_byte - 1]);
    CHECK(blank_bad_entries(out.jobs, table, picks).empty());
    const std::int64_t begin = out.indptr[2][16], end = out.indptr[2][17];
    CHECK(std::all_of(out.rows[2].begin() + begin, out.rows[2].begin() + end, [](std::byte b) { return b == std::byte{0}; }));
}

// Bounds that decrease when they are followed are reported by their address, and nothing is read through them.
static void test_changed_bounds() {
    for (const int stream : {0, 1, 2}) {
        Chunk chunk(20, true);
        ChunkTable table(kClasses);
        table.hold(0, chunk.sources(), chunk.sequences, {});
        std::vector<std::int64_t>& bounds = stream == 0 ? chunk.offsets : stream == 1 ? chunk.indptr : chunk.bounds;
        bounds[6] = std::int64_t{1} << 40;
        const std::int64_t index = 5;
        GatherOutcome outcome;
        const GatherJob job = plan_gather(table, static_cast<std::size_t>(stream), {nullptr, &index, 1},
                                          std::vector<std::int64_t>(2).data(), outcome);
        CHECK(!outcome.intact() && outcome.changed.load() == &bounds[5] && outcome.unreadable.load() == nullptr);
    }
}

static void test_seals() {
    std::uint64_t files[3] = {1, 2, 3};
    const auto seal = [&](int k) { return Seal{reinterpret_cast<const std::byte*>(&files[k]), files[k]}; };
    const Chunk chunk(3, false);
    ChunkTable table(kClasses);
    const std::uint32_t slots[] = {0, 1, 2, 3};
    const std::int64_t index[] = {0, 0, 0, 0};
    const Picks picks{slots, index, 4};
    for (std::size_t slot = 0; slot < 4; ++slot) table.hold(slot, chunk.sources(), 3, {});
    files[0] = 9;
    CHECK(table.first_broken_seal(picks, 0, 4) == nullptr);
    files[0] = 1;
    for (std::size_t slot = 1; slot < 4; ++slot) {
        table.remove(slot);
        CHECK(!table.holds(static_cast<std::int64_t>(slot)) && table.sequences()[slot] == 0);
        table.hold(slot, chunk.sources(), 3, {seal(static_cast<int>(slot / 2)), seal(2)});
    }
    CHECK(table.first_broken_seal(picks, 0, 4) == nullptr && table.seals(0).empty() && table.seals(3).size() == 2);
    files[1] = 9;  // of slots 2 and 3
    CHECK(table.first_broken_seal(picks, 0, 2) == nullptr);
    CHECK(table.first_broken_seal(picks, 0, 4) == reinterpret_cast<const std::byte*>(&files[1]));
    const ChunkTable few = table.only({1, 0});
    CHECK(few.slots() == 2 && few.seals(0).size() == 2 && few.seals(1).empty() && few.same_streams(table));
    CHECK(few.sparse(1)[0].indices == chunk.indices.data() && few.sequences()[1] == 3);
    table.remove(2);
    table.remove(3);
    CHECK(table.first_broken_seal(picks, 0, 2) == nullptr);
    CHECK(!ChunkTable({kDense, 9}).same_streams(table) && !ChunkTable({kDense, 8, kText}).same_streams(table));
}

// A table without offsets has them once it holds a slot of a table with offsets.
static void test_slots_of_others() {
    const Chunk plain(5, false), ragged(40, true);
    ChunkTable table(kClasses), other(kClasses);
    table.hold(0, plain.sources(), 5, {});
    other.hold(0, ragged.sources(), 40, {});
    const std::vector<std::uint32_t> slots(40, 1);
    std::vector<std::int64_t> index;
    for (std::int64_t i = 0; i < 40; ++i) index.push_back(i);
    table.hold(1, other, 0);
    const Picks picks{slots.data(), index.data(), 40};
    GatherOutcome outcome;
    const Outputs out(table, picks, outcome);
    for (const GatherJob& job : out.jobs)
        if (job.is_sparse) job.indptr[0] = 0;
    run_jobs(out.jobs, table, picks, 0, 40, outcome);
    CHECK(outcome.good());
    for (std::size_t i = 0; i < 40; ++i) CHECK(same(out, i, ragged, index[i]));
}

static void test_runs() {
    const Chunk chunk(10, false);
    ChunkTable table(kClasses);
    for (std::size_t slot = 0; slot < 4; ++slot) table.hold(slot, chunk.sources(), 10, {});
    const std::uint32_t slots[] = {3, 1, 3, 0};
    const std::int64_t index[] = {0, 9, 4, 2};
    std::int64_t counts[] = {10, 1, 6, 8};
    const Runs runs{slots, index, counts, 4};
    CHECK(first_bad_run(runs, table) == -1);
    for (std::size_t i = 0; i < 4; ++i)
        for (const std::int64_t wrong : {std::int64_t{0}, counts[i] + 1, INT64_MAX, INT64_MIN}) {
            const std::int64_t right = counts[i];
            counts[i] = wrong;
            CHECK(first_bad_run(runs, table) == static_cast<std::ptrdiff_t>(i));
            counts[i] = right;
        }
    const RunSlots chosen(runs);
    CHECK(chosen.slots == (std::vector<std::uint32_t>{3, 1, 0}));
    CHECK(chosen.places == (std::vector<std::uint32_t>{0, 1, 0, 2}));
    CHECK(count_lacking(table, runs, {}, 100, 1) == 0);  // what is in no file lacks nothing
}

static void test_shelves() {
    for (const bool sliced : {false, true})
        for (std::size_t row_bytes = 0; row_bytes < 200; ++row_bytes) {
            PartsLayout layout(row_bytes, sliced);
            const std::int64_t rows[] = {3, 0, 1, 17};
            for (const std::int64_t n : rows) layout.add(n);
            const std::size_t total = layout.size() * (layout.by_bytes() ? 1 : row_bytes);
            for (std::size_t p = 0; p < 4; ++p) {
                const std::size_t end = p < 3 ? layout.byte(p + 1) : total;
                CHECK(layout.byte(p) % kArrayAlign == 0 && layout.rows(p) == rows[p]);
                CHECK(layout.byte(p) + static_cast<std::size_t>(rows[p]) * row_bytes <= end);
            }
            CHECK(!(sliced && layout.by_bytes()));
        }
}

static void test_parts() {
    for (const std::size_t threads : {1, 2, 5}) {
        std::vector<int> done(threads);
        in_parts(threads, [&](std::size_t k) { ++done[k]; });
        CHECK(done == std::vector<int>(threads, 1));
    }
}

int main() {
    test_gathers(false);
    test_gathers(true);
    test_bad_entries();
    test_changed_bounds();
    test_seals();
    test_slots_of_others();
    test_runs();
    test_shelves();
    test_parts();
    return 0;
}
