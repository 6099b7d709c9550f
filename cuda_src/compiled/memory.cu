// Memory of several devices in one range of addresses: physical memory of each mapped side by side, or managed memory
// that the driver moves. The driver's functions are asked of the runtime, so that nothing links against libcuda.
#include <algorithm>
#include <cuda.h>
#include <vector>

#include "config.h"

// Bytes begin <= b < end of the range, which lie on a device.
struct Part {
    int64_t begin, end;
    int device;
};

// What a range is made of: parts in order and without gaps from 0 on, and the devices that may load and store it.
struct Layout {
    const Part* parts;
    int64_t count;
    const int* devices;
    int device_count;

    int64_t bytes() const { return parts[count - 1].end; }
};

// Codes of the driver are those of the runtime.
static cudaError_t code_of(CUresult result) { return static_cast<cudaError_t>(result); }

template <typename Function>
static cudaError_t find(const char* name, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer));
#else
    CHECK(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &answer));
#endif
    *function = reinterpret_cast<Function>(found);
    return answer == cudaDriverEntryPointSuccess && found != nullptr ? cudaSuccess : cudaErrorNotSupported;
}

struct Driver {
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) free_addresses;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;

    cudaError_t open() {
        CHECK(find("cuMemGetAllocationGranularity", &granularity));
        CHECK(find("cuMemAddressReserve", &reserve));
        CHECK(find("cuMemAddressFree", &free_addresses));
        CHECK(find("cuMemCreate", &create));
        CHECK(find("cuMemRelease", &release));
        CHECK(find("cuMemMap", &map));
        CHECK(find("cuMemUnmap", &unmap));
        return find("cuMemSetAccess", &set_access);
    }
};

static CUmemAllocationProp pinned_on(int device) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

// The device's context exists from here on: mapping for a device asks for it.
static cudaError_t open_devices(const Layout& layout) {
    for (int d = 0; d < layout.device_count; ++d) {
        CHECK(cudaSetDevice(layout.devices[d]));
        CHECK(cudaFree(nullptr));
    }
    return cudaSuccess;
}

static cudaError_t finish_devices(const Layout& layout) {
    for (int d = 0; d < layout.device_count; ++d) {
        CHECK(cudaSetDevice(layout.devices[d]));
        CHECK(cudaDeviceSynchronize());
    }
    return cudaSuccess;
}

// Give the first `mapped` parts and the addresses back; the first error that occurs, but nothing is left out for it.
static cudaError_t unmap_parts(const Driver& driver, const Layout& layout, int64_t mapped, CUdeviceptr base) {
    CUresult failed = CUDA_SUCCESS;
    auto keep = [&](CUresult result) { failed = failed == CUDA_SUCCESS ? result : failed; };
    for (int64_t k = 0; k < mapped; ++k) {
        keep(driver.unmap(base + layout.parts[k].begin, layout.parts[k].end - layout.parts[k].begin));
    }
    keep(driver.free_addresses(base, layout.bytes()));
    return code_of(failed);
}

