// SPDX-License-Identifier: Apache-2.0
// Work in equal parts on several threads.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace feedline::bindings {

// Calls part(k) for each k below `threads`, the first in this thread. Threads live for one call, so that a fork finds
// none.
template <class Part>
void in_parts(std::size_t threads, const Part& part) {
    std::vector<std::thread> helpers;
    std::size_t started = 1;
    try {
        helpers.reserve(threads - 1);
        for (; started < threads; ++started) helpers.emplace_back(part, started);
    } catch (const std::system_error&) {
        // No thread is available: this one does the remaining parts.
    }
    part(0);
    for (std::size_t k = started; k < threads; ++k) part(k);
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace feedline::bindings
