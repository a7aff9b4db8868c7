#include "arrays.h"

namespace feedline::bindings {

const Numpy& numpy() {
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
                     type("float32"),
                     type("bool")};
    }();
    return once;
}

void MessagePart::append_to(std::string& message) const {
    if (kind_ == kText)
        message += text_;
    else if (kind_ == kNumber)
        message += std::to_string(number_);
    else
        message += std::to_string(static_cast<std::int64_t>(number_));
}

std::string join(std::initializer_list<MessagePart> parts) {
    std::string message;
    for (const MessagePart& part : parts) part.append_to(message);
    return message;
}

std::string text(nb::handle object) { return nb::str(object).c_str(); }

bool is_contiguous(nb::handle array) { return nb::cast<bool>(array.attr("flags")["C_CONTIGUOUS"]); }

std::string describe(nb::handle object) {
    if (!nb::isinstance(object, numpy().ndarray))
        return text(nb::handle(Py_TYPE(object.ptr())).attr("__name__"));
    return join({text(object.attr("dtype")), " array of shape ", text(object.attr("shape")),
                 is_contiguous(object) ? "" : ", not C-contiguous"});
}

nb::object checked_ndarray(const std::string& where, const char* name, nb::handle array) {
    if (!nb::isinstance(array, numpy().ndarray))
        raise<nb::type_error>({where, ": expected `", name, "` to be a numpy array, got ", describe(array)});
    if (!is_contiguous(array))
        raise<nb::value_error>({where, ": expected `", name, "` to be C-contiguous, got ", describe(array),
                                "; use numpy.ascontiguousarray"});
    if (nb::cast<bool>(array.attr("dtype").attr("hasobject")))
        raise<nb::value_error>({where, ": expected a dtype of fixed size for `", name, "`, got ",
                                text(array.attr("dtype"))});
    return nb::borrow(array);
}

std::byte* memory(nb::handle array) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_SIMPLE) == 0) {
        void* data = buffer.buf;
        PyBuffer_Release(&buffer);  // the array owns its memory
        return static_cast<std::byte*>(data);
    }
    // For some types (datetime64, extension types) numpy exports no buffer, but it always exports one of their bytes.
    PyErr_Clear();
    const nb::object bytes = array.attr("view")(numpy().uint8);
    if (PyObject_GetBuffer(bytes.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
    void* data = buffer.buf;
    PyBuffer_Release(&buffer);
    return static_cast<std::byte*>(data);
}

[[noreturn]] static void refuse(nb::handle array, const char* name, std::initializer_list<Ints::Type> accepted,
                                std::string_view where) {
    std::string types;
    for (const Ints::Type type : accepted) {
        if (!types.empty()) types += " or ";
        types += type == Ints::kInt32 ? "int32" : type == Ints::kInt64 ? "int64" : "uint32";
    }
    const std::string place = where.empty() ? "" : std::string(where) + ": ";
    raise<nb::type_error>({place, "expected a one-dimensional C-contiguous ", types, " array for `", name, "`, got ",
                           describe(array)});
}

Ints::Ints(nb::handle array, const char* name, std::initializer_list<Type> accepted, std::string_view where) {
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

}  // namespace feedline::bindings
