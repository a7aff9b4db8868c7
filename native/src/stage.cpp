#include "feedline/stage.h"

#include <algorithm>
#include <cstring>

namespace feedline {

// Two pieces of a file this close are read in one go: the bytes between cost less than another request.
constexpr std::uint64_t kGapBytes = 16 << 10;
// Pieces are looked at together up to this length, and longer ones read in parts of it.
constexpr std::uint64_t kRunBytes = 1 << 20;
// What is read around a small piece that is to be kept, in both directions.
constexpr std::uint64_t kAroundBytes = 128 << 10;
// What no sequence has: refused by whoever looks.
constexpr std::int64_t kImpossible[2] = {1, 0};

static constexpr std::uint64_t down(std::uint64_t offset) { return offset / kFetchAlign * kFetchAlign; }
static constexpr std::uint64_t up(std::uint64_t offset) { return down(offset + kFetchAlign - 1); }

static std::int64_t load(const std::byte* at) {
    std::int64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

static std::vector<std::uint32_t> slots_of(const Picks& picks) {
    if (picks.slots == nullptr) return std::vector<std::uint32_t>(picks.count, 0);
    return {picks.slots, picks.slots + picks.count};
}

StageWork::StageWork(std::vector<Stream> streams, const Picks& picks, std::shared_ptr<const MappedFiles> files,
                     std::shared_ptr<BlockPool> pool)
    : streams_(std::move(streams)),
      slots_(slots_of(picks)),
      index_(picks.index, picks.index + picks.count),
      files_(std::move(files)),
      pool_(std::move(pool)),
      outcome_(streams_.size()) {
    const std::size_t n = slots_.size();
    for (std::size_t s = 0; s < streams_.size(); ++s) {
        const Stream& stream = streams_[s];
        Outcome& outcome = outcome_[s];
        outcome.ragged = stream.is_sparse ? any_ragged(picks, stream.sparse) : any_ragged(picks, stream.dense);
        outcome.rows.resize(n);
        if (outcome.ragged) outcome.offsets.resize(2 * n);
        if (stream.is_sparse) {
            outcome.bounds.resize(n);
            outcome.sparse.resize(n);
        } else {
            outcome.dense.resize(n);
        }
        steps_ = std::max(steps_, (outcome.ragged ? 1u : 0u) + (stream.is_sparse ? 2u : 1u));
    }
}

std::shared_ptr<StageWork> StageWork::again() const {
    return std::make_shared<StageWork>(streams_, Picks{slots_.data(), index_.data(), slots_.size()}, files_, pool_);
}

void StageWork::next(std::vector<Read>& reads) {
    if (begun_) {
        settle(reads);
        take();
        ++step_;
    }
    begun_ = true;
    for (reads.clear(); step_ < steps_; ++step_) {
        ask(step_);
        find(reads);
        if (!reads.empty()) return;
        take();
    }
    wants_ = {};
    candidates_ = {};
}

// What has to be known, or there, in this step.
void StageWork::ask(unsigned step) {
    wants_.clear();
    for (std::uint32_t s = 0; s < streams_.size(); ++s) {
        const Stream& stream = streams_[s];
        Outcome& outcome = outcome_[s];
        const unsigned base = outcome.ragged ? 1 : 0;
        const auto want = [&](Part part, std::uint32_t i, const void* at, std::size_t bytes) {
            const bool bounds = part == Part::kOffsets || part == Part::kBounds;
            const bool keep = bounds ? stream.keep_bounds : stream.keep_rows;
            wants_.push_back({static_cast<const std::byte*>(at), bytes, s, i, part, keep, nullptr});
        };
        for (std::uint32_t i = 0; i < slots_.size(); ++i) {
            Rows& rows = outcome.rows[i];
            const std::int64_t* offsets = offsets_of(stream, i);
            if (step == 0) {
                if (offsets != nullptr) {
                    want(Part::kOffsets, i, offsets + index_[i], 2 * sizeof(std::int64_t));
                    continue;
                }
                rows.first = index_[i];
                rows.last = index_[i] + 1;
            }
            if (step < base || !rows.good) continue;
            if (!stream.is_sparse) {
                const auto count = static_cast<std::size_t>(rows.last - rows.first);
                if (step == base)
                    want(Part::kRows, i,
                         stream.dense[slots_[i]].rows + static_cast<std::size_t>(rows.first) * stream.item_bytes,
                         count * stream.item_bytes);
                continue;
            }
            const SparseSource& source = stream.sparse[slots_[i]];
            if (step == base)
                want(Part::kBounds, i, source.indptr + rows.first,
                     static_cast<std::size_t>(rows.last - rows.first + 1) * sizeof(std::int64_t));
            if (step == base + 1) {
                const auto count = static_cast<std::size_t>(rows.values);
                want(Part::kIndices, i, source.indices + rows.value, count * sizeof(std::int32_t));
                want(Part::kValues, i, source.values + static_cast<std::size_t>(rows.value) * stream.item_bytes,
                     count * stream.item_bytes);
            }
        }
    }
}

static bool find_file(const MappedFiles& files, const std::byte* at, std::size_t bytes, std::size_t& file) {
    const auto after = std::upper_bound(files.begin(), files.end(), at, [](const std::byte* address, const auto& f) {
        return address < f->mapped();
    });
    if (after == files.begin()) return false;
    file = static_cast<std::size_t>(after - files.begin()) - 1;
    return files[file]->maps(at, bytes);
}

// Where each want is to be had, and the reads for those that are not in memory.
void StageWork::find(std::vector<Read>& reads) {
    candidates_.clear();
    extents_.clear();
    for (std::size_t w = 0; w < wants_.size(); ++w) {
        Want& want = wants_[w];
        want.got = want.at;
        std::size_t file;
        if (want.bytes != 0 && find_file(*files_, want.at, want.bytes, file))
            candidates_.push_back({file, static_cast<std::uint64_t>(want.at - (*files_)[file]->mapped()), w});
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    asked_ += candidates_.size();

    const auto end_of = [&](const Candidate& c) { return c.offset + wants_[c.want].bytes; };
    std::vector<unsigned char> held;
    for (std::size_t a = 0; a < candidates_.size();) {
        // Candidates [a, b) lie close together: the kernel is asked about them in one go.
        const DiskFile& file = *(*files_)[candidates_[a].file];
        const std::uint64_t begin = down(candidates_[a].offset);
        std::uint64_t end = end_of(candidates_[a]);
        std::size_t b = a + 1;
        while (b < candidates_.size() && candidates_[b].file == candidates_[a].file &&
               candidates_[b].offset <= end + kGapBytes && end_of(candidates_[b]) <= begin + kRunBytes)
            end = std::max(end, end_of(candidates_[b++]));
        held.assign((up(end) - begin) / kFetchAlign, 0);
        if (file.tells()) file.held(begin, held.size(), held.data());
        const auto missing = [&](const Candidate& c) {
            const std::size_t last = (end_of(c) - 1 - begin) / kFetchAlign;
            for (std::size_t p = (c.offset - begin) / kFetchAlign; p <= last; ++p)
                if (held[p] == 0) return true;
            return false;
        };
        // Of these, what is missing, merged again where it is close.
        bool open = false;
        for (std::size_t c = a; c < b; ++c) {
            if (!missing(candidates_[c])) continue;
            ++missing_;
            const std::uint64_t from = down(candidates_[c].offset), to = up(end_of(candidates_[c]));
            const bool keep = wants_[candidates_[c].want].keep;
            if (open && keep == extents_.back().keep && from <= extents_.back().offset + extents_.back().bytes + kGapBytes) {
                Extent& extent = extents_.back();
                extent.bytes = std::max(extent.offset + extent.bytes, to) - extent.offset;
                extent.end = c + 1;
            } else {
                extents_.push_back({candidates_[c].file, from, to - from, c, c + 1, keep, nullptr, 0, 0});
                open = true;
                if (keep) read_around(wants_[candidates_[c].want], candidates_[c].file);
            }
            wants_[candidates_[c].want].got = nullptr;
        }
        a = b;
    }
    if (extents_.empty()) return;

    std::uint64_t bytes = 0;
    for (const Extent& extent : extents_) bytes += extent.bytes;
    blocks_.push_back(pool_->take(bytes));
    std::byte* to = blocks_.back().get();
    for (Extent& extent : extents_) {
        extent.to = to;
        to += extent.bytes;
        extent.first_read = reads.size();
        const DiskFile& file = *(*files_)[extent.file];
        const int kept = extent.keep ? file.plain() : -1;
        for (std::uint64_t at = 0; at < extent.bytes; at += kRunBytes)
            reads.push_back({kept >= 0 ? kept : file.descriptor(), extent.offset + at,
                             std::min(kRunBytes, extent.bytes - at), extent.to + at, 0});
        extent.last_read = reads.size();
    }
}

// Has the page cache begin to read what lies around a small piece in the same array of its chunk.
void StageWork::read_around(const Want& want, std::size_t file) {
    const Stream& stream = streams_[want.stream];
    const std::uint32_t slot = slots_[want.pick];
    const auto array = [&]() -> std::pair<const void*, std::int64_t> {
        const auto words = static_cast<std::int64_t>(sizeof(std::int64_t));
        if (want.part == Part::kOffsets) {
            const std::int64_t* offsets = offsets_of(stream, want.pick);
            return {offsets, INT64_MAX};  // how far they go is not known here
        }
        if (!stream.is_sparse) {
            const DenseSource& source = stream.dense[slot];
            return {source.rows, source.num_rows * static_cast<std::int64_t>(stream.item_bytes)};
        }
        const SparseSource& source = stream.sparse[slot];
        if (want.part == Part::kBounds) return {source.indptr, (source.num_rows + 1) * words};
        if (want.part == Part::kIndices)
            return {source.indices, source.num_values * static_cast<std::int64_t>(sizeof(std::int32_t))};
        return {source.values, source.num_values * static_cast<std::int64_t>(stream.item_bytes)};
    }();
    const DiskFile& from = *(*files_)[file];
    const auto begin = static_cast<std::uint64_t>(static_cast<const std::byte*>(array.first) - from.mapped());
    const auto bytes = static_cast<std::uint64_t>(array.second);
    const std::uint64_t end = bytes < from.size() - begin ? begin + bytes : from.size();
    const auto at = static_cast<std::uint64_t>(want.at - from.mapped());
    from.read_ahead(std::max(begin, at - std::min(at, kAroundBytes)), std::min(end, at + kAroundBytes));
}

// The reads are done: where the wants are now, and which of them failed.
void StageWork::settle(const std::vector<Read>& reads) {
    for (const Extent& extent : extents_) {
        const DiskFile& file = *(*files_)[extent.file];
        std::uint64_t whole = extent.offset;  // up to here everything came
        bool open = true;
        for (std::size_t r = extent.first_read; r < extent.last_read; ++r) {
            const auto got = static_cast<std::uint64_t>(std::max<std::int64_t>(reads[r].got, 0));
            disk_bytes_ += got;
            if (open) whole = reads[r].offset + got;
            open = open && got == reads[r].size;
        }
        if (!file.direct() && !extent.keep) file.drop(extent.offset, extent.bytes);
        for (std::size_t c = extent.begin; c < extent.end; ++c) {
            Want& want = wants_[candidates_[c].want];
            if (want.got != nullptr) continue;  // it was in memory all the time
            const std::uint64_t offset = candidates_[c].offset;
            std::byte* place = extent.to + (offset - extent.offset);
            if (offset + want.bytes > whole) {
                // What failed may have been a neighbour: each is tried alone before it is given up.
                std::uint64_t at;
                const int error = read_plain(file, offset, want.bytes, place, at);
                if (error != 0) {
                    Rows& rows = outcome_[want.stream].rows[want.pick];
                    if (rows.good) faults_.push_back({want.pick, want.stream, extent.file, at, error});
                    refuse(want.stream, want.pick);
                    continue;
                }
            }
            want.got = place;
        }
    }
    extents_.clear();
}

void StageWork::take() {
    for (const Want& want : wants_)
        if (want.got != nullptr || want.bytes == 0) take_one(want);
}

// The pick is out of the running, and its source one that no gather takes.
void StageWork::refuse(std::uint32_t stream, std::uint32_t pick) {
    Outcome& outcome = outcome_[stream];
    outcome.rows[pick].good = false;
    if (streams_[stream].is_sparse)
        outcome.sparse[pick] = {kImpossible, nullptr, nullptr, kImpossible, 0, 0};
    else
        outcome.dense[pick] = {nullptr, kImpossible, 0};
}

const std::int64_t* StageWork::offsets_of(const Stream& stream, std::uint32_t pick) const {
    return stream.is_sparse ? stream.sparse[slots_[pick]].offsets : stream.dense[slots_[pick]].offsets;
}

void StageWork::take_one(const Want& want) {
    const Stream& stream = streams_[want.stream];
    Outcome& outcome = outcome_[want.stream];
    Rows& rows = outcome.rows[want.pick];
    if (!rows.good) return;
    // Counted from 0 in the source that comes out.
    const auto own_offsets = [&]() -> const std::int64_t* {
        if (offsets_of(stream, want.pick) == nullptr) return nullptr;
        outcome.offsets[2 * want.pick + 1] = rows.last - rows.first;
        return &outcome.offsets[2 * want.pick];
    };
    switch (want.part) {
        case Part::kOffsets: {
            rows.first = load(want.got);
            rows.last = load(want.got + sizeof(std::int64_t));
            const std::int64_t all =
                stream.is_sparse ? stream.sparse[slots_[want.pick]].num_rows : stream.dense[slots_[want.pick]].num_rows;
            if (rows.first < 0 || rows.first > rows.last || rows.last > all) refuse(want.stream, want.pick);
            break;
        }
        case Part::kRows:
            outcome.dense[want.pick] = {want.got, own_offsets(), rows.last - rows.first};
            break;
        case Part::kBounds: {
            std::vector<std::int64_t>& bounds = outcome.bounds[want.pick];
            bounds.resize(static_cast<std::size_t>(rows.last - rows.first) + 1);
            std::memcpy(bounds.data(), want.got, want.bytes);
            const std::int64_t first = bounds[0];
            bool good = first >= 0;
            for (std::size_t r = 1; good && r < bounds.size(); ++r) good = bounds[r - 1] <= bounds[r];
            good = good && bounds.back() <= stream.sparse[slots_[want.pick]].num_values;
            if (!good) {
                refuse(want.stream, want.pick);
                break;
            }
            for (std::int64_t& bound : bounds) bound -= first;
            rows.value = first;
            rows.values = bounds.back();
            break;
        }
        case Part::kIndices: {
            SparseSource& out = outcome.sparse[want.pick];
            out.indptr = outcome.bounds[want.pick].data();
            out.indices = reinterpret_cast<const std::int32_t*>(want.got);
            out.offsets = own_offsets();
            out.num_rows = rows.last - rows.first;
            out.num_values = rows.values;
            break;
        }
        case Part::kValues:
            outcome.sparse[want.pick].values = want.got;
            break;
    }
}

static bool held_whole(const MappedFiles& files, const void* memory, std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(memory);
    std::size_t number;
    if (bytes == 0 || !find_file(files, at, bytes, number)) return true;
    const DiskFile& file = *files[number];
    const auto offset = static_cast<std::uint64_t>(at - file.mapped());
    if (!file.tells()) return file.probe(offset) && file.probe(offset + bytes - 1);
    std::vector<unsigned char> pages((up(offset + bytes) - down(offset)) / kFetchAlign);
    file.held(down(offset), pages.size(), pages.data());
    return std::find(pages.begin(), pages.end(), 0) == pages.end();
}

std::size_t count_missing(const std::vector<StageWork::Stream>& streams, const Picks& picks,
                          const MappedFiles& files) {
    std::size_t missing = 0;
    for (std::size_t i = 0; i < picks.count; ++i) {
        const std::size_t slot = picks.slots == nullptr ? 0 : picks.slots[i];
        const std::int64_t index = picks.index[i];
        const bool held = std::all_of(streams.begin(), streams.end(), [&](const StageWork::Stream& stream) {
            const std::int64_t* offsets = stream.is_sparse ? stream.sparse[slot].offsets : stream.dense[slot].offsets;
            if (offsets != nullptr) return held_whole(files, offsets + index, 2 * sizeof(std::int64_t));
            if (stream.is_sparse)
                return held_whole(files, stream.sparse[slot].indptr + index, 2 * sizeof(std::int64_t));
            return held_whole(files, stream.dense[slot].rows + static_cast<std::size_t>(index) * stream.item_bytes,
                              stream.item_bytes);
        });
        missing += held ? 0 : 1;
    }
    return missing;
}

}  // namespace feedline
