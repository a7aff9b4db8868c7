#include "fetch.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "arrays.h"
#include "paths.h"

using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace {

// Bytes of a file, in memory that returns to the pool with the last array that refers to it.
struct Bytes {
    std::shared_ptr<std::byte> block;
    const std::byte* data;
    std::size_t size;
};

int bytes_buffer(PyObject* self, Py_buffer* view, int flags) {
    const Bytes* bytes = nb::inst_ptr<Bytes>(self);
    auto* data = const_cast<std::byte*>(bytes->data);
    return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(bytes->size), 1, flags);
}

// Ranges of files that are being read.
class Fetch {
public:
    Fetch(nb::object owner, std::shared_ptr<RangeWork> work) : owner_(std::move(owner)), work_(std::move(work)) {
        disk().fetcher.start(work_);
    }
    ~Fetch() { disk().cancel(*work_); }
    Fetch(const Fetch&) = delete;
    Fetch& operator=(const Fetch&) = delete;

    bool done() const { return work_->done(); }
    nb::list result();

private:
    Disk& disk() const { return *nb::inst_ptr<Disk>(owner_); }

    nb::object owner_;
    std::shared_ptr<RangeWork> work_;
    bool counted_ = false;
};

nb::list Fetch::result() {
    if (work_->made_before_fork() && !work_->done()) {
        // The threads that would have read exist only in the parent.
        work_ = std::make_shared<RangeWork>(work_->ranges(), disk().pool);
        disk().fetcher.start(work_);
    }
    disk().wait(*work_);
    if (!counted_) disk().disk_bytes += work_->disk_bytes();
    counted_ = true;
    nb::list buffers;
    for (std::size_t k = 0; k < work_->results().size(); ++k) {
        const RangeWork::Result& result = work_->results()[k];
        if (result.error != 0)
            buffers.append(nb::make_tuple(result.error, result.at));
        else
            buffers.append(nb::cast(Bytes{result.block, result.data, work_->ranges()[k].size}));
    }
    return buffers;
}

const std::shared_ptr<const DiskFile>& file_of(const Disk& disk, std::int64_t file) {
    if (file < 0 || static_cast<std::size_t>(file) >= disk.files.size())
        raise<nb::index_error>({"expected a file from 0 to below ", disk.files.size(), ", got ", file});
    if (disk.files[static_cast<std::size_t>(file)] == nullptr)
        raise<nb::index_error>({"expected an open file, got number ", file, ", which was closed"});
    return disk.files[static_cast<std::size_t>(file)];
}

void check_range(const DiskFile& file, std::int64_t offset, std::int64_t size) {
    if (offset < 0 || size < 0 || static_cast<std::uint64_t>(size) > file.size() ||
        static_cast<std::uint64_t>(offset) > file.size() - static_cast<std::uint64_t>(size))
        raise<nb::value_error>({"expected a range of the ", file.size(), " bytes of a file, got ", size, " bytes at ",
                                offset});
}

std::size_t add_file(Disk& disk, nb::handle path, std::int64_t size, std::uint64_t address, nb::handle identity,
                     bool direct, bool ask, std::int64_t first, bool share) {
    if (first < 0 || first > size)
        raise<nb::value_error>({"expected `first` from 0 to the size, ", size, ", got ", first});
    if (size < 0) raise<nb::value_error>({"expected a size of at least 0, got ", size});
    DiskFile::About about;
    about.path = feedline::bindings::bytes_of_path(path);
    about.size = static_cast<std::uint64_t>(size);
    about.mapped = reinterpret_cast<const std::byte*>(address);  // an address from Python is a number
    about.first = static_cast<std::uint64_t>(first);
    about.direct = direct;
    about.ask = ask;
    about.share = share;
    if (!identity.is_none()) {
        const nb::tuple pair(nb::borrow(identity));
        about.device = nb::cast<std::uint64_t>(pair[0]);
        about.inode = nb::cast<std::uint64_t>(pair[1]);
    }
    std::shared_ptr<const DiskFile> file;
    try {
        file = std::make_shared<DiskFile>(about);
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
        throw nb::python_error();
    }
    disk.files.push_back(file);
    if (address != 0) {
        auto mapped = std::make_shared<MappedFiles>(*disk.mapped);
        const auto place = std::upper_bound(mapped->begin(), mapped->end(), file, [](const auto& a, const auto& b) {
            return a->begin() < b->begin();
        });
        mapped->insert(place, file);
        disk.mapped = std::move(mapped);
    }
    return disk.files.size() - 1;
}

