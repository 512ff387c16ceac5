// One kernel as a shared library. The macros come from the command line (see build.py):
//   ATTNHUB_HEADER   the kernel's header       ATTNHUB_KERNEL  the kernel, with template arguments
//   ATTNHUB_PARAMS   its one parameter's type  ATTNHUB_FIELDS  FIELD(name) for each of its members
#include "abi.h"

#include ATTNHUB_HEADER

namespace {

using Params = ATTNHUB_PARAMS;

void call_kernel(const void* params) { ATTNHUB_KERNEL(*static_cast<const Params*>(params)); }

}  // namespace

#define FIELD(name) __builtin_offsetof(Params, name),
// The layout that the compiler chose, for Python to compare with its own.
extern "C" const unsigned long long attnhub_params_layout[] = {ATTNHUB_FIELDS sizeof(Params)};
#undef FIELD

extern "C" void attnhub_emulate(const void* params, const attnhub::emulator::Config* config,
                                attnhub::emulator::Report* report) {
  attnhub_emulator_run(call_kernel, params, config, report);
}
