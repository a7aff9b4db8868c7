#include "feedline/packed_rows.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <nanobind/stl/optional.h>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "faults.h"
#include "feedline/guard.h"
#include "feedline/threads.h"
#include "fresh_arrays.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace {

// A copy this small ends before another thread could use the GIL.
constexpr std::size_t kKeepGil = std::size_t{16} << 10;
// Starting a thread costs as much as writing about 100 KB.
constexpr std::size_t kThreadedBytes = std::size_t{1} << 20;
constexpr std::int64_t kPlaces = std::numeric_limits<std::int32_t>::max();

// A view of a one-dimensional, C-contiguous array in the machine's byte order. `codes`: the codes of the accepted
// dtypes in Python's struct module.
class View {
public:
    View(nb::handle array, const std::string& where, const char* name, const char* codes, const char* types) {
        if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_ND | PyBUF_FORMAT) == 0) {
            const char* format = buffer_.format;
            const bool plain = format != nullptr && format[0] != 0 && format[1] == 0;
            if (buffer_.ndim == 1 && plain && std::string(codes).find(format[0]) != std::string::npos) return;
            PyBuffer_Release(&buffer_);
        } else {
            PyErr_Clear();
        }
        raise<nb::type_error>({where, ": expected a one-dimensional C-contiguous array of ", types, " for `", name,
                               "`, got ", describe(array)});
    }
    ~View() { PyBuffer_Release(&buffer_); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;

    std::size_t size() const { return static_cast<std::size_t>(buffer_.shape[0]); }
    std::size_t item_bytes() const { return static_cast<std::size_t>(buffer_.itemsize); }
    bool is_signed() const { return std::string("bhilq").find(buffer_.format[0]) != std::string::npos; }
    template <class T>
    const T* data() const {
        return static_cast<const T*>(buffer_.buf);
    }

private:
    Py_buffer buffer_;
};

// The arrays of the pieces, checked, and the plan of their rows.
class Layout {
public:
    Layout(const std::string& where, nb::handle rows, nb::handle offsets, nb::handle starts, nb::handle lengths,
           nb::handle positions, nb::handle goes_on, std::int64_t count, std::int64_t row, std::size_t tokens)
        : where_(where),
          rows_(rows, "rows", {Ints::kInt64}, where),
          offsets_(offsets, "offsets", {Ints::kInt64}, where),
          starts_(starts, "starts", {Ints::kInt64}, where),
          lengths_(lengths, "lengths", {Ints::kInt64}, where),
          count_(count),
          row_(row) {
        if (row < 1) raise<nb::value_error>({where, ": expected rows of at least 1 token, got row = ", row});
        if (count < 0 || count > kPlaces / row)
            raise<nb::value_error>({where, ": expected a count of rows from 0, with count * row below 2**31, got ",
                                    count, " rows of ", row, "; make smaller minibatches"});
        check_size("offsets", offsets_.size());
        check_size("starts", starts_.size());
        check_size("lengths", lengths_.size());
        if (!positions.is_none()) {
            positions_.emplace(positions, "positions", std::initializer_list<Ints::Type>{Ints::kInt64}, where);
            check_size("positions", positions_->size());
        }
        if (!goes_on.is_none()) {
            goes_on_.emplace(goes_on, where, "goes_on", "?", "bools");
            check_size("goes_on", goes_on_->size());
        }
        pieces_ = {rows_.int64(),
                   offsets_.int64(),
                   starts_.int64(),
                   lengths_.int64(),
                   positions_ ? positions_->int64() : nullptr,
                   goes_on_ ? goes_on_->data<std::uint8_t>() : nullptr,
                   rows_.size()};
        const PieceFault fault = first_bad_piece(pieces_, count, row, static_cast<std::int64_t>(tokens));
        if (fault.rule != PieceRule::none) refuse(fault, tokens);
        first_.resize(static_cast<std::size_t>(count) + 1);
        sequences_ = new_array(static_cast<std::size_t>(count) + 1, numpy().int64);
        longest_ = plan_rows(pieces_, count, row, first_.data(), data_of<std::int64_t>(sequences_));
    }