std::size_t count_cached(const Disk& disk, std::int64_t number, std::int64_t offset, std::int64_t size,
                       std::int64_t max_pages) {
    const DiskFile& file = *file_of(disk, number);
    check_range(file, offset, size);
    if (max_pages < 1) raise<nb::value_error>({"expected max_pages of at least 1, got ", max_pages});
    const std::int64_t first = offset / static_cast<std::int64_t>(kFetchAlign);
    const std::int64_t pages = (offset + size + static_cast<std::int64_t>(kFetchAlign) - 1) /
                                   static_cast<std::int64_t>(kFetchAlign) - first;
    const Unlocked unlocked;
    const std::int64_t checked = std::min(max_pages, pages);
    std::size_t count = 0;
    if (file.reports_pages() && checked == pages) {
        std::vector<unsigned char> cached(static_cast<std::size_t>(pages));
        file.query_pages(static_cast<std::uint64_t>(first) * kFetchAlign, cached.size(), cached.data());
        return static_cast<std::size_t>(std::count(cached.begin(), cached.end(), 1));
    }
    for (std::int64_t k = 0; k < checked; ++k) {
        // In the middle of equal parts.
        const auto page = static_cast<std::uint64_t>(first + (2 * k + 1) * pages / (2 * checked));
        unsigned char cached = 0;
        if (file.reports_pages())
            file.query_pages(page * kFetchAlign, 1, &cached);
        else
            cached = file.probe(page * kFetchAlign) ? 1 : 0;
        count += cached;
    }
    return count;
}

Fetcher::Backend backend_of(const std::string& name) {
    if (name == "any") return Fetcher::Backend::kAny;
    if (name == "io_uring") return Fetcher::Backend::kRing;
    if (name == "threads") return Fetcher::Backend::kThreads;
    raise<nb::value_error>({"expected 'any', 'io_uring' or 'threads' as backend, got '", name, "'"});
}

}  // namespace

