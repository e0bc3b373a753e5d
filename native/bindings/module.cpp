// The Python module `sley.engine._native`.
#include <nanobind/nanobind.h>

#include <exception>
#include <system_error>

#include "bindings/bindings.hpp"
#include "engine/engine.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

// They live as long as the process: the module may be destroyed after the interpreter.
PyObject* g_program_fault = nullptr;
PyObject* g_slot_too_small = nullptr;

void define_errors(nb::module_& m) {
    g_program_fault =
        PyErr_NewException("sley.engine._native.ProgramFault", PyExc_ValueError, nullptr);
    g_slot_too_small =
        PyErr_NewException("sley.engine._native.SlotTooSmall", PyExc_ValueError, nullptr);
    m.attr("ProgramFault") = nb::handle(g_program_fault);
    m.attr("SlotTooSmall") = nb::handle(g_slot_too_small);
}

void translate(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const ProgramFault& fault) {
        const nb::tuple arguments = nb::make_tuple(fault.row, fault.what());
        PyErr_SetObject(g_program_fault, arguments.ptr());
    } catch (const SlotTooSmall& fault) {
        PyErr_SetString(g_slot_too_small, fault.what());
    } catch (const std::system_error& fault) {
        const nb::tuple arguments = nb::make_tuple(fault.code().value(), fault.what());
        PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
}

}  // namespace
}  // namespace sley

NB_MODULE(_native, m) {
    m.doc() = "The CPU engine of sley: shared memory, connections, and the interpreter of a rank.";
    nb::set_leak_warnings(false);  // a process may end with arrays of the heap alive
    sley::define_errors(m);
    nb::register_exception_translator(&sley::translate);
    sley::define_fabric(m);
    sley::define_engine(m);
    sley::define_calls(m);
    sley::define_messages(m);
    sley::define_network(m);
    sley::define_devices(m);
    sley::define_device_plans(m);
    sley::define_views(m);
    sley::define_processes(m);
    sley::define_ready(m);
    sley::define_tensors(m);
    sley::define_operators(m);
}
