// Collectives and messages of the tensors of a Python framework, from Python to the engine without
// Python between: ready calls, and messages, of plain tensors. All others go to Python's functions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "engine/ready.hpp"
#include "messages/point_to_point.hpp"
#include "torch/dlpack.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

constexpr std::int32_t kNone = -1;

// The engine's types by DLPack's, and the caller's numbers of them; kNone for those that aren't here.
class Types {
public:
    struct Row {
        std::int32_t number = kNone, element = kNone;
    };
    using Rows =
        std::vector<std::tuple<std::uint8_t, std::uint8_t, std::int32_t, std::int32_t>>;

    explicit Types(const Rows& rows) {
        for (const auto& [code, bits, number, element] : rows) {
            if (code >= kCodes || bits / 8 >= kSizes || bits % 8 != 0) continue;
            rows_[code][bits / 8] = {number, element};
        }
    }
    Row find(const dlpack::DataType& type) const {
        if (type.code >= kCodes || type.bits / 8 >= kSizes || type.bits % 8 != 0) return {};
        return type.lanes == 1 ? rows_[type.code][type.bits / 8] : Row{};
    }

private:
    static constexpr std::size_t kCodes = 16, kSizes = 17;
    std::array<std::array<Row, kSizes>, kCodes> rows_;
};

// What the options object of a call says, by the attributes that its kind has.
struct Options {
    bool is_plain = false;  // neither asynchronous nor with a timeout of its own
    std::int32_t op = 0;
    std::int32_t root = 0;
};

using Classes = nb::typed<nb::tuple, nb::type_object, nb::ellipsis>;
using Namespace = nb::typed<nb::dict, nb::str, nb::any>;

class TensorCalls {
public:
    // The arguments are those of `TensorCalls.create` in Python.
    TensorCalls(std::shared_ptr<ReadyCalls> ready, const nb::capsule& exchange,
                Classes classes, std::int32_t rank, std::int32_t ranks, const Types& moved,
                const Types& reduced, std::vector<std::int32_t> reductions, Namespace profiler,
                nb::object no_timeout, AnyFunction fail)
        : ready_(std::move(ready)), classes_(std::move(classes)), rank_(rank), ranks_(ranks),
          moved_(moved), reduced_(reduced), reductions_(std::move(reductions)),
          profiler_(std::move(profiler)), no_timeout_(std::move(no_timeout)),
          fail_(std::move(fail)) {
        const auto* api = static_cast<dlpack::Exchange*>(exchange.data(dlpack::kCapsule));
        if (api == nullptr || api->header.major != dlpack::kMajor || api->read == nullptr) {
            throw std::invalid_argument("another version of DLPack's C interface");
        }
        read_ = api->read;
    }

    // A call whose output is its input; whether it has run.
    bool update(const Kind& kind, nb::handle options_class, nb::handle tensors, nb::handle given) {
        Elements data{};
        if (!PyList_CheckExact(tensors.ptr()) || PyList_GET_SIZE(tensors.ptr()) != 1) return false;
        if (!read(PyList_GET_ITEM(tensors.ptr(), 0), kind.reduces, data)) return false;
        const auto options = read(given, options_class, kind);
        if (!options.is_plain) return false;
        return run(update_request(kind, data, static_cast<ReduceOp>(options.op), options.root));
    }

    // A call from one tensor to another; whether it has run.
    bool move(const Kind& kind, nb::handle options_class, nb::handle output, nb::handle input,
              nb::handle given) {
        Elements in{}, out{};
        if (!read(output, kind.reduces, out) || !read(input, kind.reduces, in)) return false;
        const auto options = read(given, options_class, kind);
        if (!options.is_plain) return false;
        const auto request = move_request(kind, out, in, static_cast<ReduceOp>(options.op), rank_,
                                          ranks_);
        return request && run(*request);
    }

    // A call from one list of tensors to another; whether it has run. Where one side alone has a part
    // for each rank, that side is a list in a list.
    bool move_lists(const Kind& kind, nb::handle options_class, nb::handle outputs,
                    nb::handle inputs, nb::handle given) {
        const bool is_exchange = kind.input_parts && kind.output_parts;
        std::vector<Elements> in, out;
        if (!read_list(outputs, kind.output_parts && !is_exchange, kind.reduces, out)) return false;
        if (!read_list(inputs, kind.input_parts && !is_exchange, kind.reduces, in)) return false;
        const auto options = read(given, options_class, kind);
        if (!options.is_plain) return false;
        const auto request = list_request(kind, out, in, static_cast<ReduceOp>(options.op),
                                          options.root, rank_, ranks_);
        return request && run(*request);
    }

