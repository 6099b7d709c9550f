// A call of this library recorded once as a CUDA graph and replayed: one submission in place of one a kernel and memset.
#include "config.h"

// From now on what is queued on *stream, which is made for it, is recorded and does not run.
EXPORT int begin_recording(int device, cudaStream_t* stream) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    cudaError_t begun = cudaStreamBeginCapture(*stream, cudaStreamCaptureModeRelaxed);
    if (begun != cudaSuccess) cudaStreamDestroy(*stream);
    return begun;
}

// The stream is gone afterwards, whatever is returned.
EXPORT int end_recording(Queue recording, cudaGraphExec_t* recorded) {
    CHECK(cudaSetDevice(recording.device));
    cudaGraph_t graph = nullptr;
    cudaError_t ended = cudaStreamEndCapture(recording.stream, &graph);
    if (ended == cudaSuccess) ended = cudaGraphInstantiateWithFlags(recorded, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaStreamDestroy(recording.stream);
    return ended;
}

EXPORT int replay(Queue queue, cudaGraphExec_t recorded) {
    CHECK(cudaSetDevice(queue.device));
    return cudaGraphLaunch(recorded, queue.stream);
}

EXPORT int forget_recording(int device, cudaGraphExec_t recorded) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaDeviceSynchronize());  // It may still run.
    return cudaGraphExecDestroy(recorded);
}
