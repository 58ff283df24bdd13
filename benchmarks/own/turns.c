/* Counts how often extension modules release Python's lock, by the line of daskprep that called them.
   Preloaded, it takes the place of the functions that release the lock; Python must have a shared library. */
#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <string.h>

#define SLOTS 65536
static struct { PyObject *code; int line; unsigned long count; } slots[SLOTS]; /* guarded by Python's lock */
static unsigned long total;

static PyFrameObject *caller(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const char *file = PyUnicode_AsUTF8(code->co_filename);
        int ours = file != NULL && strstr(file, "/daskprep/") != NULL;
        Py_DECREF(code);
        if (ours) return frame;
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    return NULL;
}

static void count(void) {
    PyFrameObject *frame = caller();
    total++;
    if (frame == NULL) return;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    int line = PyFrame_GetLineNumber(frame);
    unsigned long slot = (((unsigned long)code >> 4) * 31 + line) % SLOTS;
    while (slots[slot].code != NULL && (slots[slot].code != code || slots[slot].line != line)) slot = (slot + 1) % SLOTS;
    if (slots[slot].code == NULL) {
        Py_INCREF(code);
        slots[slot].code = code;
        slots[slot].line = line;
    }
    slots[slot].count++;
    Py_DECREF(code);
    Py_DECREF(frame);
}

PyThreadState *PyEval_SaveThread(void) {
    static PyThreadState *(*release)(void);
    if (release == NULL) release = (PyThreadState * (*)(void)) dlsym(RTLD_NEXT, "PyEval_SaveThread");
    count();
    return release();
}

PyGILState_STATE PyGILState_Ensure(void) {
    static PyGILState_STATE (*acquire)(void);
    if (acquire == NULL) acquire = (PyGILState_STATE (*)(void)) dlsym(RTLD_NEXT, "PyGILState_Ensure");
    int held = PyGILState_Check();
    PyGILState_STATE state = acquire();
    if (!held) count(); /* a callback of a call that has released the lock */
    return state;
}

unsigned long turns_total(void) { return total; }

PyObject *turns_by_line(void) {
    PyObject *lines = PyList_New(0);
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].code == NULL) continue;
        PyObject *line = Py_BuildValue("(Oik)", slots[i].code, slots[i].line, slots[i].count);
        PyList_Append(lines, line);
        Py_DECREF(line);
    }
    return lines;
}
