// Ready calls, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bindings/bindings.hpp"
#include "bindings/calls.hpp"
#include "engine/ready.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

template <class Target>
void put(ReadyCalls& calls, std::int32_t kind, std::int32_t type, std::int32_t op, bool in_place,
         std::int32_t root, std::int64_t count, const std::shared_ptr<Target>& target,
         std::uint64_t what, const Varying& varying) {
    const auto call = make_call(count, type, op, nullptr, 0, nullptr, 0);
    calls.put({kind, call.type, call.op, in_place, root, count},
              {runner_of(target, varying), what, varying ? std::get<1>(*varying) : 0});
}

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
    nb::class_<ReadyCalls>(m, "ReadyCalls",
                           "What runs the calls that a rank has made before: equal ones need no "
                           "Python. A call is known by its kind (a number), type, operation, "
                           "whether it is in place, root, and count.")
        .def_static("create", &make_ready, "calls"_a, "timeout_s"_a,
                    "timeout_s: of the calls.")
        .def("put", &put<Engine>, "kind"_a, "dtype"_a, "op"_a, "in_place"_a, "root"_a, "count"_a,
             "engine"_a, "what"_a, "varying"_a.none(),
             "Makes a call ready. The last three: as for `Calls.run`.")
        .def("put", &put<Choice>, "kind"_a, "dtype"_a, "op"_a, "in_place"_a, "root"_a, "count"_a,
             "choice"_a, "what"_a, "varying"_a.none(), "Makes a call ready, on a choice's engines.")
        .def("clear", &ReadyCalls::clear, nb::call_guard<Unlocked>(), "Forgets all.")
        .def("close", &ReadyCalls::close, nb::call_guard<Unlocked>(), "Forgets all, and what is put later.")
        .def("set_timeout", &ReadyCalls::set_timeout, "seconds"_a, "Sets that of later calls.")
        .def_prop_ro("number", &ReadyCalls::number, "How many calls have run.");
}

}  // namespace sley
