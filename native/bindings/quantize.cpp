#include "feedline/quantize.h"

#include <nanobind/nanobind.h>

#include <cmath>

#include "arrays.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedline;
using feedline::bindings::describe;
using feedline::bindings::number;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

// Less is done before another thread could use the GIL.
constexpr std::size_t kHoldGil = 1u << 13;

// A C-contiguous one-dimensional array of the buffer code `f` (float32) or `B` (uint8), while the object lives.
class Flat {
public:
    Flat(nb::handle array, const char* name, char code, bool writable) {
        const int flags = PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        const char* type = code == 'f' ? "float32" : "uint8";
        if (PyObject_GetBuffer(array.ptr(), &buffer_, flags) != 0) {
            PyErr_Clear();
            buffer_.obj = nullptr;
        } else {
            const char* format = buffer_.format;
            if (buffer_.ndim == 1 && format != nullptr && format[0] == code && format[1] == 0) return;
            PyBuffer_Release(&buffer_);
        }
        raise<nb::type_error>(std::string("expected a ") + (writable ? "writable " : "") +
                              "one-dimensional C-contiguous " + type + " array for `" + name + "`, got " +
                              describe(array));
    }
    ~Flat() { PyBuffer_Release(&buffer_); }
    Flat(const Flat&) = delete;
    Flat& operator=(const Flat&) = delete;

    std::size_t size() const { return static_cast<std::size_t>(buffer_.shape[0]); }
    float* floats() const { return static_cast<float*>(buffer_.buf); }
    std::uint8_t* bytes() const { return static_cast<std::uint8_t*>(buffer_.buf); }

private:
    Py_buffer buffer_{};
};

unsigned checked_bits(std::int64_t bits, float threshold) {
    if (bits != 1 && bits != 2) raise<nb::value_error>("expected 1 or 2 bits, got " + number(bits));
    if (bits == 2 && !(threshold > 0))
        raise<nb::value_error>("expected a threshold above 0 for 2 bits, got " + number(threshold));
    return static_cast<unsigned>(bits);
}

void check_size(const char* name, std::size_t expected, std::size_t got) {
    if (expected != got)
        raise<nb::value_error>("expected " + number(expected) + " elements in `" + name + "`, got " + number(got));
}

template <class Call>
void unlocked_if_long(std::size_t n, Call call) {
    if (n < kHoldGil) {
        call();
    } else {
        const Unlocked unlocked;
        call();
    }
}

void quantize(std::int64_t bits, float threshold, nb::handle gradient, nb::handle residual,
              nb::handle residual_out, nb::handle codes) {
    const unsigned checked = checked_bits(bits, threshold);
    const Flat from(gradient, "gradient", 'f', false), kept(residual, "residual", 'f', false);
    const Flat left(residual_out, "residual_out", 'f', true), to(codes, "codes", 'B', true);
    const std::size_t n = from.size();
    check_size("residual", n, kept.size());
    check_size("residual_out", n, left.size());
    check_size("codes", quantized_bytes(n, checked), to.size());
    const auto kernel = checked == 2 ? quantize_two_bits : quantize_one_bit;
    unlocked_if_long(n, [&] { kernel(from.floats(), kept.floats(), n, threshold, left.floats(), to.bytes()); });
}

void dequantize(std::int64_t bits, float threshold, nb::handle codes, nb::handle out) {
    const unsigned checked = checked_bits(bits, threshold);
    const Flat from(codes, "codes", 'B', false), to(out, "out", 'f', true);
    const std::size_t n = to.size();
    check_size("codes", quantized_bytes(n, checked), from.size());
    unlocked_if_long(n, [&] {
        if (checked == 2)
            dequantize_two_bits(from.bytes(), n, threshold, to.floats());
        else
            dequantize_one_bit(from.bytes(), n, to.floats());
    });
}

}  // namespace

void bind_quantize(nb::module_& m) {
    m.def("quantize", &quantize, "bits"_a, "threshold"_a, "gradient"_a, "residual"_a, "residual_out"_a, "codes"_a,
          "Codes of gradient + residual in 2 bits or 1, and the residual they leave. float32 arrays of one\n"
          "length; `residual_out` may be `residual`; `codes` are uint8, whole 32-bit words.");
    m.def("dequantize", &dequantize, "bits"_a, "threshold"_a, "codes"_a, "out"_a,
          "The values that codes stand for, into a float32 array.");
}
