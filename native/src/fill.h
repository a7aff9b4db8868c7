// SPDX-License-Identifier: Apache-2.0
// One element again and again. Not for files compiled for one instruction set: the linker may take this code from there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace feedline {

template <class T>
void fill_with(std::byte* out, std::size_t bytes, const std::byte* fill) {
    T value;
    std::memcpy(&value, fill, sizeof value);
    for (std::size_t at = 0; at < bytes; at += sizeof value) std::memcpy(out + at, &value, sizeof value);
}

// Fills `bytes`, a multiple of element_bytes.
inline void fill_elements(std::byte* out, std::size_t bytes, const std::byte* fill, std::size_t element_bytes) {
    if (bytes == 0) return;
    if (std::all_of(fill, fill + element_bytes, [&](std::byte b) { return b == fill[0]; })) {
        std::memset(out, static_cast<int>(fill[0]), bytes);
        return;
    }
    switch (element_bytes) {
        case 2: return fill_with<std::uint16_t>(out, bytes, fill);
        case 4: return fill_with<std::uint32_t>(out, bytes, fill);
        case 8: return fill_with<std::uint64_t>(out, bytes, fill);
        default:
            for (std::size_t at = 0; at < bytes; at += element_bytes)
                std::memcpy(out + at, fill, element_bytes);
    }
}

}  // namespace feedline
