// CUDA's words for an error code.
#include "config.h"

EXPORT const char* error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
