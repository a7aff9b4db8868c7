#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "ctf_parse_core.h"
#include "feedline/cpu.h"

namespace feedline {

const double kCtfPowersOfTen[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

namespace {

constexpr std::uint64_t kReserve = std::uint64_t{1} << 30;

// The power of ten of the first digit that is not zero, which distinguishes overflow from underflow.
std::int64_t magnitude(const char* p, const char* e) {
    constexpr std::int64_t far = 1000000000;
    std::int64_t before = 0, after = 0, power = 0;
    bool nonzero = false, point = false;
    for (; p < e && *p != 'e' && *p != 'E'; ++p) {
        if (*p == '.') {
            point = true;
        } else {
            nonzero |= *p != '0';
            if (!point && nonzero) ++before;
            if (point && !nonzero) ++after;
        }
    }
    if (p < e) {
        ++p;
        const bool down = *p == '-';
        if (down || *p == '+') ++p;
        for (; p < e; ++p) power = power < far ? power * 10 + (*p - '0') : power;
        if (down) power = -power;
    }
    return power + (before > 0 ? before : -after);
}

template <class Real>
Real exact_real(const std::uint8_t* bytes, const std::uint8_t* bytes_end) {
    const char* p = reinterpret_cast<const char*>(bytes);
    const char* e = reinterpret_cast<const char*>(bytes_end);
    const bool negative = *p == '-';
    if (negative || *p == '+') ++p;
    Real value = 0;
    const auto result = std::from_chars(p, e, value);
    if (result.ec == std::errc::result_out_of_range)
        value = magnitude(p, e) > 0 ? std::numeric_limits<Real>::infinity() : Real{0};
    return negative ? -value : value;
}

}  // namespace

float ctf_exact_float(const std::uint8_t* p, const std::uint8_t* e) { return exact_real<float>(p, e); }
double ctf_exact_double(const std::uint8_t* p, const std::uint8_t* e) { return exact_real<double>(p, e); }

void CtfParseJob::record(CtfError code, int stream, std::uint64_t byte, std::int64_t expected,
                         std::int64_t got, std::size_t sequence) {
    const CtfErrorRecord error{byte,
                               expected,
                               got,
                               static_cast<std::uint32_t>(sequence),
                               static_cast<std::int16_t>(stream),
                               static_cast<std::uint16_t>(code)};
    errors.grow(sizeof error);
    std::memcpy(errors.data + errors.size, &error, sizeof error);
    errors.size += sizeof error;
}

const std::uint8_t* CtfParseJob::with_newline(const std::uint8_t* sequence, std::size_t length) {
    constexpr std::size_t pad = 64;
    scratch.assign(length + 2 * pad, 0);
    std::memcpy(scratch.data() + pad, sequence, length);
    scratch[pad + length] = '\n';
    return scratch.data() + pad;
}

void ctf_parse_portable(CtfParseJob& job) { run_job(job); }

CtfParser::CtfParser(std::vector<CtfField> fields, int size_stream, bool lenient, std::uint64_t memory_limit)
    : fields_(std::move(fields)),
      size_stream_(size_stream),
      lenient_(lenient),
      memory_limit_(memory_limit) {}

CtfColumns CtfParser::parse(const std::uint8_t* text, std::size_t bytes, const CtfEntry* entries, std::size_t n,
                            std::uint64_t origin, std::int64_t allowed_errors) const {
    CtfVariant variant = ctf_parse_portable;
#ifdef FEEDLINE_X86
    if (cpu().sse41) variant = ctf_parse_sse41;
#endif
    return parse_with(variant, text, bytes, entries, n, origin, allowed_errors);
}

CtfColumns CtfParser::parse_with(CtfVariant variant, const std::uint8_t* text, std::size_t bytes,
                                 const CtfEntry* entries, std::size_t n, std::uint64_t origin,
                                 std::int64_t allowed_errors) const {
    const std::size_t streams = fields_.size();
    CtfColumns result;
    result.streams.resize(streams);
    std::vector<CtfName> names(streams);
    std::vector<std::int64_t*> offsets(streams);
    for (std::size_t s = 0; s < streams; ++s) {
        const std::string& name = fields_[s].name;
        CtfName& prepared = names[s];
        prepared = {reinterpret_cast<const std::uint8_t*>(name.data()), name.size(), 0, 0};
        const std::size_t head = name.size() < 8 ? name.size() : 8;
        std::memcpy(&prepared.head, name.data(), head);
        std::memset(&prepared.head_mask, 0xFF, head);

        CtfBytes& bytes_of_offsets = result.streams[s].offsets;
        bytes_of_offsets.recycle((n + 1) * sizeof(std::int64_t));
        bytes_of_offsets.size = (n + 1) * sizeof(std::int64_t);
        offsets[s] = reinterpret_cast<std::int64_t*>(bytes_of_offsets.data);
        offsets[s][0] = 0;
    }
    result.valid.grow(n);
    result.valid.size = n;
    // Moving written data is expensive, so columns get the room that they can need, up to a limit. Unused room is never
    // written, and freed at the end.
    std::uint64_t rows = 0, parsed = 0;
    for (std::size_t i = 0; i < n; ++i) rows += entries[i].samples, parsed += entries[i].size;
    for (std::size_t s = 0; s < streams; ++s) {
        const std::uint64_t real = fields_[s].float64 ? 8 : 4;
        const std::uint64_t limit = std::min(memory_limit_, kReserve);
        CtfColumn& column = result.streams[s];
        if (fields_[s].sparse) {
            const std::uint64_t pairs = parsed / 4 + n;  // " i:v" is the shortest
            if (rows + 1 <= limit / 8) column.indptr.recycle((rows + 1) * 8);
            else column.indptr.grow(8);
            std::memset(column.indptr.data, 0, sizeof(std::int64_t));
            column.indptr.size = sizeof(std::int64_t);
            if (pairs <= limit / 8) column.indices.recycle(pairs * 4), column.values.recycle(pairs * real);
        } else {
            const std::uint64_t row = static_cast<std::uint64_t>(fields_[s].dim) * real;
            if (rows <= limit / row) column.values.recycle(rows * row);
        }
    }

    CtfParseJob job{};
    job.text = text;
    job.bytes = bytes;
    job.entries = entries;
    job.n = n;
    job.origin = origin;
    job.fields = fields_.data();
    job.names = names.data();
    job.streams = static_cast<int>(streams);
    job.size_stream = size_stream_;
    job.lenient = lenient_;
    for (const CtfField& field : fields_) job.optional |= field.fill == CtfFill::optional;
    job.missing_before.resize(streams);
    job.memory_limit = memory_limit_;
    job.columns = result.streams.data();
    job.offsets = offsets.data();
    job.valid = result.valid.data;
    job.allowed = allowed_errors < 0 ? -1 : allowed_errors;
    job.used = streams * (n + 1) * sizeof(std::int64_t);
    variant(job);
    if (job.outside) {
        result.outside = true;
        return result;
    }

    bool all_good = true;
    for (std::size_t i = 0; i < n; ++i) all_good &= job.valid[i] != 0;
    if (all_good) result.valid = CtfBytes{};
    for (std::size_t s = 0; s < streams; ++s) {
        bool single = true;
        for (std::size_t i = 0; i < n; ++i) single &= offsets[s][i + 1] == static_cast<std::int64_t>(i) + 1;
        if (single) result.streams[s].offsets = CtfBytes{};
    }
    result.errors = std::move(job.errors);
    result.errors_left = job.allowed;
    return result;
}

}  // namespace feedline
