// SPDX-License-Identifier: Apache-2.0
// Work in equal parts on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace feedline {

// Calls part(k) for each k below `threads` (at least 1), part(0) in this thread, and returns when all have returned.
// `part` must not throw. Threads live for one call, so a fork meets none between calls. This thread does the parts for
// which no thread is available. To start a thread costs as much as copying about 100 KB.
void in_parts(std::size_t threads, const std::function<void(std::size_t)>& part);

}  // namespace feedline
