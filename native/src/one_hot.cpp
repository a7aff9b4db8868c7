#include "feedline/one_hot.h"

namespace feedline {

namespace {

template <class T>
bool classes_of(const T* rows, std::size_t count, std::size_t width, std::int64_t* classes) {
    for (std::size_t i = 0; i < count; ++i, rows += width) {
        std::int64_t class_of_row = -1;
        for (std::size_t k = 0; k < width; ++k) {
            if (rows[k] == T{0}) continue;
            if (rows[k] != T{1} || class_of_row >= 0) return false;
            class_of_row = static_cast<std::int64_t>(k);
        }
        if (class_of_row < 0) return false;
        classes[i] = class_of_row;
    }
    return true;
}

}  // namespace

bool one_hot_classes(const float* rows, std::size_t count, std::size_t width, std::int64_t* classes) {
    return classes_of(rows, count, width, classes);
}

bool one_hot_classes(const double* rows, std::size_t count, std::size_t width, std::int64_t* classes) {
    return classes_of(rows, count, width, classes);
}

}  // namespace feedline
