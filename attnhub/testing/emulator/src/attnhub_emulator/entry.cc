// One kernel as a shared library. The macros come from the command line (see build.py):
//   ATTNHUB_HEADER  the file with the kernel
//   ATTNHUB_KERNEL  the kernel, with template arguments; it takes one struct
//   ATTNHUB_FIELDS  FIELD(name) for each member of that struct, and of structs in it
#include "abi.h"

#include ATTNHUB_HEADER

namespace {

template <class T>
T parameter_of(void (*kernel)(T));

using EntryParams = decltype(parameter_of(&ATTNHUB_KERNEL));

// NOTE: the parentheses keep functions of the same name in the struct's namespace out.
void call_kernel(const void* params) {
  (ATTNHUB_KERNEL)(*static_cast<const EntryParams*>(params));
}

}  // namespace

#define FIELD(name) __builtin_offsetof(EntryParams, name),
// The layout that the compiler chose, for Python to compare with its own.
extern "C" const unsigned long long attnhub_params_layout[] = {ATTNHUB_FIELDS sizeof(EntryParams)};
#undef FIELD

extern "C" void attnhub_emulate(const void* params, const attnhub::emulator::Config* config,
                                attnhub::emulator::Report* report) {
  attnhub_emulator_run(call_kernel, params, config, report);
}
