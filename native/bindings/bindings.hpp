// Common parts of the Python module `sley.engine._native`.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/python_lock.hpp"
#include "devices/arguments.hpp"
#include "devices/device.hpp"
#include "engine/engine.hpp"
#include "fabric/control.hpp"
#include "fabric/fabric.hpp"
#include "fabric/outcome.hpp"

namespace sley {

void define_fabric(nanobind::module_& m);
void define_engine(nanobind::module_& m);
void define_calls(nanobind::module_& m);
void define_device_plans(nanobind::module_& m);
void define_devices(nanobind::module_& m);
void define_messages(nanobind::module_& m);
void define_network(nanobind::module_& m);
void define_operators(nanobind::module_& m);
void define_processes(nanobind::module_& m);
void define_ready(nanobind::module_& m);
void define_tensors(nanobind::module_& m);
void define_views(nanobind::module_& m);

// A view of a caller's array on a device; none for one that needs a closer look.
std::optional<ArrayView> usual_view(nanobind::handle array, const Device& device);

// Throw std::invalid_argument for an unknown type or operation.
DataType to_type(std::int32_t type);
ReduceOp to_op(std::int32_t op);

// An outcome for Python, as plain values that can be pickled: (status, seconds, rank, bytes,
// [(instruction, tile, reason, target)], whether it ran with varying counts instead).
using StuckRow = std::tuple<std::int32_t, std::int64_t, int, std::int32_t>;
using Report = std::tuple<int, double, std::int32_t, std::int64_t, std::vector<StuckRow>,
                          bool>;
inline Report to_report(const Outcome& outcome) {
    std::vector<StuckRow> stuck;
    for (const auto& s : outcome.stuck) {
        stuck.emplace_back(s.instruction, s.tile, static_cast<int>(s.reason), s.target);
    }
    return {static_cast<int>(outcome.status), outcome.seconds, outcome.rank, outcome.bytes,
            std::move(stuck), outcome.varied};
}

// None for a successful call as it was asked for, so that the usual case costs little.
using Problem = std::optional<Report>;

inline Problem problem_of(const Outcome& outcome) {
    if (outcome.status == Status::kDone && !outcome.varied) return {};
    return to_report(outcome);
}

// A Python function that any thread may call and destroy.
class Function {
public:
    explicit Function(nanobind::object function)
        : function_(function.release().ptr(), [](PyObject* kept) {
              if (is_python_ending()) return;
              const Locked locked;
              Py_DECREF(kept);
          }) {}
    nanobind::handle operator*() const { return function_.get(); }

private:
    std::shared_ptr<PyObject> function_;
};

// The SleyError for what C++ or a callback threw; None if there is none.
nanobind::object sley_error_of(const std::exception_ptr& error);

// Keeps an object for streams, which never wait for Python's lock: it is dropped soon after they let
// it go.
std::shared_ptr<void> for_streams(nanobind::object object);

// Keeps an object alive until a call has ended.
void keep_alive(Ticket& ticket, nanobind::object object);

// Memory owned by Python, by its address.
using Address = std::uintptr_t;

inline std::byte* at(Address address) { return reinterpret_cast<std::byte*>(address); }

// In the main thread, Python's signal handlers run while the thread waits for other ranks without
// Python's lock; an exception of theirs ends the call, and is raised after it.
class Interruptible {
public:
    Interruptible() {
        is_interrupted = [] {
            const Locked locked;
            return PyErr_CheckSignals() != 0;
        };
    }
    Interruptible(const Interruptible&) = delete;
    Interruptible& operator=(const Interruptible&) = delete;
    ~Interruptible() { is_interrupted = before_; }

private:
    bool (*before_)() = is_interrupted;  // of a caller, behind a callback
};

// Releases Python's lock while the thread waits for other ranks.
class Waiting {
    Unlocked unlocked_;
    Interruptible interruptible_;
};

inline void raise_if_interrupted() {
    if (PyErr_Occurred()) throw nanobind::python_error();
}

// Owns an object with threads. It is destroyed without Python's lock, which a thread that it joins
// may need for a callback. It is not destroyed while Python ends, since such a thread hangs, nor in
// a forked child, since its threads, and the owners of its locks, are the parent's.
template <class Base>
class Owned {
public:
    template <class... More>
    explicit Owned(std::shared_ptr<Fabric> fabric, More... more)
        : base_(std::make_shared<Base>(std::move(fabric), more...)) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        if (getpid() != process_ || is_python_ending()) {
            new std::shared_ptr<Base>(std::move(base_));  // never deleted
            return;
        }
        const Unlocked unlocked;
        base_.reset();
    }
    Base* operator->() const { return base_.get(); }
    // Whoever drops the last of these must not hold Python's lock.
    const std::shared_ptr<Base>& shared() const { return base_; }

private:
    std::shared_ptr<Base> base_;
    pid_t process_ = getpid();
};

}  // namespace sley
