// Python's lock, released or taken for a time.
//
// While the interpreter ends, no thread gets the lock. From Python 3.14 on, a thread that asks for
// it then hangs for the rest of the process; before, Python unwinds the thread's stack, which ends
// the process at the first C++ function that must not throw. So such threads hang here, too. A
// thread that Python doesn't know hangs before it asks: Python would make it a state in an
// interpreter that may be gone, which ends Python 3.14 with a segmentation fault.
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

[[noreturn]] inline void hang() {
    for (;;) pause();
}

template <class Take>
auto take_python_lock(const Take& take) {
    try {
        return take();
    } catch (...) {  // the unwinding
        hang();
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
    Locked() : state_(take_python_lock([] {
        if (is_python_ending() && PyGILState_GetThisThreadState() == nullptr) hang();
        return PyGILState_Ensure();
    })) {}
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked() { PyGILState_Release(state_); }

private:
    PyGILState_STATE state_;
};

}  // namespace sley
