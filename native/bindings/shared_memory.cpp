#include "feedline/shared_memory.h"

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <system_error>

#include "arrays.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

// Neither type takes part in garbage collection. The collector calls the finalisers of a cycle in any order, but views
// of these objects count as references, and the memory must be freed with the last of them.

namespace {

struct SharedBuffer {
    SharedBuffer(int fd, std::size_t size, bool copy_on_write) {
        try {
            memory = SharedMemory::map(fd, size, copy_on_write);
        } catch (const std::system_error& error) {
            const std::string what =
                join({error.code().message(), " while mapping ", size, " bytes of shared memory"});
            nb::object exception = nb::handle(PyExc_OSError)(error.code().value(), what.c_str());
            PyErr_SetObject(PyExc_OSError, exception.ptr());
            throw nb::python_error();
        }
    }
    const SharedMemory& bytes() const { return *memory; }
    std::shared_ptr<SharedMemory> memory;
};

struct LoanBuffer {
    LoanBuffer(const SharedBuffer& memory, const SharedBuffer& table, std::size_t at, std::uint8_t free,
               std::uint8_t forgotten)
        : loan(memory.memory, table.memory, at, free, forgotten) {}
    const SharedMemory& bytes() const { return loan.memory(); }
    Loan loan;
};

template <class T>
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    const SharedMemory& memory = nb::inst_ptr<T>(nb::handle(self))->bytes();
    return PyBuffer_FillInfo(view, self, memory.data(), static_cast<Py_ssize_t>(memory.size()), 0, flags);
}

template <class T>
PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer<T>)}, {0, nullptr}};

}  // namespace

void bind_shared_memory(nb::module_& m) {
    nb::class_<SharedBuffer>(m, "SharedMemory", nb::type_slots(buffer_slots<SharedBuffer>),
                       "Memory mapped from a file descriptor, as a writable buffer. It is unmapped once this object\n"
                       "and all views of it are gone. With `copy_on_write`, what is written\n"
                       "to it stays in this mapping.")
        .def(nb::init<int, std::size_t, bool>(), "fd"_a, "size"_a, "copy_on_write"_a = false)
        .def_prop_ro("address",
                     [](const SharedBuffer& self) { return reinterpret_cast<std::uintptr_t>(self.memory->data()); })
        .def_prop_ro("size", [](const SharedBuffer& self) { return self.memory->size(); });
    nb::class_<LoanBuffer>(m, "Loan", nb::type_slots(buffer_slots<LoanBuffer>),
                     "A SharedMemory that is lent out, as a writable buffer.\n\n"
                     "After begin(), byte `at` of `table` is set to `free` once this object and all views of it are\n"
                     "gone, or to `forgotten` if the process was forked in between.")
        .def(nb::init<const SharedBuffer&, const SharedBuffer&, std::size_t, std::uint8_t, std::uint8_t>(), "memory"_a,
             "table"_a, "at"_a, "free"_a, "forgotten"_a)
        .def("begin", [](LoanBuffer& self) { self.loan.begin(); },
             "Begin the loan, so that its end is recorded in the table.")
        .def_static("forking", &Loan::forking,
             "Record a fork for all loans. Call it in the parent, before and after each fork.");
}
