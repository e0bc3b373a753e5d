#include "devices/threads_device.hpp"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "devices/deferred_free.hpp"
#include "devices/refusal.hpp"
#include "fabric/control.hpp"
#include "fabric/segment.hpp"

namespace sley {

// Tasks of a thread, which starts with the first one. The thread outlives its owner until all are
// done, and nobody joins it: the last owner may go in a task of its own, or while Python ends.
class ThreadsStream : public std::enable_shared_from_this<ThreadsStream> {
public:
    const std::uint64_t number = [] {
        static std::atomic<std::uint64_t> made{0};
        return ++made;
    }();

    // Sanitizers of programs that load this, which isn't compiled with them, see locks, but no counts
    // of owners. So the last owner locks, and `stream` makes no memory that a weak owner frees.
    ~ThreadsStream() { const std::lock_guard<std::mutex> held(lock_); }

    // Returns the number of tasks so far.
    std::uint64_t add(std::function<void()> task) {
        const std::lock_guard<std::mutex> held(lock_);
        if (added_ == 0) std::thread([self = shared_from_this()] { self->run(); }).detach();
        tasks_.push_back(std::move(task));
        changed_.notify_all();
        return ++added_;
    }

    std::uint64_t added() {
        const std::lock_guard<std::mutex> held(lock_);
        return added_;
    }

    bool is_done(std::uint64_t tasks) {
        const std::lock_guard<std::mutex> held(lock_);
        return done_ >= tasks;
    }

    // Waits until so many tasks are done; false if the caller is interrupted.
    bool wait(std::uint64_t tasks) {
        std::unique_lock<std::mutex> held(lock_);
        while (!changed_.wait_for(held, kLookInterval, [&] { return done_ >= tasks; })) {
            held.unlock();
            if (is_interrupted && is_interrupted()) return false;
            held.lock();
        }
        return true;
    }

    // The first problem of a task since it was last asked for.
    std::exception_ptr problem() {
        const std::lock_guard<std::mutex> held(lock_);
        return std::exchange(problem_, nullptr);
    }

    void close() {
        const std::lock_guard<std::mutex> held(lock_);
        is_closed_ = true;
        changed_.notify_all();
    }

private:
    void run() {
        std::unique_lock<std::mutex> held(lock_);
        for (;;) {
            changed_.wait(held, [this] { return is_closed_ || !tasks_.empty(); });
            if (tasks_.empty()) return;
            auto task = std::move(tasks_.front());
            tasks_.pop_front();
            held.unlock();
            std::exception_ptr problem;
            try {
                task();
            } catch (...) {
                problem = std::current_exception();
            }
            task = nullptr;  // what it keeps goes before anyone is told
            held.lock();
            if (problem_ == nullptr) problem_ = problem;
            ++done_;
            changed_.notify_all();
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    std::exception_ptr problem_;
    std::uint64_t added_ = 0, done_ = 0;
    bool is_closed_ = false;
};

namespace {

using Kernel = int (*)(const void* call, int blocks);

// Where an event was last recorded: behind so many tasks of a stream.
struct Point {
    std::shared_ptr<ThreadsStream> stream;
    std::uint64_t tasks = 0;
};

// A thread may wait for an event while another records it, as with the driver's.
std::mutex g_points;

ThreadsStream& stream_at(Device::Stream stream) {
    return *reinterpret_cast<ThreadsStream*>(stream);
}

Point point_at(Device::Event event) {
    const std::lock_guard<std::mutex> held(g_points);
    return *reinterpret_cast<Point*>(event);
}

Resource memory(std::size_t bytes, bool shared) {
    try {
        const auto made = Segment::sparse(bytes, shared);
        return {reinterpret_cast<std::uintptr_t>(made->at(0, bytes)), made};
    } catch (const std::system_error& problem) {
        throw Refusal("K507", std::to_string(bytes) + " bytes", problem.what());
    }
}

}  // namespace

// Not shared, since that takes a descriptor, and a communicator has a hundred pieces of memory.
Resource ThreadsDevice::allocate(std::size_t bytes) { return memory(bytes, false); }

Resource ThreadsDevice::allocate_shared(std::size_t bytes) { return memory(bytes, true); }

int ThreadsDevice::export_memory(const Resource& memory) const {
    return fcntl(static_cast<const Segment*>(memory.owner.get())->fd(), F_DUPFD_CLOEXEC, 0);
}

void ThreadsDevice::write(std::uintptr_t to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(reinterpret_cast<void*>(to), from, bytes);  // an empty table is null
}

void ThreadsDevice::read(void* to, std::uintptr_t from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
}

Resource ThreadsDevice::attach(int descriptor, std::size_t bytes) {
    try {
        const auto made = Segment::attach(descriptor, bytes);
        // Whoever reads behind the end of a file gets a signal.
        if (made->size() < bytes) {
            throw std::system_error(EINVAL, std::generic_category(), "a file's end");
        }
        return {reinterpret_cast<std::uintptr_t>(made->data()), made};
    } catch (const std::system_error& problem) {
        throw Refusal("K514", "memory of another process", problem.what());
    }
}

std::uintptr_t ThreadsDevice::function(const std::string& path, const std::string& name) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void* found = library == nullptr ? nullptr : dlsym(library, name.c_str());
    if (found == nullptr) throw std::invalid_argument(dlerror());
    return reinterpret_cast<std::uintptr_t>(found);
}

Resource ThreadsDevice::stream() {
    const std::shared_ptr<ThreadsStream> made(new ThreadsStream);
    const std::lock_guard<std::mutex> held(lock_);
    const auto is_gone = [](const auto& each) { return each.expired(); };
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(), is_gone), streams_.end());
    streams_.push_back(made);
    return {reinterpret_cast<std::uintptr_t>(made.get()),
            {nullptr, [made](void*) { made->close(); }}};
}

