// PyTorch operators whose ready calls run without Python: `torch.ops.sley`. Python defines them
// (sley/torch/operators.py), and for each a second one, with an underscore before its name, that
// makes any call; this file adds the kernels for tensors on CPUs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "engine/ready.hpp"
#include "torch/libtorch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

constexpr std::int32_t kNone = -1;

constexpr std::size_t kMostOperators = 8;

// Its arguments: tensors, then a root and an operation if its kind has them, and the group.
struct Operator {
    std::string name;
    std::string any;  // the one that makes any call
    Kind kind;

    std::size_t tensors() const { return kind.is_update() ? 1 : 2; }
    std::size_t op_at() const { return tensors() + (kind.has_root ? 1 : 0); }
    std::size_t group_at() const { return op_at() + (kind.reduces ? 1 : 0); }
};

// The engine's type of a PyTorch type whose elements are moved, or reduced, its bytes and its number
// in `CallKey::element`.
struct Type {
    std::int32_t moved = kNone, reduced = kNone, item = 0, element = 0;
};

// The calls of a group. explain: the error of one, as text.
struct Group {
    std::shared_ptr<ReadyCalls> ready;
    std::int32_t rank, ranks;
    Function explain;
};

// They live as long as the process, as the operators do.
struct Operators {
    libtorch::Functions torch;
    std::vector<Type> types;  // by LibTorch's numbers
    std::unordered_map<std::string, std::int32_t> reductions;
    std::vector<Operator> all;
    std::shared_mutex mutex;
    std::unordered_map<std::string, std::shared_ptr<const Group>> groups;
};

Operators* g_operators = nullptr;
// The exception of the latest call that Python made in this thread, if it failed.
thread_local PyObject* t_error = nullptr;

void check(libtorch::Error error, const char* what) {
    if (error != 0) throw std::runtime_error(std::string("LibTorch failed: ") + what);
}

std::string_view text_at(libtorch::Value value) {
    const auto text = reinterpret_cast<libtorch::Text>(value);
    const char* start = nullptr;
    std::size_t length = 0;
    check(g_operators->torch.torch_string_c_str(text, &start), "a text");
    check(g_operators->torch.torch_string_length(text, &length), "a text's length");
    return {start, length};
}

// Whether the tensor's elements can be used where they are; then reads where.
bool read(libtorch::Value value, bool reduces, Elements& out) {
    const auto& torch = g_operators->torch;
    const auto tensor = reinterpret_cast<libtorch::Tensor>(value);
    bool is_contiguous = false;
    check(torch.aoti_torch_is_contiguous(tensor, &is_contiguous), "a tensor's strides");
    std::int32_t number = 0;
    check(torch.aoti_torch_get_dtype(tensor, &number), "a tensor's type");
    check(torch.aoti_torch_get_numel(tensor, &out.count), "a tensor's size");
    if (!is_contiguous || out.count == 0) return false;
    const auto at = static_cast<std::size_t>(number);
    if (at >= g_operators->types.size()) return false;
    const auto& type = g_operators->types[at];
    const auto engine = reduces ? type.reduced : type.moved;
    if (engine == kNone) return false;
    void* data = nullptr;
    check(torch.aoti_torch_get_data_ptr(tensor, &data), "a tensor's memory");
    out.start = static_cast<std::byte*>(data);
    out.type = static_cast<DataType>(engine);
    out.item = type.item;
    out.element = type.element;
    return data != nullptr && out.is_aligned();
}

std::shared_ptr<const Group> find_group(std::string_view name) {
    const std::shared_lock lock(g_operators->mutex);
    const auto found = g_operators->groups.find(std::string(name));
    return found == g_operators->groups.end() ? nullptr : found->second;
}

