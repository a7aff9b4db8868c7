#include "feedline/recycled_memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#endif

namespace feedline {

constexpr std::size_t kPage = std::size_t{4} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Smaller pieces have few faults to save, and leave most of a huge page unused.
constexpr std::size_t kHugeBytes = 2 * kHugePage;
// The chunks of a window are given back together, and taken again one by one while the next windows are decoded.
constexpr RecycledMemory::Limits kOfChunks{std::numeric_limits<std::size_t>::max(), 0};
// The length of a span in calls of take(): several times the minibatches that a program keeps for a step.
constexpr std::uint64_t kSpan = 64;

static std::size_t up_to(std::size_t multiple, std::size_t bytes) { return (bytes + multiple - 1) / multiple * multiple; }

// Up to an eighth more, so that pieces of about the same size can replace each other.
static std::size_t rounded(std::size_t bytes) {
    std::size_t step = kPage;
    while (step * 16 <= bytes) step *= 2;
    return up_to(step, bytes);
}

static std::byte* map(std::size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

// Returns null if there is no memory.
static std::byte* allocate(std::size_t bytes) {
    const bool huge = bytes >= kHugeBytes;
    std::byte* const first = map(huge ? bytes + kHugePage : bytes);
    if (first == nullptr || !huge) return first;
    const auto address = reinterpret_cast<std::uintptr_t>(first);
    const std::size_t before = up_to(kHugePage, address) - address;
    if (before != 0) munmap(first, before);
    munmap(first + before + bytes, kHugePage - before);
#ifdef MADV_HUGEPAGE
    madvise(first + before, bytes, MADV_HUGEPAGE);
#endif
    return first + before;
}

static void free_memory(const RecycledMemory::Piece& piece) {
    ASAN_UNPOISON_MEMORY_REGION(piece.begin, piece.bytes);
    munmap(piece.begin, piece.bytes);
}

struct RecycledMemory::Shared {
    RecycledMemory minibatches, chunks{kOfChunks};

    void lock() { minibatches.mutex_.lock(), chunks.mutex_.lock(); }
    void unlock() { chunks.mutex_.unlock(), minibatches.mutex_.unlock(); }

    static Shared& instance() {
        static Shared* const shared = new Shared;
        return *shared;
    }

    // The same, and after a fork as well.
    static Shared& registered() {
        // A child has one thread, so nobody in it would unlock what another thread of its parent has locked.
        static const int registered = pthread_atfork([] { instance().lock(); }, [] { instance().unlock(); },
                                                     [] { instance().unlock(); });
        static_cast<void>(registered);
        return instance();
    }
};

RecycledMemory& RecycledMemory::of_minibatches() { return Shared::registered().minibatches; }

RecycledMemory& RecycledMemory::of_chunks() { return Shared::registered().chunks; }

RecycledMemory::Piece RecycledMemory::take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    unused_.reserve(unused_.size() + pieces_in_use_ + 1);  // so that give_back() allocates nothing
    Piece taken{nullptr, 0, epoch_};
    auto best = unused_.end();
    for (auto piece = unused_.begin(); piece != unused_.end(); ++piece)  // of equal ones the latest, still in a cache
        if (piece->bytes >= bytes && piece->bytes - bytes <= bytes / 4 &&
            (best == unused_.end() || piece->bytes <= best->bytes))
            best = piece;
    if (best != unused_.end()) {
        taken = *best;
        unused_.erase(best);
        unused_bytes_ -= taken.bytes;
        ASAN_UNPOISON_MEMORY_REGION(taken.begin, taken.bytes);
    } else {
        if (bytes > PTRDIFF_MAX / 2) throw std::bad_alloc();
        taken.bytes = rounded(bytes);
        taken.begin = allocate(taken.bytes);
        if (taken.begin == nullptr) {
            free_unused(0);
            taken.begin = allocate(taken.bytes);
        }
        if (taken.begin == nullptr) throw std::bad_alloc();
    }
    ++pieces_in_use_;
    in_use_ += taken.bytes;
    if (++takes_ % kSpan == 0) {
        most_before_ = most_;
        most_ = 0;
    }
    most_ = std::max(most_, in_use_);
    limit(taken.bytes);
    return taken;
}

void RecycledMemory::give_back(const Piece& piece) noexcept {
    const std::lock_guard lock(mutex_);
    --pieces_in_use_;
    in_use_ -= piece.bytes;
    if (piece.epoch != epoch_) {
        free_memory(piece);
        return;
    }
    ASAN_POISON_MEMORY_REGION(piece.begin, piece.bytes);
    unused_.push_back(piece);
    unused_bytes_ += piece.bytes;
    limit(piece.bytes);
}

void RecycledMemory::limit(std::size_t latest) noexcept {
    const std::size_t most = std::max(most_, most_before_);
    free_unused(std::min(most - std::min(most, in_use_),
                         std::max(limits_.unused_bytes, limits_.unused_pieces * latest)));
}

void RecycledMemory::free_unused(std::size_t most) noexcept {
    auto end = unused_.begin();
    for (; end != unused_.end() && unused_bytes_ > most; ++end) {
        unused_bytes_ -= end->bytes;
        free_memory(*end);
    }
    unused_.erase(unused_.begin(), end);
}

void RecycledMemory::release() noexcept {
    const std::lock_guard lock(mutex_);
    free_unused(0);
    most_before_ = 0;
    most_ = in_use_;
    ++epoch_;
}

RecycledMemory::Usage RecycledMemory::usage() {
    const std::lock_guard lock(mutex_);
    return {in_use_, unused_bytes_};
}

}  // namespace feedline
