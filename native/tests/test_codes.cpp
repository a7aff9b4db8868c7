// Codes of gradients: for any number of values, nothing is read or written outside the arrays. Meant for ASan + UBSan
// (`make sanitize`).
#include "feedline/codes.h"

#include <vector>

#include "check.h"

using namespace feedline;

int main() {
    for (const Code code : {Code::two_bits, Code::one_bit, Code::bfloat16, Code::float16}) {
        for (const std::size_t n : {0, 1, 7, 31, 32, 33, 64, 100, 5000, 70001}) {
            const std::vector<float> value(n, 0.25f), residual(n, 0.5f);
            std::vector<float> left(n), sum(n);
            std::vector<std::uint8_t> first(code_bytes(code, n)), second(first.size());
            encode(code, 0.5f, value.data(), residual.data(), n, left.data(), first.data());
            encode(code, 0.5f, value.data(), left.data(), n, left.data(), second.data());
            const std::uint8_t* codes[2] = {first.data(), second.data()};
            decode_sum(code, 0.5f, codes, 2, n, sum.data());
            // Two bits code 0.75 and 0.5 as 0.5, one bit codes 0.75 as 1 and 0 as -1, 16 bits are exact.
            const float expected = code == Code::two_bits ? 1.0f : code == Code::one_bit ? 0.0f : 0.5f;
            for (const float one : sum) CHECK(one == expected);
        }
    }
    std::puts("test_codes: ok");
}
