#include <cstring>

#include "feedline/order.h"
#include "feedline/pictures.h"

namespace feedline {

namespace {

// Bytes with checked reads: numbers that reach beyond them read as 0, and has() is false.
struct Bytes {
    const std::uint8_t* data;
    std::size_t n;

    bool has(std::size_t at, std::size_t count) const { return at <= n && count <= n - at; }
    std::uint32_t be16(std::size_t at) const { return has(at, 2) ? std::uint32_t(data[at] << 8 | data[at + 1]) : 0; }
    std::uint32_t be32(std::size_t at) const { return be16(at) << 16 | be16(at + 2); }
    std::uint32_t le16(std::size_t at) const { return has(at, 2) ? std::uint32_t(data[at + 1] << 8 | data[at]) : 0; }
    std::uint32_t le32(std::size_t at) const { return le16(at + 2) << 16 | le16(at); }
    bool starts(std::size_t at, const char* text, std::size_t count) const {
        return has(at, count) && std::memcmp(data + at, text, count) == 0;
    }
};

// The orientation in a TIFF structure, 1 if it has none, or an invalid one.
int orientation_of(Bytes tiff) {
    const bool little = tiff.starts(0, "II*\0", 4);
    if (!little && !tiff.starts(0, "MM\0*", 4)) return 1;
    const auto u16 = [&](std::size_t at) { return little ? tiff.le16(at) : tiff.be16(at); };
    const auto u32 = [&](std::size_t at) { return little ? tiff.le32(at) : tiff.be32(at); };
    const std::size_t directory = u32(4);
    if (!tiff.has(directory, 2)) return 1;
    const std::size_t entries = u16(directory);
    for (std::size_t k = 0; k < entries; ++k) {
        const std::size_t at = directory + 2 + 12 * k;
        if (!tiff.has(at, 12)) return 1;
        if (u16(at) != 0x0112) continue;
        const std::uint32_t value = u16(at + 2) == 3 && u32(at + 4) == 1 ? u16(at + 8) : 0;
        return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
}

PictureHeader jpeg_header(Bytes bytes) {
    PictureHeader header{static_cast<std::int32_t>(PictureFormat::jpeg), 0, 0, 0, 1};
    bool turned = false;
    std::size_t at = 2;
    while (bytes.has(at, 2) && bytes.data[at] == 0xff) {
        const unsigned marker = bytes.data[at + 1];
        if (marker == 0xff) {  // a fill byte
            ++at;
            continue;
        }
        if (marker == 0x00) break;  // a stuffed byte, which occurs only in data
        at += 2;
        if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) continue;  // no length
        if (marker == 0xda || marker == 0xd9) break;                        // data, or the end
        const std::size_t length = bytes.be16(at);
        if (length < 2 || !bytes.has(at, length)) break;
        const bool frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
        if (frame && header.width == 0) {
            const std::int32_t height = static_cast<std::int32_t>(bytes.be16(at + 3));
            const std::int32_t width = static_cast<std::int32_t>(bytes.be16(at + 5));
            if (length < 8 || width == 0 || height == 0) break;
            header.width = width, header.height = height, header.components = bytes.data[at + 7];
        }
        if (marker == 0xe1 && !turned && length >= 8 && bytes.starts(at + 2, "Exif\0\0", 6)) {
            header.orientation = orientation_of({bytes.data + at + 8, length - 8});
            turned = true;
        }
        at += length;
    }
    return header;
}

PictureHeader png_header(Bytes bytes) {
    PictureHeader header{static_cast<std::int32_t>(PictureFormat::png), 0, 0, 0, 1};
    const std::uint32_t width = bytes.be32(16), height = bytes.be32(20);
    if (!bytes.has(8, 25) || !bytes.starts(12, "IHDR", 4) || width == 0 || height == 0 || width >> 31 || height >> 31)
        return header;
    static constexpr std::int32_t kComponents[] = {1, 0, 3, 3, 2, 0, 4};
    const unsigned color = bytes.data[25];
    header.width = static_cast<std::int32_t>(width), header.height = static_cast<std::int32_t>(height);
    header.components = color < 7 ? kComponents[color] : 0;
    for (std::size_t at = 8; bytes.has(at, 12);) {
        const std::size_t length = bytes.be32(at);
        if (!bytes.has(at + 8, length) || bytes.starts(at + 4, "IDAT", 4)) break;
        if (bytes.starts(at + 4, "eXIf", 4)) {
            header.orientation = orientation_of({bytes.data + at + 8, length});
            break;
        }
        at += 12 + length;
    }
    return header;
}

}  // namespace

PictureHeader read_picture_header(const std::uint8_t* data, std::size_t n) {
    const Bytes bytes{data, n};
    if (bytes.starts(0, "\xff\xd8\xff", 3)) return jpeg_header(bytes);
    if (bytes.starts(0, "\x89PNG\r\n\x1a\n", 8)) return png_header(bytes);
    PictureHeader header;
    const bool known = bytes.starts(0, "GIF8", 4) || bytes.starts(0, "BM", 2) || bytes.starts(0, "II*\0", 4) ||
                       bytes.starts(0, "MM\0*", 4) || (bytes.starts(0, "RIFF", 4) && bytes.starts(8, "WEBP", 4));
    if (known) header.format = static_cast<std::int32_t>(PictureFormat::other);
    return header;
}

void keyed_uniforms(std::uint64_t seed, const std::int64_t* sweeps, const std::int64_t* ordinals, std::size_t n,
                    std::uint64_t stage, std::uint64_t step, std::size_t count, double* out) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint64_t words[] = {seed, static_cast<std::uint64_t>(sweeps[i]), 2, static_cast<std::uint64_t>(ordinals[i]),
                                 stage, step, 0};
        for (std::size_t j = 0; j < count; ++j) {
            words[6] = j;
            *out++ = static_cast<double>(hash_key(words, 7) >> 11) * 0x1p-53;
        }
    }
}

}  // namespace feedline
