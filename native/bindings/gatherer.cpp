// The Gatherer: which chunks it holds, and how Python sees it.
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
        raise<nb::index_error>({"slot ", slot, " holds no chunk; held: ", text(slots())});
}

void Gatherer::must_be_vacant(std::int64_t slot) const {
    if (slot < 0 || slot >= kMaxSlots) raise<nb::value_error>({"expected 0 <= slot < 2**24, got ", slot});
    if (chunks_->table.holds(slot))
        raise<nb::value_error>({"slot ", slot, " already holds a chunk; remove it first"});
}

static std::string place(std::size_t stream, std::int64_t slot) { return join({"stream ", stream, " of slot ", slot}); }

void Gatherer::must_fit(const Column& column, std::size_t stream, std::int64_t slot) const {
    if (!chunks_->table.streams()[stream].known) return;
    const Column& held = chunks_->columns[stream];
    if (!column.dtype.equal(held.dtype))
        raise<nb::value_error>({place(stream, slot), ": expected dtype ", text(held.dtype),
                                " as in earlier slots, got ", text(column.dtype)});
    if (!column.row_shape.equal(held.row_shape))
        raise<nb::value_error>({place(stream, slot), ": expected rows of shape ", text(held.row_shape),
                                " as in earlier slots, got ", text(column.row_shape)});
}

void Gatherer::add(std::int64_t slot, nb::sequence values, nb::sequence seals) {
    if (slot < 0 || slot >= kMaxSlots) must_be_vacant(slot);
    if (nb::len(values) != classes_.size())
        raise<nb::value_error>({"slot ", slot, ": expected ", classes_.size(), " streams, got ", nb::len(values)});
    std::vector<Arrival> arrivals;
    std::vector<nb::object> owners;
    std::vector<Seal> sealed;
    for (const nb::handle seal : seals) {
        sealed.push_back(examine_seal(seal));
        owners.push_back(nb::borrow(seal));
    }
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const nb::object item = values[s];
        if (!nb::isinstance<nb::tuple>(item))
            raise<nb::type_error>({place(s, slot), ": expected a tuple, got ", describe(item)});
        const nb::tuple value(item);
        arrivals.push_back(classes_[s] == kDense ? examine_dense(place(s, slot), value)
                                                 : examine_sparse(place(s, slot), value, classes_[s]));
        for (const nb::handle array : value)
            if (!array.is_none()) owners.push_back(nb::borrow(array));
        if (arrivals[s].layout.is_valid()) owners.push_back(arrivals[s].layout);
    }

    // The examination lets other threads run, so the chunks are looked at only now, and in one go.
    must_be_vacant(slot);
    std::vector<ChunkSource> sources;
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const Arrival& arrival = arrivals[s];
        must_fit(arrival.column, s, slot);
        if (arrival.sequences != arrivals[0].sequences)
            raise<nb::value_error>({place(s, slot), ": expected ", arrivals[0].sequences,
                                    " sequences as in stream 0, got ", arrival.sequences});
        sources.push_back(arrival.source);
        sources[s].bools = bools_ && sources[s].bools;
    }

    // From here on nothing but memory can fail, and room is made before anything is set. Not even str() may be called,
    // which handles signals.
    Chunks& chunks = writable(slot);
    for (std::size_t s = 0; s < classes_.size(); ++s)
        if (!chunks.table.streams()[s].known) chunks.columns[s] = arrivals[s].column;
    chunks.table.hold(static_cast<std::size_t>(slot), sources, arrivals[0].sequences, sealed);
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
    nb::list held;
    for (std::size_t slot = 0; slot < chunks_->table.slots(); ++slot)
        if (chunks_->table.holds(static_cast<std::int64_t>(slot))) held.append(slot);
    return held;
}

std::int64_t Gatherer::sequences(std::int64_t slot) const {
    must_hold(slot);
    return chunks_->table.sequences()[static_cast<std::size_t>(slot)];
}