void ThreadsDevice::synchronize(std::optional<Stream> stream) const {
    std::vector<std::shared_ptr<ThreadsStream>> waited;
    if (stream) {
        waited.push_back(stream_at(*stream).shared_from_this());
    } else {
        const std::lock_guard<std::mutex> held(lock_);
        for (const auto& each : streams_) {
            if (auto locked = each.lock()) waited.push_back(std::move(locked));
        }
    }
    for (const auto& each : waited) {
        if (!each->wait(each->added())) throw Interrupted{};
    }
    free_released();
    for (const auto& each : waited) {
        if (const auto problem = each->problem()) std::rethrow_exception(problem);
    }
}

Resource ThreadsDevice::event() const {
    const auto made = std::make_shared<Point>();
    return {reinterpret_cast<std::uintptr_t>(made.get()), made};
}

StreamState ThreadsDevice::look(Stream stream, std::optional<std::uint64_t>) const {
    return {stream_at(stream).number};
}

void ThreadsDevice::wait(Stream stream, Event event, bool) const {
    stream_at(stream).add([point = point_at(event)] { point.stream->wait(point.tasks); });
}

void ThreadsDevice::record(Event event, Stream stream, bool) const {
    auto& own = stream_at(stream);
    Point point{own.shared_from_this(), own.added()};
    const std::lock_guard<std::mutex> held(g_points);
    std::swap(*reinterpret_cast<Point*>(event), point);  // what was there goes without the lock
}

bool ThreadsDevice::is_done(Event event) const {
    const auto point = point_at(event);
    return point.stream == nullptr || point.stream->is_done(point.tasks);
}

void ThreadsDevice::join(Event event) const {
    const auto point = point_at(event);
    if (point.stream == nullptr) return;
    if (!point.stream->wait(point.tasks)) throw Interrupted{};
    if (const auto problem = point.stream->problem()) std::rethrow_exception(problem);
}

void ThreadsDevice::launch(const Launch& launch, Stream stream) const {
    const auto kernel = reinterpret_cast<Kernel>(launch.function);
    stream_at(stream).add([kernel, call = launch.call, blocks = launch.blocks, keeps = launch.keeps] {
        const int started = kernel(call.data(), static_cast<int>(blocks));
        if (started < static_cast<int>(blocks)) throw TooFewThreads(blocks, started);
    });
}

}  // namespace sley
