// SPDX-License-Identifier: Apache-2.0
// numpy arrays as arguments and results of bindings, through the buffer protocol. It works for any dtype and under the
// stable ABI, needs no numpy headers, and costs a tenth of a microsecond.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace feedline::bindings {

namespace nb = nanobind;

// numpy's types and functions, looked up once for the life of the process.
struct Numpy {
    nb::handle empty, ndarray, int32, int64, uint8, uint16, uint32, uint64, float32, boolean;
};

const Numpy& numpy();

// A part of a message: text or an integer. Refers to the text, without a copy.
class MessagePart {
public:
    MessagePart(const char* text) : text_(text) {}
    MessagePart(const std::string& text) : text_(text) {}
    template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
    MessagePart(T number)
        : number_(static_cast<std::uint64_t>(number)), kind_(number < T{0} ? kNegative : kNumber) {}

    void append_to(std::string& message) const;

private:
    enum Kind : char { kText, kNumber, kNegative };

    std::string_view text_;
    std::uint64_t number_ = 0;
    Kind kind_ = kText;
};

std::string join(std::initializer_list<MessagePart> parts);

// Throws one of nanobind's exceptions with a message that is joined from its parts.
template <auto Error>
[[noreturn]] __attribute__((noinline)) void raise(std::initializer_list<MessagePart> message) {
    throw Error(join(message).c_str());
}
template <auto Error>
[[noreturn]] void raise(const MessagePart& message) {
    raise<Error>(std::initializer_list<MessagePart>{message});
}

// str(object).
std::string text(nb::handle object);

bool is_contiguous(nb::handle array);

// "float32 array of shape (3, 4)", or the name of the type if it is no array.
std::string describe(nb::handle object);

// Returns the array. Throws unless it is a C-contiguous ndarray of a dtype without objects. `where` opens the message.
nb::object checked_ndarray(const std::string& where, const char* name, nb::handle array);

// A new one-dimensional array, uninitialised.
inline nb::object new_array(std::size_t n, nb::handle dtype) { return numpy().empty(n, dtype); }

// The memory of an array that this binding has made, or checked to be a C-contiguous ndarray. It stays the array's.
std::byte* memory(nb::handle array);

template <class T>
T* data_of(nb::handle array) {
    return reinterpret_cast<T*>(memory(array));
}

// A read-only view of a one-dimensional, C-contiguous, aligned array of one of the integer types. It keeps the array
// alive, and must be created and destroyed with the GIL held.
class Ints {
public:
    enum Type : char { kInt32, kInt64, kUint32 };

    // Throws TypeError for any other argument. `where` opens the message: "stream 1 of slot 3".
    Ints(nb::handle array, const char* name, std::initializer_list<Type> accepted, std::string_view where = {});
    ~Ints() { PyBuffer_Release(&buffer_); }
    Ints(const Ints&) = delete;
    Ints& operator=(const Ints&) = delete;

    Type type() const { return type_; }
    std::size_t size() const { return static_cast<std::size_t>(buffer_.shape[0]); }
    const std::int64_t* int64() const { return static_cast<const std::int64_t*>(buffer_.buf); }
    const std::int32_t* int32() const { return static_cast<const std::int32_t*>(buffer_.buf); }
    const std::uint32_t* uint32() const { return static_cast<const std::uint32_t*>(buffer_.buf); }

private:
    Py_buffer buffer_;
    Type type_ = kInt64;
};

}  // namespace feedline::bindings
