/* Stands in for libnvidia-ml.so.1: two GPUs, whose answers are lines of the file NVML_STAND_IN names:
 * gpu, field, scope, value type, return code, value. Fields from 1000 on are clock, reasons, pid, free, P2P index 0, PCIe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, CLOCK = 1000, REASONS, PID, FREE, PEER, PCIE };
typedef unsigned long long u64;
typedef struct { unsigned field, scope; long long time, latency; unsigned type, code; u64 value; } Value;

static int find(void *gpu, Value *value) {
    Value line; u64 number; int found = 0;
    FILE *file = fopen(getenv("NVML_STAND_IN"), "r");
    value->code = NOT_SUPPORTED;
    while (fscanf(file, "%llu %u %u %u %u %llu", &number, &line.field, &line.scope, &line.type, &line.code, &line.value) == 6)
        if (number == (u64)gpu - 1 && line.field == value->field && line.scope == value->scope && ++found)
            value->type = line.type, value->code = line.code, value->value = line.value;
    fclose(file);
    return found;
}
static int single(void *gpu, unsigned field, void *target, size_t size) {
    Value value = {.field = field};
    find(gpu, &value);
    memcpy(target, &value.value, size);
    return value.code;
}
int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "stand-in"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = (void *)(u64)(index + 1); return OK; }
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) { snprintf(text, size, "GPU-%llu", (u64)gpu - 1); return OK; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) { snprintf(text, size, "Stand-in"); return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
    *gpu = (void *)(strtoull(uuid + 4, NULL, 10) + 1);
    return (u64)*gpu <= 2 ? OK : NOT_FOUND;
}
int nvmlDeviceGetFieldValues(void *gpu, int count, Value *values) {
    for (int i = 0; i < count; ++i) find(gpu, values + i);
    return OK;
}
int nvmlDeviceGetClockInfo(void *gpu, unsigned kind, unsigned *clock) { return single(gpu, CLOCK, clock, sizeof *clock); }
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, u64 *mask) { return single(gpu, REASONS, mask, sizeof *mask); }
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, char *rows) {
    Value value = {.field = PID};
    unsigned room = *count, found = *count = find(gpu, &value);
    for (unsigned i = 0; i < found && i < room; ++i) memset(rows + 24 * i, 0, 24), memcpy(rows + 24 * i, &value.value, 4);
    return room < found ? TOO_SMALL : OK;
}
int nvmlDeviceGetPcieThroughput(void *gpu, unsigned kind, unsigned *rate) { return single(gpu, PCIE, rate, sizeof *rate); }
int nvmlDeviceGetMemoryInfo(void *gpu, u64 *memory) { memory[0] = 1ull << 37; return single(gpu, FREE, memory + 1, 8); }
int nvmlDeviceGetP2PStatus(void *gpu, void *other, unsigned kind, unsigned *status) {
    return single(gpu, PEER, status, sizeof *status) || kind ? NOT_SUPPORTED : OK;
}
