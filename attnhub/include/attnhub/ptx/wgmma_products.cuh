// Made by tests/emulator/make_wgmma.py: change that, not this.
//
// wgmma_smem: d (+)= A B with both operands in shared memory; wgmma_registers: A in registers. T is
// Half or Bf16, kA and kB say which dimension is contiguous. Without `adds`, d is overwritten.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// clang-format off

#define ATTNHUB_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define ATTNHUB_VALUES_64 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31])
#define ATTNHUB_WGMMA_SMEM_64(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_64 "}, %32, %33, p, 1, 1, %35, %36; }" \
               : ATTNHUB_VALUES_64 \
               : "l"(a), "l"(b), "r"(int(adds)), \
                 "n"(int(kA == Major::kMn)), "n"(int(kB == Major::kMn)))
#define ATTNHUB_WGMMA_REGISTERS_64(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; " \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }" \
               : ATTNHUB_VALUES_64 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), \
                 "n"(int(kB == Major::kMn)))

#define ATTNHUB_NAMES_96 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define ATTNHUB_VALUES_96 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define ATTNHUB_WGMMA_SMEM_96(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %50, 0; " \
               "wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_96 "}, %48, %49, p, 1, 1, %51, %52; }" \
               : ATTNHUB_VALUES_96 \
               : "l"(a), "l"(b), "r"(int(adds)), \
                 "n"(int(kA == Major::kMn)), "n"(int(kB == Major::kMn)))
#define ATTNHUB_WGMMA_REGISTERS_96(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %53, 0; " \
               "wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_96 "}, {%48, %49, %50, %51}, %52, p, 1, 1, %54; }" \
               : ATTNHUB_VALUES_96 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), \
                 "n"(int(kB == Major::kMn)))

#define ATTNHUB_NAMES_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define ATTNHUB_VALUES_128 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
  "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
  "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define ATTNHUB_WGMMA_SMEM_128(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; " \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_128 "}, %64, %65, p, 1, 1, %67, %68; }" \
               : ATTNHUB_VALUES_128 \
               : "l"(a), "l"(b), "r"(int(adds)), \
                 "n"(int(kA == Major::kMn)), "n"(int(kB == Major::kMn)))
#define ATTNHUB_WGMMA_REGISTERS_128(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; " \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_128 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70; }" \
               : ATTNHUB_VALUES_128 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), \
                 "n"(int(kB == Major::kMn)))

#define ATTNHUB_NAMES_192 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define ATTNHUB_VALUES_192 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
  "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
  "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), \
  "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
  "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
  "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), \
  "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define ATTNHUB_WGMMA_SMEM_192(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %98, 0; " \
               "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_192 "}, %96, %97, p, 1, 1, %99, %100; }" \
               : ATTNHUB_VALUES_192 \
               : "l"(a), "l"(b), "r"(int(adds)), \
                 "n"(int(kA == Major::kMn)), "n"(int(kB == Major::kMn)))
#define ATTNHUB_WGMMA_REGISTERS_192(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %101, 0; " \
               "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_192 "}, {%96, %97, %98, %99}, %100, p, 1, 1, %102; }" \
               : ATTNHUB_VALUES_192 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), \
                 "n"(int(kB == Major::kMn)))

#define ATTNHUB_NAMES_256 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define ATTNHUB_VALUES_256 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
  "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
  "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), \
  "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
  "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
  "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), \
  "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), \
  "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), \
  "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), \
  "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), \
  "+f"(d[126]), "+f"(d[127])
#define ATTNHUB_WGMMA_SMEM_256(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; " \
               "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_256 "}, %128, %129, p, 1, 1, %131, %132; }" \
               : ATTNHUB_VALUES_256 \
               : "l"(a), "l"(b), "r"(int(adds)), \
                 "n"(int(kA == Major::kMn)), "n"(int(kB == Major::kMn)))
#define ATTNHUB_WGMMA_REGISTERS_256(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; " \
               "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" \
               ATTNHUB_NAMES_256 "}, {%128, %129, %130, %131}, %132, p, 1, 1, %134; }" \
               : ATTNHUB_VALUES_256 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)), \
                 "n"(int(kB == Major::kMn)))

template <class T, int kN, Major kA, Major kB>
ATTNHUB_DEVICE void wgmma_smem(float (&d)[kN / 2], u64 a, u64 b, bool adds) {
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
  static_assert(kN == 64 || kN == 96 || kN == 128 || kN == 192 || kN == 256,
                "no product of this width: add it to make_wgmma.py");
#ifdef ATTNHUB_EMULATOR
  emulator::wgmma(d, nullptr, a, b,
                  {kN, kA == Major::kMn, kB == Major::kMn, adds, kIsSame<T, Bf16>});
#else
  if constexpr (kN == 64 && kIsSame<T, Half>) ATTNHUB_WGMMA_SMEM_64("f16");
  if constexpr (kN == 64 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_SMEM_64("bf16");
  if constexpr (kN == 96 && kIsSame<T, Half>) ATTNHUB_WGMMA_SMEM_96("f16");
  if constexpr (kN == 96 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_SMEM_96("bf16");
  if constexpr (kN == 128 && kIsSame<T, Half>) ATTNHUB_WGMMA_SMEM_128("f16");
  if constexpr (kN == 128 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_SMEM_128("bf16");
  if constexpr (kN == 192 && kIsSame<T, Half>) ATTNHUB_WGMMA_SMEM_192("f16");
  if constexpr (kN == 192 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_SMEM_192("bf16");
  if constexpr (kN == 256 && kIsSame<T, Half>) ATTNHUB_WGMMA_SMEM_256("f16");
  if constexpr (kN == 256 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_SMEM_256("bf16");
#endif
}

template <class T, int kN, Major kB>
ATTNHUB_DEVICE void wgmma_registers(float (&d)[kN / 2], const u32 (&a)[4], u64 b, bool adds) {
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
  static_assert(kN == 64 || kN == 96 || kN == 128 || kN == 192 || kN == 256,
                "no product of this width: add it to make_wgmma.py");
#ifdef ATTNHUB_EMULATOR
  emulator::wgmma(d, a, 0, b,
                  {kN, false, kB == Major::kMn, adds, kIsSame<T, Bf16>});
#else
  if constexpr (kN == 64 && kIsSame<T, Half>) ATTNHUB_WGMMA_REGISTERS_64("f16");
  if constexpr (kN == 64 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_REGISTERS_64("bf16");
  if constexpr (kN == 96 && kIsSame<T, Half>) ATTNHUB_WGMMA_REGISTERS_96("f16");
  if constexpr (kN == 96 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_REGISTERS_96("bf16");
  if constexpr (kN == 128 && kIsSame<T, Half>) ATTNHUB_WGMMA_REGISTERS_128("f16");
  if constexpr (kN == 128 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_REGISTERS_128("bf16");
  if constexpr (kN == 192 && kIsSame<T, Half>) ATTNHUB_WGMMA_REGISTERS_192("f16");
  if constexpr (kN == 192 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_REGISTERS_192("bf16");
  if constexpr (kN == 256 && kIsSame<T, Half>) ATTNHUB_WGMMA_REGISTERS_256("f16");
  if constexpr (kN == 256 && kIsSame<T, Bf16>) ATTNHUB_WGMMA_REGISTERS_256("bf16");
#endif
}

}  // namespace attnhub::ptx