std::optional<CallRequest> request_of(std::size_t number, const Group& group,
                                      const libtorch::Value* stack) {
    const auto& o = g_operators->all[number];
    const auto& kind = o.kind;
    auto op = ReduceOp::kSum;
    if (kind.reduces) {
        const auto found = g_operators->reductions.find(std::string(text_at(stack[o.op_at()])));
        if (found == g_operators->reductions.end()) return {};
        op = static_cast<ReduceOp>(found->second);
    }
    Elements first{}, second{};
    if (!read(stack[0], kind.reduces, first)) return {};
    if (kind.is_update()) {
        const auto root = kind.has_root ? stack[1] : 0;
        if (root >= static_cast<libtorch::Value>(group.ranks)) return {};  // or negative
        return update_request(kind, first, op, static_cast<std::int32_t>(root));
    }
    if (!read(stack[1], kind.reduces, second)) return {};
    return move_request(kind, first, second, op, group.rank, group.ranks);
}

// Raises an exception in the main thread, right after the error of C++ that LibTorch knows instead:
// that of a signal handler that has ended a call.
std::string raise_later(nb::handle error) {
    const auto raise = [](void* kept) {
        auto* raised = static_cast<PyObject*>(kept);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
        Py_DECREF(raised);
        return -1;
    };
    if (Py_AddPendingCall(raise, error.inc_ref().ptr()) != 0) error.dec_ref();
    return std::string("the call was interrupted by ") + Py_TYPE(error.ptr())->tp_name;
}

std::string hand_on_interruption() {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return raise_later(nb::steal(value));
}

std::string explain(const Group& group, const CallKey& key, const Outcome& outcome) {
    const Locked locked;
    if (PyErr_Occurred() != nullptr) return hand_on_interruption();
    try {
        return nb::cast<std::string>((*group.explain)(key, to_report(outcome)));
    } catch (nb::python_error& error) {
        return error.what();
    }
}

// Runs a ready call; its outcome, or nothing if it isn't ready. Callers with Python's lock release
// it; those without may be threads that Python doesn't know, but signals matter in its own only.
std::optional<Outcome> run_ready(const Group& group, const CallRequest& request) {
    if (PyGILState_Check() != 0) {
        const Waiting waiting;
        return group.ready->run(request);
    }
    const Interruptible interruptible;
    return group.ready->run(request);
}

void drop(std::size_t number, libtorch::Value* stack) {
    const auto& torch = g_operators->torch;
    const auto& o = g_operators->all[number];
    for (std::size_t i = 0; i < o.tensors(); ++i) {
        torch.aoti_torch_delete_tensor_object(reinterpret_cast<libtorch::Tensor>(stack[i]));
    }
    for (std::size_t i = o.op_at(); i <= o.group_at(); ++i) {
        torch.torch_delete_string(reinterpret_cast<libtorch::Text>(stack[i]));
    }
}

// The text for LibTorch of an exception that Python has noted. That of a signal handler, which Python
// would raise at once, within the call, is raised after it.
std::string text_of(nb::object error) {
    if (PyObject_IsInstance(error.ptr(), PyExc_Exception) != 1) return raise_later(error);
    const std::string text = nb::str(error).c_str();
    return text.empty() ? Py_TYPE(error.ptr())->tp_name : text;
}

// Leaves a call to Python, with its arguments.
void run_any(std::size_t number, libtorch::Value* stack) {
    const char* any = g_operators->all[number].any.c_str();
    const auto error = g_operators->torch.aoti_torch_call_dispatcher(any, "", stack);
    if (t_error != nullptr) {
        const Locked locked;
        throw std::runtime_error(text_of(nb::steal(std::exchange(t_error, nullptr))));
    }
    check(error, any);
}

template <std::size_t number>
void run_operator(libtorch::Value* stack, std::uint64_t, std::uint64_t) {
    std::shared_ptr<const Group> group;
    std::optional<CallRequest> request;
    std::optional<Outcome> outcome;
    try {
        group = find_group(text_at(stack[g_operators->all[number].group_at()]));
        if (group) request = request_of(number, *group, stack);
        if (request) outcome = run_ready(*group, *request);
    } catch (...) {
        drop(number, stack);
        throw;
    }
    if (!outcome) return run_any(number, stack);
    drop(number, stack);
    if (outcome->status == Status::kDone) return;
    throw std::runtime_error(explain(*group, request->key, *outcome));
}

