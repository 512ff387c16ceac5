// A libcuda without a GPU: it writes down what it is asked and answers as a test tells it to. It is
// compiled against CUDA's own header, so it reads every struct as the real driver would.
#include <cuda.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

// A context, a library or a kernel is a number in disguise.
template <class Handle>
Handle handle(size_t number) {
  return reinterpret_cast<Handle>(number);
}

std::recursive_mutex lock;
std::string journal;
std::map<std::string, int> settings;  // what a test sets
std::map<std::pair<int, int>, int> attributes;  // (attribute, device) -> value
thread_local std::vector<CUcontext> contexts;

void write(const char* text) {
  const std::lock_guard<std::recursive_mutex> guard(lock);
  journal += std::string(text) + "\n";
}

template <class... Values>
void write(const char* format, Values... values) {
  char line[512];
  std::snprintf(line, sizeof(line), format, values...);
  write(line);
}

int setting(const std::string& name, int otherwise) {
  const auto found = settings.find(name);
  return found == settings.end() ? otherwise : found->second;
}

// What a function returns: what the test has set under its name.
CUresult result(const char* function) { return CUresult(setting(function, CUDA_SUCCESS)); }

std::string hex(const void* data, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<const unsigned char*>(data)[i]);
    text += two;
  }
  return text;
}

}  // namespace

extern "C" {

const char* fake_journal() { return journal.c_str(); }

void fake_set(const char* name, int value) { settings[name] = value; }

CUresult cuDriverGetVersion(int* version) {
  *version = setting("version", 13000);
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) {
  write("init %u", flags);
  return result("cuInit");
}

CUresult cuDeviceGetCount(int* count) {
  *count = setting("devices", 1);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE         ? "CUDA_ERROR_INVALID_VALUE"
          : error == CUDA_ERROR_NO_BINARY_FOR_GPU   ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : error == CUDA_ERROR_INVALID_CONTEXT     ? "CUDA_ERROR_INVALID_CONTEXT"
          : error == CUDA_ERROR_NOT_FOUND           ? "CUDA_ERROR_NOT_FOUND"
                                                    : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448 : -1;
  return CUDA_SUCCESS;
}

#ifndef FAKE_IS_OLD
CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned num_options, CUlibraryOption*, void**,
                           unsigned num_library_options) {
  write("load %.7s %u %u", static_cast<const char*>(code), num_options, num_library_options);
  *library = handle<CUlibrary>(0x1111111100);
  return result("cuLibraryLoadData");
}
#endif

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  write("kernel %zx %s", size_t(library), name);
  *kernel = handle<CUkernel>(0x2222222200);
  return result("cuLibraryGetKernel");
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  write("function %zx in %zx", size_t(kernel), size_t(contexts.empty() ? 0 : contexts.back()));
  *function = handle<CUfunction>(0x3333333300);
  return result("cuKernelGetFunction");
}

#ifndef FAKE_HAS_NO_PARAM_INFO
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  write("parameter %zu in %zx", index, size_t(contexts.empty() ? 0 : contexts.back()));
  *offset = 0;
  *size = setting("parameter size", 0);
  return result("cuKernelGetParamInfo");
}
#endif

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel,
                              CUdevice device) {
  const std::lock_guard<std::recursive_mutex> guard(lock);
  const auto found = attributes.find({attribute, device});
  *value = found != attributes.end()                                         ? found->second
           : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK            ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES                ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES    ? 49152 - 1024
                                                                             : 0;
  return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  const std::lock_guard<std::recursive_mutex> guard(lock);
  write("set %d to %d for %zx on %d", attribute, value, size_t(kernel), device);
  attributes[{attribute, device}] = value;
  return result("cuKernelSetAttribute");
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction function, int block,
                                                     size_t smem) {
  write("occupancy of %zx with %d and %zu in %zx", size_t(function), block, smem,
        size_t(contexts.empty() ? 0 : contexts.back()));
  *count = 3;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (device >= setting("devices", 1)) return CUDA_ERROR_INVALID_DEVICE;
  write("retain %d", device);
  *context = handle<CUcontext>(0x4444444400 + device);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  write("push %zx", size_t(context));
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = CUdevice(size_t(contexts.back()) - 0x4444444400);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  const size_t context = size_t(contexts.empty() ? 0 : contexts.back());
  if (config->hStream == nullptr && context == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (setting("cuLaunchKernelEx", 0)) return result("cuLaunchKernelEx");
  std::string line;
  char part[256];
  std::snprintf(part, sizeof(part), "launch %zx grid %u %u %u block %u %u %u", size_t(function),
                config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                config->blockDimY, config->blockDimZ);
  line += part;
  std::snprintf(part, sizeof(part), " smem %u stream %zx in %zx", config->sharedMemBytes,
                size_t(config->hStream), context);
  line += part;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& cluster = attribute.value.clusterDim;
      std::snprintf(part, sizeof(part), " cluster %u %u %u", cluster.x, cluster.y, cluster.z);
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      std::snprintf(part, sizeof(part), " pdl %d",
                    attribute.value.programmaticStreamSerializationAllowed);
    } else {
      std::snprintf(part, sizeof(part), " attribute %d", attribute.id);
    }
    line += part;
  }
  line += " with " + hex(parameters[0], setting("parameter size", 0));
  for (int i = 1; i < setting("parameters", 1); ++i) {
    line += " " + hex(parameters[i], setting("parameter size", 0));
  }
  line += extra == nullptr && size_t(parameters[0]) % 64 == 0 ? "" : " badly";
  write(line.c_str());
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dim, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  write("map of type %d at %zx, aligned %d", type, size_t(address), size_t(map) % 64 == 0);
  for (unsigned i = 0; i < rank; ++i) {
    write("  %llu by %llu, box %u, step %u", (unsigned long long)(dim[i]),
          (unsigned long long)(i ? strides[i - 1] : 0), box[i], element_strides[i]);
  }
  write("  interleave %d, swizzle %d, promotion %d, fill %d", interleave, swizzle, promotion, fill);
  for (unsigned i = 0; i < sizeof(*map); ++i) reinterpret_cast<unsigned char*>(map)[i] = i;
  return result("cuTensorMapEncodeTiled");
}

}  // extern "C"