    // Begins to send a plain tensor to a rank, or to receive one from a rank or from kAnySource; null
    // if that is left to Python's functions.
    std::shared_ptr<Ticket> begin(PointToPoint& messages, bool is_send, nb::handle tensor,
                                  std::int32_t peer, std::int64_t tag, std::int64_t& bytes) {
        Elements data{};
        if (is_profiled() || !read(tensor, false, data)) return nullptr;
        if (peer >= ranks_ || tag < 0) return nullptr;
        const auto timeout = ready_->timeout();
        if (!timeout) return nullptr;
        bytes = data.bytes();
        const Unlocked unlocked;
        return is_send ? messages.send(data.start, bytes, peer, tag, *timeout, data.element + 1)
                       : messages.recv(data.start, bytes, peer, tag, *timeout, data.element + 1);
    }

private:
    // Reads the tensors of a list, or of the only list in a list, which may be missing.
    bool read_list(nb::handle list, bool is_nested, bool reduces, std::vector<Elements>& out) const {
        if (!PyList_CheckExact(list.ptr())) return false;
        const auto size = PyList_GET_SIZE(list.ptr());
        if (is_nested && size > 0) {
            return size == 1 && read_list(PyList_GET_ITEM(list.ptr(), 0), false, reduces, out);
        }
        out.resize(static_cast<std::size_t>(size));
        for (Py_ssize_t i = 0; i < size; ++i) {
            const nb::handle tensor = PyList_GET_ITEM(list.ptr(), i);
            if (!read(tensor, reduces, out[static_cast<std::size_t>(i)])) return false;
        }
        return true;
    }

    // Whether the elements of `object` can be used where they are; then reads where. Errors are
    // left to Python's functions, which ask again.
    bool read(nb::handle object, bool reduces, Elements& out) const {
        if (!is_plain_class(Py_TYPE(object.ptr()))) return false;
        dlpack::Tensor tensor{};
        if (read_(object.ptr(), &tensor) != 0) {
            PyErr_Clear();
            return false;
        }
        if (tensor.device.type != dlpack::kCpu || has_gaps(tensor)) return false;
        const auto type = (reduces ? reduced_ : moved_).find(tensor.dtype);
        if (type.number == kNone) return false;
        out.type = static_cast<DataType>(type.number);
        out.item = tensor.dtype.bits / 8;
        out.count = elements(tensor);
        if (out.count == 0) return false;
        out.element = type.element;
        out.start = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
        return tensor.data != nullptr && out.is_aligned() && !is_negated(object);
    }

    bool is_plain_class(PyTypeObject* type) const {
        for (std::size_t i = 0; i < classes_.size(); ++i) {
            if (reinterpret_cast<PyObject*>(type) == classes_[i].ptr()) return true;
        }
        return false;
    }

    // Whether the elements in memory are the negatives of the tensor's: DLPack doesn't say so.
    bool is_negated(nb::handle tensor) const {
        auto* found = PyObject_CallMethodNoArgs(tensor.ptr(), is_neg_.ptr());
        if (found == nullptr) throw nb::python_error();
        const bool negated = found == Py_True;
        Py_DECREF(found);
        return negated;
    }

    Options read(nb::handle given, nb::handle options_class, const Kind& kind) const {
        Options options;
        if (reinterpret_cast<PyObject*>(Py_TYPE(given.ptr())) != options_class.ptr()) return {};
        if (!nb::getattr(given, async_op_).is(nb::handle(Py_False))) return {};
        const int is_timed = PyObject_RichCompareBool(nb::getattr(given, timeout_).ptr(),
                                                      no_timeout_.ptr(), Py_GT);
        if (is_timed < 0) throw nb::python_error();
        if (is_timed != 0) return {};
        if (kind.reduces) {
            const auto number = PyObject_Hash(nb::getattr(given, reduce_op_).ptr());
            if (number < 0 || number >= static_cast<Py_hash_t>(reductions_.size())) return {};
            options.op = reductions_[static_cast<std::size_t>(number)];
            if (options.op == kNone) return {};
        }
        if (kind.has_root) options.root = nb::cast<std::int32_t>(nb::getattr(given, root_));
        options.is_plain = true;
        return options;
    }

