// Ready calls, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bindings/bindings.hpp"
#include "engine/ready.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

// Destroyed without Python's lock, as `Owned` is: it may have the last of the calls.
std::shared_ptr<ReadyCalls> make_ready(Owned<Calls>& calls, double timeout_s) {
    return {new ReadyCalls(calls.shared(), timeout_s), [](ReadyCalls* ready) {
                if (is_python_ending()) return;
                std::optional<Unlocked> unlocked;
                if (PyGILState_Check() != 0) unlocked.emplace();
                delete ready;
            }};
}

}  // namespace

void define_ready(nb::module_& m) {
    nb::class_<CallKey>(m, "CallKey", "Equal for calls that run alike.")
        .def(
            "__init__",
            [](CallKey* self, std::int32_t kind, std::int32_t type, std::int32_t op, bool in_place,
               std::int32_t root, std::int64_t count, std::int32_t element) {
                new (self) CallKey{kind, to_type(type), to_op(op), in_place, root, count, element};
            },
            "kind"_a, "dtype"_a, "op"_a, "in_place"_a, "root"_a, "count"_a, "element"_a,
            "kind: any number. dtype, op: numbers of a DataType and a ReduceOp. count: elements of "
            "a block. element: the number of the caller's type.")
        .def_ro("kind", &CallKey::kind)
        .def_prop_ro("dtype", [](const CallKey& self) { return static_cast<int>(self.type); })
        .def_prop_ro("op", [](const CallKey& self) { return static_cast<int>(self.op); })
        .def_ro("in_place", &CallKey::in_place)
        .def_ro("root", &CallKey::root)
        .def_ro("count", &CallKey::count)
        .def_ro("element", &CallKey::element);
    nb::class_<Kind>(m, "Kind", "A kind of calls that may be ready.")
        .def(
            "__init__",
            [](Kind* self, std::int32_t number, bool reduces, bool has_root, bool input_parts,
               bool output_parts) {
                new (self) Kind{number, reduces, has_root, input_parts, output_parts};
            },
            "number"_a, "reduces"_a, "has_root"_a, "input_parts"_a, "output_parts"_a,
            "number: of `CallKey.kind`. input_parts, output_parts: whether this buffer has a part "
            "for each rank; of kinds without parts, the output is the input.");
    nb::class_<ReadyCalls>(m, "ReadyCalls",
                           "What runs the calls that a rank has made before: equal ones need no "
                           "Python.")
        .def_static("create", &make_ready, "calls"_a, "timeout_s"_a,
                    "timeout_s: of the calls.")
        .def(
            "put",
            [](ReadyCalls& self, const CallKey& key, const Runner& runner) {
                self.put(key, runner);
            },
            "key"_a, "runner"_a, "Makes a call ready.")
        .def("clear", &ReadyCalls::clear, nb::call_guard<Unlocked>(), "Forgets all.")
        .def("close", &ReadyCalls::close, nb::call_guard<Unlocked>(), "Forgets all, and what is put later.")
        .def("set_timeout", &ReadyCalls::set_timeout, "seconds"_a, "Sets that of later calls.")
        .def_prop_ro("number", &ReadyCalls::number, "How many calls have run.");
}

}  // namespace sley
