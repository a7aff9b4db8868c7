// SPDX-License-Identifier: Apache-2.0
// numpy arrays in and out of bindings. The buffer protocol carries them: it works for any dtype and under the
// stable ABI, needs no numpy headers, and costs a tenth of a microsecond.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace feedline::bindings {

namespace nb = nanobind;

// numpy's names, looked up once and kept for the life of the process.
struct Numpy {
    nb::handle empty, ndarray, int32, int64, uint8, uint16, uint32, uint64, boolean;
};

inline const Numpy& numpy() {
    static const Numpy once = [] {
        const nb::module_ module = nb::module_::import_("numpy");
        const nb::object dtype = module.attr("dtype");
        const auto type = [&](const char* name) -> nb::handle { return dtype(name).release(); };
        return Numpy{nb::object(module.attr("empty")).release(),
                     nb::object(module.attr("ndarray")).release(),
                     type("int32"),
                     type("int64"),
                     type("uint8"),
                     type("uint16"),
                     type("uint32"),
                     type("uint64"),
                     type("bool")};
    }();
    return once;
}

template <class T>
std::string number(T value) {
    return std::to_string(value);
}

// Throws one of nanobind's exceptions (they take C strings, messages are built as strings).
template <auto Error>
[[noreturn]] void raise(const std::string& message) {
    throw Error(message.c_str());
}

inline std::string text(nb::handle object) { return nb::str(object).c_str(); }

// "float32 array of shape (3, 4)", or the type's name where it is no array.
inline std::string describe(nb::handle object) {
    if (!nb::isinstance(object, numpy().ndarray))
        return text(nb::handle(Py_TYPE(object.ptr())).attr("__name__"));
    return text(object.attr("dtype")) + " array of shape " + text(object.attr("shape")) +
           (nb::cast<bool>(object.attr("flags")["C_CONTIGUOUS"]) ? "" : ", not C-contiguous");
}

// The array itself, once it is known to be a C-contiguous ndarray of a dtype without objects.
inline nb::object checked_ndarray(const std::string& where, const char* name, nb::handle array) {
    if (!nb::isinstance(array, numpy().ndarray))
        raise<nb::type_error>(where + ": expected `" + name + "` to be a numpy array, got " +
                              describe(array));
    if (!nb::cast<bool>(array.attr("flags")["C_CONTIGUOUS"]))
        raise<nb::value_error>(where + ": expected `" + name + "` to be C-contiguous, got " +
                               describe(array) + "; use numpy.ascontiguousarray");
    if (nb::cast<bool>(array.attr("dtype").attr("hasobject")))
        raise<nb::value_error>(where + ": expected a dtype of fixed size for `" + name + "`, got " +
                               text(array.attr("dtype")));
    return nb::borrow(array);
}

// A fresh one-dimensional array.
inline nb::object new_array(std::size_t n, nb::handle dtype) { return numpy().empty(n, dtype); }

// The memory of an array that this binding has just made or checked to be a C-contiguous ndarray.
inline std::byte* memory(nb::handle array) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_SIMPLE) == 0) {
        void* data = buffer.buf;
        PyBuffer_Release(&buffer);  // the array itself keeps its memory
        return static_cast<std::byte*>(data);
    }
    // numpy exports no buffer of some types (datetime64, extension types) but always one of their bytes.
    PyErr_Clear();
    const nb::object bytes = array.attr("view")(numpy().uint8);
    if (PyObject_GetBuffer(bytes.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
    void* data = buffer.buf;
    PyBuffer_Release(&buffer);
    return static_cast<std::byte*>(data);
}

template <class T>
T* data_of(nb::handle array) {
    return reinterpret_cast<T*>(memory(array));
}

// A read-only look at a one-dimensional, C-contiguous, aligned array of one of the integer types, for as long
// as the object lives: create and destroy it while holding the GIL.
class Ints {
public:
    enum Type : char { kInt32, kInt64, kUint32 };

    // `where` opens the error message: "stream 1 of slot 3".
    Ints(nb::handle array, const char* name, std::initializer_list<Type> accepted,
         std::string_view where = {}) {
        if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_ND | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            buffer_.obj = nullptr;
            refuse(array, name, accepted, where);
        }
        // One native integer code and no prefix: a prefix would mean foreign byte order or unaligned memory.
        const char* format = buffer_.format;
        if (buffer_.ndim == 1 && format != nullptr && format[0] != 0 && format[1] == 0) {
            const char code = format[0];
            const bool is_signed = code == 'i' || code == 'l' || code == 'q';
            const bool is_unsigned = code == 'I' || code == 'L' || code == 'Q';
            for (const Type type : accepted) {
                const bool fits = type == kInt64   ? is_signed && buffer_.itemsize == 8
                                  : type == kInt32 ? is_signed && buffer_.itemsize == 4
                                                   : is_unsigned && buffer_.itemsize == 4;
                if (fits) {
                    type_ = type;
                    return;
                }
            }
        }
        PyBuffer_Release(&buffer_);
        refuse(array, name, accepted, where);
    }
    ~Ints() { PyBuffer_Release(&buffer_); }
    Ints(const Ints&) = delete;
    Ints& operator=(const Ints&) = delete;

    Type type() const { return type_; }
    std::size_t size() const { return static_cast<std::size_t>(buffer_.shape[0]); }
    const std::int64_t* int64() const { return static_cast<const std::int64_t*>(buffer_.buf); }
    const std::int32_t* int32() const { return static_cast<const std::int32_t*>(buffer_.buf); }
    const std::uint32_t* uint32() const { return static_cast<const std::uint32_t*>(buffer_.buf); }

private:
    [[noreturn]] static void refuse(nb::handle array, const char* name, std::initializer_list<Type> accepted,
                                    std::string_view where) {
        std::string types;
        for (const Type type : accepted) {
            if (!types.empty()) types += " or ";
            types += type == kInt32 ? "int32" : type == kInt64 ? "int64" : "uint32";
        }
        const std::string place = where.empty() ? "" : std::string(where) + ": ";
        raise<nb::type_error>(place + "expected a one-dimensional C-contiguous " + types + " array for `" +
                              name + "`, got " + describe(array));
    }

    Py_buffer buffer_;
    Type type_ = kInt64;
};

}  // namespace feedline::bindings
