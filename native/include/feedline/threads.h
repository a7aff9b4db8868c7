// SPDX-License-Identifier: Apache-2.0
// Work in equal parts on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace feedline {

// Calls part(k) for each k below `threads` (at least 1), part(0) in this thread; returns when all have returned. `part`
// must not throw. Threads live for one call, so that a fork finds none; parts for which no thread is available are done
// by this one. Starting a thread costs about what copying 100 KB does.
void in_parts(std::size_t threads, const std::function<void(std::size_t)>& part);

}  // namespace feedline