    const Pieces& pieces() const { return pieces_; }
    const std::int64_t* first() const { return first_.data(); }
    std::int64_t count() const { return count_; }
    std::int64_t row() const { return row_; }
    nb::handle sequences() const { return sequences_; }
    std::int64_t longest() const { return longest_; }

    // Calls fill(begin, end) for parts of the rows, in up to `threads` threads. bytes: of all rows together.
    void run(std::int64_t threads, std::size_t bytes,
             const std::function<void(std::int64_t, std::int64_t)>& fill) const {
        if (threads < 1) raise<nb::value_error>({where_, ": expected threads >= 1, got ", threads});
        const std::int64_t parts = bytes < kThreadedBytes ? 1 : std::clamp<std::int64_t>(count_, 1, threads);
        std::atomic<const void*> unreadable{nullptr};
        const auto part = [&](std::size_t k) {
            const auto at = static_cast<std::int64_t>(k);
            const void* address = guarded([&] { fill(count_ * at / parts, count_ * (at + 1) / parts); });
            if (address != nullptr) unreadable.store(address);
        };
        if (bytes < kKeepGil) {
            part(0);
        } else {
            const Unlocked unlocked;
            in_parts(static_cast<std::size_t>(parts), part);
        }
        if (const void* address = unreadable.load()) raise_fault("unreadable", address_of(address));
    }

private:
    void check_size(const char* name, std::size_t size) const {
        if (size != rows_.size())
            raise<nb::value_error>({where_, ": expected `", name, "` to be as long as `rows`, ", rows_.size(), ", got ",
                                    size});
    }

    [[noreturn]] void refuse(const PieceFault& fault, std::size_t tokens) const {
        const std::size_t i = fault.piece;
        const std::string got = join({", got row ", pieces_.row[i], ", offset ", pieces_.offset[i], ", length ",
                                      pieces_.length[i], ", start ", pieces_.start[i]});
        std::string rule;
        switch (fault.rule) {
            case PieceRule::row:
                rule = join({"pieces by row, from 0 to below ", count_});
                break;
            case PieceRule::offset:
                rule = join({"pieces of a row by offset, without overlaps, below row = ", row_});
                break;
            case PieceRule::length:
                rule = join({"pieces of at least 1 token that end within row = ", row_});
                break;
            case PieceRule::start:
                rule = join({"pieces inside the ", tokens, " given, with the next one if they go on"});
                break;
            default:
                rule = "positions from 0 that end by 2**31";
        }
        const std::string position =
            fault.rule == PieceRule::position ? join({", position ", pieces_.position[i]}) : "";
        raise<nb::value_error>({where_, ": piece ", i, ": expected ", rule, got, position});
    }

    std::string where_;
    Ints rows_, offsets_, starts_, lengths_;
    std::optional<Ints> positions_;
    std::optional<View> goes_on_;
    std::int64_t count_, row_;
    Pieces pieces_{};
    std::vector<std::int64_t> first_;
    nb::object sequences_;
    std::int64_t longest_ = 0;
};

using Fill = void (*)(const PackedRows&, std::int64_t begin, std::int64_t end);

template <class In>
Fill fill_of(bool wide) {
    return wide ? &fill_rows<In, std::int64_t> : &fill_rows<In, In>;
}

Fill fill_of(const View& tokens, bool wide) {
    switch (tokens.item_bytes()) {  // uint64 is refused, as labels could not represent it
        case 1: return tokens.is_signed() ? fill_of<std::int8_t>(wide) : fill_of<std::uint8_t>(wide);
        case 2: return tokens.is_signed() ? fill_of<std::int16_t>(wide) : fill_of<std::uint16_t>(wide);
        case 4: return tokens.is_signed() ? fill_of<std::int32_t>(wide) : fill_of<std::uint32_t>(wide);
        default: return &fill_rows<std::int64_t, std::int64_t>;
    }
}

