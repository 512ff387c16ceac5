// kernel 'scale' for sm_90a, rendered by attnhub VERSION from tests.jit.demo:templates/scale.cu.jinja
// entry: scale_bf16
// flags: --fmad=false
// headers: tests.jit.demo:include
// context: Scale
//   dtype = '__nv_bfloat16'
//   unroll = 4
//   factor = 0.5
//   uses_bf16 = True

#include <cuda_bf16.h>
#include <demo/scale.cuh>

extern "C" __global__ void scale_bf16(const __grid_constant__ demo::Params<__nv_bfloat16> p) {
  demo::scale<__nv_bfloat16, 4>(p, 0.5f);
}
