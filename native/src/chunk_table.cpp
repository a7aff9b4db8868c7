#include "feedline/chunk_table.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace feedline {

ChunkTable::ChunkTable(const std::vector<std::int64_t>& classes)
    : streams_(classes.size()), dense_(classes.size()), sparse_(classes.size()) {
    for (std::size_t s = 0; s < classes.size(); ++s) streams_[s].classes = classes[s];
}

ChunkTable::ChunkTable(std::vector<Stream> streams)
    : streams_(std::move(streams)), dense_(streams_.size()), sparse_(streams_.size()) {}

const std::byte* ChunkTable::first_broken_seal(const Picks& picks, std::size_t begin, std::size_t end) const {
    if (seals_.size() == 1) return nullptr;
    std::uint32_t before = 0;  // neighbours mostly share a file
    for (std::size_t i = begin; i < end; ++i) {
        const std::uint32_t place = sealed_by_[picks.slots == nullptr ? 0 : picks.slots[i]];
        if (place == before) continue;
        before = place;
        const std::vector<Seal>& seals = seals_[place].seals;
        if (const std::byte* broken = first_broken(seals.data(), seals.size())) return broken;
    }
    return nullptr;
}

bool ChunkTable::same_streams(const ChunkTable& other) const {
    return std::equal(streams_.begin(), streams_.end(), other.streams_.begin(), other.streams_.end(),
                      [](const Stream& a, const Stream& b) {
                          return a.classes == b.classes && (!a.known || !b.known || a.item_bytes == b.item_bytes);
                      });
}

// The place of these seals in `seals_`, for one more slot.
std::uint32_t ChunkTable::place_of(const std::vector<Seal>& seals) {
    const auto same = [&](const Seals& entry) {
        return std::equal(entry.seals.begin(), entry.seals.end(), seals.begin(), seals.end(),
                          [](const Seal& a, const Seal& b) { return a.bytes == b.bytes && a.expected == b.expected; });
    };
    auto at = seals_.begin();
    if (!seals.empty()) {
        at = std::find_if(at + 1, seals_.end(), [&](const Seals& entry) { return entry.slots != 0 && same(entry); });
        if (at == seals_.end())
            at = std::find_if(seals_.begin() + 1, seals_.end(), [](const Seals& entry) { return entry.slots == 0; });
        if (at == seals_.end()) at = seals_.emplace(at);
        at->seals = seals;
    }
    ++at->slots;
    return static_cast<std::uint32_t>(at - seals_.begin());
}

void ChunkTable::reserve(std::size_t slot) {
    const std::size_t size = slot + 1;
    if (size <= occupied_.size()) return;
    for (std::size_t s = 0; s < streams_.size(); ++s) {
        if (streams_[s].sparse())
            sparse_[s].resize(size);
        else
            dense_[s].resize(size);
    }
    origins_.resize(size);
    sealed_by_.resize(size, 0);
    sequences_.resize(size, 0);
    occupied_.resize(size, 0);
}

void ChunkTable::hold(std::size_t slot, const std::vector<ChunkSource>& sources, std::int64_t sequences,
                      const std::vector<Seal>& seals) {
    reserve(slot);
    sealed_by_[slot] = place_of(seals);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
        Stream& stream = streams_[s];
        const ChunkSource& source = sources[s];
        if (stream.sparse())
            sparse_[s][slot] = source.sparse;
        else
            dense_[s][slot] = source.dense;
        stream.ever_ragged |= source.dense.offsets != nullptr || source.sparse.offsets != nullptr;
        stream.ever_strided |= source.dense.layout != nullptr || source.dense.windows != nullptr;
        if (stream.known) continue;
        stream.known = true;
        stream.bools = source.bools;
        stream.item_bytes = source.item_bytes;
    }
    sequences_[slot] = sequences;
    occupied_[slot] = 1;
}

void ChunkTable::hold(std::size_t slot, const ChunkTable& from, std::size_t from_slot) {
    reserve(slot);
    sealed_by_[slot] = place_of(from.seals(from_slot));
    for (std::size_t s = 0; s < streams_.size(); ++s) {
        if (streams_[s].sparse())
            sparse_[s][slot] = from.sparse_[s][from_slot];
        else
            dense_[s][slot] = from.dense_[s][from_slot];
        streams_[s].ever_ragged |= from.streams_[s].ever_ragged;
        streams_[s].ever_strided |= from.streams_[s].ever_strided;
    }
    origins_[slot] = from.origins_[from_slot];
    sequences_[slot] = from.sequences_[from_slot];
    occupied_[slot] = 1;
}