// Raises ValueError unless the tokens' type can represent `pad`.
void check_pad(const View& tokens, std::int64_t pad, nb::handle dtype) {
    if (tokens.item_bytes() == sizeof(std::int64_t)) return;
    const std::size_t bits = 8 * tokens.item_bytes() - (tokens.is_signed() ? 1 : 0);
    const std::int64_t limit = std::int64_t{1} << bits;
    if (pad >= limit || pad < (tokens.is_signed() ? -limit : 0))
        raise<nb::value_error>({"packed_rows: expected `pad` to be one of ", text(dtype), ", got ", pad});
}

nb::tuple py_packed_rows(nb::handle tokens, nb::handle rows, nb::handle offsets, nb::handle starts,
                         nb::handle lengths, nb::handle positions, nb::handle goes_on, std::int64_t count,
                         std::int64_t row, std::int64_t pad, std::optional<std::int64_t> ignore, bool wide,
                         std::int64_t threads) {
    const View view(tokens, "packed_rows", "tokens", "bBhHiIlq", "integers up to int64 (not uint64)");
    const Layout layout("packed_rows", rows, offsets, starts, lengths, positions, goes_on, count, row, view.size());
    const nb::object dtype = wide ? nb::borrow(numpy().int64) : nb::object(tokens.attr("dtype"));
    if (!wide) check_pad(view, pad, dtype);
    const nb::tuple shape = nb::make_tuple(layout.count(), layout.row());
    const auto table = [&](nb::handle type, std::size_t item_bytes) {
        return new_memory(shape, type, static_cast<std::size_t>(layout.count() * layout.row()) * item_bytes);
    };
    const auto* sequences = data_of<std::int64_t>(layout.sequences());
    nb::object out = table(dtype, wide ? sizeof(std::int64_t) : view.item_bytes());
    nb::object segment = table(numpy().int32, sizeof(std::int32_t)), places = table(numpy().int32, sizeof(std::int32_t));
    nb::object labels = ignore ? table(numpy().int64, sizeof(std::int64_t)) : nb::object(nb::none());
    nb::object cu_seqlens =
        new_numbers<std::int32_t>(static_cast<std::size_t>(sequences[layout.count()]) + 1, numpy().int32);
    const PackedRows job{layout.pieces(),
                         layout.first(),
                         sequences,
                         layout.count(),
                         layout.row(),
                         view.data<void>(),
                         pad,
                         ignore.value_or(0),
                         memory(out),
                         ignore ? data_of<std::int64_t>(labels) : nullptr,
                         data_of<std::int32_t>(segment),
                         data_of<std::int32_t>(places),
                         data_of<std::int32_t>(cu_seqlens)};
    const Fill fill = fill_of(view, wide);
    const std::size_t place_bytes = (wide ? sizeof(std::int64_t) : view.item_bytes()) + (ignore ? 8 : 0) + 8;
    layout.run(threads, static_cast<std::size_t>(layout.count() * layout.row()) * place_bytes,
               [&](std::int64_t begin, std::int64_t end) { fill(job, begin, end); });
    return nb::make_tuple(out, labels, segment, places, cu_seqlens, layout.sequences(), layout.longest());
}

