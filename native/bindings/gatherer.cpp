// The Gatherer: its chunks, and its Python class.
#include "gatherer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"

using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace feedline::bindings {

Gatherer::Gatherer(const std::vector<std::int64_t>& classes, bool bools)
    : classes_(classes), bools_(bools), chunks_(std::make_shared<Chunks>(classes)) {
    if (classes.empty()) throw nb::value_error("expected at least one stream, got an empty list");
}

Chunks& Gatherer::writable(std::int64_t slot) {
    if (chunks_.use_count() > 1) chunks_ = std::make_shared<Chunks>(*chunks_);
    const auto at = static_cast<std::size_t>(slot);
    chunks_->table.reserve(at);
    if (at >= chunks_->owners.size()) chunks_->owners.resize(at + 1);
    return *chunks_;
}

void Gatherer::must_hold(std::int64_t slot) const {
    if (!chunks_->table.holds(slot))
        raise<nb::index_error>({"expected a slot that holds a chunk, one of ", text(slots()), ", got slot ", slot});
}

void Gatherer::must_be_vacant(std::int64_t slot) const {
    if (slot < 0 || slot >= kMaxSlots) raise<nb::value_error>({"expected 0 <= slot < 2**24, got ", slot});
    if (chunks_->table.holds(slot))
        raise<nb::value_error>({"expected a vacant slot, got slot ", slot, ", which holds a chunk; remove it first"});
}

static std::string place(std::size_t stream, std::int64_t slot) { return join({"stream ", stream, " of slot ", slot}); }

void Gatherer::must_fit(const Column& column, std::size_t stream, std::int64_t slot) const {
    if (!chunks_->table.streams()[stream].known) return;
    const Column& fixed = chunks_->columns[stream];
    if (!column.dtype.equal(fixed.dtype))
        raise<nb::value_error>({place(stream, slot), ": expected dtype ", text(fixed.dtype),
                                " as in earlier slots, got ", text(column.dtype)});
    if (!column.row_shape.equal(fixed.row_shape))
        raise<nb::value_error>({place(stream, slot), ": expected rows of shape ", text(fixed.row_shape),
                                " as in earlier slots, got ", text(column.row_shape)});
}

void Gatherer::add(std::int64_t slot, nb::sequence values, nb::sequence seals) {
    if (slot < 0 || slot >= kMaxSlots) must_be_vacant(slot);
    if (nb::len(values) != classes_.size())
        raise<nb::value_error>({"slot ", slot, ": expected ", classes_.size(), " streams, got ", nb::len(values)});
    std::vector<CheckedStream> checked;
    std::vector<nb::object> owners;
    std::vector<Seal> sealed;
    for (const nb::handle seal : seals) {
        sealed.push_back(check_seal(seal));
        owners.push_back(nb::borrow(seal));
    }
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const nb::object item = values[s];
        if (!nb::isinstance<nb::tuple>(item))
            raise<nb::type_error>({place(s, slot), ": expected a tuple, got ", describe(item)});
        const nb::tuple value(item);
        checked.push_back(classes_[s] == kDense ? check_dense(place(s, slot), value)
                                                 : check_sparse(place(s, slot), value, classes_[s]));
        for (const nb::handle array : value)
            if (!array.is_none()) owners.push_back(nb::borrow(array));
        if (checked[s].layout.is_valid()) owners.push_back(checked[s].layout);
    }

    // The checks above let other threads run, so the chunks are read only now, without a pause.
    must_be_vacant(slot);
    std::vector<ChunkSource> sources;
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const CheckedStream& stream = checked[s];
        must_fit(stream.column, s, slot);
        if (stream.sequences != checked[0].sequences)
            raise<nb::value_error>({place(s, slot), ": expected ", checked[0].sequences,
                                    " sequences as in stream 0, got ", stream.sequences});
        sources.push_back(stream.source);
        sources[s].bools = bools_ && sources[s].bools;
    }

    // From here on only allocations can fail, and they come before any change. Not even str() may be called, as it
    // handles signals.
    Chunks& chunks = writable(slot);
    for (std::size_t s = 0; s < classes_.size(); ++s)
        if (!chunks.table.streams()[s].known) chunks.columns[s] = checked[s].column;
    chunks.table.hold(static_cast<std::size_t>(slot), sources, checked[0].sequences, sealed);
    chunks.owners[static_cast<std::size_t>(slot)] = std::move(owners);
}

