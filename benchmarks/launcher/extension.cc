// The same launch as a small extension of CPython: launch(config, kernel, grid, stream, 12 values).
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "launch.h"

static PyObject* launch(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 16) return PyErr_Format(PyExc_TypeError, "%zd arguments, 16 wanted", count);
  int64_t head[4];
  Twelve values;
  for (int i = 0; i < 4; ++i) head[i] = PyLong_AsLongLong(arguments[i]);
  for (int i = 0; i < 6; ++i) values.pointers[i] = PyLong_AsLongLong(arguments[4 + i]);
  for (int i = 0; i < 4; ++i) values.counts[i] = int32_t(PyLong_AsLong(arguments[10 + i]));
  for (int i = 0; i < 2; ++i) values.factors[i] = float(PyFloat_AsDouble(arguments[14 + i]));
  if (PyErr_Occurred()) return nullptr;
  const int status = launch_twelve(reinterpret_cast<void*>(head[0]),
                                   reinterpret_cast<void*>(head[1]), uint32_t(head[2]), head[3],
                                   &values);
  if (status) return PyErr_Format(PyExc_RuntimeError, "cuLaunchKernelEx returned %d", status);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"launch", reinterpret_cast<PyCFunction>(launch), METH_FASTCALL, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "launch_extension", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_launch_extension() { return PyModule_Create(&module); }