// LibTorch tells a kernel only its arguments, so each operator has its own function.
template <std::size_t... numbers>
constexpr std::array<libtorch::Kernel, kMostOperators> make_kernels(
    std::index_sequence<numbers...>) {
    return {&run_operator<numbers>...};
}
constexpr auto kKernels = make_kernels(std::make_index_sequence<kMostOperators>());

using TypeRows = std::vector<
    std::tuple<std::string, std::int32_t, std::int32_t, std::int32_t, std::int32_t>>;
using Numbers = std::unordered_map<std::string, std::int32_t>;
using Kinds = std::vector<std::tuple<std::string, Kind>>;

void add_operators(const std::string& path, const TypeRows& types, const Numbers& reductions,
                   const Kinds& kinds) {
    if (g_operators != nullptr) return;
    if (kinds.size() > kMostOperators) throw std::invalid_argument("too many operators");
    auto operators = std::make_unique<Operators>();
    operators->torch = libtorch::find_functions(path);
    operators->reductions = reductions;
    for (const auto& [name, kind] : kinds) {
        operators->all.push_back({name, "sley::_" + name, kind});
    }
    for (const auto& [name, moved, reduced, item, element] : types) {
        const auto number = libtorch::find_type(path, name);
        if (number < 0) continue;
        const auto at = static_cast<std::size_t>(number);
        if (operators->types.size() <= at) operators->types.resize(at + 1);
        operators->types[at] = {moved, reduced, item, element};
    }
    g_operators = operators.release();
    libtorch::Library library = nullptr;
    check(g_operators->torch.aoti_torch_library_init_impl("sley", "CPU", __FILE__, __LINE__,
                                                          &library),
          "a library of operators");
    for (std::size_t i = 0; i < g_operators->all.size(); ++i) {
        const auto* name = g_operators->all[i].name.c_str();
        check(g_operators->torch.aoti_torch_library_impl(library, name, kKernels[i]), name);
    }
}

void add_group(const std::string& name, std::shared_ptr<ReadyCalls> ready, std::int32_t rank,
               std::int32_t ranks, AnyFunction explain) {
    auto group = std::make_shared<Group>(
        Group{std::move(ready), rank, ranks, Function(std::move(explain))});
    const std::unique_lock lock(g_operators->mutex);
    g_operators->groups[name] = std::move(group);
}

// Forgets a group, unless another one has its name by now.
void remove_group(const std::string& name, const std::shared_ptr<ReadyCalls>& ready) {
    std::shared_ptr<const Group> ended;  // destroyed without the lock
    const std::unique_lock lock(g_operators->mutex);
    const auto found = g_operators->groups.find(name);
    if (found == g_operators->groups.end() || found->second->ready != ready) return;
    ended.swap(found->second);
    g_operators->groups.erase(found);
}

}  // namespace

void define_operators(nb::module_& m) {
    m.def("add_operators", &add_operators, "path"_a, "types"_a, "reductions"_a, "kinds"_a,
          "Adds the kernels of `torch.ops.sley`, once. path: of LibTorch's library. types: "
          "PyTorch's name, the engine's numbers of a type whose elements are moved and reduced "
          "(-1: none), its bytes, and its number in `CallKey.element`. reductions: the engine's numbers, by name. kinds: each "
          "operator's name, and what it calls. RuntimeError if LibTorch lacks a function.");
    m.def("add_group", &add_group, "name"_a, "ready"_a, "rank"_a, "ranks"_a, "explain"_a,
          "Makes the ready calls of a group known to the operators. explain: the error of a call "
          "as text, from its `CallKey` and its report.");
    m.def("remove_group", &remove_group, "name"_a, "ready"_a,
          "Makes a group unknown again, if its ready calls are these.");
    m.def(
        "set_operator_error",
        [](nb::handle error) { Py_XSETREF(t_error, error.inc_ref().ptr()); }, "error"_a,
        "The exception of the call that an operator has left to Python, in this thread.");
}

}  // namespace sley
