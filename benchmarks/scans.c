/* The scans that the index pass is measured against; compiled when the benchmark runs. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Newlines in n bytes, one memchr a line. */
size_t newlines_memchr(const char *text, size_t n) {
    size_t count = 0;
    const char *at = text, *end = text + n;
    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        ++count;
        ++at;
    }
    return count;
}

/* Newlines in n bytes; byte counters that the compiler turns into full-width vector code. */
size_t newlines_counted(const char *text, size_t n) {
    size_t count = 0, at = 0;
    while (at < n) {
        unsigned char lanes[64] = {0};
        size_t blocks = (n - at) / 64 < 255 ? (n - at) / 64 : 255;
        if (blocks == 0) break;
        for (size_t b = 0; b < blocks; ++b, at += 64)
            for (int i = 0; i < 64; ++i) lanes[i] = (unsigned char)(lanes[i] + (text[at + i] == '\n'));
        for (int i = 0; i < 64; ++i) count += lanes[i];
    }
    for (; at < n; ++at) count += text[at] == '\n';
    return count;
}

typedef struct {
    uint64_t key, offset;
    uint32_t size, samples;
} Entry;

/* An index by looking at every character once: sequence ids at line starts, one entry a run of equal ids.
   Writes at most `room` entries; returns how many there are. */
size_t index_per_char(const char *text, size_t n, Entry *out, size_t room) {
    size_t count = 0;
    uint64_t key = 0, current = 0;
    uint64_t begin = 0;
    uint32_t samples = 0;
    int at_start = 1, reading_id = 0;
    size_t line = 0;
    for (size_t i = 0; i < n; ++i) {
        const char c = text[i];
        if (at_start) {
            line = i;
            key = 0;
            at_start = 0;
            reading_id = 1;
        }
        if (reading_id) {
            if (c >= '0' && c <= '9') {
                key = key * 10 + (uint64_t)(c - '0');
                continue;
            }
            reading_id = 0;
            if (samples == 0 || key != current) {
                if (samples != 0 && count < room) {
                    Entry e = {current, begin, (uint32_t)(line - begin), samples};
                    out[count++] = e;
                }
                current = key;
                begin = line;
                samples = 0;
            }
        }
        if (c == '\n') {
            ++samples;
            at_start = 1;
        }
    }
    if (samples != 0 && count < room) {
        Entry e = {current, begin, (uint32_t)(n - begin), samples};
        out[count++] = e;
    }
    return count;
}