void Gatherer::remove(std::int64_t slot) {
    must_hold(slot);
    Chunks& chunks = writable(slot);
    chunks.table.remove(static_cast<std::size_t>(slot));
    // Freeing arrays may run other code, which must find the slot already vacant.
    const std::vector<nb::object> dropped = std::move(chunks.owners[static_cast<std::size_t>(slot)]);
    chunks.owners[static_cast<std::size_t>(slot)].clear();
}

void Gatherer::clear() {
    const std::shared_ptr<Chunks> dropped = std::move(chunks_);
    chunks_ = std::make_shared<Chunks>(classes_);
}

nb::list Gatherer::slots() const {
    nb::list occupied;
    for (std::size_t slot = 0; slot < chunks_->table.slots(); ++slot)
        if (chunks_->table.holds(static_cast<std::int64_t>(slot))) occupied.append(slot);
    return occupied;
}

std::int64_t Gatherer::sequences(std::int64_t slot) const {
    must_hold(slot);
    return chunks_->table.sequences()[static_cast<std::size_t>(slot)];
}

int Gatherer::traverse(visitproc visit, void* arg) {
    // Chunks that a gather or copy in progress refers to, too, would not be freed with this object.
    if (chunks_.use_count() != 1) return 0;
    for (const Column& column : chunks_->columns) {
        Py_VISIT(column.dtype.ptr());
        Py_VISIT(column.row_shape.ptr());
    }
    for (const auto& arrays : chunks_->owners)
        for (const nb::object& array : arrays) Py_VISIT(array.ptr());
    return 0;
}

std::int64_t classes_of(nb::handle number) {
    if (number.is_none()) return kDense;
    std::int64_t classes = -1;
    if (nb::isinstance<nb::str>(number)) {
        const std::string kind = text(number);
        if (kind == "bytes") return kBytes;
        if (kind == "str") return kText;
    }
    if (PyBool_Check(number.ptr()) || !nb::try_cast(number, classes))
        raise<nb::type_error>({"expected a number of classes, None for a dense stream, 'bytes' or 'str', got ",
                               text(nb::repr(number))});
    if (classes < 0) raise<nb::value_error>({"expected at least 0 classes, got ", classes});
    return std::min(classes, std::int64_t{1} << 31);  // an int32 can name no more
}

}  // namespace feedline::bindings

static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    return nb::inst_ptr<Gatherer>(self)->traverse(visit, arg);
}

static int drop(PyObject* self) {
    nb::inst_ptr<Gatherer>(self)->clear();
    return 0;
}

