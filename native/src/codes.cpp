#include "feedline/codes.h"

#include <algorithm>
#include <cstring>

#include "codes_variants.h"
#include "feedline/cpu.h"
#include "feedline/quantize.h"

namespace feedline {
namespace {

// Values that are decoded from one array of codes before the next array's are added. They stay in a cache.
constexpr std::size_t kBlock = 8192;

std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

std::uint16_t to_bfloat16(float value) {
    const std::uint32_t bits = bits_of(value);
    if (value != value) return 0x7FC0;
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float from_bfloat16(std::uint16_t code) { return float_of(static_cast<std::uint32_t>(code) << 16); }

std::uint16_t to_float16(float value) {
    const std::uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFF;
    const auto sign = static_cast<std::uint32_t>(bits >> 16 & 0x8000);
    // A NaN becomes quiet, and keeps the top bits of its payload, as in the processor's own conversion.
    if (magnitude > 0x7F800000) return static_cast<std::uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) return static_cast<std::uint16_t>(sign | 0x7C00);  // 65520 rounds to infinity
    if (magnitude >= 0x38800000) {
        const std::uint32_t half = magnitude - 0x38000000;  // the exponent's bias is 112 less
        return static_cast<std::uint16_t>(sign | (half + 0xFFF + (half >> 13 & 1)) >> 13);
    }
    // Below 2^-14: adding 2^-1 moves the 24 bits of a float to where its unit is 2^-24, and rounds it.
    return static_cast<std::uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3F000000));
}

float from_float16(std::uint16_t code) {
    const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000) << 16, magnitude = code & 0x7FFF;
    if (magnitude >= 0x7C00) {
        const std::uint32_t quiet = magnitude > 0x7C00 ? 0x400000 : 0;
        return float_of(sign | 0x7F800000 | (magnitude & 0x3FF) << 13 | quiet);
    }
    if (magnitude >= 0x400) return float_of(sign | ((magnitude << 13) + 0x38000000));
    // `magnitude` units of 2^-24.
    return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
}

template <class Round>
void encode_half(const float* value, std::size_t n, std::uint8_t* codes, Round round) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint16_t code = round(value[i]);
        std::memcpy(codes + 2 * i, &code, 2);
    }
}

template <class Value>
void decode_half(const std::uint8_t* codes, std::size_t n, float* out, Value value) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint16_t code;
        std::memcpy(&code, codes + 2 * i, 2);
        out[i] = value(code);
    }
}

void decode(Code code, float threshold, const std::uint8_t* codes, std::size_t n, float* out) {
    switch (code) {
        case Code::two_bits: dequantize_two_bits(codes, n, threshold, out); break;
        case Code::one_bit: dequantize_one_bit(codes, n, out); break;
        case Code::bfloat16: decode_half(codes, n, out, from_bfloat16); break;
        case Code::float16: decode_half(codes, n, out, from_float16); break;
    }
}

// Encodes values with the variant for this processor. Returns their number, a multiple of kCodeStep.
std::size_t encode_by_variant(Code code, float threshold, const float* value, const float* residual, std::size_t n,
                               float* left, std::uint8_t* codes) {
#ifdef FEEDLINE_X86
    const std::size_t vectorised = n / kCodeStep * kCodeStep;
    if (cpu().avx2 && code == Code::two_bits) {
        encode_two_bits_avx2(value, residual, vectorised, threshold, left, codes);
        return vectorised;
    }
    if (cpu().avx2 && code == Code::bfloat16) {
        encode_bfloat16_avx2(value, vectorised, codes);
        return vectorised;
    }
    if (cpu().f16c && code == Code::float16) {
        encode_float16_avx2(value, vectorised, codes);
        return vectorised;
    }
#endif
    static_cast<void>(code), static_cast<void>(threshold), static_cast<void>(value), static_cast<void>(residual);
    static_cast<void>(n), static_cast<void>(left), static_cast<void>(codes);
    return 0;
}

// Likewise for sums.
std::size_t sum_by_variant(Code code, float threshold, const std::uint8_t* const* codes, std::size_t num,
                              std::size_t n, float* out) {
#ifdef FEEDLINE_X86
    const std::size_t vectorised = n / kCodeStep * kCodeStep;
    if (cpu().avx2 && code == Code::two_bits) {
        sum_two_bits_avx2(codes, num, vectorised, threshold, out);
        return vectorised;
    }
    if (cpu().avx2 && code == Code::bfloat16) {
        sum_bfloat16_avx2(codes, num, vectorised, out);
        return vectorised;
    }
    if (cpu().f16c && code == Code::float16) {
        sum_float16_avx2(codes, num, vectorised, out);
        return vectorised;
    }
#endif
    static_cast<void>(code), static_cast<void>(threshold), static_cast<void>(codes), static_cast<void>(num);
    static_cast<void>(n), static_cast<void>(out);
    return 0;
}

}  // namespace

void encode(Code code, float threshold, const float* value, const float* residual, std::size_t n, float* left,
            std::uint8_t* codes) {
    const std::size_t done = encode_by_variant(code, threshold, value, residual, n, left, codes);
    if (done == n) return;
    const std::size_t remaining = n - done;
    value += done;
    codes += code_bytes(code, done);
    switch (code) {
        case Code::two_bits: quantize_two_bits(value, residual + done, remaining, threshold, left + done, codes); break;
        case Code::one_bit: quantize_one_bit(value, residual + done, remaining, threshold, left + done, codes); break;
        case Code::bfloat16: encode_half(value, remaining, codes, to_bfloat16); break;
        case Code::float16: encode_half(value, remaining, codes, to_float16); break;
    }
}

void decode_sum(Code code, float threshold, const std::uint8_t* const* codes, std::size_t num, std::size_t n,
                float* out) {
    float decoded[kBlock];
    for (std::size_t at = sum_by_variant(code, threshold, codes, num, n, out); at < n; at += kBlock) {
        const std::size_t length = std::min(kBlock, n - at), begin = code_bytes(code, at);
        decode(code, threshold, codes[0] + begin, length, out + at);
        for (std::size_t k = 1; k < num; ++k) {
            decode(code, threshold, codes[k] + begin, length, decoded);
            for (std::size_t i = 0; i < length; ++i) out[at + i] += decoded[i];
        }
    }
}

}  // namespace feedline
