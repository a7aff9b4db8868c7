#include "feedline/threads.h"

#include <system_error>
#include <thread>
#include <vector>

namespace feedline {

void in_parts(std::size_t threads, const std::function<void(std::size_t)>& part) {
    std::vector<std::thread> helpers;
    std::size_t started = 1;
    try {
        helpers.reserve(threads - 1);
        for (; started < threads; ++started) helpers.emplace_back(std::cref(part), started);
    } catch (const std::system_error&) {
        // No thread is available, so this one does the remaining parts.
    }
    part(0);
    for (std::size_t k = started; k < threads; ++k) part(k);
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace feedline