void bind_fetch(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(bytes_buffer)}, {0, nullptr}};
    nb::class_<Bytes>(m, "Bytes", nb::type_slots(slots), "Bytes of a file in memory; a read-only buffer.")
        .def("__len__", [](const Bytes& bytes) { return bytes.size; });
    nb::class_<Fetch>(m, "Fetch", "Ranges of files that are being read. Safe to drop before the reads have ended.")
        .def("result", &Fetch::result,
             "Wait for the reads; return Bytes for each range, or (errno, offset of the first byte that could not\n"
             "be read) with errno -1 if the file ended before it. Releases the GIL; Ctrl-C interrupts the wait.\n"
             "MemoryError if there was not enough memory.")
        .def_prop_ro("done", &Fetch::done, "Whether result() would return at once.");
    nb::class_<Disk>(m, "Fetcher",
                     "Reads ranges of files ahead of need, many at a time, on threads that never need the GIL.\n\n"
                     "backend: \"io_uring\", \"threads\", or \"any\": the first that the kernel has and permits.\n"
                     "depth: maximum number of reads in flight.\n"
                     "keep_bytes: memory to keep for further reads.")
        .def(
            "__init__",
            [](Disk* self, const std::string& backend, std::int64_t depth, std::int64_t keep_bytes) {
                if (depth < 1 || depth > 4096) raise<nb::value_error>({"expected a depth from 1 to 4096, got ", depth});
                if (keep_bytes < 0) raise<nb::value_error>({"expected to keep at least 0 bytes, got ", keep_bytes});
                try {
                    new (self) Disk(backend_of(backend), static_cast<unsigned>(depth), static_cast<std::size_t>(keep_bytes));
                } catch (const std::system_error& error) {
                    errno = error.code().value();
                    PyErr_SetFromErrno(PyExc_OSError);
                    throw nb::python_error();
                }
            },
            "backend"_a = "any", "depth"_a = 128, "keep_bytes"_a = 0)
        .def("add", &add_file, "path"_a, "size"_a, "address"_a = 0, "identity"_a.none() = nb::none(),
             "direct"_a = true, "ask"_a = true, "first"_a = 0, "share"_a = false,
             "Open a file of `size` bytes and return its number.\n\n"
             "address: address at which byte 0 of the file is mapped, or would be if only bytes from `first` on are\n"
             "mapped. 0: not mapped. identity: (device, inode) that the file must have. direct: whether to bypass the\n"
             "page cache if the file system allows it. ask: whether to ask which pages are cached. If not, no bytes\n"
             "are taken from the page cache. share: whether to read through the page cache, for other processes that\n"
             "read the same bytes.\n\n"
             "OSError if the file cannot be opened, with ESTALE if it is a different file.")
        .def(
            "close",
            [](Disk& self, std::int64_t number) {
                const std::shared_ptr<const DiskFile> file = file_of(self, number);
                auto mapped = std::make_shared<MappedFiles>(*self.mapped);
                mapped->erase(std::remove(mapped->begin(), mapped->end(), file), mapped->end());
                self.mapped = std::move(mapped);
                self.files[static_cast<std::size_t>(number)] = nullptr;
            },
            "file"_a, "Close a file once its reads have ended. Its number is not used again.")
        .def(
            "direct", [](const Disk& self, std::int64_t file) { return file_of(self, file)->direct(); }, "file"_a,
            "Whether reads of the file bypass the page cache.")
        .def(
            "fail",
            [](const Disk& self, std::int64_t file, std::uint64_t begin, std::uint64_t end, int error) {
                file_of(self, file)->fail(begin, end, error);
            },
            "file"_a, "begin"_a, "end"_a, "error"_a,
            "Make all further reads of these bytes fail with an errno, as a failing disk would. For tests, before\n"
            "the first read.")
        .def("held", &count_cached, "file"_a, "offset"_a, "size"_a, "max_pages"_a,
             "Count the cached pages of a range, among at most `max_pages` that are checked, evenly spaced. If all\n"
             "pages are checked, one call to the kernel covers them, at 0.05 us per page. Otherwise a page costs\n"
             "several times as much.")
        .def(
            "read",
            [](nb::handle self, nb::sequence ranges) {
                const Disk& disk = *nb::inst_ptr<Disk>(self);
                std::vector<RangeWork::Range> to_read;
                for (const nb::handle item : ranges) {
                    const nb::tuple range(nb::borrow(item));
                    if (range.size() != 3) raise<nb::value_error>({"expected (file, offset, size), got ", text(range)});
                    const auto& file = file_of(disk, nb::cast<std::int64_t>(range[0]));
                    const auto offset = nb::cast<std::int64_t>(range[1]), size = nb::cast<std::int64_t>(range[2]);
                    check_range(*file, offset, size);
                    to_read.push_back({file, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(size)});
                }
                return new Fetch(nb::borrow(self), std::make_shared<RangeWork>(std::move(to_read), disk.pool));
            },
            "ranges"_a, "Begin to read ranges (file, offset, size in bytes) and return a Fetch at once.")
        .def_prop_ro("backend", [](const Disk& self) { return self.fetcher.backend(); },
                     "\"io_uring\" or \"threads\".")
        .def_prop_ro("depth", [](const Disk& self) { return self.fetcher.depth(); },
                     "Maximum number of reads in flight.")
        .def_prop_ro("memory", [](const Disk& self) { return self.pool->in_use() + self.pool->idle(); },
                     "Bytes of memory in use for reads, or kept for further ones.")
        .def_prop_ro("disk_bytes", [](const Disk& self) { return self.disk_bytes; },
                     "Bytes read from the disk by reads that have been waited for.");
}