int Gatherer::traverse(visitproc visit, void* arg) {
    // Chunks that a gather or a copy under way holds too are not this object's alone to give up.
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
        "Resident chunks by slot, and one-call copies of chosen sequences out of them.\n\n"
        "classes: for each stream None if it is dense, how many classes its sparse indices may name, 'bytes' for byte\n"
        "strings, or 'str' for those that are checked to be UTF-8.\n"
        "bools: look whether bytes of bool streams are 0 or 1, too. Holds references to the arrays added,\n"
        "copies nothing until gather(). Arrays may be mapped from files: one that was cut, or whose disk fails, is\n"
        "a DataError, here and in gather(). (Other code that reads such an array is killed.)")
        .def(
            "__init__",
            [](Gatherer* self, nb::sequence classes, bool bools) {
                std::vector<std::int64_t> all;
                for (const nb::handle number : classes) all.push_back(classes_of(number));
                new (self) Gatherer(all, bools);
            },
            "classes"_a, "bools"_a = false)
        .def("add", &Gatherer::add, "slot"_a, "streams"_a, "seals"_a = nb::tuple(),
             "Hold a chunk in a vacant slot (0 <= slot < 2**24).\n\n"
             "streams, one tuple each: dense (rows, offsets) with rows (N, *shape) of any dtype of\n"
             "fixed size; sparse (indptr int64[N + 1], indices int32[nnz], values float32|float64[nnz],\n"
             "offsets); bytes (bounds int64[N + 1], data uint8[n], offsets), or (spans int64[2 * N], data), begin and\n"
             "end of each, one a sequence. offsets is int64[sequences + 1], or None for one row a sequence. All arrays\n"
             "C-contiguous, but for rows without offsets, which may be any view; read-only allowed.\n"
             "Offsets and indptr are checked here, entries when they are copied.\n"
             "seals: arrays of 8 bytes each, at the end of every file that the others are mapped from: they are\n"
             "looked at again after each copy, as a file that is cut in the middle of a page reads as zeros to its end.\n"
             "ValueError or TypeError names the stream; then nothing was changed.")
        .def("remove", &Gatherer::remove, "slot"_a,
             "Remove a slot's chunk. A gather in progress in another thread keeps it until it is done. IndexError\n"
             "if the slot is vacant.")
        .def("clear", &Gatherer::clear, "Remove all chunks, and forget the dtypes and shapes that they fixed.")
        .def_prop_ro("slots", &Gatherer::slots, "Occupied slots, ascending.")
        .def("sequences", &Gatherer::sequences, "slot"_a,
             "Return the number of sequences in a slot's chunk. IndexError if the slot is vacant.")
        .def("gather", &Gatherer::gather, "slots"_a.none(), "index"_a.none(), "threads"_a = 1,
             "Copy sequence index[i] (int64[n]) of slot slots[i] (uint32[n]; None: slot 0) to place i,\n"
             "all streams.\n\n"
             "Returns fresh arrays, a tuple for each stream: dense (rows, offsets), sparse (indptr,\n"
             "indices, values, offsets), bytes (bounds, data, offsets); offsets is None where every chunk involved\n"
             "has one row a sequence. Floating-point numbers begin at a multiple of 64 bytes. Copies above 1 MiB use\n"
             "up to `threads` threads; above 16 KiB they release the GIL. IndexError for a bad slot or index, before\n"
             "anything is copied. DataError where a file was cut or changed; BadEntriesError (feedline.data.faults),\n"
             "which holds the arrays, for indices out of range and text that is not UTF-8.")
        .def("gather_parts", &Gatherer::gather_parts, "slots"_a.none(), "index"_a.none(), "ends"_a,
             "Gather the places ends[i]:ends[i + 1] (ends: int64[m + 1]), for each i, as gather() does.\n\n"
             "Returns a list of what gather() returns, and the bytes of all arrays; None if it would raise an error\n"
             "about what was copied. The arrays are views of one array a column of a stream; each begins at a multiple\n"
             "of 64 bytes. ValueError for ends that do not divide the places; IndexError, DataError as in gather().")
        .def("start", &Gatherer::start, "slots"_a.none(), "index"_a.none(),
             "Begin a gather and return a Copy at once.\n\n"
             "Sizes are computed and arrays allocated here, with gather()'s errors; one thread of the process,\n"
             "which never needs the GIL, fills the arrays. Meanwhile slots may be added and removed, and both\n"
             "arguments may be overwritten.")
        .def("stage", &Gatherer::stage, "fetcher"_a, "slots"_a.none(), "index"_a.none(), "counts"_a.none(), "keep"_a,
             "Begin to read runs into memory and return a Staged at once. Run i: counts[i] (int64[n]; None: 1)\n"
             "sequences from index[i] (int64[n]) of slot slots[i] (uint32[n]; None: slot 0).\n\n"
             "What lies in files of the fetcher and is not in the page cache is read by the fetcher's threads,\n"
             "many ranges at a time; everything else stays where it is. Meanwhile slots may be added and removed,\n"
             "and all arguments may be overwritten.\n\n"
             "keep: for each stream, what the page cache is to keep because it is small: 1 rows, 2 offsets and\n"
             "bounds, 3 both, 0 nothing. IndexError for a bad slot or run.")
        .def("adopt", &Gatherer::adopt, "slot"_a, "staged"_a, "run"_a,
             "Hold a run of a Staged in a vacant slot, as a chunk of its sequences. Waits for the run. IndexError\n"
             "if it could not be read.")
        .def("lacking", &Gatherer::lacking, "fetcher"_a, "slots"_a.none(), "index"_a.none(), "counts"_a.none(),
             "most"_a, "pages"_a,
             "Count the runs of which the page cache lacks a page, among at most `most`, evenly spaced; of each\n"
             "stream of a run at most `pages` pages are checked. Costs some tenths of a microsecond per page.");
}
