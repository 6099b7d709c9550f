// A call of this library recorded once as a CUDA graph and replayed: one submission in place of one a kernel and memset.
#include "config.h"

// An error of a recording is the caller's to deal with, not that of the next launch that asks for the last one.
static int forgotten(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

// From now on what is queued on *stream, which is made for it, is recorded and does not run. Relaxed, so that nothing
// that another thread does meanwhile is forbidden; what this thread queues allocates nothing and waits for nothing.
EXPORT int begin_recording(int device, cudaStream_t* stream) {
    CHECK(cudaSetDevice(device));
    cudaError_t begun = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    if (begun != cudaSuccess) return forgotten(begun);
    begun = cudaStreamBeginCapture(*stream, cudaStreamCaptureModeRelaxed);
    if (begun != cudaSuccess) cudaStreamDestroy(*stream);
    return forgotten(begun);
}

// failed: the error of the call that was recorded. The stream is gone afterwards, whatever is returned.
EXPORT int end_recording(Queue recording, int failed, cudaGraphExec_t* recorded) {
    CHECK(cudaSetDevice(recording.device));
    cudaGraph_t graph = nullptr;
    cudaError_t ended = cudaStreamEndCapture(recording.stream, &graph);
    if (failed) ended = static_cast<cudaError_t>(failed);
    if (ended == cudaSuccess) ended = cudaGraphInstantiateWithFlags(recorded, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaStreamDestroy(recording.stream);
    return forgotten(ended);
}

// cudaErrorStreamCaptureUnsupported if the stream is being recorded itself: nothing has been queued then.
EXPORT int replay(Queue queue, cudaGraphExec_t recorded) {
    CHECK(cudaSetDevice(queue.device));
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(queue.stream, &status));
    if (status != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnsupported;
    return cudaGraphLaunch(recorded, queue.stream);
}

// It may still run: CUDA frees it then when it has.
EXPORT int forget_recording(int device, cudaGraphExec_t recorded) {
    CHECK(cudaSetDevice(device));
    return cudaGraphExecDestroy(recorded);
}
