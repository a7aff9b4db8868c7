// Shared memory: in any order of destruction nothing is read or written that is not mapped, and a loan is returned
// once, by the process that has begun it. Meant for ASan + UBSan (`make sanitize`).
#include "feedline/shared_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "check.h"

using namespace feedline;

constexpr std::size_t kSize = 8192;
constexpr std::uint8_t kFree = 0, kTaken = 1, kForgotten = 2;

static int shared_file() {
    char path[] = "/tmp/feedline-shared-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, kSize) == 0);
    return fd;
}

static std::shared_ptr<SharedMemory> memory() {
    const int fd = shared_file();
    auto mapped = SharedMemory::map(fd, kSize);
    close(fd);
    return mapped;
}

static std::uint8_t& byte(const std::shared_ptr<SharedMemory>& table, std::size_t at) {
    return *reinterpret_cast<std::uint8_t*>(table->data() + at);
}

static void test_owners_go_in_any_order() {
    std::vector<int> order{0, 1, 2};
    do {
        auto table = memory(), lent = memory();
        const auto watched = table;  // keeps the table readable after its owners
        byte(watched, 5) = kTaken;
        auto loan = std::make_unique<Loan>(lent, table, 5, kFree, kForgotten);
        loan->begin();
        const std::vector<std::function<void()>> owners{[&] { table.reset(); }, [&] { lent.reset(); },
                                                        [&] { loan.reset(); }};
        for (const int owner : order) {
            if (loan) std::fill_n(loan->memory().data(), kSize, std::byte{7});
            owners[static_cast<std::size_t>(owner)]();
            CHECK(byte(watched, 5) == (loan ? kTaken : kFree));
        }
    } while (std::next_permutation(order.begin(), order.end()));
}

static void test_a_copy_on_write_mapping_keeps_what_is_written_to_it() {
    const int fd = shared_file();
    const auto shared = SharedMemory::map(fd, kSize), copied = SharedMemory::map(fd, kSize, true);
    close(fd);
    byte(shared, 3) = 5;
    CHECK(byte(copied, 3) == 5);
    byte(copied, 4) = 6;
    CHECK(byte(copied, 4) == 6 && byte(shared, 4) == 0);
}

static void test_what_has_not_begun_gives_nothing_back() {
    const auto table = memory();
    byte(table, 0) = kTaken;
    { const Loan loan(memory(), table, 0, kFree, kForgotten); }
    CHECK(byte(table, 0) == kTaken);
}

static void test_a_fork_forgets() {
    const auto table = memory();
    byte(table, 0) = byte(table, 1) = kTaken;
    auto loan = std::make_unique<Loan>(memory(), table, 0, kFree, kForgotten);
    loan->begin();
    Loan::forking();
    const pid_t child = fork();
    if (child == 0) {
        loan.reset();  // a copy, which is not its to give back
        std::_Exit(byte(table, 0) == kTaken ? 0 : 1);
    }
    Loan::forking();
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    loan.reset();
    CHECK(byte(table, 0) == kForgotten);
    loan = std::make_unique<Loan>(memory(), table, 1, kFree, kForgotten);
    loan->begin();
    loan.reset();
    CHECK(byte(table, 1) == kFree);
}

static void test_refusals() {
    bool refused = false;
    try {
        SharedMemory::map(-1, kSize);
    } catch (const std::system_error&) {
        refused = true;
    }
    CHECK(refused);
    refused = false;
    try {
        const Loan loan(memory(), memory(), kSize, kFree, kForgotten);
    } catch (const std::out_of_range&) {
        refused = true;
    }
    CHECK(refused);
}

int main() {
    test_owners_go_in_any_order();
    test_a_copy_on_write_mapping_keeps_what_is_written_to_it();
    test_what_has_not_begun_gives_nothing_back();
    test_a_fork_forgets();
    test_refusals();
    return 0;
}