    bool run(const CallRequest& request) const {
        if (is_profiled()) return false;
        std::optional<Outcome> outcome;
        {
            const Waiting waiting;
            outcome = ready_->run(request);
        }
        raise_if_interrupted();
        if (!outcome) return false;
        if (outcome->status == Status::kDone) return true;
        fail_(request.key, to_report(*outcome));
        throw std::logic_error("a failed call without an error");
    }

    bool is_profiled() const {
        return PyDict_GetItem(profiler_.ptr(), is_profiler_enabled_.ptr()) == Py_True;
    }

    std::shared_ptr<ReadyCalls> ready_;
    int (*read_)(void*, dlpack::Tensor*);
    Classes classes_;
    std::int32_t rank_, ranks_;
    Types moved_, reduced_;
    std::vector<std::int32_t> reductions_;
    Namespace profiler_;
    nb::object no_timeout_;
    AnyFunction fail_;
    nb::str is_neg_ = nb::str("is_neg"), async_op_ = nb::str("asyncOp"),
            timeout_ = nb::str("timeout"), reduce_op_ = nb::str("reduceOp"),
            root_ = nb::str("rootRank"),
            is_profiler_enabled_ = nb::str("_is_profiler_enabled");
};

using Shared = std::shared_ptr<TensorCalls>;

AnyFunction make_update(const Shared& calls, const Kind& kind, nb::object options_class,
                        AnyFunction otherwise) {
    return nb::borrow<AnyFunction>(nb::cpp_function([=](nb::args args, nb::kwargs more) -> nb::object {
        if (args.size() == 2 && more.size() == 0 &&
            calls->update(kind, options_class, args[0], args[1])) {
            return nb::none();
        }
        return otherwise(*args, **more);
    }));
}

AnyFunction make_move(const Shared& calls, const Kind& kind, nb::object options_class,
                      AnyFunction otherwise) {
    // An exchange has lists of split sizes before its options; empty ones are equal parts.
    const std::size_t last = kind.input_parts && kind.output_parts ? 4 : 2;
    return nb::borrow<AnyFunction>(nb::cpp_function([=](nb::args args, nb::kwargs more) -> nb::object {
        bool is_plain = args.size() == last + 1 && more.size() == 0;
        for (std::size_t i = 2; is_plain && i < last; ++i) {
            is_plain = PyList_CheckExact(args[i].ptr()) && PyList_GET_SIZE(args[i].ptr()) == 0;
        }
        if (is_plain && calls->move(kind, options_class, args[0], args[1], args[last])) {
            return nb::none();
        }
        return otherwise(*args, **more);
    }));
}

AnyFunction make_lists(const Shared& calls, const Kind& kind, nb::object options_class,
                       AnyFunction otherwise) {
    return nb::borrow<AnyFunction>(nb::cpp_function([=](nb::args args, nb::kwargs more) -> nb::object {
        if (args.size() == 3 && more.size() == 0 &&
            calls->move_lists(kind, options_class, args[0], args[1], args[2])) {
            return nb::none();
        }
        return otherwise(*args, **more);
    }));
}

// PyTorch gives the options alone, by their name.
AnyFunction make_barrier(const Shared& calls, const Kind& kind, nb::object options_class,
                         nb::object token, nb::object cpu, AnyFunction otherwise) {
    nb::list data;
    data.append(token);
    const nb::str name("opts"), device("device");
    return nb::borrow<AnyFunction>(nb::cpp_function([=](nb::args args, nb::kwargs more) -> nb::object {
        const bool is_plain = args.size() == 0 && more.size() == 1;
        const nb::handle options = is_plain ? PyDict_GetItem(more.ptr(), name.ptr()) : nullptr;
        if (options.is_valid() && options.type().is(options_class) &&
            nb::getattr(options, device).equal(cpu) &&
            calls->update(kind, options_class, data, options)) {
            return nb::none();
        }
        return otherwise(*args, **more);
    }));
}

// A Python integer as a C++ one; -1 for another object, and for one that is negative or too large.
std::int64_t natural(nb::handle object) {
    if (!PyLong_CheckExact(object.ptr())) return -1;
    int overflow = 0;
    const auto value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    return overflow == 0 && value >= 0 ? value : -1;
}

