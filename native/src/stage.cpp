#include "feedline/stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "feedline/guard.h"

namespace feedline {

// Bytes between two pieces of a file that are read together: the gap costs less than another request.
constexpr std::uint64_t kGapBytes = 16 << 10;
// Pieces are queried together up to this length, and if they are this close: to query a page between two costs a
// twentieth of a second query.
constexpr std::uint64_t kRunBytes = 1 << 20;
constexpr std::uint64_t kLookBytes = 128 << 10;
// Bytes read around a small piece that is to be kept, in both directions.
constexpr std::uint64_t kAroundBytes = 128 << 10;

static constexpr std::uint64_t down(std::uint64_t offset) { return offset / kFetchAlign * kFetchAlign; }
static constexpr std::uint64_t up(std::uint64_t offset) { return down(offset + kFetchAlign - 1); }

StageWork::StageWork(std::vector<Stream> streams, const Runs& runs, std::shared_ptr<const MappedFiles> files,
                     std::shared_ptr<BlockPool> pool)
    : streams_(std::move(streams)),
      slots_(runs.slots, runs.slots + runs.count),
      index_(runs.index, runs.index + runs.count),
      counts_(runs.counts, runs.counts + (runs.counts == nullptr ? 0 : runs.count)),
      files_(std::move(files)),
      pool_(std::move(pool)),
      outcome_(streams_.size()),
      in_place_(runs.count, 0) {
    const std::size_t n = slots_.size();
    const Picks picks{slots_.data(), index_.data(), n};
    for (std::size_t s = 0; s < streams_.size(); ++s) {
        const Stream& stream = streams_[s];
        Outcome& outcome = outcome_[s];
        outcome.ragged = stream.is_sparse ? any_ragged(picks, stream.sparse) : any_ragged(picks, stream.dense);
        outcome.rows.resize(n);
        if (outcome.ragged) outcome.offsets.resize(n);
        if (stream.is_sparse) {
            outcome.bounds.resize(n);
            outcome.sparse.resize(n);
        } else {
            outcome.dense.resize(n);
        }
        steps_ = std::max(steps_, (outcome.ragged ? 1u : 0u) + (stream.is_sparse ? 2u : 1u));
    }
}

std::shared_ptr<StageWork> StageWork::copy_not_begun() const {
    const Runs runs{slots_.data(), index_.data(), counts_.empty() ? nullptr : counts_.data(), slots_.size()};
    return std::make_shared<StageWork>(streams_, runs, files_, pool_);
}

void StageWork::next(std::vector<Read>& reads) {
    if (begun_) {
        handle_reads(reads);
        use_wants();
        ++step_;
    }
    begun_ = true;
    for (reads.clear(); step_ < steps_; ++step_) {
        add_wants(step_);
        locate_wants(reads);
        if (!reads.empty()) return;
        use_wants();
    }
    wants_ = {};
    candidates_ = {};
}

const std::int64_t* StageWork::offsets_of(const Stream& stream, std::uint32_t pick) const {
    return stream.is_sparse ? stream.sparse[slots_[pick]].offsets : stream.dense[slots_[pick]].offsets;
}

// Bytes from the first of some rows to the end of the last one, or 0 if they had better stay in place: rows in pieces,
// in reverse order, or with wide gaps between them.
static std::size_t span_of(const RowLayout& layout, std::int64_t count) {
    const auto row = static_cast<std::ptrdiff_t>(layout.run_bytes);
    if (count == 0 || !layout.axes.empty() || layout.row_stride < 0) return 0;
    if (count > 1 && layout.row_stride - row > static_cast<std::ptrdiff_t>(kGapBytes)) return 0;
    return static_cast<std::size_t>((count - 1) * layout.row_stride + row);
}

// Adds the wants of this step.
void StageWork::add_wants(unsigned step) {
    wants_.clear();
    for (std::uint32_t s = 0; s < streams_.size(); ++s) {
        const Stream& stream = streams_[s];
        Outcome& outcome = outcome_[s];
        const unsigned base = outcome.ragged ? 1 : 0;
        const auto want = [&](Part part, std::uint32_t i, const void* at, std::int64_t items, std::size_t item_bytes) {
            const bool bounds = part == Part::kOffsets || part == Part::kBounds;
            const bool keep = bounds ? stream.keep_bounds : stream.keep_rows;
            const std::size_t bytes = static_cast<std::size_t>(items) * item_bytes;
            wants_.push_back({static_cast<const std::byte*>(at), bytes, s, i, part, keep, nullptr});
        };
        for (std::uint32_t i = 0; i < slots_.size(); ++i) {
            Rows& rows = outcome.rows[i];
            if (step == 0) {
                const std::int64_t* offsets = offsets_of(stream, i);
                if (offsets != nullptr) {
                    want(Part::kOffsets, i, offsets + index_[i], sequences(i) + 1, sizeof(std::int64_t));
                    continue;
                }
                rows.first = index_[i];
                rows.last = index_[i] + sequences(i);
            }
            if (step < base || !rows.good) continue;
            if (!stream.is_sparse && stream.dense[slots_[i]].layout != nullptr) {
                if (step != base) continue;
                const DenseSource& source = stream.dense[slots_[i]];
                const std::byte* from = source.rows + rows.first * source.layout->row_stride;
                if (const std::size_t bytes = span_of(*source.layout, rows.last - rows.first); bytes != 0) {
                    want(Part::kRows, i, from, 1, bytes);
                } else {
                    outcome.dense[i] = {from, nullptr, rows.last - rows.first, source.layout};
                    in_place_[i] = 1;
                }
                continue;
            }
            if (!stream.is_sparse) {
                const std::byte* from =
                    stream.dense[slots_[i]].rows + static_cast<std::size_t>(rows.first) * stream.item_bytes;
                if (step == base) want(Part::kRows, i, from, rows.last - rows.first, stream.item_bytes);
                continue;
            }
            const SparseSource& source = stream.sparse[slots_[i]];
            if (step == base)
                want(Part::kBounds, i, source.indptr + rows.first, rows.last - rows.first + 1, sizeof(std::int64_t));
            if (step == base + 1) {
                if (stream.has_indices)
                    want(Part::kIndices, i, source.indices + rows.value, rows.values, sizeof(std::int32_t));
                want(Part::kValues, i, source.values + static_cast<std::size_t>(rows.value) * stream.item_bytes,
                     rows.values, stream.item_bytes);
            }
        }
    }
}

static bool find_file(const MappedFiles& files, const std::byte* at, std::size_t bytes, std::size_t& file) {
    const auto after = std::upper_bound(files.begin(), files.end(), at, [](const std::byte* address, const auto& f) {
        return address < f->begin();
    });
    if (after == files.begin()) return false;
    file = static_cast<std::size_t>(after - files.begin()) - 1;
    return files[file]->maps(at, bytes);
}

// Locates each want, and adds the reads for those that are not in memory.
void StageWork::locate_wants(std::vector<Read>& reads) {
    candidates_.clear();
    extents_.clear();
    for (std::size_t w = 0; w < wants_.size(); ++w) {
        Want& want = wants_[w];
        want.data = want.at;
        std::size_t file;
        if (want.bytes != 0 && find_file(*files_, want.at, want.bytes, file))
            candidates_.push_back({file, static_cast<std::uint64_t>(want.at - (*files_)[file]->mapped()), w});
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    pieces_in_files_ += candidates_.size();

    const auto end_of = [&](const Candidate& c) { return c.offset + wants_[c.want].bytes; };
    std::vector<unsigned char> cached;
    for (std::size_t a = 0; a < candidates_.size();) {
        // Candidates [a, b) are close together: query the kernel once for all.
        const DiskFile& file = *(*files_)[candidates_[a].file];
        const std::uint64_t begin = down(candidates_[a].offset);
        std::uint64_t end = end_of(candidates_[a]);
        std::size_t b = a + 1;
        while (b < candidates_.size() && candidates_[b].file == candidates_[a].file &&
               candidates_[b].offset <= end + kLookBytes && end_of(candidates_[b]) <= begin + kRunBytes)
            end = std::max(end, end_of(candidates_[b++]));
        cached.assign((up(end) - begin) / kFetchAlign, 0);
        if (file.reports_pages()) file.query_pages(begin, cached.size(), cached.data());
        const auto missing = [&](const Candidate& c) {
            const auto first = cached.begin() + static_cast<std::ptrdiff_t>((c.offset - begin) / kFetchAlign);
            const auto last = cached.begin() + static_cast<std::ptrdiff_t>((end_of(c) - 1 - begin) / kFetchAlign) + 1;
            return std::find(first, last, 0) != last;
        };
        // Read the missing ones of these, merged again where they are close.
        const std::size_t known = extents_.size();
        for (std::size_t c = a; c < b; ++c) {
            if (!missing(candidates_[c])) continue;
            ++missing_pieces_;
            Want& want = wants_[candidates_[c].want];
            want.data = nullptr;
            const std::uint64_t from = down(candidates_[c].offset), to = up(end_of(candidates_[c]));
            if (extents_.size() > known && want.keep == extents_.back().keep &&
                from <= extents_.back().offset + extents_.back().bytes + kGapBytes) {
                Extent& extent = extents_.back();
                extent.bytes = std::max(extent.offset + extent.bytes, to) - extent.offset;
                extent.end = c + 1;
                continue;
            }
            extents_.push_back({candidates_[c].file, from, to - from, c, c + 1, want.keep, nullptr, {}, 0, 0});
            if (want.keep) read_around(want, candidates_[c].file);
        }
        for (std::size_t e = known; e < extents_.size(); ++e) {
            const auto first = cached.begin() + static_cast<std::ptrdiff_t>((extents_[e].offset - begin) / kFetchAlign);
            extents_[e].cached.assign(first, first + static_cast<std::ptrdiff_t>(extents_[e].bytes / kFetchAlign));
        }
        a = b;
    }
    if (extents_.empty()) return;

    std::uint64_t bytes = 0;
    for (const Extent& extent : extents_) bytes += extent.bytes;
    blocks_.push_back(pool_->take(bytes));
    memory_ += bytes;
    std::byte* to = blocks_.back().get();
    for (Extent& extent : extents_) {
        const DiskFile& file = *(*files_)[extent.file];
        extent.to = to;
        pieces_.push_back({extent.file, extent.offset, extent.bytes, to});
        to += extent.bytes;
        extent.first_read = reads.size();
        disk_bytes_ +=
            plan_reads(file, extent.offset, extent.offset + extent.bytes, extent.cached.data(), extent.to, reads);
        extent.last_read = reads.size();
        if (extent.keep && file.plain() >= 0)
            for (std::size_t r = extent.first_read; r < extent.last_read; ++r) reads[r].fd = file.plain();
    }
}

// Makes the page cache begin to read around a small piece, within the same array of its chunk.
void StageWork::read_around(const Want& want, std::size_t file) {
    const Stream& stream = streams_[want.stream];
    const std::uint32_t slot = slots_[want.pick];
    const auto array = [&]() -> std::pair<const void*, std::int64_t> {
        const auto word = static_cast<std::int64_t>(sizeof(std::int64_t));
        const auto item = static_cast<std::int64_t>(stream.item_bytes);
        if (want.part == Part::kOffsets)
            return {offsets_of(stream, want.pick), INT64_MAX};  // their number is unknown
        if (!stream.is_sparse) return {stream.dense[slot].rows, stream.dense[slot].num_rows * item};
        const SparseSource& source = stream.sparse[slot];
        if (want.part == Part::kBounds) return {source.indptr, (source.num_rows + 1) * word};
        if (want.part == Part::kIndices) return {source.indices, source.num_values * (word / 2)};
        return {source.values, source.num_values * item};
    }();
    const DiskFile& from = *(*files_)[file];
    const auto begin = static_cast<std::uint64_t>(static_cast<const std::byte*>(array.first) - from.mapped());
    const auto bytes = static_cast<std::uint64_t>(array.second);
    const std::uint64_t end = bytes < from.size() - begin ? begin + bytes : from.size();
    const auto at = static_cast<std::uint64_t>(want.at - from.mapped());
    from.read_ahead(std::max(begin, at - std::min(at, kAroundBytes)), std::min(end, at + want.bytes + kAroundBytes));
}

// Handles completed reads: sets where the wants are, and determines which of them failed.
void StageWork::handle_reads(const std::vector<Read>& reads) {
    for (const Extent& extent : extents_) {
        const DiskFile& file = *(*files_)[extent.file];
        std::uint64_t complete_to = extent.offset;
        for (std::size_t r = extent.first_read; r < extent.last_read; ++r) {
            const Read& read = reads[r];
            if (complete_to == read.offset && read.got > 0)
                complete_to += static_cast<std::uint64_t>(read.got);
            // Pages that were cached before stay in the cache.
            if (file.direct() || extent.keep || !read.from_disk) continue;
            if (file.shared())
                shared_.push_back({extent.file, read.offset, read.size, read.to});
            else
                file.drop(read.offset, read.size);
        }
        for (std::size_t c = extent.begin; c < extent.end; ++c) {
            Want& want = wants_[candidates_[c].want];
            if (want.data != nullptr) continue;  // it was in memory before
            const std::uint64_t offset = candidates_[c].offset;
            std::byte* place = extent.to + (offset - extent.offset);
            std::uint64_t bad;
            if (offset + want.bytes > complete_to || file.fails(offset, offset + want.bytes, bad) != 0) {
                // The failure may be a neighbour's, so each is tried by itself.
                std::uint64_t at;
                const int error = read_plain(file, offset, want.bytes, place, at);
                if (error != 0) {
                    fail(want, error, extent.file, at);
                    continue;
                }
            }
            want.data = place;
        }
    }
    extents_.clear();
}

const std::byte* StageWork::origin(const std::byte* at) const {
    for (const Piece& piece : pieces_)
        if (at >= piece.to && at < piece.to + piece.bytes)
            return (*files_)[piece.file]->mapped() + piece.offset + (at - piece.to);
    return at;
}

void StageWork::forget() const {
    for (const Piece& read : shared_) (*files_)[read.file]->drop(read.offset, read.bytes);
}

void StageWork::use_wants() {
    for (const Want& want : wants_) {
        if (want.data == want.at && want.bytes != 0) in_place_[want.pick] = 1;
        if (want.data != nullptr || want.bytes == 0) use_want(want);
    }
}

void StageWork::fail(const Want& want, int error, std::size_t file, std::uint64_t at) {
    Outcome& outcome = outcome_[want.stream];
    if (outcome.rows[want.pick].good) faults_.push_back({want.pick, want.stream, error, file, at});
    outcome.rows[want.pick].good = false;
    if (streams_[want.stream].is_sparse)
        outcome.sparse[want.pick] = {};
    else
        outcome.dense[want.pick] = {};
}

// Copies numbers that should ascend within [0, limit], shifted to begin with 0, and sets `first` to the first one.
// Cached ones are still in the mapping, and its file may have been truncated meanwhile.
enum class Rebased { kGood, kBad, kUnreadable };
static Rebased rebase(const std::byte* from, std::int64_t count, std::int64_t limit, std::vector<std::int64_t>& numbers,
                     std::int64_t& first) {
    numbers.resize(static_cast<std::size_t>(count));
    std::int64_t* const to = numbers.data();
    const std::size_t bytes = numbers.size() * sizeof(std::int64_t);
    if (guarded([&] { std::memcpy(to, from, bytes); }) != nullptr) return Rebased::kUnreadable;
    first = numbers[0];
    bool good = first >= 0 && numbers.back() <= limit;
    for (std::size_t i = 1; i < numbers.size(); ++i) good = good && numbers[i - 1] <= numbers[i];
    if (!good) return Rebased::kBad;
    for (std::int64_t& value : numbers) value -= first;
    return Rebased::kGood;
}

void StageWork::use_want(const Want& want) {
    const Stream& stream = streams_[want.stream];
    Outcome& outcome = outcome_[want.stream];
    Rows& rows = outcome.rows[want.pick];
    if (!rows.good) return;
    const std::uint32_t slot = slots_[want.pick];
    const std::int64_t* offsets = offsets_of(stream, want.pick);
    if (offsets != nullptr) offsets = outcome.offsets[want.pick].data();
    const auto check = [&](Rebased result) {
        std::size_t file = 0;
        if (result == Rebased::kBad) fail(want, 0, 0, 0);
        if (result == Rebased::kUnreadable && find_file(*files_, want.at, want.bytes, file))
            fail(want, -1, file, static_cast<std::uint64_t>(want.at - (*files_)[file]->mapped()));
        else if (result == Rebased::kUnreadable)
            fail(want, 0, 0, 0);
        return result == Rebased::kGood;
    };
    switch (want.part) {
        case Part::kOffsets: {
            const std::int64_t num_rows = stream.is_sparse ? stream.sparse[slot].num_rows : stream.dense[slot].num_rows;
            std::vector<std::int64_t>& shifted = outcome.offsets[want.pick];
            if (!check(rebase(want.data, sequences(want.pick) + 1, num_rows, shifted, rows.first))) return;
            rows.last = rows.first + shifted.back();
            return;
        }
        case Part::kRows:
            outcome.dense[want.pick] = {want.data, offsets, rows.last - rows.first, stream.dense[slot].layout};
            return;
        case Part::kBounds: {
            std::vector<std::int64_t>& shifted = outcome.bounds[want.pick];
            const std::int64_t num_values = stream.sparse[slot].num_values;
            if (!check(rebase(want.data, rows.last - rows.first + 1, num_values, shifted, rows.value))) return;
            rows.values = shifted.back();
            return;
        }
        case Part::kIndices:
            outcome.sparse[want.pick].indices = reinterpret_cast<const std::int32_t*>(want.data);
            return;
        case Part::kValues: {
            SparseSource& out = outcome.sparse[want.pick];
            out.indptr = outcome.bounds[want.pick].data();
            out.values = want.data;
            out.offsets = offsets;
            out.num_rows = rows.last - rows.first;
            out.num_values = rows.values;
            return;
        }
    }
}

static bool lacks_pages(const MappedFiles& files, const void* memory, std::size_t bytes, std::size_t max_pages) {
    const auto* at = static_cast<const std::byte*>(memory);
    std::size_t number;
    if (bytes == 0 || !find_file(files, at, bytes, number)) return false;
    const DiskFile& file = *files[number];
    if (!file.asks()) return true;
    const auto offset = static_cast<std::uint64_t>(at - file.mapped());
    const std::uint64_t first = offset / kFetchAlign, pages = (offset + bytes - 1) / kFetchAlign + 1 - first;
    const std::uint64_t checked = std::min<std::uint64_t>(pages, max_pages);
    for (std::uint64_t k = 0; k < checked; ++k) {
        const std::uint64_t page = (first + (2 * k + 1) * pages / (2 * checked)) * kFetchAlign;
        unsigned char cached = 1;
        if (file.reports_pages())
            file.query_pages(page, 1, &cached);
        else
            cached = file.probe(page) ? 1 : 0;
        if (cached == 0) return true;
    }
    return false;
}

bool lacks_pages(const std::vector<StageWork::Stream>& streams, std::uint32_t slot, std::int64_t index,
                 std::int64_t count, const MappedFiles& files, std::size_t max_pages) {
    const auto words = static_cast<std::size_t>(count + 1) * sizeof(std::int64_t);
    return std::any_of(streams.begin(), streams.end(), [&](const StageWork::Stream& stream) {
        const std::int64_t* offsets = stream.is_sparse ? stream.sparse[slot].offsets : stream.dense[slot].offsets;
        if (offsets != nullptr) return lacks_pages(files, offsets + index, words, max_pages);
        if (stream.is_sparse) return lacks_pages(files, stream.sparse[slot].indptr + index, words, max_pages);
        if (const RowLayout* layout = stream.dense[slot].layout; layout != nullptr)
            return lacks_pages(files, stream.dense[slot].rows + index * layout->row_stride, span_of(*layout, count),
                               max_pages);
        return lacks_pages(files, stream.dense[slot].rows + static_cast<std::size_t>(index) * stream.item_bytes,
                           static_cast<std::size_t>(count) * stream.item_bytes, max_pages);
    });
}

}  // namespace feedline
