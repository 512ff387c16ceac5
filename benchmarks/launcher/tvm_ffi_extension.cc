// The same launch through TVM FFI, which converts the arguments.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "launch.h"

static void launch(int64_t config, int64_t kernel, int64_t grid, int64_t stream, int64_t p0,
                   int64_t p1, int64_t p2, int64_t p3, int64_t p4, int64_t p5, int64_t n0,
                   int64_t n1, int64_t n2, int64_t n3, double f0, double f1) {
  Twelve values{{p0, p1, p2, p3, p4, p5},
                {int32_t(n0), int32_t(n1), int32_t(n2), int32_t(n3)},
                {float(f0), float(f1)}};
  const int status = launch_twelve(reinterpret_cast<void*>(config),
                                   reinterpret_cast<void*>(kernel), uint32_t(grid), stream,
                                   &values);
  if (status) TVM_FFI_THROW(RuntimeError) << "cuLaunchKernelEx returned " << status;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, launch);
