// Recycled memory: nobody sees a piece that somebody else has, unused pieces have limits, and forks lose nothing. Meant
// for ASan + UBSan (`make sanitize`), under which unused pieces must not be touched.
#include "feedline/recycled_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

using namespace feedline;
using Piece = RecycledMemory::Piece;

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

static void fill(const Piece& piece, int number) { std::memset(piece.begin, number, piece.bytes); }

static bool is_filled(const Piece& piece, int number) {
    const auto byte = static_cast<std::byte>(number);
    return std::all_of(piece.begin, piece.begin + piece.bytes, [&](std::byte b) { return b == byte; });
}

static void test_pieces_are_used_again() {
    RecycledMemory memory;
    const Piece first = memory.take(kMegabyte + 1);
    CHECK(first.bytes > kMegabyte && first.bytes <= kMegabyte + kMegabyte / 8);
    const Piece second = memory.take(kMegabyte);
    CHECK(second.begin + second.bytes <= first.begin || first.begin + first.bytes <= second.begin);
    memory.give_back(first);
    CHECK(memory.take(kMegabyte).begin == first.begin);      // a little more than asked for
    CHECK(memory.take(kMegabyte / 2).begin != first.begin);  // far more than asked for
    memory.give_back(first);
    CHECK(memory.take(2 * kMegabyte).begin != first.begin);
}

static void test_the_latest_is_used_first() {
    RecycledMemory memory;
    const Piece a = memory.take(kMegabyte), b = memory.take(kMegabyte);
    memory.give_back(b);
    memory.give_back(a);
    CHECK(memory.take(kMegabyte).begin == a.begin);
    CHECK(memory.take(kMegabyte).begin == b.begin);
}

static void test_large_pieces_begin_at_huge_pages() {
    RecycledMemory memory;
    for (const std::size_t bytes : {4 * kMegabyte, 5 * kMegabyte + 3, 70 * kMegabyte}) {
        const Piece piece = memory.take(bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(piece.begin) % (2 * kMegabyte) == 0);
        fill(piece, 1);
        memory.give_back(piece);
    }
}

static void test_unused_pieces_have_limits() {
    RecycledMemory memory;
    std::vector<Piece> pieces;
    for (int i = 0; i < 200; ++i) pieces.push_back(memory.take(kMegabyte));
    for (const Piece& piece : pieces) memory.give_back(piece);
    CHECK(memory.usage().in_use == 0 && memory.usage().unused == 64 * kMegabyte);
    // After two spans in which only two pieces were in use, no more than two are left.
    for (int i = 0; i < 128; ++i) {
        const Piece piece = memory.take(kMegabyte), other = memory.take(kMegabyte);
        memory.give_back(piece);
        memory.give_back(other);
    }
    CHECK(memory.usage().in_use == 0 && memory.usage().unused == 2 * kMegabyte);
    std::vector<Piece> large;
    for (int i = 0; i < 6; ++i) large.push_back(memory.take(40 * kMegabyte));
    for (const Piece& piece : large) memory.give_back(piece);
    CHECK(memory.usage().unused == 4 * 40 * kMegabyte);
}

static void test_released_memory_goes_back() {
    RecycledMemory memory;
    const Piece kept = memory.take(kMegabyte), unused = memory.take(kMegabyte);
    fill(kept, 3);
    memory.give_back(unused);
    memory.release();
    CHECK(memory.usage().in_use == kept.bytes && memory.usage().unused == 0);
    CHECK(is_filled(kept, 3));
    memory.give_back(kept);
    CHECK(memory.usage().in_use == 0 && memory.usage().unused == 0);
    memory.give_back(memory.take(kMegabyte));
    CHECK(memory.usage().unused == kMegabyte);
}

static void test_too_much_is_refused() {
    RecycledMemory memory;
    memory.give_back(memory.take(kMegabyte));
    for (const std::size_t bytes : {std::size_t{1} << 60, SIZE_MAX}) {
        bool refused = false;
        try {
            memory.take(bytes);
        } catch (const std::bad_alloc&) {
            refused = true;
        }
        CHECK(refused);
    }
    CHECK(memory.usage().in_use == 0);
}

// Each thread fills its pieces with a number of its own and finds it there when it gives them back, some to others.
static void test_threads_see_only_their_pieces() {
    RecycledMemory memory;
    std::vector<std::thread> threads;
    for (int number = 1; number <= 4; ++number) {
        threads.emplace_back([&memory, number] {
            std::mt19937 rng(static_cast<unsigned>(number));
            std::vector<Piece> pieces;
            for (int i = 0; i < 400; ++i) {
                pieces.push_back(memory.take(kMinRecycledBytes + rng() % kMinRecycledBytes));
                fill(pieces.back(), number);
                if (rng() % 50 == 0) memory.release();
                while (pieces.size() > rng() % 6) {
                    std::swap(pieces[rng() % pieces.size()], pieces.back());
                    CHECK(is_filled(pieces.back(), number));
                    memory.give_back(pieces.back());
                    pieces.pop_back();
                }
            }
            for (const Piece& piece : pieces) memory.give_back(piece);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(memory.usage().in_use == 0);
}

static void test_a_child_has_its_copy() {
    RecycledMemory& memory = RecycledMemory::of_minibatches();
    std::thread other([&memory] {
        for (int i = 0; i < 3000; ++i) memory.give_back(memory.take(kMinRecycledBytes));
    });
    for (int i = 0; i < 30; ++i) {
        const Piece kept = memory.take(kMegabyte);
        fill(kept, 1);
        const pid_t child = fork();
        if (child == 0) {
            if (!is_filled(kept, 1)) _exit(2);
            fill(kept, 2);
            const Piece fresh = memory.take(kMegabyte);  // would wait forever for a lock of the other thread
            if (fresh.begin == kept.begin) _exit(3);
            fill(fresh, 3);
            memory.give_back(fresh);
            memory.give_back(kept);
            memory.release();
            _exit(is_filled(memory.take(kMegabyte), 0) ? 0 : 4);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(is_filled(kept, 1));
        memory.give_back(kept);
    }
    other.join();
}

int main() {
    test_pieces_are_used_again();
    test_the_latest_is_used_first();
    test_large_pieces_begin_at_huge_pages();
    test_unused_pieces_have_limits();
    test_released_memory_goes_back();
    test_too_much_is_refused();
    test_threads_see_only_their_pieces();
    test_a_child_has_its_copy();
    std::puts("recycled memory: ok");
    return 0;
}