nb::object py_packed_values(nb::handle values, nb::handle rows, nb::handle offsets, nb::handle starts,
                            nb::handle lengths, std::int64_t count, std::int64_t row, nb::handle fill,
                            std::int64_t threads) {
    const nb::object array = checked_ndarray("packed_values", "values", values);
    const nb::object filler = checked_ndarray("packed_values", "fill", fill);
    const nb::tuple shape(array.attr("shape"));
    const nb::object dtype = array.attr("dtype");
    if (shape.size() == 0)
        raise<nb::value_error>({"packed_values: expected `values` to have at least one axis, got ", describe(array)});
    if (!nb::object(filler.attr("dtype")).equal(dtype) || nb::cast<std::int64_t>(filler.attr("size")) != 1)
        raise<nb::value_error>({"packed_values: expected `fill` to be one ", text(dtype), " value in an array, got ",
                                describe(filler)});
    const Layout layout("packed_values", rows, offsets, starts, lengths, nb::none(), nb::none(), count, row,
                        nb::cast<std::size_t>(shape[0]));
    nb::list out_shape;
    out_shape.append(count);
    out_shape.append(row);
    const auto element_bytes = nb::cast<std::size_t>(dtype.attr("itemsize"));
    std::size_t value_bytes = element_bytes;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
        out_shape.append(shape[axis]);
        value_bytes *= nb::cast<std::size_t>(shape[axis]);
    }
    std::size_t bytes;
    if (__builtin_mul_overflow(static_cast<std::size_t>(count * row), value_bytes, &bytes)) bytes = SIZE_MAX;
    nb::object out = new_memory(nb::tuple(out_shape), dtype, bytes);  // refuses what does not fit
    const std::byte *from = memory(array), *element = memory(filler);
    std::byte* to = memory(out);
    layout.run(threads, bytes, [&](std::int64_t begin, std::int64_t end) {
        fill_values(layout.pieces(), layout.first(), row, from, value_bytes, element, element_bytes, to, begin, end);
    });
    return out;
}

}  // namespace

void bind_packed_rows(nb::module_& m) {
    m.def("packed_rows", &py_packed_rows, "tokens"_a.none(), "rows"_a.none(), "offsets"_a.none(), "starts"_a.none(),
          "lengths"_a.none(), "positions"_a.none() = nb::none(), "goes_on"_a.none() = nb::none(), nb::kw_only(),
          "count"_a, "row"_a, "pad"_a = 0, "ignore"_a.none() = -100, "wide"_a = false, "threads"_a = 1,
          "Return `count` rows of `row` places from pieces of documents: (tokens, labels, segment, positions,\n"
          "cu_seqlens, sequences, longest).\n\n"
          "tokens: (N,), of integers up to int64. rows, offsets, starts, lengths: int64[pieces], ordered by row and\n"
          "offset. Piece i is tokens[starts[i] : starts[i] + lengths[i]], at offsets[i] of row rows[i]. positions:\n"
          "int64[pieces], the position of its first token in the document, None: 0. goes_on: bool[pieces], whether\n"
          "the next token in `tokens` is the next one in the document, None: nowhere.\n\n"
          "tokens (count, row): of the same dtype, or with `wide` int64. `pad` where there is no piece. labels int64\n"
          "(count, row): the next token of the document, or `ignore` for its last token and in padding. None if\n"
          "`ignore` is None. segment int32 (count, row): 1, 2, … by piece in each row, 0 in padding. positions int32\n"
          "(count, row): in the document, 0 in padding. cu_seqlens int32[sequences + 1]: the first place of each\n"
          "piece and of each stretch of padding, in all rows end to end, and count * row. sequences int64[count + 1]:\n"
          "the number of these before each row. longest: the length of the longest.\n\n"
          "Above 16 KiB the GIL is released, and above 1 MiB up to `threads` threads share the rows. ValueError for\n"
          "pieces that overlap, or are outside rows or tokens, and unless count * row is below 2**31. DataError if\n"
          "tokens are mapped from a file that was truncated.");
    m.def("packed_values", &py_packed_values, "values"_a.none(), "rows"_a.none(), "offsets"_a.none(),
          "starts"_a.none(), "lengths"_a.none(), nb::kw_only(), "count"_a, "row"_a, "fill"_a.none(), "threads"_a = 1,
          "Return rows of another stream, (count, row, *shape): values (N, *shape) of any dtype, laid out as\n"
          "packed_rows() does tokens. fill: an array of one element, of the dtype of values. Errors as there.");
}