// Whether every part begins and ends where physical memory of its device can.
static cudaError_t check_granules(const Driver& driver, const Layout& layout, size_t* largest) {
    *largest = 1;
    for (int d = 0; d < layout.device_count; ++d) {
        size_t granule = 0;
        CUmemAllocationProp properties = pinned_on(layout.devices[d]);
        CHECK(code_of(driver.granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
        *largest = std::max(*largest, granule);
    }
    for (int64_t k = 0; k < layout.count; ++k) {
        const Part& part = layout.parts[k];
        if (part.begin % *largest != 0 || part.end % *largest != 0 || part.begin >= part.end) return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

// Physical memory for every part, mapped at its place in one new range of addresses that all devices may use. The
// mapping alone keeps the memory: `unmap_memory` frees it. Nothing is left behind by a call that fails.
EXPORT int map_memory(Queue queue, const Layout* layout, void** address) {
    Driver driver;
    CHECK(driver.open());
    CHECK(open_devices(*layout));
    CHECK(cudaSetDevice(queue.device));
    size_t granule;
    CHECK(check_granules(driver, *layout, &granule));
    CUdeviceptr base = 0;
    CHECK(code_of(driver.reserve(&base, layout->bytes(), granule, 0, 0)));
    CUresult failed = CUDA_SUCCESS;
    int64_t mapped = 0;
    for (; mapped < layout->count; ++mapped) {
        const Part& part = layout->parts[mapped];
        CUmemAllocationProp properties = pinned_on(part.device);
        CUmemGenericAllocationHandle handle;
        failed = driver.create(&handle, part.end - part.begin, &properties, 0);
        if (failed != CUDA_SUCCESS) break;
        failed = driver.map(base + part.begin, part.end - part.begin, 0, handle, 0);
        driver.release(handle);
        if (failed != CUDA_SUCCESS) break;
    }
    if (failed == CUDA_SUCCESS) {
        std::vector<CUmemAccessDesc> access(layout->device_count);
        for (int d = 0; d < layout->device_count; ++d) {
            access[d] = {};
            access[d].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            access[d].location.id = layout->devices[d];
            access[d].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        }
        failed = driver.set_access(base, layout->bytes(), access.data(), access.size());
    }
    if (failed != CUDA_SUCCESS) {
        unmap_parts(driver, *layout, mapped, base);
        return code_of(failed);
    }
    *address = reinterpret_cast<void*>(base);
    return cudaSuccess;
}

// The reverse, once no device uses the range any more; waits for all of them.
EXPORT int unmap_memory(Queue queue, const Layout* layout, void* address) {
    Driver driver;
    CHECK(driver.open());
    CHECK(finish_devices(*layout));
    CHECK(cudaSetDevice(queue.device));
    return unmap_parts(driver, *layout, layout->count, reinterpret_cast<CUdeviceptr>(address));
}

#if CUDART_VERSION >= 13000
static cudaMemLocation place_of(int device) {
    cudaMemLocation location = {};
    location.type = cudaMemLocationTypeDevice;
    location.id = device;
    return location;
}
static cudaError_t prefetch(const void* memory, size_t bytes, int device) {
    return cudaMemPrefetchAsync(memory, bytes, place_of(device), 0, nullptr);
}
#else
static int place_of(int device) { return device; }
static cudaError_t prefetch(const void* memory, size_t bytes, int device) {
    return cudaMemPrefetchAsync(memory, bytes, device, nullptr);
}
#endif

// Each part prefers its device and is brought there; the others reach it where it lies.
static cudaError_t settle_parts(const Layout& layout, char* memory) {
    for (int64_t k = 0; k < layout.count; ++k) {
        const Part& part = layout.parts[k];
        size_t bytes = part.end - part.begin;
        CHECK(cudaMemAdvise(memory + part.begin, bytes, cudaMemAdviseSetPreferredLocation, place_of(part.device)));
        for (int d = 0; d < layout.device_count; ++d) {
            CHECK(cudaMemAdvise(memory + part.begin, bytes, cudaMemAdviseSetAccessedBy, place_of(layout.devices[d])));
        }
        CHECK(cudaSetDevice(part.device));
        CHECK(prefetch(memory + part.begin, bytes, part.device));
    }
    return finish_devices(layout);
}

// Managed memory in one range. Error `not supported` where a device cannot use it while another does.
EXPORT int take_managed_memory(Queue queue, const Layout* layout, void** address) {
    CHECK(open_devices(*layout));
    for (int d = 0; d < layout->device_count; ++d) {
        int concurrent = 0;
        CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, layout->devices[d]));
        if (concurrent == 0) return cudaErrorNotSupported;
    }
    CHECK(cudaSetDevice(queue.device));
    void* memory = nullptr;
    CHECK(cudaMallocManaged(&memory, layout->bytes(), cudaMemAttachGlobal));
    cudaError_t failed = settle_parts(*layout, static_cast<char*>(memory));
    if (failed != cudaSuccess) {
        cudaFree(memory);
        return failed;
    }
    CHECK(cudaSetDevice(queue.device));
    *address = memory;
    return cudaSuccess;
}

EXPORT int free_managed_memory(Queue queue, const Layout* layout, void* address) {
    CHECK(finish_devices(*layout));
    CHECK(cudaSetDevice(queue.device));
    return cudaFree(address);
}