AnyFunction make_messages(const Shared& calls, nb::object messages, bool is_send, bool from_any,
                          nb::object runner, nb::object finished, AnyFunction pending,
                          AnyFunction hold, AnyFunction otherwise) {
    auto& to_all = nb::cast<Owned<PointToPoint>&>(messages);
    const std::size_t last = from_any ? 1 : 2;
    const nb::str coalesced("coalesced"), outputs("outputs"), source("source");
    return nb::borrow<AnyFunction>(nb::cpp_function([=, &to_all](nb::args args, nb::kwargs more) -> nb::object {
        if (args.size() != last + 1 || more.size() > 0 || !PyList_CheckExact(args[0].ptr()) ||
            PyList_GET_SIZE(args[0].ptr()) != 1 || !nb::getattr(runner, coalesced).is_none()) {
            return otherwise(*args, **more);
        }
        const auto rank = from_any ? kAnySource : natural(args[1]);
        if (rank > std::numeric_limits<std::int32_t>::max() || (rank < 0 && !from_any)) {
            return otherwise(*args, **more);
        }
        const auto peer = static_cast<std::int32_t>(rank);
        const nb::object tensor = nb::borrow(PyList_GET_ITEM(args[0].ptr(), 0));
        std::int64_t bytes = 0;
        const auto ticket = calls->begin(*to_all.operator->(), is_send, tensor, peer,
                                         natural(args[last]), bytes);
        if (!ticket) return otherwise(*args, **more);
        if (ticket->is_done() && ticket->outcome().status == Status::kDone) {
            nb::object work = finished();
            nb::setattr(work, outputs, args[0]);
            if (!is_send) nb::setattr(work, source, nb::int_(ticket->outcome().rank));
            return work;
        }
        keep_alive(*ticket, hold(tensor));
        return pending(ticket, args[0], is_send, bytes, peer, args[last]);
    }));
}

AnyFunction make_function(const Shared& calls, const Kind& kind, nb::object options_class,
                          bool takes_lists, AnyFunction otherwise) {
    if (takes_lists) return make_lists(calls, kind, std::move(options_class), std::move(otherwise));
    const auto make = kind.is_update() ? make_update : make_move;
    return make(calls, kind, std::move(options_class), std::move(otherwise));
}

}  // namespace

void define_tensors(nb::module_& m) {
    nb::class_<TensorCalls>(
        m, "TensorCalls",
        "The ready calls of a rank on tensors. Its functions take what methods of a process group "
        "take, and return None after a synchronous call that was ready; all other calls go to "
        "`otherwise`.")
        .def_static(
            "create",
            [](std::shared_ptr<ReadyCalls> ready, const nb::capsule& exchange, Classes classes,
               std::int32_t rank, std::int32_t ranks, const Types::Rows& moved,
               const Types::Rows& reduced, std::vector<std::int32_t> reductions, Namespace profiler,
               nb::object no_timeout, AnyFunction fail) {
                return std::make_shared<TensorCalls>(
                    std::move(ready), exchange, std::move(classes), rank, ranks, Types(moved),
                    Types(reduced), std::move(reductions), std::move(profiler),
                    std::move(no_timeout), std::move(fail));
            },
            "ready"_a, "exchange"_a, "classes"_a, "rank"_a, "ranks"_a, "moved"_a, "reduced"_a,
            "reductions"_a, "profiler"_a, "no_timeout"_a, "fail"_a,
            "exchange: DLPack's C interface of the framework. classes: of its plain tensors. "
            "moved, reduced: DLPack's code and bits of types whose elements are moved or reduced, "
            "each with the engine's type and the number of `CallKey.element`. reductions: the engine's operation by the hash of the "
            "framework's; -1 for none. profiler: a namespace whose _is_profiler_enabled is true "
            "while calls are profiled. no_timeout: the largest value of a timeout that is none. "
            "fail: raises the error of a call, from its `CallKey` and its report. "
            "ValueError for an unknown version of `exchange`.")
        .def("function", &make_function, "kind"_a, "options_class"_a, "takes_lists"_a,
             "otherwise"_a, "The function for a kind of calls.")
        .def("barrier", &make_barrier, "kind"_a, "options_class"_a, "token"_a, "cpu"_a,
             "otherwise"_a,
             "The function for barriers, which update `token` if their options name the device "
             "`cpu`.")
        .def("messages", &make_messages, "messages"_a, "is_send"_a, "from_any"_a, "runner"_a,
             "finished"_a, "pending"_a, "hold"_a, "otherwise"_a,
             "The function for messages to a rank, from one, or from any. runner: makes no call "
             "ready while its attribute `coalesced` isn't None. finished: the class of a message "
             "that has ended. pending: makes the work object of another one, from its ticket, its "
             "tensors, is_send, its bytes, the other rank and the tag. hold: an object that keeps "
             "a tensor's memory.");
}

}  // namespace sley