void bind_gatherer(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                  {Py_tp_clear, reinterpret_cast<void*>(drop)},
                                  {0, nullptr}};
    nb::class_<Gatherer>(
        m, "Gatherer", nb::type_slots(slots),
        "Resident chunks by slot, from which one call copies picked sequences.\n\n"
        "classes: for each stream None if it is dense, the number of classes that bounds its sparse indices, 'bytes'\n"
        "for byte strings, or 'str' for byte strings that are checked to be UTF-8. bools: whether to check that bytes\n"
        "of bool streams are 0 or 1.\n\n"
        "Holds references to the arrays of chunks, and copies only in gather(). Arrays may be mapped from files. If\n"
        "such a file was truncated, or its disk fails, all methods raise DataError, where other code would be killed.")
        .def(
            "__init__",
            [](Gatherer* self, nb::sequence classes, bool bools) {
                std::vector<std::int64_t> numbers;
                for (const nb::handle number : classes) numbers.push_back(classes_of(number));
                new (self) Gatherer(numbers, bools);
            },
            "classes"_a, "bools"_a = false)
        .def("add", &Gatherer::add, "slot"_a, "streams"_a, "seals"_a = nb::tuple(),
             "Hold a chunk in a vacant slot (0 <= slot < 2**24).\n\n"
             "streams: one tuple each. Dense: (rows, offsets) with rows (N, *shape) of any dtype of fixed size, or\n"
             "windows of these rows, (rows, offsets, middles, firsts, ends, steps, zeros, shape): window w, of\n"
             "this shape, has row middles[w] + steps[k] (all int64) for each k, if that is from firsts[w] to below\n"
             "ends[w], else the nearest one there or, if `zeros`, zeros. For steps None, middles[w, k] is the row itself.\n"
             "Sparse: (indptr int64[N + 1], indices int32[nnz], values float32|float64[nnz], offsets). Bytes: (bounds\n"
             "int64[N + 1], data uint8[n], offsets), or for one string per sequence (spans int64[2 * N], data), with\n"
             "begin and end of each. offsets is int64[sequences + 1], or None for one row per sequence. All arrays\n"
             "are C-contiguous, except rows without offsets, which may be any view. They may be read-only. Offsets\n"
             "and indptr are checked here, entries when they are copied.\n\n"
             "seals: arrays of 8 bytes each, at the end of every file from which the other arrays are mapped. They\n"
             "are compared after each copy, as a file truncated in the middle of a page reads as zeros to its end.\n\n"
             "ValueError or TypeError, with the stream in the text, leaves the Gatherer unchanged.")
        .def("remove", &Gatherer::remove, "slot"_a,
             "Remove a slot's chunk. A gather in progress in another thread keeps it until it is done. IndexError\n"
             "if the slot is vacant.")
        .def("clear", &Gatherer::clear, "Remove all chunks, and forget the dtypes and shapes that they fixed.")
        .def_prop_ro("slots", &Gatherer::slots, "Occupied slots, ascending.")
        .def("sequences", &Gatherer::sequences, "slot"_a,
             "Return the number of sequences in a slot's chunk. IndexError if the slot is vacant.")
        .def("gather", &Gatherer::gather, "slots"_a.none(), "index"_a.none(), "threads"_a = 1,
             "Copy sequence index[i] (int64[n]) of slot slots[i] (uint32[n], None: slot 0) to place i, all streams.\n\n"
             "Returns new arrays, a tuple for each stream: dense (rows, offsets), sparse (indptr, indices, values,\n"
             "offsets), bytes (bounds, data, offsets). offsets is None if every picked chunk has one row per\n"
             "sequence. Floating-point numbers begin at a multiple of 64 bytes. Copies above 16 KiB release the GIL,\n"
             "and above 1 MiB use up to `threads` threads.\n\n"
             "IndexError for a bad slot or index, before the copy. DataError if a file was truncated or changed.\n"
             "BadEntriesError (feedline.data.faults), which holds the arrays, for indices out of range and text that\n"
             "is not UTF-8.")
        .def("gather_parts", &Gatherer::gather_parts, "slots"_a.none(), "index"_a.none(), "ends"_a,
             "Gather the places ends[i]:ends[i + 1] (ends: int64[m + 1]), for each i, as gather() does.\n\n"
             "Returns a list of results as of gather(), and the bytes of all arrays, or None if gather() would raise\n"
             "an error about the copied entries. The arrays of a column are views of one array. Each begins at a\n"
             "multiple of 64 bytes. ValueError for ends that do not divide the places. IndexError, DataError as in gather().")
        .def("start", &Gatherer::start, "slots"_a.none(), "index"_a.none(),
             "Begin a gather and return a Copy at once.\n\n"
             "This call computes sizes and allocates arrays, with gather()'s errors. One thread of the process, which\n"
             "never needs the GIL, fills the arrays. Meanwhile slots may be added and removed, and both arguments may\n"
             "be overwritten.")
        .def("stage", &Gatherer::stage, "fetcher"_a, "slots"_a.none(), "index"_a.none(), "counts"_a.none(), "keep"_a,
             "Begin to read runs into memory and return a Staged at once. Run i has counts[i] (int64[n], None: 1)\n"
             "sequences of slot slots[i] (uint32[n], None: slot 0) from index[i] (int64[n]) on.\n\n"
             "The fetcher's threads read bytes that are in its files and not in the page cache, many ranges at a\n"
             "time. All other bytes stay in place. Meanwhile slots may be added and removed, and all arguments may be\n"
             "overwritten.\n\n"
             "keep: for each stream, the small arrays that the page cache should keep: 1 rows, 2 offsets and bounds,\n"
             "3 both, 0 none. IndexError for a bad slot or run.")
        .def("adopt", &Gatherer::adopt, "slot"_a, "staged"_a, "run"_a,
             "Hold a run of a Staged in a vacant slot, as a chunk of its sequences. Waits for the reads. IndexError\n"
             "if the run could not be read.")
        .def("lacking", &Gatherer::lacking, "fetcher"_a, "slots"_a.none(), "index"_a.none(), "counts"_a.none(),
             "max_runs"_a, "max_pages"_a,
             "Count the runs of which the page cache lacks a page. Checks at most `max_runs` runs, evenly spaced, and\n"
             "of each of their streams at most `max_pages` pages. Costs some tenths of a microsecond per page.");
}
