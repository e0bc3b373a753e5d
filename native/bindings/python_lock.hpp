// Python's lock, released or taken for a time.
//
// While the interpreter ends, no thread gets the lock. From Python 3.14 on, a thread that asks for
// it then hangs for the rest of the process; before, Python unwinds the thread's stack, which ends
// the process at the first C++ function that must not throw. So such threads hang here, too.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace sley {

inline bool is_python_ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

template <class Take>
auto take_python_lock(const Take& take) {
    try {
        return take();
    } catch (...) {  // the unwinding
        for (;;) pause();
    }
}

class Unlocked {
public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() {
        take_python_lock([this] { PyEval_RestoreThread(state_); });
    }

private:
    PyThreadState* state_;
};

class Locked {
public:
    Locked() : state_(take_python_lock([] { return PyGILState_Ensure(); })) {}
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked() { PyGILState_Release(state_); }

private:
    PyGILState_STATE state_;
};

}  // namespace sley