void ChunkTable::remove(std::size_t slot) {
    occupied_[slot] = 0;
    origins_[slot].reset();
    --seals_[sealed_by_[slot]].slots;
    sealed_by_[slot] = 0;
    sequences_[slot] = 0;
    for (auto& sources : dense_)
        if (!sources.empty()) sources[slot] = DenseSource{};
    for (auto& sources : sparse_)
        if (!sources.empty()) sources[slot] = SparseSource{};
}

ChunkTable ChunkTable::only(const std::vector<std::uint32_t>& slots) const {
    ChunkTable selected(streams_);
    if (!slots.empty()) selected.reserve(slots.size() - 1);
    for (std::size_t k = 0; k < slots.size(); ++k) selected.hold(k, *this, slots[k]);
    return selected;
}

ChunkTable ChunkTable::staged(const std::vector<std::uint32_t>& slots, std::shared_ptr<const StageWork> work) const {
    ChunkTable runs(streams_);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
        runs.dense_[s] = work->dense(s);
        runs.sparse_[s] = work->sparse(s);
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
        runs.sequences_.push_back(work->sequences(i));
        // Bytes that stayed in their file may still be cut there. Bytes in memory are safe.
        runs.sealed_by_.push_back(runs.place_of(work->in_place(i) ? seals(slots[i]) : std::vector<Seal>()));
    }
    for (const StageWork::Fault& fault : work->faults()) runs.sequences_[fault.pick] = 0;
    runs.occupied_.assign(slots.size(), 1);
    runs.origins_.assign(slots.size(), std::move(work));
    return runs;
}

// ---- runs -----------------------------------------------------------------------------------------------

static std::uint32_t slot_of(const Runs& runs, std::size_t i) { return runs.slots == nullptr ? 0 : runs.slots[i]; }

std::ptrdiff_t first_bad_run(const Runs& runs, const ChunkTable& table) {
    for (std::size_t i = 0; runs.counts != nullptr && i < runs.count; ++i)
        if (runs.counts[i] < 1 || runs.counts[i] > table.sequences()[slot_of(runs, i)] - runs.index[i])
            return static_cast<std::ptrdiff_t>(i);
    return -1;
}

RunSlots::RunSlots(const Runs& runs) : places(runs.count) {
    std::unordered_map<std::uint32_t, std::uint32_t> known;
    for (std::size_t i = 0; i < runs.count; ++i) {
        const std::uint32_t slot = slot_of(runs, i);
        const auto [place, fresh] = known.emplace(slot, static_cast<std::uint32_t>(known.size()));
        places[i] = place->second;
        if (fresh) slots.push_back(slot);
    }
}

std::vector<StageWork::Stream> stage_streams(const ChunkTable& table) {
    std::vector<StageWork::Stream> streams;
    for (std::size_t s = 0; s < table.streams().size(); ++s) {
        const ChunkTable::Stream& stream = table.streams()[s];
        streams.push_back({stream.sparse(), stream.item_bytes, table.dense(s), table.sparse(s)});
        streams.back().has_indices = stream.classes >= 0;
    }
    return streams;
}

std::size_t count_lacking(const ChunkTable& table, const Runs& runs, const MappedFiles& files, std::size_t max_runs,
                          std::size_t max_pages) {
    const std::size_t n = runs.count, checked = std::min(n, max_runs);
    const std::vector<StageWork::Stream> streams = stage_streams(table);
    std::size_t lacking = 0;
    for (std::size_t k = 0; k < checked; ++k) {
        const std::size_t i = (2 * k + 1) * n / (2 * checked);  // in the middle of equal parts
        const std::int64_t count = runs.counts == nullptr ? 1 : runs.counts[i];
        lacking += lacks_pages(streams, slot_of(runs, i), runs.index[i], count, files, max_pages);
    }
    return lacking;
}

}  // namespace feedline
